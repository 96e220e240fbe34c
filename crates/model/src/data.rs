//! The bytes of one file, sparse and cheap to clone.
//!
//! Invariants: pages that are absent read as zeros; bytes of a page at or past the size
//! are zero, so that growing a file never shows bytes that a shrink cut off. Equal
//! contents have equal digests, whichever pages happen to be present.

use crate::hash::Hasher128;
use crate::kept::Kept;
use crate::pages::{PAGE, Pages};
use std::fmt;

/// Unit of sharing between versions, and of a write's atomicity under `ordered`.
pub const PAGE_BYTES: u64 = PAGE as u64;

/// A file's content.
#[derive(Clone, Default)]
pub struct FileData {
    size: u64,
    pages: Pages,
}

impl fmt::Debug for FileData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileData({} bytes, {:032x})", self.size, self.digest())
    }
}

impl PartialEq for FileData {
    fn eq(&self, other: &FileData) -> bool {
        self.size == other.size
            && (self.pages.is_same(&other.pages) || self.digest() == other.digest())
    }
}

impl Eq for FileData {}

impl FileData {
    /// Nothing.
    #[must_use]
    pub fn new() -> FileData {
        FileData::default()
    }

    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Pages that are present.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages.len()
    }

    /// Reads at `offset`; returns how many bytes, short only at the end.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = (self.size.saturating_sub(offset)).min(buf.len() as u64) as usize;
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (page, from) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let n = (PAGE - from).min(len - done);
            let out = &mut buf[done..done + n];
            self.pages.read(page, from, out);
            done += n;
        }
        len
    }

    /// Writes at `offset`, growing the file to hold it. An empty write does nothing.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.write_kept(offset, data, None);
    }

    /// The same with bytes that are kept elsewhere, too: they are not held in memory as far as that can be done.
    pub fn write_kept(&mut self, offset: u64, data: &[u8], kept: Option<&Kept>) {
        if data.is_empty() {
            return;
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (page, from) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
            let n = (PAGE - from).min(data.len() - done);
            let part = &data[done..done + n];
            match kept {
                Some(kept) => self.pages.write_kept(page, from, part, &kept.after(done)),
                None => self.pages.write(page, from, part),
            }
            done += n;
        }
        self.size = self.size.max(offset + data.len() as u64);
    }

    /// Sets the size; bytes cut off are gone for good, added ones are zero.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            let end = self.size;
            self.zero(size, end - size);
        }
        self.size = size;
    }

    /// Makes the part of the range that lies inside the file zero, freeing whole pages.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size);
        if offset >= end {
            return;
        }
        // The last page may be dropped whole when the range reaches the end of the file.
        let whole_end = if end == self.size {
            end.div_ceil(PAGE_BYTES)
        } else {
            end / PAGE_BYTES
        };
        let whole_start = offset.div_ceil(PAGE_BYTES);
        if whole_start < whole_end {
            self.pages.remove(whole_start, whole_end);
        }
        for page in [offset / PAGE_BYTES, end / PAGE_BYTES] {
            let base = page * PAGE_BYTES;
            let from = offset.max(base) - base;
            let to = end.min(base + PAGE_BYTES).saturating_sub(base);
            if from < to {
                self.pages.zero(page, from as usize, to as usize);
            }
        }
    }

    /// The next offset at or after `offset` that is in a present page, if any.
    #[must_use]
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let page = self.pages.next(offset / PAGE_BYTES)?;
        let at = (page * PAGE_BYTES).max(offset);
        (at < self.size).then_some(at)
    }

    /// The next hole at or after `offset`; the end of the file is one.
    #[must_use]
    pub fn next_hole(&self, offset: u64) -> u64 {
        let mut page = offset / PAGE_BYTES;
        while self.pages.is_present(page) {
            page += 1;
        }
        (page * PAGE_BYTES).max(offset).min(self.size.max(offset))
    }

    /// Hash of size and content.
    #[must_use]
    pub fn digest(&self) -> u128 {
        let sum = self.pages.sum();
        Hasher128::new(13).u64(self.size).u128(sum).finish()
    }

    /// First offset where the two differ, sizes included.
    #[must_use]
    pub fn first_difference(&self, other: &FileData) -> Option<u64> {
        if self == other {
            return None;
        }
        let mut pages: Vec<u64> = self.pages.numbers().chain(other.pages.numbers()).collect();
        pages.sort_unstable();
        pages.dedup();
        let common = self.size.min(other.size);
        let (mut a, mut b) = ([0u8; PAGE], [0u8; PAGE]);
        for page in pages {
            let at = page * PAGE_BYTES;
            a.fill(0);
            b.fill(0);
            self.read(at, &mut a);
            other.read(at, &mut b);
            if let Some(i) = a.iter().zip(&b).position(|(x, y)| x != y) {
                return Some((at + i as u64).min(common));
            }
        }
        Some(common)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_behaves_like_a_plain_vector_and_its_digest_depends_on_content_alone() {
        let mut seed = 3u64;
        let mut next = |n: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (seed >> 33) % n
        };
        let (mut file, mut plain) = (FileData::new(), Vec::<u8>::new());
        for round in 0..3000u64 {
            let offset = next(20_000);
            match next(4) {
                0 => {
                    file.resize(offset);
                    plain.resize(offset as usize, 0);
                }
                1 => {
                    let len = next(9000);
                    file.zero(offset, len);
                    let end = ((offset + len) as usize).min(plain.len());
                    if (offset as usize) < end {
                        plain[offset as usize..end].fill(0);
                    }
                }
                _ => {
                    let data: Vec<u8> = (0..next(9000)).map(|i| (i + round) as u8).collect();
                    file.write(offset, &data);
                    if !data.is_empty() {
                        let end = offset as usize + data.len();
                        if plain.len() < end {
                            plain.resize(end, 0);
                        }
                        plain[offset as usize..end].copy_from_slice(&data);
                    }
                }
            }
            assert_eq!(file.size(), plain.len() as u64);
            let mut all = vec![7u8; plain.len() + 10];
            let n = file.read(0, &mut all);
            assert_eq!(&all[..n], &plain[..]);
            let mut fresh = FileData::new();
            fresh.write(0, &plain);
            assert_eq!(fresh.digest(), file.digest());
            assert_eq!(fresh.first_difference(&file), None);
            let at = next(20_000);
            if let Some(d) = file.next_data(at) {
                assert!(plain[at as usize..d as usize].iter().all(|b| *b == 0));
            }
        }
    }

    /// A store that is a vector.
    #[derive(Debug)]
    struct Spool(std::sync::Mutex<Vec<u8>>);

    impl crate::kept::Store for Spool {
        fn read(&self, offset: u64, buf: &mut [u8]) {
            let all = self
                .0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            buf.copy_from_slice(&all[offset as usize..][..buf.len()]);
        }
    }

    #[test]
    fn bytes_that_are_kept_elsewhere_read_like_those_that_are_not() {
        let mut seed = 11u64;
        let mut next = |n: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (seed >> 33) % n
        };
        let spool = std::sync::Arc::new(Spool(std::sync::Mutex::default()));
        let (mut kept, mut plain) = (FileData::new(), FileData::new());
        for round in 0..4000u64 {
            let offset = next(40_000);
            match next(6) {
                0 => {
                    kept.resize(offset);
                    plain.resize(offset);
                }
                1 => {
                    let len = next(9000);
                    kept.zero(offset, len);
                    plain.zero(offset, len);
                }
                way => {
                    let longest = if way == 2 { 300 } else { 9000 };
                    let data: Vec<u8> = (0..next(longest)).map(|i| (i * 7 + round) as u8).collect();
                    let at = {
                        let mut all = spool
                            .0
                            .lock()
                            .unwrap_or_else(std::sync::PoisonError::into_inner);
                        // Now and then the bytes before it belong to nobody.
                        let gap = next(2) as usize;
                        let at = all.len() + gap;
                        all.resize(at, 9);
                        all.extend_from_slice(&data);
                        at as u64
                    };
                    let place = Kept {
                        store: spool.clone(),
                        offset: at,
                    };
                    // Some writes are kept nowhere.
                    kept.write_kept(offset, &data, (way != 3).then_some(&place));
                    plain.write(offset, &data);
                }
            }
            let (mut a, mut b) = (vec![1; 50_000], vec![2; 50_000]);
            let (from, to) = (next(50_000), next(50_000) as usize);
            let (n, m) = (
                kept.read(from, &mut a[..to]),
                plain.read(from, &mut b[..to]),
            );
            assert_eq!(a[..n], b[..m], "round {round}");
            assert_eq!(kept.next_hole(from), plain.next_hole(from));
            if round % 20 == 0 {
                assert_eq!(kept.digest(), plain.digest());
                assert_eq!(kept.first_difference(&plain), None);
            }
        }
    }

    #[test]
    fn corner_26_bytes_cut_off_by_a_shrink_never_come_back() {
        let mut file = FileData::new();
        file.write(0, &[1; 5000]);
        file.resize(100);
        file.resize(5000);
        let mut buf = [9u8; 5000];
        assert_eq!(file.read(0, &mut buf), 5000);
        assert!(buf[..100].iter().all(|b| *b == 1) && buf[100..].iter().all(|b| *b == 0));
    }

    #[test]
    fn the_first_difference_is_found_in_content_and_in_size() {
        let (mut a, mut b) = (FileData::new(), FileData::new());
        a.write(0, &[1; 6000]);
        b.write(0, &[1; 6000]);
        b.write(5001, &[2]);
        assert_eq!(a.first_difference(&b), Some(5001));
        b.write(5001, &[1]);
        assert_eq!(a.first_difference(&b), None);
        b.resize(7000);
        assert_eq!(a.first_difference(&b), Some(6000));
    }
}
