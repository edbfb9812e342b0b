//! What a server counted over all its cores, for its closing words.

use std::fmt;

use ringcat_engine::core_counters::DeadlineCounters;

/// What a server counted, over all cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// Connections accepted.
    pub connections_accepted: u64,
    /// Connections closed.
    pub connections_closed: u64,
    /// Connections that failed: resets, broken sends, timeouts.
    pub connections_failed: u64,
    /// Connections cut by the end of a drain.
    pub connections_cut: u64,
    /// Deadlines of connections that passed.
    pub deadlines: DeadlineReport,
    /// Responses, refusals included.
    pub answered: u64,
    /// Responses by class, 1xx to 5xx.
    pub statuses: [u64; 5],
    /// Requests that the protocol refused.
    pub refused: u64,
    /// Requests whose response is not whole.
    pub aborted: u64,
    /// Times that a request was put into the waiting set: at the start of a round, and again after
    /// each event that a parked request was taken out for. Not the number of parked requests.
    pub parked: u64,
    /// Asynchronous rounds that timed out.
    pub timed_out: u64,
    /// Times that another thread woke a core that waited, which is a write to the core's eventfd.
    /// A burst of calls to parked requests wakes its core once, however many they are, unless the
    /// core is through with those so far and waits again.
    pub wakes: u64,
    /// Polls of futures of `async fn` servlets, after the first of each.
    pub polls: u64,
}

/// How often each deadline of connections passed, named as the methods of
/// [`ServerBuilder`](crate::ServerBuilder) that set them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadlineReport {
    /// No first byte came in time; the connection was closed.
    pub connection: u64,
    /// No further request came in time; the connection was closed.
    pub keep_alive: u64,
    /// A head was not complete in time: 408.
    pub head: u64,
    /// A content came too slowly: 408, or an error to its reader.
    pub body: u64,
    /// A client took its output too slowly; the connection failed.
    pub write: u64,
    /// A client went on sending after its answer and did not end in time; it was cut off.
    pub linger: u64,
}

impl DeadlineReport {
    /// Adds what one core counted.
    pub(crate) fn add(&mut self, counters: &DeadlineCounters) {
        self.connection += counters.connection.get();
        self.keep_alive += counters.keep_alive.get();
        self.head += counters.head.get();
        self.body += counters.body.get();
        self.write += counters.write.get();
        self.linger += counters.linger.get();
    }
}

impl fmt::Display for DeadlineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connection, keep_alive, head, body, write, linger } = self;
        write!(
            f,
            "deadlines passed: connection {connection}, keep-alive {keep_alive}, head {head}, \
             body {body}, write {write}, linger {linger}"
        )
    }
}

impl fmt::Display for ServerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "connections: accepted {}, closed {}, failed {}, cut {}",
            self.connections_accepted,
            self.connections_closed,
            self.connections_failed,
            self.connections_cut
        )?;
        writeln!(f, "{}", self.deadlines)?;
        let [_, ok, redirected, refused, failed] = self.statuses;
        write!(
            f,
            "requests: {} answered (2xx {ok}, 3xx {redirected}, 4xx {refused}, 5xx {failed}), \
             refused {}, aborted {}, parked {}, timed out {}, wakes {}",
            self.answered, self.refused, self.aborted, self.parked, self.timed_out, self.wakes
        )
    }
}
