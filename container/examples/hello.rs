//! The smallest server: a servlet, a closure, a filter.
//!
//!     cargo run --release -p ringcat --example hello [ADDR:PORT]
//!     curl http://127.0.0.1:8080/app/hello

use ringcat::{
    Connector, Context, Filter, FilterChain, HttpServlet, Methods, Request, Response, Result,
    Server,
};

/// Answers GET and HEAD; other methods get 405 with `Allow` by themselves.
struct Hello;

impl HttpServlet for Hello {
    fn methods(&self) -> Methods {
        Methods::GET
    }

    fn do_get(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let name = req.parameter("name")?.unwrap_or("World").to_owned();
        res.set_content_type("text/plain;charset=utf-8");
        res.write(format!("Hello, {name}!\n"))
    }
}

/// Names the server in every answer.
struct Named;

impl Filter for Named {
    fn filter(&self, req: &mut Request, res: &mut Response, chain: FilterChain<'_>) -> Result<()> {
        res.set_header("Server", "ringcat")?;
        chain.next(req, res)
    }
}

fn main() -> Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    Server::builder()
        .connector(Connector::http(address))
        .context(
            Context::new("/app")
                .filter("/*", Named)
                .servlet("/hello", Hello)
                .get("/version", |_req, res| res.write("1\n")),
        )
        .run()
}
