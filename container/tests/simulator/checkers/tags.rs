//! No byte of one content is seen in another: each byte says which content it belongs to and where.

use super::{Checker, Seen, Verdict};
use crate::plan::find_strange;

#[derive(Default)]
pub(super) struct Tags;

impl Checker for Tags {
    fn name(&self) -> &'static str {
        "tags"
    }

    fn see(&mut self, seen: &Seen) -> Verdict {
        let (what, number, is_upload, offset, bytes) = match seen {
            Seen::Uploaded { number, offset, bytes } => ("upload", *number, true, *offset, *bytes),
            Seen::Downloaded { number, offset, bytes } => {
                ("answer", *number, false, *offset, *bytes)
            }
            _ => return Ok(()),
        };
        match find_strange(number, is_upload, offset, bytes) {
            Some(at) => Err(format!("byte {at} of the {what} of request {number} is not its own")),
            None => Ok(()),
        }
    }
}
