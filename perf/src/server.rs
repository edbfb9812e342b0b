//! A server under test: started on a CPU and a free port of loopback, ended with SIGTERM, killed
//! if the load test itself fails. Its standard error goes to the terminal.

use std::{
    io::{self, Read},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::Outcome;

/// Raises the limit of open files as far as the system allows, then becomes the program that the
/// arguments name.
pub(crate) const WITH_ALL_FILES: &str = "ulimit -S -n \"$(ulimit -H -n)\" && exec \"$@\"";

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(10);
/// How long it may take to end.
const STOP_MAX: Duration = Duration::from_secs(45);
/// Between two looks at it.
const PAUSE: Duration = Duration::from_millis(10);

/// A running server; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    name: String,
    child: Child,
    address: SocketAddr,
    /// Reads what the server prints, so that a full pipe never stops it.
    output: Option<JoinHandle<io::Result<String>>>,
}

impl Server {
    /// Starts `program --listen ADDRESS arguments…` on a CPU, and waits until it listens. The wait
    /// leaves one connection that was closed without a request.
    ///
    /// # Errors
    /// The program cannot be started, ends at once, or does not listen within 10 s.
    pub(crate) fn start(program: &Path, cpu: usize, arguments: &[&str]) -> Outcome<Self> {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let address = free_address()?;
        // All three replace each other, so the child's id is the server's.
        let mut child = Command::new("taskset")
            .args(["-c", &cpu.to_string(), "sh", "-c", WITH_ALL_FILES, "sh"])
            .arg(program)
            .args(["--listen", &address.to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let mut stdout = child.stdout.take().expect("a pipe was asked for");
        let output = thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text)?;
            Ok(text)
        });
        let mut server = Self { name, child, address, output: Some(output) };
        server.await_listening()?;
        Ok(server)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM and waits for the end; gives exit status and standard output.
    ///
    /// # Errors
    /// It does not end within 45 s, or was gone before.
    pub(crate) fn stop(mut self) -> Outcome<(ExitStatus, String)> {
        if let Some(status) = self.child.try_wait()? {
            return Err(format!("{} had ended already ({status})", self.name).into());
        }
        // Std has no way to send this signal.
        let kill = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status()?;
        if !kill.success() {
            return Err(format!("cannot signal {}", self.name).into());
        }
        let deadline = Instant::now() + STOP_MAX;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                return Err(format!("{} did not end within {STOP_MAX:?}", self.name).into());
            }
            thread::sleep(PAUSE);
        };
        let output = self.output.take().expect("only the end takes it");
        let output = output.join().expect("reading a pipe does not panic")?;
        Ok((status, output))
    }

    fn await_listening(&mut self) -> Outcome<()> {
        let deadline = Instant::now() + START_MAX;
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("{} ended at once ({status})", self.name).into());
            }
            if Instant::now() >= deadline {
                return Err(format!(
                    "{} does not listen on {} after {START_MAX:?}",
                    self.name, self.address
                )
                .into());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if the server has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
