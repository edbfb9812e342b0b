//! A server process, its output collected line by line.

use std::{
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::Instant,
};

use crate::support::{Client, PATIENCE};

/// A running `ringcat`.
pub(crate) struct Process {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    readers: Vec<JoinHandle<()>>,
    out: Arc<Mutex<Vec<String>>>,
}

/// What a server left behind when it ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) out: Vec<String>,
    pub(crate) log: Vec<String>,
}

impl Process {
    /// Starts a server on a free port and waits until it listens.
    pub(crate) fn start(options: &[&str]) -> Self {
        let mut child = command(options).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        let address = first.split("http://").nth(1).and_then(|rest| rest.split(',').next());
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            let mut error = String::new();
            child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            panic!("no address in {first:?}; {error}");
        };
        let (log, out) = (Arc::default(), Arc::new(Mutex::new(vec![first])));
        let errors = BufReader::new(child.stderr.take().unwrap());
        let readers = vec![collect(errors, &log), collect(lines, &out)];
        Self { child, address, log, readers, out }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// The log so far, without what threads of other requests print between.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Waits for a line of the log that contains `text`.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            let found = self.log().into_iter().find(|line| line.contains(text));
            if let Some(line) = found {
                return line;
            }
            assert!(begun.elapsed() < PATIENCE, "no {text:?} in {:#?}", self.log());
            thread::yield_now();
        }
    }

    /// Sends a signal by name, as an operator would.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill").args([&format!("-{name}"), &id]).status().unwrap();
        assert!(status.success());
    }

    /// Waits until the process has ended.
    pub(crate) fn ended(mut self) -> Ended {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > 4 * PATIENCE {
                self.child.kill().unwrap();
                panic!("the server does not end: {:#?}", self.log());
            }
            thread::yield_now();
        };
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        let take = |lines: &Mutex<Vec<String>>| std::mem::take(&mut *lines.lock().unwrap());
        Ended { status, out: take(&self.out), log: take(&self.log) }
    }

    /// Asks the server to end, and waits for that.
    pub(crate) fn stop(self) -> Ended {
        self.signal("TERM");
        self.ended()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A failed test must not leave a server behind; one that ended is gone already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Ended {
    /// The number before `word` in the printed counters.
    pub(crate) fn counter(&self, word: &str) -> u64 {
        let text = self.out.join(" ").replace([',', '(', ')'], "");
        let words: Vec<&str> = text.split_whitespace().collect();
        let place = words.iter().position(|candidate| *candidate == word);
        words[place.unwrap_or_else(|| panic!("no {word} in {text}")) - 1].parse().unwrap()
    }
}

/// A server that must not start: its exit status and what it says.
pub(crate) fn refused(options: &[&str]) -> (Option<i32>, String) {
    let output = command(options).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn command(options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringcat"));
    if !options.contains(&"--listen") {
        command.args(["--listen", "127.0.0.1:0"]);
    }
    command.args(options).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn collect(lines: impl BufRead + Send + 'static, into: &Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    let into = Arc::clone(into);
    thread::spawn(move || {
        for line in lines.lines() {
            into.lock().unwrap().push(line.unwrap());
        }
    })
}
