//! Whole transfers between buffers and an open file, in the caller's thread.
//!
//! The system may carry out a part of a request, interrupt it, or be short of resources for
//! a moment. Here the rest is asked for until everything is done or an error says why not.
//! Every engine ends here: these functions finish its incomplete transfers.

use super::locked::LockedFd;
use crate::{BLOCK_SIZE, BlockBuf, SECTOR_SIZE};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Blocks in a bounce buffer (1 MiB).
const BOUNCE_BLOCKS: usize = 256;
/// Bounce buffers kept for the next request.
const BOUNCE_BUFFERS_MAX: usize = 4;
/// Segments that the kernel takes in one call (its `UIO_MAXIOV`).
pub(super) const IOV_MAX: usize = 1024;
/// Segments of a request that needs no memory for its list.
const IOV_SMALL: usize = 32;
/// Maximum number of repetitions in a row of a request that the system has no resources for.
const AGAIN_MAX: u32 = 100;
/// Pause before each repetition.
const AGAIN_PAUSE: Duration = Duration::from_millis(1);

/// Reads all of `buf` from byte `offset` on.
pub(super) fn read_fully(fd: impl AsFd, buf: &mut [u8], offset: u64) -> io::Result<()> {
    read_with(buf, offset, |buf, offset| {
        rustix::io::pread(&fd, buf, offset)
    })
}

/// Writes all of `segments` from byte `offset` on; returns the offset after them.
pub(super) fn write_fully(fd: impl AsFd, segments: &[&[u8]], offset: u64) -> io::Result<u64> {
    // An empty slice need not be aligned, which direct access may hold against it.
    let slices = (segments.iter().filter(|s| !s.is_empty())).map(|s| IoSlice::new(s));
    if segments.len() <= IOV_SMALL {
        let mut iov = [IoSlice::new(&[]); IOV_SMALL];
        let mut used = 0;
        for slice in slices {
            iov[used] = slice;
            used += 1;
        }
        write_slices_fully(fd, &mut iov[..used], offset)
    } else {
        write_slices_fully(fd, &mut slices.collect::<Vec<_>>(), offset)
    }
}

/// As [`write_fully`]; uses the slices up.
pub(super) fn write_slices_fully(
    fd: impl AsFd,
    iov: &mut [IoSlice<'_>],
    offset: u64,
) -> io::Result<u64> {
    write_with(iov, offset, |iov, offset| {
        rustix::io::pwritev(&fd, &iov[..iov.len().min(IOV_MAX)], offset)
    })
}

fn read_with(
    mut buf: &mut [u8],
    mut offset: u64,
    mut pread: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
) -> io::Result<()> {
    while !buf.is_empty() {
        let moved = match patiently(|| pread(&mut *buf, offset)) {
            // Direct access cannot go on inside a sector: only the end of a file lies there.
            Err(Errno::INVAL) if is_inside_sector(offset) => 0,
            moved => moved?,
        };
        if moved == 0 {
            let what = "the file ends here: it was cut short while open";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        buf = &mut buf[moved..];
        offset += moved as u64;
    }
    Ok(())
}

fn write_with(
    mut iov: &mut [IoSlice<'_>],
    mut offset: u64,
    mut pwritev: impl FnMut(&[IoSlice<'_>], u64) -> Result<usize, Errno>,
) -> io::Result<u64> {
    // Empty slices at the front would make "nothing written" ambiguous.
    IoSlice::advance_slices(&mut iov, 0);
    while !iov.is_empty() {
        let moved = match patiently(|| pwritev(iov, offset)) {
            Err(Errno::INVAL) if is_inside_sector(offset) => 0,
            moved => moved?,
        };
        if moved == 0 {
            let what = "the medium takes no more bytes and does not say why";
            return Err(io::Error::new(io::ErrorKind::WriteZero, what));
        }
        IoSlice::advance_slices(&mut iov, moved);
        offset += moved as u64;
    }
    Ok(offset)
}

fn is_inside_sector(offset: u64) -> bool {
    !offset.is_multiple_of(SECTOR_SIZE as u64)
}

/// Repeats calls that a signal interrupted, and for a while calls for which the system lacks resources.
fn patiently<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut pauses = 0;
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if pauses < AGAIN_MAX => {
                pauses += 1;
                thread::sleep(AGAIN_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// An open file, and how to reach its bytes.
pub(super) struct Medium {
    pub(super) fd: Arc<LockedFd>,
    /// Whether requests go around the page cache: then buffers must be aligned.
    pub(super) direct: bool,
    bounce: Mutex<Vec<BlockBuf>>,
}

impl Medium {
    /// A file that is accessed through the page cache.
    pub(super) fn buffered(fd: Arc<LockedFd>) -> Medium {
        Medium {
            fd,
            direct: false,
            bounce: Mutex::default(),
        }
    }

    /// Whether this buffer must be replaced by an aligned one.
    pub(super) fn needs_bounce(&self, buf: &[u8]) -> bool {
        self.direct && !buf.is_empty() && !buf.as_ptr().addr().is_multiple_of(BLOCK_SIZE)
    }

    /// Reads all of `buf` from byte `offset` on, with any alignment.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.needs_bounce(buf) {
            self.read_bounced(buf, offset)
        } else {
            read_fully(&self.fd, buf, offset)
        }
    }

    /// Writes all of `segments`, each whole blocks, with any alignment.
    pub(super) fn write(&self, segments: &[&[u8]], offset: u64) -> io::Result<()> {
        if segments.iter().any(|segment| self.needs_bounce(segment)) {
            self.write_bounced(segments, offset)
        } else {
            write_fully(&self.fd, segments, offset)
        }
        .map(drop)
    }

    fn read_bounced(&self, buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        self.with_bounce(|bounce| {
            for part in buf.chunks_mut(bounce.len()) {
                let bounce = &mut bounce[..part.len()];
                read_fully(&self.fd, bounce, offset)?;
                part.copy_from_slice(bounce);
                offset += part.len() as u64;
            }
            Ok(())
        })
    }

    fn write_bounced(&self, segments: &[&[u8]], mut offset: u64) -> io::Result<u64> {
        self.with_bounce(|bounce| {
            let mut filled = 0;
            // Segments are whole blocks, so the buffer is only ever sent in whole blocks.
            for block in segments
                .iter()
                .flat_map(|segment| segment.chunks(BLOCK_SIZE))
            {
                bounce[filled..filled + block.len()].copy_from_slice(block);
                filled += block.len();
                if filled == bounce.len() {
                    offset = write_fully(&self.fd, &[&*bounce], offset)?;
                    filled = 0;
                }
            }
            write_fully(&self.fd, &[&bounce[..filled]], offset)
        })
    }

    /// Runs `work` with an aligned buffer of [`BOUNCE_BLOCKS`].
    fn with_bounce<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let pool = || self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = pool().pop();
        let mut buffer = kept.unwrap_or_else(|| BlockBuf::zeroed(BOUNCE_BLOCKS));
        let result = work(buffer.as_bytes_mut());
        let mut pool = pool();
        if pool.len() < BOUNCE_BUFFERS_MAX {
            pool.push(buffer);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::VecDeque;

    /// A medium that answers each call as the script says: a transfer of at most these bytes, or an
    /// error. After the script, it transfers everything.
    struct Fickle {
        bytes: Vec<u8>,
        script: VecDeque<Result<usize, Errno>>,
        calls: usize,
    }

    impl Fickle {
        fn new(script: &[Result<usize, Errno>]) -> Fickle {
            Fickle {
                bytes: (0..64 * 1024).map(|i| (i / 13) as u8).collect(),
                script: script.iter().copied().collect(),
                calls: 0,
            }
        }

        fn answer(&mut self, asked: usize) -> Result<usize, Errno> {
            self.calls += 1;
            match self.script.pop_front() {
                Some(answer) => answer.map(|most| most.min(asked)),
                None => Ok(asked),
            }
        }

        fn pread(&mut self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
            let n = self.answer(buf.len())?;
            let from = offset as usize;
            buf[..n].copy_from_slice(&self.bytes[from..from + n]);
            Ok(n)
        }

        fn pwritev(&mut self, iov: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
            let data = iov
                .iter()
                .flat_map(|s| s.iter().copied())
                .collect::<Vec<u8>>();
            let n = self.answer(data.len())?;
            self.bytes[offset as usize..][..n].copy_from_slice(&data[..n]);
            Ok(n)
        }

        fn write(&mut self, segments: &[&[u8]], offset: u64) -> io::Result<u64> {
            let mut iov: Vec<_> = segments.iter().map(|s| IoSlice::new(s)).collect();
            write_with(&mut iov, offset, |iov, offset| self.pwritev(iov, offset))
        }
    }

    const INTERRUPTED: [Result<usize, Errno>; 8] = [
        Ok(1),
        Err(Errno::INTR),
        Ok(511),
        Err(Errno::AGAIN),
        Ok(4096),
        Ok(4097),
        Err(Errno::INTR),
        Ok(100),
    ];

    #[test]
    fn corner_18_short_reads_are_continued_where_they_ended() {
        let mut medium = Fickle::new(&INTERRUPTED);
        let mut buf = vec![0; 5 * BLOCK_SIZE];
        read_with(&mut buf, 4096, |buf, offset| medium.pread(buf, offset)).unwrap();
        assert_eq!(medium.calls, 9);
        assert!(buf == medium.bytes[4096..6 * 4096]);
    }

    #[test]
    fn corner_18_short_writes_are_continued_where_they_ended() {
        let mut medium = Fickle::new(&INTERRUPTED);
        let before = medium.bytes.clone();
        let (a, b) = (vec![0xA1; BLOCK_SIZE], vec![0xB2; 3 * BLOCK_SIZE]);
        let end = medium.write(&[&[], &a, &[], &b, &[]], 8192).unwrap();
        assert_eq!((end, medium.calls), (6 * 4096, 9));
        assert!(medium.bytes[8192..6 * 4096] == [a, b].concat());
        assert!(medium.bytes[..8192] == before[..8192]);
        assert!(medium.bytes[6 * 4096..] == before[6 * 4096..]);
    }

    #[test]
    fn corner_18_a_medium_that_stops_gives_an_error_and_no_endless_loop() {
        let mut medium = Fickle::new(&[Ok(512), Ok(0)]);
        let error = medium.write(&[&[1; BLOCK_SIZE]], 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);

        let mut medium = Fickle::new(&[Ok(700), Err(Errno::INVAL)]);
        let mut buf = vec![0; BLOCK_SIZE];
        let error = read_with(&mut buf, 0, |buf, offset| medium.pread(buf, offset)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);

        // An invalid request stays one.
        let mut medium = Fickle::new(&[Ok(512), Err(Errno::INVAL)]);
        let error = medium.write(&[&[1; BLOCK_SIZE]], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()));

        let never = vec![Err(Errno::AGAIN); AGAIN_MAX as usize + 1];
        let mut medium = Fickle::new(&never);
        let error = medium.write(&[&[1; BLOCK_SIZE]], 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::AGAIN.raw_os_error()));
    }

    #[test]
    fn nothing_to_write_asks_nothing_of_the_medium() {
        let mut medium = Fickle::new(&[]);
        assert_eq!(medium.write(&[&[], &[]], 4096).unwrap(), 4096);
        assert_eq!(medium.calls, 0);
    }
}
