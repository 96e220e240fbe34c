//! The bytes of a write: held in memory, or left where they are kept, so that the bytes of a long run stay in its trace.

use super::build::garbage;
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use steadfast_model::data::FileData;
use steadfast_model::{Kept, Store};

/// See the module's header.
#[derive(Clone)]
pub struct Bytes(Place);

#[derive(Clone)]
enum Place {
    Held(Arc<[u8]>),
    Kept(Kept, usize),
}

impl Bytes {
    /// So many bytes that are kept elsewhere.
    #[must_use]
    pub fn kept(kept: Kept, len: usize) -> Bytes {
        Bytes(Place::Kept(kept, len))
    }

    /// What the medium held before at this range of a file, for models that show it.
    pub(super) fn garbage(range: Range<u64>) -> Bytes {
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(0);
        // What a page takes is held; longer ranges are computed when they are read.
        if len as u64 <= steadfast_model::data::PAGE_BYTES {
            return Bytes::from_iter(range.map(garbage));
        }
        let kept = Kept {
            store: Arc::new(Garbage),
            offset: range.start,
        };
        Bytes(Place::Kept(kept, len))
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Place::Held(bytes) => bytes.len(),
            Place::Kept(_, len) => *len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a range; `None` if the range ends after them.
    #[must_use]
    pub fn get(&self, range: Range<usize>) -> Option<Cow<'_, [u8]>> {
        match &self.0 {
            Place::Held(bytes) => bytes.get(range).map(Cow::Borrowed),
            Place::Kept(kept, len) => {
                if range.start > range.end || range.end > *len {
                    return None;
                }
                let mut bytes = vec![0; range.len()];
                kept.store
                    .read(kept.offset + range.start as u64, &mut bytes);
                Some(Cow::Owned(bytes))
            }
        }
    }

    /// All of them.
    #[must_use]
    pub fn all(&self) -> Cow<'_, [u8]> {
        self.get(0..self.len()).unwrap_or_default()
    }

    /// Writes some of them into a file. Those that are kept elsewhere stay there.
    pub(super) fn write(&self, range: Range<usize>, file: &mut FileData, at: u64) {
        let Some(bytes) = self.get(range.clone()) else {
            return;
        };
        match &self.0 {
            Place::Held(_) => file.write(at, &bytes),
            Place::Kept(kept, _) => {
                let kept = Kept {
                    store: Arc::clone(&kept.store),
                    offset: kept.offset + range.start as u64,
                };
                file.write_kept(at, &bytes, Some(&kept));
            }
        }
    }
}

impl From<Arc<[u8]>> for Bytes {
    fn from(bytes: Arc<[u8]>) -> Bytes {
        Bytes(Place::Held(bytes))
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Bytes {
        Bytes(Place::Held(Arc::from(bytes)))
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes(Place::Held(Arc::from(bytes)))
    }
}

impl FromIterator<u8> for Bytes {
    fn from_iter<T: IntoIterator<Item = u8>>(all: T) -> Bytes {
        Bytes(Place::Held(all.into_iter().collect()))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Bytes) -> bool {
        self.len() == other.len() && self.all() == other.all()
    }
}

impl Eq for Bytes {}

/// Old content of the medium, by offset in its file.
#[derive(Debug)]
struct Garbage;

impl Store for Garbage {
    fn read(&self, offset: u64, buf: &mut [u8]) {
        for (byte, at) in buf.iter_mut().zip(offset..) {
            *byte = garbage(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_kept_elsewhere_are_those_that_are_held() {
        let range = 100..20_000;
        let (held, kept) = (
            Bytes::from_iter(range.clone().map(garbage)),
            Bytes::garbage(range),
        );
        assert!(matches!(kept.0, Place::Kept(..)));
        assert_eq!(held, kept);
        assert_eq!(held.get(7..9000), kept.get(7..9000));
        assert_eq!(kept.get(7..19_901), None);
        let (mut a, mut b) = (FileData::new(), FileData::new());
        for (bytes, file) in [(&held, &mut a), (&kept, &mut b)] {
            bytes.write(500..15_000, file, 1300);
            bytes.write(0..19_901, file, 0);
            bytes.write(3..5, file, 70_000);
        }
        assert_eq!((a.size(), &a), (70_002, &b));
        assert_ne!(held, Bytes::from(vec![0; 19_900]));
    }
}
