//! The reply of one request, built where it is sent from.
//!
//! A worker has one and reuses it. The record's mark stands in front, so that mark, header
//! and result leave in one write; file content is read straight to its place in it.

use std::io::Write;
use std::ops::Range;

use nfs3_types::xdr_codec::Pack;

use crate::record::{MARK_BYTES, mark};

/// What the buffer grows by.
const GROWTH_BYTES: usize = 16 << 10;

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// Only grows: what is behind `len` is left from earlier replies, and never sent.
    bytes: Vec<u8>,
    len: usize,
}

impl Reply {
    /// Starts anew.
    pub(crate) fn begin(&mut self) {
        self.len = 0;
        self.skip(MARK_BYTES);
    }

    /// Where the next byte goes.
    pub(crate) fn position(&self) -> usize {
        self.len
    }

    /// Takes back what was put behind `position`.
    pub(crate) fn back_to(&mut self, position: usize) {
        self.len = self.len.min(position);
    }

    /// Appends a value.
    pub(crate) fn put(&mut self, value: &impl Pack) {
        // Nothing here is longer than a length can say, and memory takes all that is written.
        let _ = value.pack(self);
    }

    /// Makes room for `len` bytes, whose content is whatever there was.
    pub(crate) fn skip(&mut self, len: usize) -> Range<usize> {
        let range = self.len..self.len + len;
        if self.bytes.len() < range.end {
            self.bytes
                .resize(range.end.next_multiple_of(GROWTH_BYTES), 0);
        }
        self.len = range.end;
        range
    }

    /// Bytes that were made room for.
    pub(crate) fn at(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes[range]
    }

    /// Appends zeros until the length since `start` is a multiple of four.
    pub(crate) fn pad(&mut self, start: usize) {
        let len = self.len - start;
        let range = self.skip(len.next_multiple_of(4) - len);
        self.at(range).fill(0);
    }

    /// Puts a value at a position that was passed, as long as it fits before the end.
    pub(crate) fn put_at(&mut self, position: usize, value: &impl Pack) {
        let end = self.len;
        self.len = position;
        self.put(value);
        self.len = self.len.max(end);
    }

    /// Takes a whole record, mark included, as the reply.
    pub(crate) fn again(&mut self, record: &[u8]) {
        self.len = 0;
        let range = self.skip(record.len());
        self.at(range).copy_from_slice(record);
    }

    /// The whole record, ready to be sent.
    pub(crate) fn finish(&mut self) -> &[u8] {
        let mark = mark(self.len - MARK_BYTES);
        self.bytes[..MARK_BYTES].copy_from_slice(&mark);
        &self.bytes[..self.len]
    }
}

impl Write for Reply {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let range = self.skip(bytes.len());
        self.at(range).copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_stands_behind_its_mark_and_holds_nothing_of_the_last() {
        let mut reply = Reply::default();
        reply.begin();
        reply.put(&u64::MAX);
        assert_eq!(reply.finish().len(), 12);
        reply.begin();
        let start = reply.position();
        let room = reply.skip(3);
        reply.at(room).copy_from_slice(b"abc");
        reply.pad(start);
        reply.put(&7_u32);
        reply.put_at(start, &0x6465_6600_u32);
        assert_eq!(reply.finish(), b"\x80\0\0\x08def\0\0\0\0\x07");
    }
}
