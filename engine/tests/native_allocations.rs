//! The receive and send path allocates nothing once it is warm. In a binary of its own, since the
//! allocator is the process's.

#![allow(clippy::unwrap_used, reason = "a test")]

#[allow(dead_code, reason = "the harness serves more tests than this one")]
#[path = "native_backend/harness.rs"]
mod harness;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    io::{Read, Write},
    sync::mpsc,
};

use harness::{Server, Turn, next};
use ringcat_engine::{
    backend::{Command, Event},
    buffer::{Chunk, Chunks},
    native::options::{NativeOptions, RecvMode},
};

/// The system's allocator, which counts what each thread asks of it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; the count is a plain thread-local
// without a destructor and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WARM_UP: usize = 100;
const MEASURED: usize = 1000;

/// Answers each message with the same memory: one buffer, or two in a gathering send.
fn answering(
    mut spare: Option<Chunks>,
    done: mpsc::Sender<usize>,
) -> impl FnMut(&mut Turn<'_>, Event) {
    let (mut sent, mut at_start) = (0, 0);
    move |turn, event| match event {
        Event::Accepted { conn, .. } => turn.push(Command::Demand(conn, true)),
        Event::Received(conn, lease) => {
            let mut chunks = spare.take().unwrap();
            let chunk = match &mut chunks {
                Chunks::One(chunk) => chunk,
                Chunks::Many(chunks) => chunks.last_mut().unwrap(),
            };
            let Chunk::Owned(bytes) = chunk else { panic!("ours are owned") };
            bytes.clear();
            bytes.extend_from_slice(&lease);
            turn.push(Command::Send(conn, chunks));
        }
        Event::Sent(_, chunks) => {
            spare = Some(chunks);
            sent += 1;
            if sent == WARM_UP {
                at_start = ALLOCATIONS.get();
            } else if sent == WARM_UP + MEASURED {
                done.send(ALLOCATIONS.get() - at_start).unwrap();
            }
        }
        _ => {}
    }
}

fn check(recv_mode: RecvMode, make: fn() -> Chunks) {
    let options = NativeOptions { recv_mode, ..NativeOptions::default() };
    let (done, allocations) = mpsc::channel();
    let server = Server::start(options, move || answering(Some(make()), done));
    let mut stream = server.connect();
    let len = make().len_bytes() + 4;
    let mut answer = vec![0; len];
    for _ in 0..WARM_UP + MEASURED {
        stream.write_all(b"ping").unwrap();
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[len - 4..], b"ping");
    }
    assert_eq!(next(&allocations), 0, "{recv_mode:?}");
    server.stop();
}

#[test]
fn a_warm_core_allocates_nothing() {
    for recv_mode in [RecvMode::Multi, RecvMode::Single] {
        check(recv_mode, || Chunks::One(Chunk::Owned(Vec::with_capacity(64))));
        check(recv_mode, || {
            let head = Chunk::Owned(b"head".to_vec());
            Chunks::Many(vec![head, Chunk::Owned(Vec::with_capacity(64))])
        });
    }
}
