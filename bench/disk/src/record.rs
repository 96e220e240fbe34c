//! The record: the events of a disk, in a possible order.
//!
//! A write is recorded at its end, a flush at its beginning: writes that ended before a flush began are durable when it has
//! ended.
//! Each event is a letter, two little-endian 64-bit numbers (offset, length), and the bytes of a write or a mark.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read as _, Write as _};
use std::path::Path;

/// Longest write or mark: more than FUSE sends.
const BYTES_MAX: u64 = 16 << 20;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Bytes were written.
    Write(u64, Vec<u8>),
    /// A range was trimmed, and reads as zeros.
    Trim(u64, u64),
    /// Everything before is durable.
    Flush,
    /// The load says something.
    Mark(Vec<u8>),
}

/// A record that grows.
pub(crate) struct Writer(BufWriter<File>);

impl Writer {
    pub(crate) fn create(path: &Path) -> io::Result<Writer> {
        Ok(Writer(BufWriter::with_capacity(
            1 << 20,
            File::create(path)?,
        )))
    }

    fn put(&mut self, kind: u8, at: u64, len: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(&[kind])?;
        self.0.write_all(&at.to_le_bytes())?;
        self.0.write_all(&len.to_le_bytes())?;
        self.0.write_all(bytes)
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.put(b'W', at, bytes.len() as u64, bytes)
    }

    pub(crate) fn trim(&mut self, at: u64, len: u64) -> io::Result<()> {
        self.put(b'T', at, len, &[])
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.put(b'F', 0, 0, &[])
    }

    pub(crate) fn mark(&mut self, text: &[u8]) -> io::Result<()> {
        self.put(b'M', 0, text.len() as u64, text)
    }

    /// Everything is in the file.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A record that is read, once, from its beginning.
pub(crate) struct Reader(BufReader<File>);

impl Reader {
    pub(crate) fn open(path: &Path) -> io::Result<Reader> {
        Ok(Reader(BufReader::with_capacity(1 << 20, File::open(path)?)))
    }

    /// The next event; none at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Event>> {
        let mut kind = [0];
        if self.0.read(&mut kind)? == 0 {
            return Ok(None);
        }
        let (mut at, mut len) = ([0; 8], [0; 8]);
        self.0.read_exact(&mut at)?;
        self.0.read_exact(&mut len)?;
        let (at, len) = (u64::from_le_bytes(at), u64::from_le_bytes(len));
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "not a record of a disk");
        if matches!(kind[0], b'W' | b'M') && len > BYTES_MAX {
            return Err(invalid());
        }
        Ok(Some(match kind[0] {
            b'F' => Event::Flush,
            b'T' => Event::Trim(at, len),
            b'W' | b'M' => {
                let mut bytes = vec![0; usize::try_from(len).map_err(|_| invalid())?];
                self.0.read_exact(&mut bytes)?;
                match kind[0] {
                    b'W' => Event::Write(at, bytes),
                    _ => Event::Mark(bytes),
                }
            }
            _ => return Err(invalid()),
        }))
    }

    /// Counts the events of a record, and says after which of them the mark `begin` stands, 0 if there is none.
    pub(crate) fn survey(path: &Path) -> io::Result<(u64, u64)> {
        let (mut reader, mut count, mut begin) = (Reader::open(path)?, 0, 0);
        while let Some(event) = reader.next()? {
            count += 1;
            if event == Event::Mark(b"begin".to_vec()) {
                begin = count;
            }
        }
        Ok((count, begin))
    }
}
