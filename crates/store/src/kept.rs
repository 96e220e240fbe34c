//! Objects that a take-over will read, in the memory of a stand-by.
//!
//! Every object but `head` is written once, and no name is used again. So a copy that passed its checks is what the store
//! answers as long as it has the object, and a take-over reads only what the store still has: the checkpoint that `head` names,
//! and the slots after it. `head` itself and slots that are not in memory are always asked for.

#[cfg(feature = "faults")]
use crate::fault::DeviceFault;
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
    /// The rule that a test leaves out.
    #[cfg(feature = "faults")]
    planted: Option<Planted>,
}

/// A fault, and the number of answers that it may still give.
#[cfg(feature = "faults")]
#[derive(Debug)]
struct Planted {
    fault: DeviceFault,
    answers: u64,
}

/// Answers from a memory with a fault; then requests fail. Otherwise a take-over that a fault keeps busy would never end.
#[cfg(feature = "faults")]
const PLANTED_ANSWERS: u64 = 2000;

impl Kept {
    /// Room for `most` bytes. What does not fit is not kept.
    pub(crate) fn new(most: u64) -> Kept {
        Kept {
            parts: HashMap::new(),
            bytes: 0,
            most,
            #[cfg(feature = "faults")]
            planted: None,
        }
    }

    pub(crate) fn get(&self, name: ObjectName, range: Option<&Range<u64>>) -> Option<Bytes> {
        self.parts.get(&(name, range.cloned())).cloned()
    }

    /// Keeps a part whose checks passed. `head` is never kept.
    pub(crate) fn put(&mut self, name: ObjectName, range: Option<Range<u64>>, bytes: &Bytes) {
        if name != ObjectName::Head {
            self.insert(name, range, bytes);
        }
    }

    fn insert(&mut self, name: ObjectName, range: Option<Range<u64>>, bytes: &Bytes) {
        let length = bytes.len() as u64;
        if self.bytes + length > self.most {
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

/// What tests plant.
#[cfg(feature = "faults")]
impl Kept {
    pub(crate) fn plant(&mut self, fault: Option<DeviceFault>) {
        let answers = PLANTED_ANSWERS;
        self.planted = fault.map(|fault| Planted { fault, answers });
    }

    /// Keeps what the rule that is left out would refuse; `bytes` come from the store, unchecked. No bytes: it has no such
    /// object.
    pub(crate) fn put_planted(
        &mut self,
        name: ObjectName,
        range: Option<Range<u64>>,
        bytes: Option<&Bytes>,
    ) {
        let Some(Planted { fault, .. }) = self.planted else {
            return;
        };
        let is_head = name == ObjectName::Head;
        match (fault, bytes) {
            (DeviceFault::HeadKept, Some(bytes)) if is_head => self.insert(name, range, bytes),
            (DeviceFault::UncheckedKept, Some(bytes)) => self.put(name, range, bytes),
            (DeviceFault::AbsentKept, None) => self.insert(name, range, &Bytes::new()),
            _ => {}
        }
    }

    /// Counts an answer of a memory with a fault. False: it has given enough of them.
    pub(crate) fn may_answer(&mut self) -> bool {
        let Some(Planted { answers, .. }) = &mut self.planted else {
            return true;
        };
        *answers = answers.saturating_sub(1);
        *answers > 0
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
