//! What the options do, and what a wrong one says.

use std::net::TcpListener;

use crate::process::{Process, refused};

#[test]
fn the_first_line_says_address_cores_and_backend() {
    let process = Process::start(&["--cores", "2"]);
    let ended = process.stop();
    assert!(ended.out[0].contains(", 2 cores on CPUs "), "{:?}", ended.out);
    assert!(ended.out[0].ends_with("backend native io_uring\n"), "{:?}", ended.out);
}

#[test]
fn the_welcome_page_and_the_examples_are_where_they_should_be() {
    let process = Process::start(&[]);
    let mut client = process.client();
    assert!(client.get("/").text().contains("ringcat runs"));
    assert!(client.get("/examples/").text().contains("Asynchronous servlets"));
    let answer = client.get("/examples");
    assert_eq!((answer.status, answer.field("Location")), (302, Some("/examples/")));
    client.get("/examples/hello").expect(200, "hello, wire\n");
    assert_eq!(client.get("/hello").status, 404);
    process.stop();
    let process = Process::start(&["--examples-at", "/"]);
    process.client().get("/hello").expect(200, "hello, wire\n");
    process.stop();
    let process = Process::start(&["--examples-at", "none"]);
    let mut client = process.client();
    assert_eq!((client.get("/").status, client.get("/examples/hello").status), (200, 404));
    process.stop();
}

#[test]
fn the_default_of_async_timeouts_can_be_set() {
    let process = Process::start(&["--async-timeout", "100ms"]);
    assert_eq!(process.client().get("/examples/delay/60000").status, 500);
    assert_eq!(process.client().get("/examples/sleep/60000").status, 500);
    process.client().get("/examples/sleep/20").expect(200, "done\n");
    let ended = process.stop();
    assert_eq!(ended.counter("answered"), 3);
}

#[test]
fn a_wrong_option_is_named_with_what_is_allowed() {
    let check = |options: &[&str], parts: &[&str]| {
        let (status, text) = refused(options);
        assert!(matches!(status, Some(1 | 2)), "{options:?}: {status:?} {text}");
        for part in parts {
            assert!(text.contains(part), "{options:?}: {text:?} lacks {part:?}");
        }
    };
    check(&["--cpus", "0,x"], &["--cpus", "x"]);
    check(&["--cpus", "1000"], &["CPU 1000", "affinity"]);
    check(&["--cores", "0"], &["0 cores"]);
    check(&["--cores", "many"], &["--cores", "many"]);
    check(&["--listen", "nowhere"], &["nowhere", "ADDRESS:PORT"]);
    check(&["--async-timeout", "soon"], &["soon", "30s"]);
    check(&["--examples-at", "examples"], &["examples", "none"]);
    check(&["--log", "loud=quiet"], &["trace"]);
    check(&["--no-such-option"], &["--no-such-option"]);
}

#[test]
fn a_port_in_use_is_refused_also_by_another_ringcat() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (status, text) = refused(&["--listen", &address]);
    assert_eq!(status, Some(1));
    assert!(text.contains(&address) && text.lines().count() == 1, "{text}");
    let process = Process::start(&[]);
    let address = process.address().to_string();
    let (status, text) = refused(&["--listen", &address]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains(&address), "{text}");
    process.client().get("/examples/hello").expect(200, "hello, wire\n");
    process.stop();
}

#[test]
fn the_access_log_has_a_line_for_each_request() {
    let folder = std::env::temp_dir().join(format!("ringcat-log-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("access.log");
    // The lines of one core are in order; those of two are not, among each other.
    let process = Process::start(&["--cores", "1", "--access-log", file.to_str().unwrap()]);
    let mut client = process.client();
    client.get("/examples/hello").expect(200, "hello, wire\n");
    client.get("/examples/delay/20").expect(200, "done\n");
    assert_eq!(client.get("/nothing").status, 404);
    process.client().send("BROKEN\r\n\r\n").answer();
    process.stop();
    let log = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 4, "{log}");
    assert!(lines[0].contains("\"GET /examples/hello HTTP/1.1\" 200 12"), "{log}");
    assert!(lines[1].contains("\"GET /examples/delay/20 HTTP/1.1\" 200 5"), "{log}");
    assert!(lines[2].contains("\"GET /nothing HTTP/1.1\" 404"), "{log}");
    assert!(lines[3].contains(" 400 "), "{log}");
}
