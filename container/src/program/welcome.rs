//! The page at `/` of a server without applications of its own.

use ringcat::{Request, Response, Result};

/// Answers with the welcome page.
pub(crate) fn page(_req: &mut Request, res: &mut Response) -> Result<()> {
    res.set_content_type("text/html;charset=utf-8");
    res.write(include_str!("../../assets/welcome.html"))
}
