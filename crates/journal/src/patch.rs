//! What an operation or a transaction changes in one block.

use crate::layout::{ENTRY_BYTES, set_bits};
use crate::mask::{BitMask, ByteMask, close_gaps};
use steadfast_block::Block;

/// Ranges closer than this are logged as one: a range header costs as much.
const RANGE_GAP_BYTES: usize = 4;

/// The part of a block that belongs to an operation or a transaction. The values are in
/// an image kept beside it; `adds` are differences, resolved when the record is laid.
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
    /// Bytes whose newest value is logged, whoever wrote it.
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

    /// The patch of a block that begins a new life.
    pub(crate) fn fresh() -> Patch {
        Patch {
            zero: true,
            ..Patch::default()
        }
    }

    /// Applies an operation's patch to the current image. Its private image holds the values.
    pub(crate) fn apply_current(&self, values: &Block, image: &mut Block) {
        for (start, len) in self.bytes.runs().into_iter().chain(self.latest_runs()) {
            image[start..start + len].copy_from_slice(&values[start..start + len]);
        }
        self.apply_bits(values, image);
        self.apply_adds(image);
    }

    fn latest_runs(&self) -> Vec<(usize, usize)> {
        self.latest.as_ref().map(|l| l.runs()).unwrap_or_default()
    }

    fn apply_bits(&self, values: &Block, image: &mut Block) {
        for (first, count) in self.bits.as_ref().map(|b| b.runs()).unwrap_or_default() {
            for i in first..first + count {
                set_bits(image, i, 1, values[i / 8] >> (i % 8) & 1 == 1);
            }
        }
    }

    pub(crate) fn touch_bytes(&mut self, offset: usize, len: usize) {
        self.bytes.insert(offset, len);
    }

    pub(crate) fn touch_latest(&mut self, offset: usize, len: usize) {
        self.latest.get_or_insert_default().insert(offset, len);
    }

    pub(crate) fn touch_bits(&mut self, first: usize, count: usize) {
        self.bits.get_or_insert_default().insert(first, count);
        self.bit_calls += 1;
    }

    pub(crate) fn add(&mut self, offset: usize, delta: i64) {
        match self.adds.iter_mut().find(|a| a.0 as usize == offset) {
            Some(add) => add.1 = add.1.wrapping_add(delta),
            None => self.adds.push((offset as u16, delta)),
        }
    }

    /// Whether the two patches cannot be reordered: they own common bytes or bits, one sets a
    /// counter that the other adds to, or one begins or ends the block's life.
    pub(crate) fn overlaps(&self, other: &Patch) -> bool {
        self.zero
            || other.zero
            || self.revoke
            || other.revoke
            || self.bytes.intersects(&other.bytes)
            || self.sets_counters_of(other)
            || other.sets_counters_of(self)
            || matches!((&self.bits, &other.bits), (Some(a), Some(b)) if a.intersects(b))
    }

    fn sets_counters_of(&self, other: &Patch) -> bool {
        let mut counters = other.adds.iter();
        counters.any(|a| self.bytes.meets(a.0 as usize, 8))
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
            self.add(offset as usize, delta);
        }
        if let Some(latest) = &later.latest {
            self.latest.get_or_insert_default().union(latest);
        }
    }

    /// Carries this patch from the image that holds its values into another one.
    /// `newest` is where `latest` bytes come from.
    pub(crate) fn apply(&self, values: &Block, newest: &Block, image: &mut Block) {
        if self.zero {
            image.fill(0);
        }
        for (start, len) in self.bytes.runs() {
            image[start..start + len].copy_from_slice(&values[start..start + len]);
        }
        self.apply_bits(values, image);
        self.apply_adds(image);
        for (start, len) in self.latest_runs() {
            image[start..start + len].copy_from_slice(&newest[start..start + len]);
        }
    }

    /// Applies the counters' differences, but for counters whose value is owned already:
    /// their bytes hold the sum.
    fn apply_adds(&self, image: &mut Block) {
        for &(offset, delta) in &self.adds {
            if !self.bytes.meets(offset as usize, 8) {
                add_at(image, offset as usize, delta);
            }
        }
    }

    /// Whether absorbing `later` leaves the encoded size as it is.
    pub(crate) fn has_place_for(&self, later: &Patch) -> bool {
        let known = |offset: u16| self.adds.iter().any(|a| a.0 == offset);
        let newest_known = match (&later.latest, &self.latest) {
            (None, _) => true,
            (Some(theirs), Some(ours)) => theirs.is_within(ours),
            (Some(_), None) => false,
        };
        !later.zero
            && !later.revoke
            && later.bits.is_none()
            && later.bytes.is_within(&self.bytes)
            && later.adds.iter().all(|a| known(a.0))
            && newest_known
    }

    /// Byte ranges to be logged.
    pub(crate) fn ranges(&self) -> Vec<(usize, usize)> {
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
        let ranges = self.ranges();
        let bytes: usize = ranges.iter().map(|r| r.1 + 4).sum();
        (ENTRY_BYTES + bytes) as u64 + self.bit_calls * 8
    }
}

/// Adds to a 64-bit counter in a block.
pub(crate) fn add_at(image: &mut Block, offset: usize, delta: i64) {
    let mut value = [0u8; 8];
    value.copy_from_slice(&image[offset..offset + 8]);
    let sum = u64::from_le_bytes(value).wrapping_add_signed(delta);
    image[offset..offset + 8].copy_from_slice(&sum.to_le_bytes());
}
