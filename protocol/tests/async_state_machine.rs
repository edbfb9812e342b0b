//! Every cell of the state machine's table against the table written out a second time, and the
//! scenarios of `data/machine_scenarios.json`, which were observed on the reference.
#![allow(clippy::unwrap_used, reason = "a test")]

use ringcat_protocol::async_state_machine::{
    AsyncState, Effects, Event, Flag, Outcome, Side, Word, transition,
};
use serde_json::{Map, Value};

const SIDES: [Side; 2] = [Side::Request, Side::Other];

/// One row a state. Columns: async_start, complete (request), complete (other), dispatch (request),
/// dispatch (other), dispatched, post_process, post_process with a write pending, timeout, first
/// error, error once more, operation, run. A cell is a state (`=` unchanged, `-` illegal)
/// and letters: W wake, L long, E async end, H error handling, O on_complete, F on_timeout, C
/// clears listeners, P posts an error event if from other, + and - the count, X refused,
/// S submits.
const TABLE: &str = "
DISPATCHED       STARTING/+ - - - - - - - = ERROR/CP+ =/C - -
STARTING         - MUST_COMPLETE/C COMPLETE_PENDING MUST_DISPATCH/C DISPATCH_PENDING - \
                 STARTED/L STARTED/L - MUST_ERROR/CP MUST_ERROR/CP - =/S
STARTED          - COMPLETING/WC COMPLETING/WC DISPATCHING/WC DISPATCHING/WC - \
                 =/L =/L TIMING_OUT/F ERROR/CP =/C READ_WRITE_OP =/S
MUST_COMPLETE    - - - - - - DISPATCHED/OE- =/L - ERROR/CP =/C - -
COMPLETE_PENDING - - - - - - COMPLETING/EC COMPLETING/EC - ERROR/CP =/C - -
COMPLETING       - - - - - - DISPATCHED/OE- =/L = ERROR/CP =/C =/X -
TIMING_OUT       - COMPLETING/C COMPLETING/C DISPATCHING/C DISPATCHING/C - \
                 - - - ERROR/CP =/C - -
MUST_DISPATCH    - - - - - DISPATCHED/- DISPATCHING/E DISPATCHING/E - ERROR/CP =/C - -
DISPATCH_PENDING - - - - - - DISPATCHING/EC DISPATCHING/EC - ERROR/CP =/C - -
DISPATCHING      - - - - - DISPATCHED/- DISPATCHED/OE- =/L = ERROR/CP =/C =/X -
READ_WRITE_OP    - COMPLETING/C COMPLETE_PENDING DISPATCHING/C DISPATCH_PENDING - \
                 STARTED/L STARTED/L - ERROR/CP =/C - =/S
MUST_ERROR       - MUST_COMPLETE/C MUST_COMPLETE/C MUST_DISPATCH/C MUST_DISPATCH/C - \
                 ERROR/H ERROR/H - ERROR/CP =/C - -
ERROR            - COMPLETING/C COMPLETING/C DISPATCHING/C DISPATCHING/C - - - - =/CP =/C - -
";

fn state(name: &str) -> AsyncState {
    let found = AsyncState::ALL.into_iter().find(|state| state.to_string() == name);
    found.unwrap_or_else(|| panic!("no state {name}"))
}

fn word(state: AsyncState) -> Word {
    Word::NEW.with_state(state)
}

fn post_process(drained: bool, io_allowed: bool) -> Event {
    Event::PostProcess { drained, io_allowed }
}

/// The column of an event, whether marked or not.
fn column(event: Event, is_marked: bool) -> Option<usize> {
    Some(match event {
        Event::AsyncStart => 0,
        Event::Complete(Side::Request) => 1,
        Event::Complete(Side::Other) => 2,
        Event::Dispatch(Side::Request) => 3,
        Event::Dispatch(Side::Other) => 4,
        Event::Dispatched => 5,
        Event::PostProcess { drained: false, io_allowed: true } => 7,
        Event::PostProcess { .. } => 6,
        Event::Timeout => 8,
        Event::Error(_) => 9 + usize::from(is_marked),
        Event::Operation => 11,
        Event::Run => 12,
        Event::Recycle => return None,
    })
}

fn events() -> Vec<Event> {
    let mut all = vec![
        Event::AsyncStart,
        Event::Dispatched,
        Event::Timeout,
        Event::Operation,
        Event::Run,
        Event::Recycle,
    ];
    for side in SIDES {
        all.extend([Event::Complete(side), Event::Dispatch(side), Event::Error(side)]);
        let is_first = side == Side::Request;
        all.extend([post_process(is_first, true), post_process(is_first, false)]);
    }
    all
}

fn effects(letters: &str, event: Event) -> Effects {
    let mut effects = Effects::NONE;
    for letter in letters.chars() {
        match letter {
            'W' => effects.wake = true,
            'L' => effects.outcome = Some(Outcome::Long),
            'E' => effects.outcome = Some(Outcome::AsyncEnd),
            'H' => effects.outcome = Some(Outcome::ErrorHandling),
            'O' => effects.on_complete = true,
            'F' => effects.fire_on_timeout = true,
            'C' => effects.clears_listeners = true,
            'P' => effects.post_error_event = event == Event::Error(Side::Other),
            '+' => effects.in_progress = 1,
            '-' => effects.in_progress = -1,
            'X' => effects.refused = true,
            'S' => effects.submits = true,
            other => panic!("no letter {other}"),
        }
    }
    effects
}

/// The marks that the machine itself sets or forgets.
fn expected_word(before: Word, to: AsyncState, event: Event) -> Word {
    let after = before.with_state(to);
    match event {
        Event::AsyncStart => {
            let flags =
                [Flag::ErrorMarked, Flag::DispatchUsed, Flag::OthersBarred, Flag::FailedBeforeExit];
            let cleared = flags.into_iter().fold(after, Word::without);
            Word::from_bits(cleared.to_bits() + (1 << 32))
        }
        Event::Dispatch(_) => after.with(Flag::DispatchUsed),
        Event::Error(_) if before.state() == AsyncState::Starting => {
            after.with(Flag::FailedBeforeExit)
        }
        Event::Error(_) => after.with(Flag::ErrorMarked),
        _ => after,
    }
}

fn check(before: Word, event: Event, cell: &str) {
    let result = transition(before, event);
    let what = format!("{before:?} {event:?}");
    if cell == "-" {
        let refused = result.expect_err(&what);
        assert_eq!((refused.state, refused.event), (before.state(), event), "{what}");
        return;
    }
    let (to, letters) = cell.split_once('/').unwrap_or((cell, ""));
    let to = if to == "=" { before.state() } else { state(to) };
    let expected = (expected_word(before, to, event), effects(letters, event));
    assert_eq!(result.expect(&what), expected, "{what}");
}

#[test]
fn every_cell_of_the_table() {
    let rows: Vec<Vec<&str>> =
        TABLE.trim().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), AsyncState::ALL.len());
    for row in rows {
        assert_eq!(row.len(), 14, "{row:?}");
        let state = state(row[0]);
        for event in events() {
            // A flag of the layers round the machine stays as it is.
            for extra in [None, Some(Flag::Queued), Some(Flag::Committed)] {
                let plain = extra.map_or(word(state), |flag| word(state).with(flag));
                for before in [plain, plain.with(Flag::ErrorMarked)] {
                    let is_marked = before.has(Flag::ErrorMarked);
                    match column(event, is_marked) {
                        Some(column) => check(before, event, row[1 + column]),
                        None => {
                            let recycled = (Word::NEW, Effects::NONE);
                            assert_eq!(transition(before, event), Ok(recycled));
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn closed_forbids_everything() {
    for state in AsyncState::ALL {
        for event in events() {
            check(word(state).with(Flag::Closed), event, "-");
        }
    }
}

#[test]
fn after_on_error_others_are_barred_for_the_rest_of_the_round() {
    for state in AsyncState::ALL {
        let barred = word(state).with(Flag::OthersBarred);
        check(barred, Event::Complete(Side::Other), "-");
        check(barred, Event::Dispatch(Side::Other), "-");
        for event in [Event::Complete(Side::Request), Event::Dispatch(Side::Request)] {
            let is_legal = transition(word(state), event).is_ok();
            assert_eq!(transition(barred, event).is_ok(), is_legal, "{state} {event}");
        }
    }
    let (next, _) =
        transition(word(AsyncState::Dispatched).with(Flag::OthersBarred), Event::AsyncStart)
            .unwrap();
    assert!(transition(next, Event::Complete(Side::Other)).is_ok());
}

#[test]
fn one_dispatch_a_round() {
    for state in AsyncState::ALL {
        let used = word(state).with(Flag::DispatchUsed);
        for side in SIDES {
            check(used, Event::Dispatch(side), "-");
            let event = Event::Complete(side);
            assert_eq!(transition(used, event).is_ok(), transition(word(state), event).is_ok());
        }
    }
    // The target of the round's dispatch fails: its error handling may complete, not dispatch.
    let failed = run_events(&[
        Event::AsyncStart,
        Event::Dispatch(Side::Other),
        post_process(true, true),
        Event::Dispatched,
        Event::Error(Side::Request),
    ]);
    check(failed, Event::Dispatch(Side::Request), "-");
    check(failed, Event::Complete(Side::Request), "COMPLETING/C");
}

#[test]
fn marks_end_with_their_round() {
    let failed = run_events(&[
        Event::AsyncStart,
        post_process(true, true),
        Event::Error(Side::Other),
        Event::Dispatch(Side::Request),
        Event::Dispatched,
    ]);
    assert!(failed.has(Flag::ErrorMarked) && failed.has(Flag::DispatchUsed));
    let (second, _) = transition(failed, Event::AsyncStart).unwrap();
    assert_eq!((second.state(), second.round()), (AsyncState::Starting, 2));
    let (parked, _) = transition(second, post_process(true, true)).unwrap();
    check(parked, Event::Error(Side::Other), "ERROR/CP");
    check(parked, Event::Dispatch(Side::Other), "DISPATCHING/WC");
}

#[test]
fn the_round_wraps_and_touches_no_neighbour() {
    let last = Word::from_bits(u64::from(u32::MAX) << 32).with(Flag::Busy);
    let (next, _) = transition(last, Event::AsyncStart).unwrap();
    assert_eq!(next, word(AsyncState::Starting).with(Flag::Busy));
}

#[test]
fn texts() {
    let refused = transition(word(AsyncState::Completing), Event::Complete(Side::Request));
    let text = refused.unwrap_err().to_string();
    assert_eq!(text, "complete is illegal in asynchronous state COMPLETING");
    assert_eq!(format!("{:?}", word(AsyncState::MustError)), "MUST_ERROR round 0 flags 0x0");
}

fn run_events(events: &[Event]) -> Word {
    events.iter().fold(Word::NEW, |word, &event| transition(word, event).unwrap().0)
}

// The scenarios.

/// The values of an object whose keys must all be known.
fn fields<'a>(value: &'a Value, known: &[&str]) -> &'a Map<String, Value> {
    let map = value.as_object().unwrap_or_else(|| panic!("no object: {value}"));
    for key in map.keys() {
        assert!(known.contains(&key.as_str()), "unknown key {key} in {value}");
    }
    map
}

fn side(name: Option<&Value>) -> Side {
    match name.and_then(Value::as_str) {
        Some("request") | None => Side::Request,
        Some("other") => Side::Other,
        Some(name) => panic!("no side {name}"),
    }
}

fn event(name: &Value, side: Side, post: Event) -> Event {
    match name.as_str().unwrap() {
        "async_start" => Event::AsyncStart,
        "complete" => Event::Complete(side),
        "dispatch" => Event::Dispatch(side),
        "dispatched" => Event::Dispatched,
        "post_process" => post,
        "timeout" => Event::Timeout,
        "error" => Event::Error(side),
        "operation" => Event::Operation,
        "run" => Event::Run,
        "recycle" => Event::Recycle,
        name => panic!("no event {name}"),
    }
}

/// Compares what the scenario states about a transition that is legal.
fn check_result(before: Word, after: Word, effects: Effects, key: &str, wanted: &Value) {
    let is = |value: bool| assert_eq!(wanted, &Value::Bool(value));
    match key {
        "to" => assert_eq!(after.state().to_string(), wanted.as_str().unwrap()),
        "returns" => match wanted {
            Value::Bool(is_notified) => assert_eq!(*is_notified, !effects.refused),
            name => {
                let outcome = match name.as_str().unwrap() {
                    "LONG" => Outcome::Long,
                    "ASYNC_END" => Outcome::AsyncEnd,
                    "ERROR_HANDLING" => Outcome::ErrorHandling,
                    name => panic!("no outcome {name}"),
                };
                assert_eq!(effects.outcome, Some(outcome));
            }
        },
        "fires" => assert_eq!((wanted.as_str(), effects.on_complete), (Some("onComplete"), true)),
        "wake" => is(effects.wake),
        "fire_onTimeout" => is(effects.fire_on_timeout),
        "post_error_event" => is(effects.post_error_event),
        "clears_nb_listeners" => is(effects.clears_listeners),
        "submits" => is(effects.submits),
        "in_progress" => assert_eq!(wanted.as_i64().unwrap(), i64::from(effects.in_progress)),
        "generation" => {
            assert_eq!(wanted.as_u64().unwrap(), u64::from(after.round() - before.round()));
        }
        _ => panic!("unknown key {key}"),
    }
}

fn check_transition(state: AsyncState, scenario: &Value) {
    let Value::Object(map) = scenario else { panic!("no object: {scenario}") };
    let is_set = |key: &str| map.get(key) == Some(&Value::Bool(true));
    let mut before = word(state);
    if is_set("already_processed") {
        before = before.with(Flag::ErrorMarked);
    }
    let post = post_process(!is_set("pending"), !is_set("io_forbidden"));
    let event = event(&map["event"], side(map.get("side")), post);
    let result = transition(before, event);
    if is_set("illegal") {
        fields(scenario, &["event", "side", "pending", "io_forbidden", "illegal"]);
        assert!(result.is_err(), "{state}: {scenario}");
        return;
    }
    let (after, effects) = result.unwrap_or_else(|e| panic!("{e}: {scenario}"));
    // Effects that a scenario leaves out are absent.
    assert!(effects.on_complete == map.contains_key("fires"), "{state}: {scenario}");
    assert!(!effects.wake || map.contains_key("wake"), "{state}: {scenario}");
    assert!(
        effects.clears_listeners == map.contains_key("clears_nb_listeners"),
        "{state}: {scenario}"
    );
    assert!(effects.in_progress == 0 || map.contains_key("in_progress"), "{state}: {scenario}");
    for (key, wanted) in map {
        match key.as_str() {
            "event" | "side" | "pending" | "io_forbidden" | "already_processed" => {}
            key => check_result(before, after, effects, key, wanted),
        }
    }
}

fn check_sequence(state: AsyncState, scenario: &Value) {
    let map = fields(scenario, &["events", "state", "in_progress", "generation"]);
    let (mut word, mut in_progress) = (word(state), 0);
    for entry in map["events"].as_array().unwrap() {
        let event = event(&entry[0], side(entry.get(1)), post_process(true, true));
        let (next, effects) = transition(word, event).unwrap();
        word = next;
        in_progress += i64::from(effects.in_progress);
    }
    assert_eq!(word.state().to_string(), map["state"].as_str().unwrap(), "{scenario}");
    if let Some(wanted) = map.get("in_progress") {
        assert_eq!(wanted.as_i64().unwrap(), in_progress, "{scenario}");
    }
    if let Some(wanted) = map.get("generation") {
        assert_eq!(wanted.as_u64().unwrap(), u64::from(word.round()), "{scenario}");
    }
}

fn check_flags(state: AsyncState, flags: &Value) {
    let names = ["async", "started", "completing", "dispatching"];
    let answers =
        [state.is_async(), state.is_started(), state.is_completing(), state.is_dispatching()];
    let map = fields(flags, &names);
    for (name, answer) in names.into_iter().zip(answers) {
        assert_eq!(map[name], Value::Bool(answer), "{state} {name}");
    }
}

#[test]
fn scenarios() {
    let text = include_str!("data/machine_scenarios.json");
    let all: Vec<Value> = serde_json::from_str(text).unwrap();
    assert_eq!(all.len(), 15);
    for scenario in &all {
        let map = fields(scenario, &["id", "title", "note", "setup", "expect"]);
        let setup = fields(&map["setup"], &["state"]);
        let state = state(setup["state"].as_str().unwrap());
        for (key, value) in fields(&map["expect"], &["flags", "transitions", "sequences"]) {
            match key.as_str() {
                "flags" => check_flags(state, value),
                "transitions" => {
                    value.as_array().unwrap().iter().for_each(|it| check_transition(state, it));
                }
                "sequences" => {
                    value.as_array().unwrap().iter().for_each(|it| check_sequence(state, it));
                }
                key => panic!("unknown key {key}"),
            }
        }
    }
}
