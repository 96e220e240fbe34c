//! The reply to one request, built in the buffer from which it is sent.
//!
//! Each worker has one and reuses it. The record's mark is at the start, so that mark, header
//! and result are sent by one write; file content is read directly to its place in the buffer.

use std::io::Write;
use std::ops::Range;

use nfs3_types::xdr_codec::Pack;

use crate::record::{MARK_BYTES, mark};

/// Increment of the buffer's length.
const GROWTH_BYTES: usize = 16 << 10;

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    /// Only grows. Bytes after `len` are left from earlier replies, and never sent.
    bytes: Vec<u8>,
    len: usize,
}

impl Reply {
    /// Starts a new reply.
    pub(crate) fn begin(&mut self) {
        self.len = 0;
        self.skip(MARK_BYTES);
    }

    /// Offset of the next byte.
    pub(crate) fn position(&self) -> usize {
        self.len
    }

    /// Removes everything after `position`.
    pub(crate) fn back_to(&mut self, position: usize) {
        self.len = self.len.min(position);
    }

    /// Appends a value.
    pub(crate) fn put(&mut self, value: &impl Pack) {
        // Every length fits its field, and writing to memory does not fail.
        let _ = value.pack(self);
    }

    /// Makes room for `len` bytes of arbitrary content.
    pub(crate) fn skip(&mut self, len: usize) -> Range<usize> {
        let range = self.len..self.len + len;
        if self.bytes.len() < range.end {
            self.bytes
                .resize(range.end.next_multiple_of(GROWTH_BYTES), 0);
        }
        self.len = range.end;
        range
    }

    /// The bytes of such a room.
    pub(crate) fn at(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.bytes[range]
    }

    /// Appends zeros until the length since `start` is a multiple of four.
    pub(crate) fn pad(&mut self, start: usize) {
        let len = self.len - start;
        let range = self.skip(len.next_multiple_of(4) - len);
        self.at(range).fill(0);
    }

    /// Overwrites a value at an earlier position, if it fits before the end.
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

    /// The complete record to send.
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
    fn a_reply_follows_its_mark_and_holds_nothing_of_the_last_reply() {
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
