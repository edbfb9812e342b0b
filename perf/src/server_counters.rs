//! What the server says on exit that it answered: a line such as
//! `requests: 1200 answered (2xx 1200, 3xx 0, 4xx 0, 5xx 0), refused 0, aborted 0, parked 0, …`.

/// The number of answered requests in what the server printed; `None` if it printed none.
pub(crate) fn answered_count(output: &str) -> Option<u64> {
    let line = output.lines().find_map(|line| line.trim_start().strip_prefix("requests:"))?;
    let (before, _) = line.split_once("answered")?;
    before.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_number_before_answered() {
        let check = |output: &str, expected| assert_eq!(answered_count(output), expected);
        check("", None);
        check("connections: accepted 5, closed 5, failed 0, cut 0\n", None);
        check("requests: none answered\n", None);
        check(
            "ready\nconnections: accepted 5\nrequests: 12 answered (2xx 12, 3xx 0), refused 3\n",
            Some(12),
        );
    }
}
