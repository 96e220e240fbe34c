//! The kept writes of one file: the contents that each of its pages may have after a crash.
//!
//! Pages are independent of each other; the size is not: a page that has arrived makes the file reach at least
//! to its last byte that lay inside the file when it was sent.

use crate::data::{FileData, PAGE_BYTES};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

type Page = [u8; PAGE_BYTES as usize];

/// A content of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    bytes: Arc<Page>,
    /// Least end of the file if this has arrived. 0: it is not known to have arrived since a call about the size, or
    /// since the file was last closed or synced.
    end: u64,
}

/// See the module's header. A file of which nothing is kept has none of this.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// End of the file, whatever has arrived; unknown before the first write.
    size: Option<u64>,
    /// Possible contents of each page that was written, the newest last. The first is that from before.
    pages: BTreeMap<u64, Vec<Version>>,
}

/// Numbers of the pages that bytes lie in.
fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    if bytes.is_empty() {
        return 0..0;
    }
    bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES)
}

/// A page of a file, zeros past its end.
fn page(data: &FileData, number: u64) -> Arc<Page> {
    let mut bytes = [0; PAGE_BYTES as usize];
    data.read(number * PAGE_BYTES, &mut bytes);
    Arc::new(bytes)
}

impl Kept {
    /// The file was `old`, and is `new` after a write of `bytes`.
    pub(super) fn write(&mut self, old: &FileData, new: &FileData, bytes: Range<u64>) {
        self.size.get_or_insert(old.size());
        let mut touched = pages_of(&bytes);
        // When the file grows, a page that was its last and is sent later comes with the zeros past the old end.
        let last = old.size() / PAGE_BYTES;
        let grown = new.size() > old.size() && self.pages.contains_key(&last);
        for number in touched
            .by_ref()
            .chain((grown && !pages_of(&bytes).contains(&last)).then_some(last))
        {
            let versions = self.pages.entry(number).or_insert_with(|| {
                vec![Version {
                    bytes: page(old, number),
                    end: 0,
                }]
            });
            let newest = Version {
                bytes: page(new, number),
                end: ((number + 1) * PAGE_BYTES).min(new.size()),
            };
            if !versions.contains(&newest) {
                versions.push(newest);
            }
        }
    }

    /// The end was put at `size`, in the order.
    pub(super) fn resize(&mut self, size: u64) {
        self.size = Some(size);
        self.pages.retain(|number, _| number * PAGE_BYTES < size);
        for versions in self.pages.values_mut() {
            for version in versions {
                version.end = 0;
            }
        }
        self.zero(&(size..u64::MAX));
    }

    /// A call in the order has made the file reach at least to `end`.
    pub(super) fn reach(&mut self, end: u64) {
        self.size = self.size.map(|size| size.max(end));
    }

    /// A call in the order has made these bytes zero.
    pub(super) fn zero(&mut self, bytes: &Range<u64>) {
        for (number, versions) in &mut self.pages {
            let base = number * PAGE_BYTES;
            let from = bytes.start.clamp(base, base + PAGE_BYTES) - base;
            let to = bytes.end.clamp(base, base + PAGE_BYTES) - base;
            if from < to {
                for version in versions {
                    Arc::make_mut(&mut version.bytes)[from as usize..to as usize].fill(0);
                }
            }
        }
    }

    /// Whether a crash may leave the file, which programs see as `now`, as `found`; else why not.
    pub(super) fn may_be(&self, now: &FileData, found: &FileData) -> Result<(), String> {
        let size = found.size();
        let least = self.size.unwrap_or(now.size());
        if size < least {
            return Err(format!("it has {size} bytes, and must have {least}"));
        }
        let mut reached = size == least;
        let mut numbers: Vec<u64> = pages_of(&(0..size)).collect();
        numbers.extend(
            self.pages
                .range(size.div_ceil(PAGE_BYTES)..)
                .map(|(n, _)| *n),
        );
        for number in numbers {
            let bytes = page(found, number);
            let at = number * PAGE_BYTES;
            let Some(versions) = self.pages.get(&number) else {
                if bytes != page(now, number) {
                    return Err(format!("bytes {at}.. are not what they were"));
                }
                continue;
            };
            let mut fitting = versions
                .iter()
                .filter(|version| version.bytes == bytes && version.end <= size)
                .peekable();
            if fitting.peek().is_none() {
                return Err(format!("bytes {at}.. hold nothing that they have held"));
            }
            reached |= fitting.any(|version| version.end == size);
        }
        match reached {
            true => Ok(()),
            false => Err(format!("nothing that is there makes it {size} bytes long")),
        }
    }
}
