//! The bytes of a file, in chunks that grow as they are written.

const CHUNK: usize = 256 << 10;

/// See the module's header. Unwritten bytes are zero.
#[derive(Default)]
pub(crate) struct Content {
    chunks: Vec<Vec<u8>>,
    size: u64,
}

impl Content {
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Truncates, or extends with zeros.
    pub(crate) fn resize(&mut self, size: u64) {
        let chunks = size.div_ceil(CHUNK as u64) as usize;
        self.chunks.truncate(chunks);
        if let Some(last) = self.chunks.get_mut((size / CHUNK as u64) as usize) {
            last.truncate((size % CHUNK as u64) as usize);
        }
        self.size = size;
    }

    /// The parts of a range within a chunk each: chunk, first byte in it, length.
    fn parts(at: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let end = at + len as u64;
        let mut at = at;
        std::iter::from_fn(move || {
            let (chunk, first) = (at / CHUNK as u64, (at % CHUNK as u64) as usize);
            let len = (CHUNK - first).min((end - at) as usize);
            at += len as u64;
            (len > 0).then_some((chunk as usize, first, len))
        })
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let len = into.len().min(self.size.saturating_sub(at) as usize);
        let mut rest = &mut into[..len];
        for (chunk, first, len) in Content::parts(at, len) {
            let (part, more) = rest.split_at_mut(len);
            let bytes = self.chunks.get(chunk).and_then(|bytes| bytes.get(first..));
            let bytes = bytes.unwrap_or_default();
            let there = bytes.len().min(len);
            part[..there].copy_from_slice(&bytes[..there]);
            part[there..].fill(0);
            rest = more;
        }
        len
    }

    pub(crate) fn write(&mut self, at: u64, mut from: &[u8]) {
        let end = at + from.len() as u64;
        let chunks = end.div_ceil(CHUNK as u64) as usize;
        if self.chunks.len() < chunks {
            self.chunks.resize_with(chunks, Vec::new);
        }
        for (chunk, first, len) in Content::parts(at, from.len()) {
            let (part, more) = from.split_at(len);
            let bytes = &mut self.chunks[chunk];
            if bytes.len() <= first {
                bytes.resize(first, 0);
                bytes.extend_from_slice(part);
            } else {
                let over = len.min(bytes.len() - first);
                bytes[first..first + over].copy_from_slice(&part[..over]);
                bytes.extend_from_slice(&part[over..]);
            }
            from = more;
        }
        self.size = self.size.max(end);
    }

    /// Turns a range into zeros.
    pub(crate) fn clear(&mut self, at: u64, len: u64) {
        let end = (at + len).min((self.chunks.len() * CHUNK) as u64);
        for (chunk, first, len) in Content::parts(at, end.saturating_sub(at) as usize) {
            if let Some(bytes) = self.chunks.get_mut(chunk) {
                let there = bytes.len();
                bytes[first.min(there)..(first + len).min(there)].fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_over_chunks_holes_and_truncations() {
        let mut content = Content::default();
        let at = CHUNK as u64 - 3;
        content.write(at, b"abcdef");
        let mut read = [9; 8];
        assert_eq!(content.read(at - 1, &mut read), 7);
        assert_eq!(&read[..7], b"\0abcdef");
        content.resize(at + 2);
        content.resize(at + 5);
        assert_eq!(content.read(at, &mut read), 5);
        assert_eq!(&read[..5], b"ab\0\0\0");
        content.write(at, b"xyz");
        content.write(at + 1, b"y");
        content.clear(at + 1, 1);
        assert_eq!((content.read(at, &mut read), content.size()), (5, at + 5));
        assert_eq!(&read[..5], b"x\0z\0\0");
    }
}
