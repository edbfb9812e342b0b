//! Timers for `async fn` servlets and tasks: they are on their core's wheel, and need no thread.
//!
//! ```
//! use std::time::Duration;
//! use ringcat::{Context, net::TcpStream, time};
//!
//! let context = Context::new("").async_get("/probe", async |_req, res| {
//!     let address = ([127, 0, 0, 1], 9).into();
//!     match time::timeout(Duration::from_secs(1), TcpStream::connect(address)).await {
//!         Ok(Ok(_stream)) => res.write("up\n"),
//!         Ok(Err(error)) => res.write(format!("down: {error}\n")),
//!         Err(time::Elapsed) => res.write("silent\n"),
//!     }
//! });
//! # drop(context);
//! ```

pub use ringcat_engine::local::sleep::{Elapsed, Sleep, Timeout, sleep, timeout};
