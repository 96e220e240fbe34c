//! Record marking (RFC 5531, section 11): a TCP stream carries records in fragments. Each
//! has a mark of four bytes: its length, and a bit for the last fragment.
//!
//! Invariants: a record longer than the limit is refused at the first mark that exceeds it;
//! the buffer grows with the bytes that arrive, until the caller provides one for a whole record
//! ([`Assembler::move_to`]).

/// A record is longer than the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLong;

/// Bytes of a mark.
pub(crate) const MARK_BYTES: usize = 4;
/// The bit of the last fragment.
const LAST: u32 = 1 << 31;

/// Decodes a mark: bytes of the fragment, and whether it is the last.
fn read_mark(mark: [u8; MARK_BYTES]) -> (usize, bool) {
    let mark = u32::from_be_bytes(mark);
    ((mark & !LAST) as usize, mark & LAST != 0)
}

/// The mark of a record of one fragment.
pub(crate) fn mark(len: usize) -> [u8; MARK_BYTES] {
    // Replies are far shorter than two gigabytes.
    (u32::try_from(len).unwrap_or(0) & !LAST | LAST).to_be_bytes()
}

/// The record in `bytes`, if they are exactly one record in one fragment.
pub(crate) fn exactly_one(bytes: &[u8], limit: usize) -> Option<&[u8]> {
    let (mark, body) = bytes.split_first_chunk()?;
    let (len, last) = read_mark(*mark);
    (last && len == body.len() && len <= limit).then_some(body)
}

/// Assembles records from arriving bytes.
#[derive(Debug)]
pub(crate) struct Assembler {
    limit: usize,
    mark: [u8; MARK_BYTES],
    mark_len: usize,
    /// Bytes of the fragment that have not arrived.
    left: usize,
    last: bool,
    body: Vec<u8>,
}

impl Assembler {
    /// An assembler of records of at most `limit` bytes.
    pub(crate) fn new(limit: usize) -> Assembler {
        Assembler {
            limit,
            mark: [0; MARK_BYTES],
            mark_len: 0,
            left: 0,
            last: false,
            body: Vec::new(),
        }
    }

    /// Whether it holds no part of a record.
    pub(crate) fn is_idle(&self) -> bool {
        self.mark_len == 0 && self.body.is_empty()
    }

    /// Bytes of the record that have arrived.
    pub(crate) fn arrived(&self) -> usize {
        self.body.len()
    }

    /// Bytes of memory that it holds.
    pub(crate) fn held(&self) -> usize {
        self.body.capacity()
    }

    /// Whether the rest of a fragment can be read to [`Assembler::room`].
    pub(crate) fn has_room(&self) -> bool {
        self.left > 0 && self.body.capacity() - self.body.len() >= self.left
    }

    /// Takes bytes from `input` until a record is whole.
    ///
    /// # Errors
    /// The record is too long: the stream cannot be continued.
    pub(crate) fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Vec<u8>>, TooLong> {
        loop {
            if self.mark_len < MARK_BYTES {
                let Some((&byte, rest)) = input.split_first() else {
                    return Ok(None);
                };
                *input = rest;
                self.mark[self.mark_len] = byte;
                self.mark_len += 1;
                if self.mark_len < MARK_BYTES {
                    continue;
                }
                (self.left, self.last) = read_mark(self.mark);
                if self.left > self.limit - self.body.len() {
                    return Err(TooLong);
                }
            }
            let (now, later) = input.split_at(self.left.min(input.len()));
            self.body.extend_from_slice(now);
            *input = later;
            self.left -= now.len();
            if self.left > 0 {
                return Ok(None);
            }
            self.mark_len = 0;
            if self.last {
                return Ok(Some(std::mem::take(&mut self.body)));
            }
        }
    }

    /// Continues in a buffer that can hold the longest record. Returns the old buffer.
    pub(crate) fn move_to(&mut self, mut buffer: Vec<u8>) -> Vec<u8> {
        buffer.extend_from_slice(&self.body);
        std::mem::replace(&mut self.body, buffer)
    }

    /// The buffer for the rest of the fragment. [`Assembler::filled`] handles bytes that are read beyond the fragment.
    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        &mut self.body
    }

    /// Takes `len` bytes that were appended to the buffer of [`Assembler::room`]. Returns the record if it is complete,
    /// and the bytes read beyond the fragment.
    pub(crate) fn filled(&mut self, len: usize) -> (Option<Vec<u8>>, Vec<u8>) {
        let beyond = len.saturating_sub(self.left);
        self.left -= len - beyond;
        let rest = self.body.split_off(self.body.len() - beyond);
        if self.left > 0 {
            return (None, rest);
        }
        self.mark_len = 0;
        let record = self.last.then(|| std::mem::take(&mut self.body));
        (record, rest)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
        let mark = bytes.len() as u32 | if last { LAST } else { 0 };
        [&mark.to_be_bytes()[..], bytes].concat()
    }

    #[test]
    fn records_are_whole_whatever_pieces_they_arrive_in() {
        let stream = [
            fragment(b"one", true),
            fragment(b"t", false),
            fragment(b"", false),
            fragment(b"wo", true),
            fragment(b"", true),
        ]
        .concat();
        for piece in 1..=stream.len() {
            let mut assembler = Assembler::new(10);
            let mut records = Vec::new();
            for mut bytes in stream.chunks(piece) {
                while let Some(record) = assembler.feed(&mut bytes).unwrap() {
                    records.push(record);
                }
            }
            assert_eq!(records, [&b"one"[..], b"two", b""]);
            assert!(assembler.is_idle());
        }
    }

    #[test]
    fn a_record_beyond_the_limit_is_refused_by_its_mark() {
        let mut assembler = Assembler::new(10);
        let huge = [0xff; 4];
        assert_eq!(assembler.feed(&mut &huge[..]), Err(TooLong));
        let mut assembler = Assembler::new(10);
        let first = fragment(b"12345678", false);
        assert_eq!(assembler.feed(&mut &first[..]), Ok(None));
        assert_eq!(assembler.feed(&mut &[0, 0, 0, 3][..]), Err(TooLong));
        assert!(
            assembler.body.capacity() < 100,
            "no memory for what did not come"
        );
    }

    #[test]
    fn bytes_read_beyond_a_fragment_belong_to_the_next() {
        let mut assembler = Assembler::new(100);
        let mut head = &fragment(b"0123456789", true)[..6];
        assert_eq!(assembler.feed(&mut head), Ok(None));
        assembler.move_to(Vec::with_capacity(100));
        assembler.room().extend_from_slice(b"23456789next");
        let (record, rest) = assembler.filled(12);
        assert_eq!(record.unwrap(), b"0123456789");
        assert_eq!(rest, b"next");
        assert!(assembler.is_idle());
    }

    #[test]
    fn one_whole_record_is_recognised() {
        assert_eq!(exactly_one(&fragment(b"abc", true), 3), Some(&b"abc"[..]));
        assert_eq!(exactly_one(&fragment(b"abc", true), 2), None);
        assert_eq!(exactly_one(&fragment(b"abc", false), 3), None);
        assert_eq!(
            exactly_one(&[&fragment(b"abc", true)[..], b"x"].concat(), 9),
            None
        );
        assert_eq!(exactly_one(b"\x80", 9), None);
    }
}
