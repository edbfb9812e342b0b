//! TCP streams for `async fn` servlets and tasks, over the ring of their core. A stream stays on
//! the core that opened it; names are resolved elsewhere, on a worker thread say.
//!
//! With the feature `compat-hyper` a stream has hyper's I/O traits, with `compat-futures` those of
//! `futures-io`: clients that need no runtime of their own work over it. The example `proxy` has
//! hyper's.

pub use ringcat_engine::local::tcp_stream::TcpStream;
