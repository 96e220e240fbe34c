//! Objects that a take-over will read, in the memory of a stand-by.
//!
//! Every object but `head` is written once, and no name is used again. So a copy that passed its checks is what the store
//! answers as long as it has the object, and a take-over reads only what the store still has: the checkpoint that `head` names,
//! and the slots after it. `head` itself and slots that are not in memory are always asked for.

use crate::protocol::ObjectName;
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;

/// An object, or a part of it.
type Part = (ObjectName, Option<Range<u64>>);

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Kept {
    parts: HashMap<Part, Bytes>,
    bytes: u64,
    most: u64,
}

impl Kept {
    /// Room for so many bytes. What does not fit is not kept.
    pub(crate) fn new(most: u64) -> Kept {
        Kept {
            parts: HashMap::new(),
            bytes: 0,
            most,
        }
    }

    pub(crate) fn get(&self, name: ObjectName, range: Option<&Range<u64>>) -> Option<Bytes> {
        self.parts.get(&(name, range.cloned())).cloned()
    }

    /// Keeps a part whose checks passed. `head` is never kept.
    pub(crate) fn put(&mut self, name: ObjectName, range: Option<Range<u64>>, bytes: &Bytes) {
        let length = bytes.len() as u64;
        if name == ObjectName::Head || self.bytes + length > self.most {
            return;
        }
        if self.parts.insert((name, range), bytes.clone()).is_none() {
            self.bytes += length;
        }
    }

    /// Forgets all parts.
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Slot, SlotName, Term};

    #[test]
    fn head_is_never_kept_and_no_more_than_fits() {
        let log = |slot| {
            ObjectName::Log(SlotName {
                term: Term(1),
                slot: Slot(slot),
            })
        };
        let mut kept = Kept::new(10);
        kept.put(ObjectName::Head, None, &Bytes::from_static(b"head"));
        assert_eq!(kept.get(ObjectName::Head, None), None);
        for slot in 0..3 {
            kept.put(log(slot), None, &Bytes::from_static(b"12345"));
            kept.put(log(slot), None, &Bytes::from_static(b"12345"));
        }
        let found = (0..3).filter_map(|slot| kept.get(log(slot), None));
        assert_eq!(found.count(), 2);
        assert_eq!(kept.get(log(0), Some(&(0..5))), None, "another part");
        kept.clear();
        kept.put(log(2), Some(0..2), &Bytes::from_static(b"12"));
        assert_eq!(kept.get(log(0), None), None);
        assert_eq!(kept.get(log(2), Some(&(0..2))).as_deref(), Some(&b"12"[..]));
    }
}
