//! The machine as a cell drives it: [`transition`], or a mutant of it where a run asks for a defect
//! on purpose.

use ringcat_engine::canary::{self, Canary};

use crate::async_state_machine::{
    AsyncState, Effects, Event, Flag, IllegalState, Side, Word, transition,
};

/// Applies an event to a word.
pub(super) fn step(word: Word, event: Event) -> Result<(Word, Effects), IllegalState> {
    use AsyncState as S;
    let state = word.state();
    if canary::has(Canary::PendingTakenForMust)
        && state == S::Starting
        && event == Event::Complete(Side::Other)
    {
        return transition(word, Event::Complete(Side::Request));
    }
    if canary::has(Canary::OperationUnseen) && state == S::Started && event == Event::Operation {
        return Ok((word, Effects::NONE));
    }
    if canary::has(Canary::ErrorMarkLasts)
        && event == Event::AsyncStart
        && word.has(Flag::ErrorMarked)
    {
        return transition(word, event).map(|(to, effects)| (to.with(Flag::ErrorMarked), effects));
    }
    transition(word, event)
}
