//! Counts the ends of request heads in a stream that arrives in pieces. It parses nothing else, so
//! a request with content is not understood; the load that baselines get has none.

use memchr::memmem::Finder;

/// What ends a head.
const END: &[u8; 4] = b"\r\n\r\n";

/// Finds the empty line that ends a head; made once, since making it costs more than a short
/// search.
#[derive(Clone, Debug)]
pub struct HeadEndFinder(Finder<'static>);

impl HeadEndFinder {
    /// Prepares the search.
    pub fn new() -> Self {
        Self(Finder::new(END))
    }
}

impl Default for HeadEndFinder {
    fn default() -> Self {
        Self::new()
    }
}

/// How far a connection is into the end of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadEnds {
    /// Bytes of [`END`] with which the stream ends so far, 0 to 3.
    matched: usize,
}

impl HeadEnds {
    /// Counts the heads that end in `bytes`, the next piece of the stream.
    pub fn count(&mut self, finder: &HeadEndFinder, bytes: &[u8]) -> u64 {
        let mut count = 0;
        let mut rest = bytes;
        // An end that began in an earlier piece is finished byte by byte; the search then starts
        // where nothing is pending.
        while self.matched > 0 {
            let Some((&byte, tail)) = rest.split_first() else { return count };
            count += u64::from(self.advance(byte));
            rest = tail;
        }
        let mut searched = 0;
        for at in finder.0.find_iter(rest) {
            count += 1;
            searched = at + END.len();
        }
        let tail = &rest[searched..];
        self.matched = (1..END.len()).rev().find(|len| tail.ends_with(&END[..*len])).unwrap_or(0);
        count
    }

    /// Takes one byte; whether a head ended with it.
    fn advance(&mut self, byte: u8) -> bool {
        if byte == END[self.matched] {
            self.matched += 1;
        } else {
            self.matched = usize::from(byte == END[0]);
        }
        if self.matched < END.len() {
            return false;
        }
        self.matched = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(pieces: &[&[u8]]) -> u64 {
        let finder = HeadEndFinder::new();
        let mut ends = HeadEnds::default();
        pieces.iter().map(|piece| ends.count(&finder, piece)).sum()
    }

    #[test]
    fn counts_heads_and_nothing_else() {
        let check = |bytes: &[u8], expected| assert_eq!(count(&[bytes]), expected, "{bytes:?}");
        check(b"", 0);
        check(b"GET / HTTP/1.1\r\nHost: a\r\n", 0);
        check(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 1);
        check(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\nGET", 2);
        check(b"\r\r\n\r\r\n\r\n", 1);
        check(b"\r\n\r\n\r\n", 1);
        check(b"\r\n\r\n\r\n\r\n", 2);
    }

    #[test]
    fn cuts_change_nothing() {
        let stream = b"a\r\n\r\nb\r\r\n\r\r\n\r\n\r\n\r\n\r\nc\r\n\r\r\n\r\n";
        let expected = count(&[stream]);
        assert_eq!(expected, 4);
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(count(&pieces), expected, "cut at {first} and {second}");
            }
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(count(&bytes), expected, "byte by byte");
    }
}
