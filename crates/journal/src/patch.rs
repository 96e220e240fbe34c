//! An operation's changes of a block, and the parts of it that a transaction owns.
//!
//! An operation keeps *edits*, in order, with their bytes in one buffer of its own; they are
//! carried out on the current image when it commits. A transaction keeps a *patch*: the set of
//! bytes and bits that it owns, the values being in the image that it froze.

use crate::layout::set_bits;
use crate::mask::{BitMask, ByteMask, close_gaps};
use crate::record::ENTRY_BYTES;
use steadfast_block::Block;

/// Ranges closer than this are logged as one: a range header costs as much.
const RANGE_GAP_BYTES: usize = 4;
/// Encoded bytes of a range header.
const RANGE_BYTES: u64 = 4;
/// Encoded bytes that one call that sets bits causes at most.
const BITS_BYTES: u64 = 8;

/// One change of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Edit {
    /// New bytes; they lie in the operation's buffer at `from`.
    Bytes { offset: u16, len: u16, from: u32 },
    /// New bytes of which the newest count, in whichever stream: such edits commute.
    Latest { offset: u16, len: u16, from: u32 },
    /// Bits, all to one value.
    Bits { first: u16, count: u16, value: bool },
    /// A difference of a 64-bit counter.
    Add { offset: u16, delta: i64 },
}

impl Edit {
    /// Bytes that it changes; bits are rounded up.
    pub(crate) fn changed_bytes(&self) -> u64 {
        match *self {
            Edit::Bytes { len, .. } | Edit::Latest { len, .. } => u64::from(len),
            Edit::Bits { count, .. } => u64::from(count).div_ceil(8),
            Edit::Add { .. } => 8,
        }
    }

    /// Upper bound of the bytes that it takes in a record, besides those of its block.
    pub(crate) fn log_bytes(&self) -> u64 {
        match *self {
            Edit::Bytes { len, .. } | Edit::Latest { len, .. } => u64::from(len) + RANGE_BYTES,
            Edit::Bits { .. } => BITS_BYTES,
            Edit::Add { .. } => 8 + RANGE_BYTES,
        }
    }

    /// Carries the edit out; `bytes` is the operation's buffer.
    pub(crate) fn apply(&self, bytes: &[u8], image: &mut Block) {
        match *self {
            Edit::Bytes { offset, len, from } | Edit::Latest { offset, len, from } => {
                let (offset, len, from) = (offset as usize, len as usize, from as usize);
                image[offset..offset + len].copy_from_slice(&bytes[from..from + len]);
            }
            Edit::Bits {
                first,
                count,
                value,
            } => set_bits(image, first as usize, count as usize, value),
            Edit::Add { offset, delta } => add_at(image, offset as usize, delta),
        }
    }
}

/// The part of a block that belongs to a transaction. The values are in an image kept beside
/// it; `adds` are differences, resolved when the record is laid.
#[derive(Clone, Default, Debug)]
pub(crate) struct Patch {
    /// The block begins a new life: its base is zeros.
    pub(crate) zero: bool,
    /// The block was freed: nothing else of the patch counts.
    pub(crate) revoke: bool,
    pub(crate) bytes: ByteMask,
    pub(crate) bits: Option<Box<BitMask>>,
    /// Calls that set bits: bounds the number of runs that are logged.
    bit_calls: u64,
    /// (offset, difference) of 64-bit counters.
    pub(crate) adds: Vec<(u16, i64)>,
    /// Bytes of which the newest count: the values are those when the transaction closed, unless one
    /// that closed later is laid before (`give_up_to`).
    pub(crate) latest: Option<Box<ByteMask>>,
}

impl Patch {
    /// The patch of a block that was freed.
    pub(crate) fn revoked() -> Patch {
        Patch {
            revoke: true,
            ..Patch::default()
        }
    }

    /// Takes over a later edit of the same owner. Returns an upper bound of the encoded bytes
    /// that it adds: exact for edits that touch no range or adjoin one, less a gap that closes.
    pub(crate) fn take(&mut self, edit: &Edit) -> u64 {
        let extend = |mask: &mut ByteMask, offset: u16, len: u16| {
            let (offset, len) = (offset as usize, len as usize);
            let known = mask.adjoins(offset, len) || mask.meets(offset, len);
            mask.insert(offset, len) as u64 + if known { 0 } else { RANGE_BYTES }
        };
        match *edit {
            Edit::Bytes { offset, len, .. } => extend(&mut self.bytes, offset, len),
            Edit::Latest { offset, len, .. } => {
                extend(self.latest.get_or_insert_default(), offset, len)
            }
            Edit::Bits { first, count, .. } => {
                self.bits
                    .get_or_insert_default()
                    .insert(first as usize, count as usize);
                self.bit_calls += 1;
                BITS_BYTES
            }
            Edit::Add { offset, delta } => self.add(offset, delta),
        }
    }

    /// Another transaction, which closed later, is laid first: where both have newest values, the
    /// other's are the newer ones. A transaction that writes there in another way is never laid between the two.
    pub(crate) fn give_up_to(&mut self, overtaker: &Patch) {
        if let (Some(mine), Some(theirs)) = (&mut self.latest, &overtaker.latest) {
            mine.subtract(theirs);
            if mine.is_empty() {
                self.latest = None;
            }
        }
    }

    fn add(&mut self, offset: u16, delta: i64) -> u64 {
        match self.adds.iter_mut().find(|a| a.0 == offset) {
            Some(add) => {
                add.1 = add.1.wrapping_add(delta);
                0
            }
            None => {
                self.adds.push((offset, delta));
                8 + RANGE_BYTES
            }
        }
    }

    /// Whether an edit of another owner cannot be reordered with this patch: they have bytes or
    /// bits in common. Differences of one counter can be, and so can newest values.
    pub(crate) fn overlaps(&self, edit: &Edit) -> bool {
        let bytes = |(start, len): (usize, usize)| self.bytes.meets(start, len);
        let bits = |(start, len): (usize, usize)| {
            (self.bits.as_ref()).is_some_and(|bits| bits.meets(start * 8, len * 8))
        };
        let adds = |(start, len): (usize, usize)| {
            let meets = |a: &(u16, i64)| (a.0 as usize) < start + len && start < a.0 as usize + 8;
            self.adds.iter().any(meets)
        };
        let latest = |(start, len): (usize, usize)| {
            (self.latest.as_ref()).is_some_and(|latest| latest.meets(start, len))
        };
        match *edit {
            Edit::Bytes { offset, len, .. } => {
                let run = (offset as usize, len as usize);
                bytes(run) || bits(run) || adds(run) || latest(run)
            }
            Edit::Latest { offset, len, .. } => {
                let run = (offset as usize, len as usize);
                bytes(run) || bits(run) || adds(run)
            }
            Edit::Add { offset, .. } => {
                let run = (offset as usize, 8);
                bytes(run) || bits(run) || latest(run)
            }
            Edit::Bits { first, count, .. } => {
                let (first, count) = (first as usize, count as usize);
                let run = (first / 8, (first + count).div_ceil(8) - first / 8);
                (self.bits.as_ref()).is_some_and(|bits| bits.meets(first, count))
                    || bytes(run)
                    || adds(run)
                    || latest(run)
            }
        }
    }

    /// Adds a later patch of the same owner.
    pub(crate) fn absorb(&mut self, later: &Patch) {
        debug_assert!(
            !self.revoke || later.revoke,
            "a freed block is changed before its release"
        );
        if later.revoke {
            *self = Patch::revoked();
            return;
        }
        self.zero |= later.zero;
        self.bytes.union(&later.bytes);
        if let Some(bits) = &later.bits {
            self.bits.get_or_insert_default().union(bits);
        }
        self.bit_calls += later.bit_calls;
        for &(offset, delta) in &later.adds {
            self.add(offset, delta);
        }
        if let Some(latest) = &later.latest {
            self.latest.get_or_insert_default().union(latest);
        }
    }

    /// Carries this patch from the image that holds its values into another one.
    pub(crate) fn apply(&self, values: &Block, image: &mut Block) {
        if self.zero {
            image.fill(0);
        }
        for (start, len) in self.bytes.runs() {
            image[start..start + len].copy_from_slice(&values[start..start + len]);
        }
        for (first, count) in self.bits.as_ref().map(|b| b.runs()).unwrap_or_default() {
            for i in first..first + count {
                set_bits(image, i, 1, values[i / 8] >> (i % 8) & 1 == 1);
            }
        }
        // The bytes of a counter that is owned, too, hold the sum already.
        for &(offset, delta) in &self.adds {
            if !self.bytes.meets(offset as usize, 8) {
                add_at(image, offset as usize, delta);
            }
        }
        self.apply_latest(values, image);
    }

    /// The part of `apply` that carries newest values over.
    pub(crate) fn apply_latest(&self, values: &Block, image: &mut Block) {
        for (start, len) in self.latest.as_ref().map(|l| l.runs()).unwrap_or_default() {
            image[start..start + len].copy_from_slice(&values[start..start + len]);
        }
    }

    /// Byte ranges to be logged.
    pub(crate) fn ranges(&self) -> Vec<(usize, usize)> {
        if self.adds.is_empty() && self.latest.is_none() {
            return close_gaps(self.bytes.runs(), RANGE_GAP_BYTES);
        }
        let mut mask = self.bytes.clone();
        for &(offset, _) in &self.adds {
            mask.insert(offset as usize, 8);
        }
        if let Some(latest) = &self.latest {
            mask.union(latest);
        }
        close_gaps(mask.runs(), RANGE_GAP_BYTES)
    }

    /// Upper bound of the bytes that this patch takes in a record. `n` calls that set bits
    /// leave at most `2n - 1` runs of equal bits, of 4 bytes each.
    pub(crate) fn log_bytes(&self) -> u64 {
        let bytes: u64 = self.ranges().iter().map(|r| r.1 as u64 + RANGE_BYTES).sum();
        ENTRY_BYTES as u64 + bytes + self.bit_calls * BITS_BYTES
    }
}

/// Adds to a 64-bit counter in a block.
pub(crate) fn add_at(image: &mut Block, offset: usize, delta: i64) {
    let mut value = [0u8; 8];
    value.copy_from_slice(&image[offset..offset + 8]);
    let sum = u64::from_le_bytes(value).wrapping_add_signed(delta);
    image[offset..offset + 8].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use steadfast_block::BLOCK_SIZE;

    fn edit() -> impl Strategy<Value = Edit> {
        prop_oneof![
            (0u16..500, 1u16..40).prop_map(|(offset, len)| Edit::Bytes {
                offset,
                len,
                from: 0
            }),
            (0u16..500, 1u16..40).prop_map(|(offset, len)| Edit::Latest {
                offset,
                len,
                from: 0
            }),
            (0u16..4000, 1u16..70).prop_map(|(first, count)| Edit::Bits {
                first,
                count,
                value: true
            }),
            (0u16..60, any::<i64>()).prop_map(|(n, delta)| Edit::Add {
                offset: n * 8,
                delta
            }),
        ]
    }

    /// Overtaken where both have newest values: the rest, and the owner's own writes, stay.
    #[test]
    fn newest_values_are_given_up_to_an_overtaker_and_nothing_else() {
        let latest = |offset, len| Edit::Latest {
            offset,
            len,
            from: 0,
        };
        let mut patch = Patch::default();
        patch.take(&latest(48, 24));
        patch.take(&Edit::Bytes {
            offset: 100,
            len: 8,
            from: 0,
        });
        let mut overtaker = Patch::default();
        overtaker.take(&latest(56, 100));
        let applied = |patch: &Patch| {
            let mut image = [1; BLOCK_SIZE];
            patch.apply(&[7; BLOCK_SIZE], &mut image);
            [
                image[47], image[48], image[55], image[56], image[71], image[100],
            ]
        };
        assert_eq!(applied(&patch), [1, 7, 7, 7, 7, 7]);
        patch.give_up_to(&overtaker);
        assert_eq!(applied(&patch), [1, 7, 7, 1, 1, 7]);
        overtaker.take(&latest(0, 200));
        patch.give_up_to(&overtaker);
        assert!(patch.latest.is_none());
        assert_eq!(applied(&patch), [1, 1, 1, 1, 1, 7]);
    }

    proptest! {
        /// Log space is reserved by these bounds, so they must never be too small.
        #[test]
        fn the_growth_that_an_edit_reports_bounds_the_encoded_size(edits in prop::collection::vec(edit(), 0..30)) {
            let mut patch = Patch::default();
            let mut bound = ENTRY_BYTES as u64;
            for edit in &edits {
                bound += patch.take(edit);
                prop_assert!(patch.log_bytes() <= bound, "{} > {bound}", patch.log_bytes());
            }
        }

        /// Against a plain account of which bits of the block each of them uses, and how.
        #[test]
        fn edits_overlap_where_they_use_bits_in_common(ours in prop::collection::vec(edit(), 0..4), theirs in edit()) {
            let uses = |edit: &Edit| match *edit {
                Edit::Bytes { offset, len, .. } => (0, offset as usize * 8, len as usize * 8),
                Edit::Bits { first, count, .. } => (0, first as usize, count as usize),
                Edit::Latest { offset, len, .. } => (1, offset as usize * 8, len as usize * 8),
                Edit::Add { offset, .. } => (2, offset as usize * 8, 64),
            };
            let bytes_only = |edit: &Edit| !matches!(edit, Edit::Bits { .. });
            let mut patch = Patch::default();
            let mut expected = false;
            for edit in &ours {
                patch.take(edit);
                let (mut a, mut b) = (uses(edit), uses(&theirs));
                // Two edits of bits conflict by bit; else by whole bytes.
                if bytes_only(edit) || bytes_only(&theirs) {
                    for run in [&mut a, &mut b] {
                        let end = (run.1 + run.2).div_ceil(8) * 8;
                        run.1 = run.1 / 8 * 8;
                        run.2 = end - run.1;
                    }
                }
                let commute = a.0 == b.0 && a.0 != 0;
                expected |= !commute && a.1 < b.1 + b.2 && b.1 < a.1 + a.2;
            }
            prop_assert_eq!(patch.overlaps(&theirs), expected);
        }
    }
}
