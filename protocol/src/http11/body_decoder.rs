//! The content of a request, whatever frames it: the one decoder that the processor holds for a
//! message. It counts and copies; limits on the size of content are the container's.

use super::chunked_decoder::{ChunkedDecoder, Decoded};
use super::framing::BodyLength;
use crate::protocol_error::ProtocolError;

/// Decodes one content.
#[derive(Debug)]
pub enum BodyDecoder {
    /// There is no content.
    None,
    /// Content of known length.
    Length {
        /// Octets still to come.
        remaining: u64,
    },
    /// Content in chunks; boxed, since few requests have them and 10,000 without may be parked.
    Chunked(Box<ChunkedDecoder>),
}

impl BodyDecoder {
    /// A decoder at the start of the content. Allocates only for chunks.
    pub fn new(length: BodyLength) -> Self {
        match length {
            BodyLength::None => Self::None,
            BodyLength::Length(remaining) => Self::Length { remaining },
            BodyLength::Chunked => Self::Chunked(Box::default()),
        }
    }

    /// Decodes what has come and appends at most `out_max` octets of content to `out`, as
    /// [`ChunkedDecoder::decode`] does.
    ///
    /// # Errors
    /// Those of [`ChunkedDecoder::decode`]; none for the other framings.
    pub fn decode(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        out_max: usize,
    ) -> Result<Decoded, ProtocolError> {
        match self {
            Self::None => Ok(Decoded { consumed: 0, done: true }),
            Self::Length { remaining } => {
                let due = usize::try_from(*remaining).unwrap_or(usize::MAX);
                let len = due.min(input.len()).min(out_max);
                out.extend_from_slice(&input[..len]);
                *remaining -= len as u64;
                Ok(Decoded { consumed: len, done: *remaining == 0 })
            }
            Self::Chunked(decoder) => decoder.decode(input, out, out_max),
        }
    }

    /// Is the content over? True from the start where there is none.
    pub fn is_done(&self) -> bool {
        match self {
            Self::None => true,
            Self::Length { remaining } => *remaining == 0,
            Self::Chunked(decoder) => decoder.is_done(),
        }
    }

    /// Octets of content still to come; `None` where only chunks will tell.
    pub fn remaining(&self) -> Option<u64> {
        match self {
            Self::None => Some(0),
            Self::Length { remaining } => Some(*remaining),
            Self::Chunked(decoder) => decoder.is_done().then_some(0),
        }
    }

    /// Takes the trailer fields, as [`ChunkedDecoder::take_trailers`] does; other framings have
    /// none.
    pub fn take_trailers(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        match self {
            Self::None | Self::Length { .. } => Vec::new(),
            Self::Chunked(decoder) => decoder.take_trailers(),
        }
    }
}

const _: () = assert!(size_of::<BodyDecoder>() <= 16);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn check(length: BodyLength, input: &[u8], out_max: usize, expected: (&[u8], Decoded)) {
        let (mut decoder, mut out) = (BodyDecoder::new(length), b"+".to_vec());
        let decoded = decoder.decode(input, &mut out, out_max).unwrap();
        assert_eq!((&out[1..], decoded), expected, "{length:?}");
        assert_eq!(decoder.is_done(), decoded.done);
    }

    #[test]
    fn every_framing_stops_at_its_end() {
        let decoded = |consumed, done| Decoded { consumed, done };
        check(BodyLength::None, b"GET", 9, (b"", decoded(0, true)));
        check(BodyLength::Length(0), b"GET", 9, (b"", decoded(0, true)));
        check(BodyLength::Length(3), b"abcGET", 9, (b"abc", decoded(3, true)));
        check(BodyLength::Length(3), b"abcGET", 2, (b"ab", decoded(2, false)));
        check(BodyLength::Length(u64::MAX >> 1), b"ab", 9, (b"ab", decoded(2, false)));
        check(BodyLength::Chunked, b"2\r\nab\r\n0\r\n\r\nGET", 9, (b"ab", decoded(12, true)));
        check(BodyLength::Chunked, b"2\r\nab", 1, (b"a", decoded(4, false)));
    }

    #[test]
    fn remaining_counts_down() {
        let (mut decoder, mut out) = (BodyDecoder::new(BodyLength::Length(5)), Vec::new());
        decoder.decode(b"ab", &mut out, 9).unwrap();
        assert_eq!(decoder.remaining(), Some(3));
        let mut decoder = BodyDecoder::new(BodyLength::Chunked);
        assert_eq!(decoder.remaining(), None);
        decoder.decode(b"0\r\nA: b\r\n\r\n", &mut out, 9).unwrap();
        assert_eq!(decoder.remaining(), Some(0));
        assert_eq!(decoder.take_trailers(), [(b"a".to_vec(), b"b".to_vec())]);
        assert_eq!(BodyDecoder::new(BodyLength::None).remaining(), Some(0));
    }
}
