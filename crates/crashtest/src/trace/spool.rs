//! The file that a trace is written to, which can be read while it grows: the recorder keeps the content of files there, once.
//!
//! Invariants: bytes are appended, and never change; bytes that are not in the file yet are in the buffer, so that
//! each position is in one of the two.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use steadfast_model::Store;

/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 1 << 18;

#[derive(Debug)]
struct Tail {
    /// Bytes of the file.
    written: u64,
    buffer: Vec<u8>,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    tail: Mutex<Tail>,
    /// Whether something could not be read.
    damaged: AtomicBool,
}

impl Spool {
    /// An empty file.
    pub(super) fn new(file: File) -> Spool {
        Spool {
            file,
            tail: Mutex::new(Tail {
                written: 0,
                buffer: Vec::with_capacity(BUFFER_BYTES),
            }),
            damaged: AtomicBool::new(false),
        }
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_out(&self, tail: &mut Tail) -> io::Result<()> {
        (&self.file).write_all(&tail.buffer)?;
        tail.written += tail.buffer.len() as u64;
        tail.buffer.clear();
        Ok(())
    }

    pub(super) fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut tail = self.tail();
        if tail.buffer.len() + bytes.len() > BUFFER_BYTES {
            self.write_out(&mut tail)?;
        }
        if bytes.len() > BUFFER_BYTES {
            (&self.file).write_all(bytes)?;
            tail.written += bytes.len() as u64;
            return Ok(());
        }
        tail.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes everything, and makes it durable.
    pub(super) fn finish(&self) -> io::Result<()> {
        self.write_out(&mut self.tail())?;
        self.file.sync_all()
    }

    /// Whether the file can be read while it is written.
    pub(super) fn is_readable(&self) -> bool {
        self.file.metadata().is_ok_and(|m| m.is_file())
    }

    /// Whether something could not be read: nothing that was read since can be trusted.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Relaxed)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // A trace that was not ended is kept as far as it goes; write errors were reported before, or nobody asked
        // for them.
        let mut tail = std::mem::replace(
            self.tail.get_mut().unwrap_or_else(PoisonError::into_inner),
            Tail {
                written: 0,
                buffer: Vec::new(),
            },
        );
        let _ = self.write_out(&mut tail);
    }
}

impl Store for Spool {
    fn read(&self, offset: u64, buf: &mut [u8]) {
        let tail = self.tail();
        let in_file = tail.written.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (first, rest) = buf.split_at_mut(in_file);
        if !rest.is_empty() {
            let at = offset.max(tail.written) - tail.written;
            let held = usize::try_from(at)
                .ok()
                .and_then(|at| tail.buffer.get(at..));
            match held.and_then(|held| held.get(..rest.len())) {
                Some(held) => rest.copy_from_slice(held),
                None => self.damaged.store(true, Ordering::Relaxed),
            }
        }
        drop(tail);
        if !first.is_empty() && self.file.read_exact_at(first, offset).is_err() {
            first.fill(0);
            self.damaged.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn spool() -> Spool {
        Spool::new(tempfile::tempfile().unwrap())
    }

    #[test]
    fn what_was_appended_is_read_from_the_buffer_from_the_file_and_from_both() {
        let spool = spool();
        let mut all = Vec::new();
        for (i, len) in [10usize, 100_000, 100_000, 7, 300_000, 1, 260_000, 5]
            .iter()
            .enumerate()
        {
            let bytes: Vec<u8> = (0..*len).map(|b| (b * 3 + i) as u8).collect();
            spool.append(&bytes).unwrap();
            all.extend_from_slice(&bytes);
            for from in [0, all.len() / 3, all.len() - 1] {
                let mut read = vec![1; all.len() - from];
                spool.read(from as u64, &mut read);
                assert_eq!(read, all[from..]);
            }
        }
        assert!(!spool.is_damaged());
        spool.finish().unwrap();
        let mut read = vec![1; all.len()];
        spool.read(0, &mut read);
        assert_eq!(read, all);
    }

    #[test]
    fn what_was_appended_is_in_the_file_when_it_is_given_up() {
        let file = tempfile::tempfile().unwrap();
        let spool = Spool::new(file.try_clone().unwrap());
        spool.append(b"kept").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        drop(spool);
        assert_eq!(file.metadata().unwrap().len(), 4);
    }

    #[test]
    fn a_file_that_has_lost_bytes_is_damaged() {
        let spool = spool();
        spool.append(&[1; 1000]).unwrap();
        spool.finish().unwrap();
        spool.file.set_len(10).unwrap();
        let mut read = [7; 100];
        spool.read(500, &mut read);
        assert!(spool.is_damaged());
        assert_eq!(read, [0; 100]);
        // And a position that was never written.
        let spool = self::spool();
        spool.read(0, &mut read);
        assert!(spool.is_damaged());
    }

    #[test]
    fn a_device_cannot_be_read_again() {
        assert!(spool().is_readable());
        let null = File::options().write(true).open("/dev/null").unwrap();
        assert!(!Spool::new(null).is_readable());
    }
}
