//! The Date field, formatted once a second and not once a response (RFC 9110 section 5.6.7).
//! Owns the text; the clock is the caller's. (Tomcat: `FastHttpDateFormat`.)

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use httpdate::HttpDate;

/// The current second as an IMF-fixdate, such as `Sun, 06 Nov 1994 08:49:37 GMT`. One a core.
#[derive(Clone, Debug)]
pub struct DateCache {
    seconds: u64,
    text: [u8; 29],
}

impl DateCache {
    /// The date of a moment, in seconds since 1970.
    pub fn new(unix_seconds: u64) -> Self {
        let mut cache = Self { seconds: unix_seconds, text: [0; 29] };
        cache.format();
        cache
    }

    /// Moves to a moment, in seconds since 1970; costs nothing within the same second. Moments
    /// past the year 9999 show its last second.
    pub fn update(&mut self, unix_seconds: u64) {
        if unix_seconds != self.seconds {
            self.seconds = unix_seconds;
            self.format();
        }
    }

    /// The text of the moment.
    pub fn as_bytes(&self) -> &[u8; 29] {
        &self.text
    }

    fn format(&mut self) {
        let moment = UNIX_EPOCH + Duration::from_secs(self.seconds.min(SECONDS_MAX));
        write!(&mut self.text[..], "{}", HttpDate::from(moment)).expect("a date has 29 octets");
    }
}

impl Default for DateCache {
    /// The start of 1970.
    fn default() -> Self {
        Self::new(0)
    }
}

/// The last second of the year 9999; four digits of year are all that the format has.
const SECONDS_MAX: u64 = 253_402_300_799;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(unix_seconds: u64, expected: &str) {
        let mut cache = DateCache::default();
        cache.update(unix_seconds);
        assert_eq!(cache.as_bytes(), expected.as_bytes());
        assert_eq!(DateCache::new(unix_seconds).as_bytes(), expected.as_bytes());
    }

    #[test]
    fn formats_the_second() {
        check(0, "Thu, 01 Jan 1970 00:00:00 GMT");
        check(784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT");
        check(1_709_164_799, "Wed, 28 Feb 2024 23:59:59 GMT");
        check(1_709_164_800, "Thu, 29 Feb 2024 00:00:00 GMT");
        check(u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT");
    }
}
