//! Clients that speak HTTP/1.1, patient ones and impatient ones, and what they check of each
//! answer. A client knows why a connection may break under it; anything else is a finding.

use std::{collections::VecDeque, fmt::Write as _, io, time::Duration};

use ringcat_engine::sim::{
    fault::Fault,
    network::ClientSocket,
    world::{self, chance, draw, draw_len, hits},
};

use crate::{
    answer::{Answer, AnswerReader, Progress},
    checkers::Seen,
    plan::{End, Kind, Mix, Plan, extend_tagged},
    run::{Moment, Record, run},
};

/// Longer than anything that a healthy server does, its timeouts apart.
const PATIENCE: Duration = Duration::from_secs(150);

/// How many requests a client sends before it waits for answers, at most.
const DEPTH_MAX: u64 = 12;

/// And rarely so many: more than one turn answers.
const DEPTH_LARGE_MAX: u64 = 160;

/// Longer than the server waits for the rest of a head or content, and for the next request.
const REST_TIMEOUT: Duration = Duration::from_secs(25);
const NEXT_TIMEOUT: Duration = Duration::from_secs(65);

/// A client's share of the load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) requests: u64,
    pub(crate) mix: Mix,
}

/// Sends its share over as many connections as that takes.
pub(crate) fn run_client(load: Load) {
    let mut left = load.requests;
    while left > 0 && !world_has_ended() {
        let Ok(socket) = ClientSocket::connect() else { return };
        let mut connection = Connection::new(socket);
        connection.run(&mut left, load.mix);
    }
}

fn world_has_ended() -> bool {
    run().is_draining()
}

/// One connection of a client.
struct Connection {
    socket: Option<ClientSocket>,
    reader: AnswerReader,
    /// Asked and not answered, oldest first.
    asked: VecDeque<u64>,
    outgoing: Vec<u8>,
    sent: usize,
    /// Content that waits for the server's word.
    held: Vec<u8>,
    /// Where each request of the outgoing bytes ends.
    ends: Vec<usize>,
    /// The sending side ends here.
    cut_at: Option<usize>,
    /// Something that the client did, after which the connection may break at any time.
    excuse: Option<&'static str>,
    last_answered: Option<u64>,
    is_half_closed: bool,
    is_sending_over: bool,
}

/// What becomes of a connection.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    Over,
}

impl Connection {
    fn new(socket: ClientSocket) -> Self {
        Self {
            socket: Some(socket),
            reader: AnswerReader::default(),
            asked: VecDeque::new(),
            outgoing: Vec::new(),
            sent: 0,
            held: Vec::new(),
            ends: Vec::new(),
            cut_at: None,
            excuse: None,
            last_answered: None,
            is_half_closed: false,
            is_sending_over: false,
        }
    }

    fn run(&mut self, left: &mut u64, mix: Mix) {
        loop {
            let depth = match () {
                () if chance(3) => draw(1, DEPTH_LARGE_MAX).min(*left),
                () if chance(96) => draw(1, DEPTH_MAX).min(*left),
                () => 1,
            };
            for _ in 0..depth {
                let is_alone = depth == 1;
                self.ask(mix, is_alone && chance(4), is_alone && chance(24));
            }
            *left -= depth;
            if self.exchange() == Next::Over || *left == 0 || self.is_half_closed || chance(4) {
                break;
            }
            if chance(32) {
                world::sleep(Duration::from_micros(draw(1, 20_000)));
            }
        }
        self.give_up("the client is done");
    }

    /// Puts a request into the outgoing bytes.
    fn ask(&mut self, mix: Mix, closes: bool, expects_continue: bool) {
        let plan = Plan { closes, ..Plan::draw(mix) };
        let plan = Plan { expects_continue: expects_continue && plan.is_post(), ..plan };
        let window = self.socket.as_ref().map_or(0, ClientSocket::window_bytes);
        let number = run().add(plan, window);
        self.asked.push_back(number);
        self.held = write_request(number, &plan, &mut self.outgoing);
        self.ends.push(self.outgoing.len() + self.held.len());
        world::record("asks", number, self.outgoing.len() as u64);
    }

    /// Sends what is outgoing and takes answers until all are there.
    fn exchange(&mut self) -> Next {
        for number in &self.asked {
            run().see(&Seen::Asked { number: *number });
        }
        if let Some(first) = self.asked.front() {
            run().change(*first, |record| record.first_since = Some(Moment::now()));
        }
        if self.held.is_empty() && hits(Fault::ClientGarbage) {
            self.excuse = Some("garbage was sent");
            self.outgoing.extend_from_slice(GARBAGE[draw_len(0, GARBAGE.len() - 1)]);
        }
        if hits(Fault::ClientCuts) {
            self.cut();
        }
        let resets_at = hits(Fault::ClientResets).then(|| draw_len(0, self.outgoing.len()));
        let silent_at = hits(Fault::ClientSilent).then(|| draw_len(0, self.outgoing.len()));
        loop {
            if resets_at.is_some_and(|at| self.sent >= at) && chance(128) {
                return self.reset();
            }
            if silent_at.is_some_and(|at| self.sent >= at) && self.excuse.is_none() {
                self.excuse = Some("the client was silent");
                self.excuse_all();
                let silence = Duration::from_millis(draw(1, 90_000));
                let arrived = self.socket.as_ref().map(ClientSocket::arrived_bytes);
                world::sleep(silence);
                self.check_patience(silence, arrived);
            }
            // Before it looks what can be done: what happens meanwhile must not be missed.
            let is_slow = hits(Fault::ClientSlow);
            if is_slow {
                world::sleep(Duration::from_micros(draw(1, 30_000)));
            }
            let has_sent = self.send_some(silent_at.or(resets_at));
            match self.receive_some(is_slow) {
                Ok(Next::Over) => return Next::Over,
                Ok(Next::GoOn) if self.asked.is_empty() && self.is_all_sent() => {
                    self.outgoing.clear();
                    self.ends.clear();
                    self.sent = 0;
                    return Next::GoOn;
                }
                Ok(Next::GoOn) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !has_sent && let Err(error) = self.wait() {
                        return self.broken(&error);
                    }
                }
                Err(error) => return self.broken(&error),
            }
        }
    }

    /// Ends the outgoing bytes somewhere. Requests that are whole by then want their answers.
    fn cut(&mut self) {
        let at = draw_len(1, self.outgoing.len());
        self.outgoing.truncate(at);
        self.held.clear();
        self.cut_at = Some(at);
        self.is_half_closed = true;
        for (number, end) in self.asked.iter().zip(&self.ends) {
            if *end > at {
                run().change(*number, |record| record.is_excused = true);
            }
        }
    }

    /// Whether the server has given up on a client that was silent for so long in the middle of
    /// the only thing that it waits for.
    fn check_patience(&self, silence: Duration, arrived: Option<u64>) {
        let Some(socket) = &self.socket else { return };
        let [number] = self.asked.iter().copied().collect::<Vec<_>>()[..] else { return };
        let limit = if self.sent == 0 { NEXT_TIMEOUT } else { REST_TIMEOUT };
        let is_waited_for =
            !self.is_all_sent() && matches!(run().plan(number).kind, Kind::Plain | Kind::Missing);
        let is_told = socket.is_ended() || Some(socket.arrived_bytes()) > arrived;
        if is_waited_for && silence > limit && !is_told {
            world::fail(format!("the server still waits for request {number} after {silence:?}"));
        }
    }

    fn is_all_sent(&self) -> bool {
        self.sent == self.outgoing.len()
    }

    /// Sends what fits; whether that was something.
    fn send_some(&mut self, stop_at: Option<usize>) -> bool {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.is_sending_over) else {
            return false;
        };
        let end = match stop_at {
            Some(at) if self.sent < at => at,
            _ => self.outgoing.len(),
        };
        let rest = &self.outgoing[self.sent..end];
        if rest.is_empty() {
            return false;
        }
        let most = if hits(Fault::ClientPieces) { draw_len(1, rest.len()) } else { rest.len() };
        let Ok(count) = socket.try_send(&rest[..most]) else {
            // What arrived before the reset can be read all the same.
            self.is_sending_over = true;
            return false;
        };
        self.sent += count;
        let is_cut = self.cut_at == Some(self.sent);
        let may_end = self.held.is_empty() && hits(Fault::ClientHalfCloses);
        if self.is_all_sent() && (is_cut || may_end) {
            self.is_half_closed = true;
            socket.shut_down_write();
            for number in &self.asked {
                run().change(*number, |record| record.half_closed_at = Some(Moment::now()));
            }
        }
        count > 0
    }

    /// Takes what is there; `WouldBlock` if nothing is.
    fn receive_some(&mut self, is_slow: bool) -> io::Result<Next> {
        let Some(socket) = &self.socket else { return Ok(Next::Over) };
        let limit = if is_slow { draw_len(1, 2000) } else { 64 * 1024 };
        let window = self.reader.window();
        let received = socket.try_receive(window, limit);
        let is_end = match received {
            None => return Err(io::ErrorKind::WouldBlock.into()),
            Some(result) => result? == 0,
        };
        while let Some(number) = self.asked.front().copied() {
            run().change(number, |record| {
                record.first_since.get_or_insert_with(Moment::now);
            });
            let progress = self.reader.advance(number, &run().plan(number), is_end);
            run().change(number, |record| record.received_bytes = self.reader.content_bytes());
            match progress {
                Progress::Continue => {
                    let held = std::mem::take(&mut self.held);
                    self.outgoing.extend_from_slice(&held);
                }
                Progress::Incomplete if is_end => return Ok(self.ended()),
                Progress::Incomplete => return Ok(Next::GoOn),
                Progress::Broken(why) => {
                    world::fail(format!("the answer to request {number} is broken: {why}"));
                    return Ok(Next::Over);
                }
                Progress::Whole(answer) => {
                    self.asked.pop_front();
                    self.check(number, &answer);
                    if answer.closes {
                        self.excuse_rest();
                        return Ok(self.over("the server closes"));
                    }
                }
            }
        }
        if is_end {
            return Ok(self.ended());
        }
        if self.reader.has_rest() && self.excuse.is_none() {
            world::fail(format!("an answer that nobody asked for: {:?}", self.reader.rest()));
            return Ok(Next::Over);
        }
        Ok(Next::GoOn)
    }

    fn wait(&self) -> io::Result<()> {
        match &self.socket {
            Some(socket) => socket.wait(PATIENCE),
            None => Ok(()),
        }
    }

    /// The server ended its sending side.
    fn ended(&mut self) -> Next {
        self.over("the server closed the connection")
    }

    /// The connection failed.
    fn broken(&mut self, error: &io::Error) -> Next {
        if error.kind() == io::ErrorKind::TimedOut {
            return self.over("nothing came for longer than the client waits");
        }
        self.over("the connection was reset")
    }

    fn over(&mut self, why: &str) -> Next {
        self.give_up(why);
        Next::Over
    }

    fn reset(&mut self) -> Next {
        if chance(128) {
            // By then what it asked for is parked, if it is ever.
            world::sleep(Duration::from_micros(draw(1, 700_000)));
        }
        self.excuse = Some("the client reset the connection");
        self.excuse_all();
        for number in &self.asked {
            run().change(*number, |record| record.reset_at = Some(Moment::now()));
        }
        if let Some(socket) = self.socket.take() {
            socket.reset();
        }
        self.over("the client reset the connection")
    }

    /// Nothing more comes: what was asked and not answered is noted with the reason.
    fn give_up(&mut self, why: &str) {
        self.socket = None;
        // It may have failed after its answer was whole; its connection closes all the same.
        // And the reset that answers what is still sent then may destroy answers before it.
        let mut concerned = self.last_answered.iter().chain(&self.asked);
        if concerned.any(|number| run().record(*number).may_be_in_error()) {
            self.excuse.get_or_insert("the connection of a request that failed may close");
        }
        for (place, number) in std::mem::take(&mut self.asked).into_iter().enumerate() {
            let record = run().record(number);
            let is_excused = self.excuse.is_some()
                || record.is_excused
                || run().is_draining()
                || place == 0 && (record.has_failed || record.has_timed_out)
                || place == 0 && record.plan.end.may_fail() && record.round > 0;
            run().change(number, |record| record.is_excused = true);
            let why = format!("{why} ({})", self.reader.progress());
            run().see(&Seen::Unanswered { number, why: &why, is_excused });
            if place == 0 && is_excused {
                // What came behind a request that broke the connection shares its fate.
                self.excuse.get_or_insert("an answer was given up in the middle");
            }
        }
    }

    fn excuse_all(&self) {
        for number in &self.asked {
            run().change(*number, |record| record.is_excused = true);
        }
    }

    /// Who came behind an answer that closes is not answered.
    fn excuse_rest(&mut self) {
        self.excuse.get_or_insert("the server said that it closes");
    }

    /// What the fields of an answer say: whose it is, and whether more may be asked.
    fn check_fields(&self, number: u64, answer: &Answer, record: &Record) {
        let plan = &record.plan;
        let is_strange = answer.extra.is_some_and(|extra| extra != number || !plan.has_extra);
        let is_own = answer.status == 200
            && answer.content_bytes == plan.answer_bytes
            && !plan.may_be_cut()
            && !plan.end.may_be_short();
        let lacks_name = is_own && answer.named != Some(number) && !plan.is_head;
        let lacks_extra = is_own && plan.has_extra && answer.extra.is_none() && !plan.is_head;
        // A final answer in place of 100 ends the connection, since the content stays away.
        let must_close = plan.closes || plan.expects_continue && !self.held.is_empty();
        let goes_on = must_close && !answer.closes && !run().is_draining();
        if is_strange || lacks_name || lacks_extra || goes_on {
            world::fail(format!("the fields of the answer are wrong: {answer:?}, {record:?}"));
        }
    }

    fn check(&mut self, number: u64, answer: &Answer) {
        let record = run().record(number);
        run().change(number, |record| record.is_answered = true);
        let (status, named) = (answer.status, answer.named);
        run().see(&Seen::Answered { number, named, status });
        self.last_answered = Some(number);
        let plan = &record.plan;
        self.check_fields(number, answer, &record);
        let is_expected = match status {
            200 if plan.kind == Kind::Missing => false,
            200 if plan.is_head => true,
            200 => is_right_content(number, plan, answer, &record),
            404 => plan.kind == Kind::Missing,
            500 => {
                let is_async_failure =
                    plan.end.may_fail() || plan.end.fails_after_start() || plan.is_impolite;
                // A drain times a future out that did not say yet who is to be told.
                let is_cut_short = plan.kind == Kind::Future && run().is_draining();
                record.has_failed
                    || record.has_timed_out
                    || is_async_failure && record.round > 0
                    || is_cut_short && record.round == 0
            }
            503 => record.may_be_refused(),
            400..=599 => self.excuse.is_some() || record.is_excused,
            _ => false,
        };
        if !is_expected {
            world::fail(format!(
                "request {number} got {status} with {} bytes: {plan:?}, {record:?}",
                answer.content_bytes
            ));
        }
    }
}

/// Whether an answer of status 200 has the content that its plan says.
fn is_right_content(number: u64, plan: &Plan, answer: &Answer, record: &Record) -> bool {
    if matches!(plan.kind, Kind::Async | Kind::Future) && plan.end.must_fail() && !plan.may_be_cut()
    {
        return false;
    }
    let is_whole = answer.content_bytes == plan.answer_bytes;
    // Whoever completed first may have done so before the writer, or without one.
    let is_late = matches!(plan.kind, Kind::Async | Kind::Blocking) && plan.end == End::Handle;
    let may_be_short = (plan.may_be_cut() || plan.end.may_be_short()) && record.round > 0
        || is_late
        || record.has_failed
        || record.has_timed_out;
    if !is_whole && !may_be_short {
        world::record("short answer", number, answer.content_bytes as u64);
    }
    is_whole || may_be_short && answer.content_bytes <= plan.answer_bytes
}

/// Writes a request; what comes back is content to be held back.
fn write_request(number: u64, plan: &Plan, out: &mut Vec<u8>) -> Vec<u8> {
    let method = match () {
        () if plan.is_head => "HEAD",
        () if plan.is_post() => "POST",
        () => "GET",
    };
    let mut head = String::with_capacity(96);
    // Writing to a string does not fail.
    let _ = write!(head, "{method} {} HTTP/1.1\r\nHost: a\r\n", plan.target(number));
    if plan.closes {
        head.push_str("Connection: close\r\n");
    }
    if !plan.is_post() {
        head.push_str("\r\n");
        out.extend_from_slice(head.as_bytes());
        return Vec::new();
    }
    if plan.expects_continue {
        head.push_str("Expect: 100-continue\r\n");
    }
    if plan.is_upload_chunked {
        head.push_str("Transfer-Encoding: chunked\r\n\r\n");
    } else {
        let _ = write!(head, "Content-Length: {}\r\n\r\n", plan.upload_bytes);
    }
    out.extend_from_slice(head.as_bytes());
    let mut held = Vec::new();
    write_content(number, plan, if plan.expects_continue { &mut held } else { out });
    held
}

fn write_content(number: u64, plan: &Plan, out: &mut Vec<u8>) {
    if !plan.is_upload_chunked {
        extend_tagged(out, number, true, 0, plan.upload_bytes);
        return;
    }
    let mut offset = 0;
    while offset < plan.upload_bytes {
        let len = plan.piece_bytes().clamp(1, 5000).min(plan.upload_bytes - offset);
        // Writing to a vector does not fail.
        let _ = io::Write::write_fmt(out, format_args!("{len:x}\r\n"));
        extend_tagged(out, number, true, offset, len);
        out.extend_from_slice(b"\r\n");
        offset += len;
    }
    out.extend_from_slice(b"0\r\n\r\n");
}

/// What is no request.
const GARBAGE: &[&[u8]] = &[
    b"\0\0\0\0\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET /plain/x HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    b"GET /plain/x HTTP/1.1\r\nHost a\r\n\r\n",
    b"POST /plain/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /plain/x HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
];
