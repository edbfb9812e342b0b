//! A toy protocol with several streams on one connection, built on the same table, cells and
//! messages as HTTP/1.1. A line `1 start` begins a stream, which parks; other threads write to it
//! and end it; what it sends carries its number. It shows that everything above the poller names
//! an exchange by its key, and never by its connection.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "foreign threads are what is tested")]

#[path = "support/mod.rs"]
mod support;

use std::{collections::HashMap, sync::Mutex, time::Duration};

use ringcat_engine::{
    connection_handler::{ConnectionHandler, SocketEvent, SocketState},
    core_context::{CoreContext, CoreMessage, CoreSeat, CoreTimeouts},
    current::ExchangeName,
    key::ConnKey,
    sync::Arc,
};
use ringcat_protocol::{
    async_cell::{AsyncCell, CallError, CellLimits, Doorbell, Look, Operation, Took, WriteRefused},
    async_state_machine::{AsyncState, Event, Outcome},
    exchange_key::ExchangeKey,
    exchange_table::ExchangeTable,
    message::{InboxDoorbell, Message},
};

use crate::support::Driver;

const TIMEOUT: Duration = Duration::from_millis(100);

type Cx = CoreContext<Message<()>>;
type Cell = Arc<AsyncCell<Text>>;

/// Text that a stream sends.
#[derive(Debug)]
struct Text(&'static str);

impl Operation for Text {
    fn credit_bytes(&self) -> usize {
        self.0.len()
    }
}

/// What runs a stream.
struct Stream {
    number: String,
    cell: Cell,
}

struct ToyHandler {
    table: ExchangeTable<Stream>,
    /// The streams of each connection, by the connection's attachment.
    streams: HashMap<u64, Vec<ExchangeKey>>,
    doorbell: Arc<dyn Doorbell>,
    /// The cells of the streams, for the application's threads.
    cells: Arc<Mutex<HashMap<String, Cell>>>,
}

impl ToyHandler {
    fn new(seat: &CoreSeat<Message<()>>, cells: Arc<Mutex<HashMap<String, Cell>>>) -> Self {
        Self {
            table: ExchangeTable::default(),
            streams: HashMap::new(),
            doorbell: Arc::new(InboxDoorbell::new(seat.id, Arc::clone(&seat.inbox))),
            cells,
        }
    }

    fn start(&mut self, cx: &mut Cx, conn: ConnKey, number: &str) {
        let (doorbell, core) = (Arc::clone(&self.doorbell), cx.id());
        // The key is known once the entry is there; nobody sees the placeholder's.
        let placeholder = ExchangeKey { slot: u32::MAX, stamp: u32::MAX };
        let cell_of = |key: ExchangeKey| {
            let name = ExchangeName { core, key: key.to_u64() };
            Arc::new(AsyncCell::new(name, key, Arc::clone(&doorbell), CellLimits::default()))
        };
        let stream = Stream { number: number.to_owned(), cell: cell_of(placeholder) };
        let key = self.table.open(conn, stream);
        let cell = cell_of(key);
        cell.call(Some(Event::AsyncStart), None, Look::Never).unwrap();
        cell.call(Some(LEAVE), None, Look::Never).unwrap();
        self.table.processor_mut(key).unwrap().cell = Arc::clone(&cell);
        self.cells.lock().unwrap().insert(number.to_owned(), cell);
        self.streams.entry(attachment(conn)).or_default().push(key);
        let deadline = cx.now() + TIMEOUT;
        self.table.park(cx, key, Some(deadline));
    }

    /// Goes on with a stream: applies what others asked for, and ends it if they said so.
    fn look(&mut self, cx: &mut Cx, key: ExchangeKey) {
        let Some(conn) = self.table.connection(key) else { return };
        let Some(stream) = self.table.detach(key) else { return };
        let Took::Taken { mut word, operations } = stream.cell.take() else {
            self.table.attach(key, stream);
            return;
        };
        for Text(text) in operations {
            say(cx, conn, &stream.number, text);
            stream.cell.release_credit(text.len());
        }
        while word.state() != AsyncState::Dispatched {
            let effects = stream.cell.advance(word, LEAVE).unwrap();
            if effects.outcome != Some(Outcome::AsyncEnd) {
                self.table.attach(key, stream);
                cx.settle(conn, SocketState::Long);
                return;
            }
            word = stream.cell.word();
        }
        say(cx, conn, &stream.number, "end");
        self.end(cx, key, &stream);
        cx.settle(conn, SocketState::Long);
    }

    fn end(&mut self, cx: &mut Cx, key: ExchangeKey, stream: &Stream) {
        stream.cell.close().unwrap();
        self.table.close(cx, key);
        self.streams.values_mut().for_each(|keys| keys.retain(|other| *other != key));
    }

    fn close_all(&mut self, cx: &mut Cx, attachment: u64) {
        for key in self.streams.remove(&attachment).unwrap_or_default() {
            let stream = self.table.detach(key).unwrap();
            self.end(cx, key, &stream);
        }
    }
}

const LEAVE: Event = Event::PostProcess { drained: true, io_allowed: true };

fn attachment(conn: ConnKey) -> u64 {
    u64::from(conn.slot)
}

fn say(cx: &mut Cx, conn: ConnKey, number: &str, text: &str) {
    let socket = cx.socket_mut(conn).unwrap();
    socket.out.tail().extend_from_slice(format!("{number} {text}\n").as_bytes());
}

impl ConnectionHandler for ToyHandler {
    type Message = Message<()>;

    fn process(&mut self, cx: &mut Cx, conn: ConnKey, event: SocketEvent) -> SocketState {
        let socket = cx.socket_mut(conn).unwrap();
        socket.attachment = Some(attachment(conn));
        if event != SocketEvent::OpenRead || socket.is_eof() {
            return SocketState::Closed;
        }
        while let Some(socket) = cx.socket_mut(conn)
            && let Some(end) = socket.input.bytes().iter().position(|octet| *octet == b'\n')
        {
            let line = String::from_utf8(socket.input.bytes()[..end].to_vec()).unwrap();
            socket.input.consume(end + 1);
            self.start(cx, conn, line.strip_suffix(" start").unwrap());
        }
        SocketState::Long
    }

    fn on_message(&mut self, cx: &mut Cx, message: Message<()>) {
        match message {
            Message::TimeOutGroup(group) => panic!("nobody stops a group: {group}"),
            Message::Look(key) => self.look(cx, key),
            Message::GoOn(_) | Message::Settle(_) => panic!("streams do not post to themselves"),
            Message::Resume(..) => panic!("nothing is delegated"),
        }
    }

    fn on_exchange_deadline(&mut self, cx: &mut Cx, exchange: u64) {
        let key = ExchangeKey::from_u64(exchange);
        assert!(self.table.timer_fired(key), "a timer does not outlive its stream");
        let conn = self.table.connection(key).unwrap();
        let stream = self.table.detach(key).unwrap();
        say(cx, conn, &stream.number, "timeout");
        self.end(cx, key, &stream);
        cx.settle(conn, SocketState::Long);
    }

    fn on_sent(&mut self, _cx: &mut Cx, _conn: ConnKey) {}

    fn on_peer_closed(&mut self, _cx: &mut Cx, _conn: ConnKey) {}

    fn on_closed(&mut self, cx: &mut Cx, attachment: u64) {
        self.close_all(cx, attachment);
    }

    fn on_drain_limit(&mut self, _cx: &mut Cx) {}
}

struct Toy {
    driver: Driver<ToyHandler>,
    cells: Arc<Mutex<HashMap<String, Cell>>>,
}

impl Toy {
    fn new() -> Self {
        let cells = Arc::new(Mutex::new(HashMap::new()));
        let timeouts = CoreTimeouts { connection: Duration::from_secs(3600), ..Default::default() };
        let shared = Arc::clone(&cells);
        let driver = Driver::new(timeouts, |seat, _| ToyHandler::new(seat, shared));
        Self { driver, cells }
    }

    fn cell(&self, number: &str) -> Cell {
        Arc::clone(&self.cells.lock().unwrap()[number])
    }

    /// Ends a stream from another thread, with a last word.
    fn finish_stream(&self, number: &str, text: &'static str) {
        let cell = self.cell(number);
        std::thread::spawn(move || {
            cell.try_write(Text(text)).unwrap();
            let event = Event::Complete(cell.side());
            cell.call(Some(event), None, Look::Always).unwrap();
        })
        .join()
        .unwrap();
    }

    fn finish(mut self, conn: ConnKey) {
        self.driver.end(conn);
        self.driver.assert_empty();
        let handler = self.driver.core.handler();
        assert!(handler.table.is_empty() && handler.table.parked().is_empty());
        assert!(handler.streams.is_empty());
    }
}

#[test]
fn two_streams_of_one_connection_end_in_either_order() {
    for order in [["1", "2"], ["2", "1"]] {
        let mut toy = Toy::new();
        let conn = toy.driver.connect();
        toy.driver.receive(conn, "1 start\n2 start\n");
        let keys = [toy.cell("1").key(), toy.cell("2").key()];
        assert_ne!(keys[0], keys[1], "one connection, two keys");
        for number in order {
            toy.finish_stream(number, if number == "1" { "first" } else { "second" });
            toy.driver.settle();
        }
        let part = |number| if number == "1" { "1 first\n1 end\n" } else { "2 second\n2 end\n" };
        assert_eq!(toy.driver.text(conn), [part(order[0]), part(order[1])].concat());
        toy.finish(conn);
    }
}

#[test]
fn streams_that_end_in_one_turn_do_not_mix() {
    let mut toy = Toy::new();
    let conn = toy.driver.connect();
    toy.driver.receive(conn, "1 start\n2 sta");
    toy.driver.receive(conn, "rt\n3 start\n");
    assert_eq!(toy.driver.core.handler().table.parked().len(), 3);
    for (number, text) in [("3", "c"), ("1", "a"), ("2", "b")] {
        toy.finish_stream(number, text);
    }
    toy.driver.settle();
    assert_eq!(toy.driver.text(conn), "3 c\n3 end\n1 a\n1 end\n2 b\n2 end\n");
    toy.finish(conn);
}

#[test]
fn a_late_call_for_an_ended_stream_is_refused_and_touches_no_other() {
    let mut toy = Toy::new();
    let conn = toy.driver.connect();
    toy.driver.receive(conn, "1 start\n2 start\n");
    let old = toy.cell("1");
    toy.finish_stream("1", "over");
    toy.driver.settle();
    toy.driver.receive(conn, "3 start\n");
    assert_eq!(toy.cell("3").key().slot, old.key().slot, "the slot is used again");
    assert!(matches!(old.try_write(Text("late")), Err(WriteRefused::Closed(_))));
    let event = Event::Complete(old.side());
    assert_eq!(old.call(Some(event), None, Look::Always), Err(CallError::Closed));
    toy.driver.post(CoreMessage::Handler(Message::Look(old.key())));
    toy.driver.settle();
    assert_eq!(toy.driver.text(conn), "1 over\n1 end\n");
    for number in ["2", "3"] {
        assert_eq!(toy.cell(number).word().state(), AsyncState::Started);
    }
    toy.finish(conn);
}

#[test]
fn each_stream_has_its_own_timeout() {
    let mut toy = Toy::new();
    let conn = toy.driver.connect();
    toy.driver.receive(conn, "1 start\n");
    toy.driver.advance(TIMEOUT / 2);
    toy.driver.receive(conn, "2 start\n");
    toy.driver.advance(TIMEOUT / 2 + Duration::from_millis(4));
    assert_eq!(toy.driver.text(conn), "1 timeout\n");
    toy.finish_stream("2", "in time");
    toy.driver.settle();
    toy.driver.advance(TIMEOUT);
    assert_eq!(toy.driver.text(conn), "1 timeout\n2 in time\n2 end\n");
    toy.finish(conn);
}

#[test]
fn the_end_of_the_connection_ends_all_its_streams() {
    let mut toy = Toy::new();
    let conn = toy.driver.connect();
    toy.driver.receive(conn, "1 start\n2 start\n");
    let cells = [toy.cell("1"), toy.cell("2")];
    toy.finish(conn);
    for cell in cells {
        assert!(matches!(cell.try_write(Text("late")), Err(WriteRefused::Closed(_))));
    }
}
