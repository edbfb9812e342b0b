//! A proxy on the cores themselves: an `async fn` servlet asks another server with hyper's client,
//! over a TCP stream of the same ring. No runtime is behind it, no thread waits.
//!
//!     cargo run --release -- --listen 127.0.0.1:8081
//!     cargo run --release -p ringcat --example proxy [ADDR:PORT [UPSTREAM]]
//!     curl http://127.0.0.1:8080/examples/hello
//!
//! UPSTREAM is the address of any HTTP server, 127.0.0.1:8081 by default. A program of your own
//! names the feature: `ringcat = { …, features = ["compat-hyper"] }`.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use ringcat::{
    AsyncServlet, Connector, Context, Error, Request, Response, Result, Server, net::TcpStream,
    task, time,
};

/// What a proxy takes of one request, in bytes.
const CONTENT_BYTES_MAX: usize = 1 << 20;

/// How long the other server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

struct Proxy {
    upstream: SocketAddr,
}

impl AsyncServlet for Proxy {
    async fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        match time::timeout(PATIENCE, self.ask(req)).await {
            Ok(Ok(answer)) => pass_on(answer, res).await,
            Ok(Err(error)) => res.send_error(502, Some(&error.to_string())),
            Err(time::Elapsed) => res.send_error(504, Some("the other server takes too long")),
        }
    }
}

impl Proxy {
    /// Sends the request on. Whoever drops this future gives up the question with the connection.
    async fn ask(&self, req: &mut Request) -> Result<hyper::Response<hyper::body::Incoming>> {
        let content = req.read_to_end_async(CONTENT_BYTES_MAX).await?;
        let stream = TcpStream::connect(self.upstream).await?;
        let (mut sender, connection) = http1::handshake(stream).await.map_err(Error::app)?;
        // Hyper's client wants somebody to move its bytes: a task of this core, which ends when
        // sender and answer are gone.
        task::spawn(async move {
            if let Err(error) = connection.await {
                eprintln!("the connection to the other server: {error}");
            }
        });
        let target = match req.query_string() {
            Some(query) => format!("{}?{query}", req.request_uri()),
            None => req.request_uri().into_owned(),
        };
        let mut question = hyper::Request::builder().method(req.method()).uri(target);
        for name in ["accept", "accept-language", "content-type", "user-agent"] {
            if let Some(value) = req.header(name) {
                question = question.header(name, &*value);
            }
        }
        let question = question
            .header("host", self.upstream.to_string())
            .body(Full::new(Bytes::from(content)))
            .map_err(Error::app)?;
        sender.send_request(question).await.map_err(Error::app)
    }
}

/// Writes the answer to the client as it comes, no faster than the client takes it.
async fn pass_on(answer: hyper::Response<hyper::body::Incoming>, res: &mut Response) -> Result<()> {
    res.set_status(answer.status().as_u16());
    for name in ["content-type", "cache-control", "etag", "location"] {
        if let Some(value) = answer.headers().get(name) {
            res.set_header(name, value.as_bytes())?;
        }
    }
    let mut content = answer.into_body();
    while let Some(frame) = content.frame().await {
        if let Ok(bytes) = frame.map_err(Error::app)?.into_data() {
            res.write_async(bytes).await?;
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let upstream = arguments.next().unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let upstream = upstream
        .parse()
        .map_err(|_| Error::illegal_argument(format!("{upstream:?} is no address and port")))?;
    Server::builder()
        .connector(Connector::http(address))
        .context(Context::new("").async_servlet("/*", Proxy { upstream }))
        .run()
}
