//! The built-in error report: a small HTML page with the status, its phrase and the message of
//! the error, escaped. It never shows a trace, a version or the peer's raw bytes. Stands for
//! `ErrorReportValve`.

use std::fmt::Write as _;

/// Appends the HTML report of an error to `out`; its type is `text/html;charset=utf-8`, its
/// language English. `status` is any three-digit code; an empty `reason_phrase` is left out, and
/// `message` is what the application or the container said, if it may be shown.
///
/// ```
/// let mut page = String::new();
/// ringcat::error_report::error_page(404, "Not Found", Some("no <x> here"), &mut page);
/// assert!(page.contains("404") && page.contains("no &lt;x&gt; here"));
/// ```
pub fn error_page(status: u16, reason_phrase: &str, message: Option<&str>, out: &mut String) {
    let mut title = String::with_capacity(32);
    // Writing into a `String` cannot fail.
    let _ = write!(title, "{status}");
    if !reason_phrase.is_empty() {
        title.push(' ');
        escape_html(reason_phrase, &mut title);
    }
    out.push_str("<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>");
    out.push_str(&title);
    out.push_str("</title>\n<style>body{font-family:sans-serif;margin:2em;color:#222}");
    out.push_str("h1{font-size:1.4em}</style></head>\n<body><h1>");
    out.push_str(&title);
    out.push_str("</h1>\n");
    if let Some(message) = message.filter(|message| !message.is_empty()) {
        out.push_str("<p>");
        escape_html(message, out);
        out.push_str("</p>\n");
    }
    out.push_str("</body></html>\n");
}

/// Appends `text` to `out` so that it is text in HTML content and in quoted attribute values.
/// Control characters, which HTML forbids, become U+FFFD, except tab and line ends.
pub fn escape_html(text: &str, out: &mut String) {
    out.reserve(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\t' | '\n' | '\r' => out.push(character),
            control if control.is_control() => out.push(char::REPLACEMENT_CHARACTER),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_html_reads_is_escaped() {
        let mut out = String::from("kept ");
        escape_html("<a href=\"x\" b='y'>&\0\u{1b}\n\u{e9}</a>", &mut out);
        let expected = "kept &lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;\u{fffd}\u{fffd}\n\
                        \u{e9}&lt;/a&gt;";
        assert_eq!(out, expected);
    }

    #[test]
    fn the_report_names_status_phrase_and_message_and_nothing_else() {
        let mut page = String::new();
        error_page(500, "<Error>", Some("<script>alert(1)</script>"), &mut page);
        assert!(page.contains("<title>500 &lt;Error&gt;</title>"));
        assert!(page.contains("<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"));
        assert!(!page.contains("<script") && !page.contains(env!("CARGO_PKG_VERSION")));
    }

    #[test]
    fn phrase_and_message_may_be_missing() {
        let mut page = String::new();
        error_page(499, "", Some(""), &mut page);
        assert!(page.contains("<h1>499</h1>") && !page.contains("<p>"));
        error_page(499, "", None, &mut page);
        assert_eq!(page.matches("</html>").count(), 2);
    }
}
