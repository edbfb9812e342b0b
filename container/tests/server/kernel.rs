//! What only the kernel and real threads can show: addresses, threads and their names, the limits
//! of the pool, buffers of sockets. All else of the server runs in the simulator.

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ringcat::{Connector, Context, DispatcherType, ErrorKind, Server};

use crate::support::{
    Client, Journal, Noting, TestServer, blocking, builder, channel, parking, streaming, take,
    wait_until,
};

#[test]
fn an_address_in_use_is_refused() {
    let server = TestServer::start(Context::new(""));
    let address = server.address().to_string();
    let error = Server::builder().connector(Connector::http(&*address)).cores(1).start();
    let error = error.err().expect("the port is taken");
    assert!(error.to_string().contains(&address), "{error}");
    server.get("/").expect_report(404);
}

#[test]
fn one_servlet_serves_all_cores() {
    let threads = Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let seen = Arc::clone(&threads);
    let context = Context::new("").get("/", move |_req, _res| {
        seen.lock().unwrap().insert(std::thread::current().name().map(str::to_owned));
        Ok(())
    });
    let server = TestServer::of(builder(context).cores(2));
    // The kernel spreads connections by a hash, so the other core comes soon.
    for _ in 0..200 {
        server.get("/").expect(200, "");
        if threads.lock().unwrap().len() == 2 {
            break;
        }
    }
    let cores = ["http-uring-core-0", "http-uring-core-1"];
    let expected = cores.map(|name| Some(name.to_owned())).into_iter().collect();
    assert_eq!(*threads.lock().unwrap(), expected);
}

#[test]
fn a_ring_accepts_no_more_connections_than_it_may_hold() {
    let server = TestServer::of(
        builder(Context::new("").get("/", |_req, res| res.write("fine")))
            .connections_max(2)
            .backlog(16),
    );
    let (mut first, mut second) = (server.client(), server.client());
    first.get("/").expect(200, "fine");
    second.get("/").expect(200, "fine");
    let mut third = server.client();
    third.ask("GET /");
    second.get("/").expect(200, "fine");
    assert_eq!(server.report().connections_accepted, 2);
    drop(first);
    third.answer().expect(200, "fine");
}

#[test]
fn they_run_on_worker_threads_and_others_do_not() {
    let name = || thread::current().name().unwrap_or("unnamed").to_owned();
    let context = Context::new("")
        .servlet("/worker", blocking(move |_req, res| res.write(name())))
        .get("/core", move |_req, res| res.write(name()));
    let server = TestServer::start(context);
    let mut client = server.client();
    let worker = client.get("/worker").text();
    assert!(worker.starts_with("http-worker-"), "{worker}");
    client.get("/core").expect(200, "http-uring-core-0");
}

#[test]
fn a_full_pool_is_503_and_says_when_to_come_again() {
    let barrier = Arc::new(Barrier::new(2));
    let meeting = Arc::clone(&barrier);
    let context = Context::new("").servlet(
        "/",
        blocking(move |_req, res| {
            meeting.wait();
            res.write("served")
        }),
    );
    let server = TestServer::of(builder(context).worker_threads(1).worker_queue(1));
    let address = server.address();
    let clients = [0; 3].map(|_| thread::spawn(move || Client::connect(address).get("/")));
    // One runs, one waits for its thread; whoever comes then is refused.
    wait_until("one is refused", || server.report().statuses[4] == 1);
    barrier.wait();
    barrier.wait();
    let answers = clients.map(|client| client.join().unwrap());
    for answer in answers {
        if answer.status == 200 {
            answer.expect(200, "served");
        } else {
            answer.expect_report(503);
            assert_eq!(answer.field("Retry-After"), Some("1"));
        }
    }
    assert_eq!(server.stop().statuses, [0, 2, 0, 0, 1]);
}

#[test]
fn a_task_of_the_context_runs_on_the_pool() {
    let context = Context::new("").servlet(
        "/",
        parking(|req, _res| {
            let context = req.start_async()?;
            let handle = context.clone();
            context.start(move || {
                let name = thread::current().name().unwrap_or("unnamed").to_owned();
                handle.response().unwrap().write(name).unwrap();
                handle.complete()
            })
        }),
    );
    let server = TestServer::start(context);
    let text = server.get("/").text();
    assert!(text.starts_with("http-worker-"), "{text}");
}

#[test]
fn a_blocking_target_runs_on_a_worker_thread_too() {
    let journal = Journal::default();
    let seen = journal.clone();
    let (sender, contexts) = channel();
    let parks = streaming(move |req, res| {
        let context = req.start_async()?;
        context.add_listener(Noting::new("round", &seen))?;
        res.write("core, ")?;
        sender.send(context);
        Ok(())
    });
    let blocks = blocking(|req, res| {
        assert_eq!(req.dispatcher_type(), DispatcherType::Async);
        let thread = thread::current().name().unwrap_or("").to_owned();
        let content = req.read_to_end()?;
        res.write(format!("{}, {}", thread, String::from_utf8_lossy(&content)))
    });
    let context = Context::new("").servlet("/", parks).servlet("/blocking", blocks);
    let server = TestServer::start(context);
    let mut client = server.client();
    for round in 1..=2 {
        client.ask_with("POST /", &["Content-Length: 6"], "").send("abc");
        let context = take(&contexts);
        server.await_parked(round);
        context.dispatch_to("/blocking").unwrap();
        client.send("def");
        let text = client.answer().text();
        assert!(text.starts_with("core, http-worker-") && text.ends_with(", abcdef"), "{text}");
        assert_eq!(context.complete().unwrap_err().kind(), ErrorKind::IllegalState);
    }
    server.stop();
    assert_eq!(journal.entries(), ["round.on_complete", "round.on_complete"]);
}

#[test]
fn a_write_waits_for_a_socket_that_is_full() {
    const PIECE: usize = 64 * 1024;
    const COUNT: usize = 1024;
    let written = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&written);
    let context = Context::new("").servlet(
        "/",
        blocking(move |_req, res| {
            for number in 0..COUNT {
                res.write(vec![u8::try_from(number % 251).unwrap(); PIECE])?;
                counted.fetch_add(PIECE, Ordering::Relaxed);
            }
            Ok(())
        }),
    );
    let server = TestServer::start(context);
    let mut client = Client::connect_narrow(server.address());
    client.ask("GET /");
    wait_until("the writer has begun", || written.load(Ordering::Relaxed) > 0);
    // Held is what makes no progress for a while; the bound is what the kernel's buffers and the
    // credit take together, far from everything.
    let (mut seen, mut since) = (0, Instant::now());
    while since.elapsed() < Duration::from_millis(300) {
        let now = written.load(Ordering::Relaxed);
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        thread::yield_now();
    }
    assert!(seen < PIECE * COUNT / 4, "{seen} bytes were taken for a client that reads nothing");
    let answer = client.answer();
    assert_eq!((answer.is_whole, answer.body.len()), (true, PIECE * COUNT));
    let is_intact = answer
        .body
        .chunks(PIECE)
        .enumerate()
        .all(|(number, piece)| piece.iter().all(|byte| usize::from(*byte) == number % 251));
    assert!(is_intact, "pieces came in another order");
}
