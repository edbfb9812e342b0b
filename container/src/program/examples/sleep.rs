//! `/sleep/{ms}`: the answer comes so much later, from an `async fn` that sleeps on its core. With
//! 0 it does not wait at all, and is a plain servlet.

use std::time::Duration;

use ringcat::{AsyncServlet, Error, Methods, Request, Response, Result, time};

/// The servlet at `/sleep/{ms}`.
pub(super) struct Sleeper;

impl AsyncServlet for Sleeper {
    async fn service(&self, req: &mut Request, res: &mut Response) -> Result<()> {
        let millis = req.path_info().unwrap_or("").trim_start_matches('/').parse();
        let millis = millis.map_err(|_| {
            Error::protocol_violation(400, "sleep/{ms} takes a number of milliseconds")
        })?;
        if millis > 0 {
            time::sleep(Duration::from_millis(millis)).await;
        }
        res.set_content_type("text/plain");
        res.write("done\n")
    }

    fn accepted_methods(&self) -> Option<Methods> {
        Some(Methods::GET)
    }
}
