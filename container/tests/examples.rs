//! The example programs start, answer as their first lines promise, and end when they are told to.
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a client waits for a process")]

#[allow(dead_code, reason = "each program of tests uses its part")]
mod support;

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use support::{Answer, Client, wait_until};

/// A running example.
struct Example {
    child: Child,
    address: SocketAddr,
}

impl Example {
    /// Starts an example and waits until it listens.
    fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    /// Starts one with more arguments behind its address.
    fn start_with(name: &str, arguments: &[&str]) -> Self {
        // The examples say no port of their own choice, so they are given one that was free.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let mut child = Command::new(built(name))
            .arg(address.to_string())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the example listens", || {
            assert_eq!(child.try_wait().unwrap(), None, "{name} ended at once");
            TcpStream::connect(address).is_ok()
        });
        Self { child, address }
    }

    fn ask(&self, line: &str) -> Answer {
        Client::connect(self.address).ask(line).answer()
    }

    /// Ends it as an operator does.
    fn stop(mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // One that was stopped is gone; a failed test must not leave one behind.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Where cargo puts an example that it builds with the tests: beside the folder of this program.
fn built(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built: run cargo build --examples", path.display());
    path
}

#[test]
fn hello_greets_and_its_filter_names_the_server() {
    let example = Example::start("hello");
    let answer = example.ask("GET /app/hello?name=you");
    answer.expect(200, "Hello, you!\n");
    assert_eq!(answer.field("Server"), Some("ringcat"));
    example.ask("GET /app/version").expect(200, "1\n");
    let refused = example.ask("POST /app/hello");
    assert_eq!((refused.status, refused.field("Allow")), (405, Some("GET, HEAD, OPTIONS")));
    example.stop();
}

#[test]
fn a_thread_of_the_application_answers_later() {
    let example = Example::start("async_thread");
    example.ask("GET /later").expect(200, "done\n");
    example.stop();
}

#[test]
fn hyper_runs_on_a_core() {
    let upstream = Example::start("hello");
    let proxy = Example::start_with("proxy", &[&upstream.address.to_string()]);
    proxy.ask("GET /app/hello?name=you").expect(200, "Hello, you!\n");
    proxy.ask("GET /nothing").expect(404, &upstream.ask("GET /nothing").text());
    upstream.stop();
    proxy.ask("GET /app/hello").expect_report(502);
    proxy.stop();
}

#[test]
fn a_tokio_task_answers() {
    let example = Example::start("async_tokio");
    example.ask("GET /sum?a=40&b=2").expect(200, "42\n");
    example.ask("GET /sum?a=forty").expect_report(400);
    example.ask("GET /awaited?a=40&b=2").expect(200, "42\n");
    example.ask("GET /awaited?a=forty").expect_report(400);
    example.stop();
}
