//! The disks that one power cut may leave.
//!
//! [`CrashImages`] lists them, each content once. Two come first: *everything survived* and
//! *only the durable survived*. Then all of them, at the finest granularity that stays
//! within the limit:
//!
//! 1. every sector on its own: nothing is left out;
//! 2. every block on its own: nothing but tears is left out;
//! 3. every write request on its own, with overlapping ones in either order.
//!
//! Further cases are sampled with a seed: losses of single writes and all others,
//! prefixes, random subsets, and torn blocks among each of them.

use crate::BlockMap;
use crate::explore::{Cut, PendingBlock};
use crate::image::{Image, SECTORS, View, share};
use crate::rng::Rng;
use std::collections::HashSet;
use std::fmt;
use std::sync::{PoisonError, RwLock};
use steadfast_block::{
    BlockDevice, BlockNo, DeviceOp, Geometry, Result, SECTOR_SIZE, check_count, check_range,
    check_segments,
};

/// For each sector of a pending block, the number of the candidate that it shows. Number 0
/// is the durable content.
pub(crate) type Fate = [u16; SECTORS];

/// Maximum number of images of one cut.
#[derive(Clone, Debug)]
pub struct Limits {
    /// List images exhaustively while they are no more than 2 to this power; that is, with
    /// up to this many independent pending writes (blocks, sectors; see [`CrashImages`]).
    pub exhaustive_writes: usize,
    /// Number of images to sample of those that were not listed.
    pub sampled: usize,
    /// Whether sectors of one block may have different fates.
    pub tears: bool,
    /// Decides the samples, together with the position of the cut.
    pub seed: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            exhaustive_writes: 8,
            sampled: 32,
            tears: true,
            seed: 0,
        }
    }
}

/// A disk content that a power cut may leave, and a device that holds it: without a trace,
/// without a cache, and private to this image. [`SimDevice::from_image`] makes it a
/// device that can be cut again.
///
/// [`SimDevice::from_image`]: super::SimDevice::from_image
pub struct CrashImage {
    view: RwLock<View>,
    fingerprint: u128,
    position: usize,
    /// The pending blocks that are not, or not in whole, as they were durable.
    survivors: Vec<(BlockNo, Fate)>,
}

impl CrashImage {
    /// The image of `cut` in which the blocks have the given fates.
    pub(crate) fn assemble(cut: &Cut, fates: &[Fate]) -> CrashImage {
        let survivors = || {
            let pairs = cut.blocks.iter().zip(fates);
            pairs.filter(|(_, fate)| **fate != [0; SECTORS])
        };
        let count = survivors().count();
        let mut overlay = BlockMap::with_capacity_and_hasher(count, Default::default());
        overlay.extend(survivors().map(|(block, fate)| {
            let first = &block.candidates[usize::from(fate[0])].data;
            if *fate == [fate[0]; SECTORS] {
                return (block.at.0, first.clone());
            }
            let mut torn = **first;
            for (sector, number) in fate.iter().enumerate().skip(1) {
                let range = sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE;
                let candidate = &block.candidates[usize::from(*number)];
                torn[range.clone()].copy_from_slice(&candidate.data[range]);
            }
            (block.at.0, share(&torn))
        }));
        CrashImage {
            view: RwLock::new(View {
                base: cut.durable.clone(),
                overlay,
            }),
            fingerprint: fingerprint(cut, fates),
            position: cut.position,
            survivors: survivors().map(|(block, fate)| (block.at, *fate)).collect(),
        }
    }

    /// A hash of the contents as the cut left them, without later writes. Equal for equal
    /// contents, also of different cuts and traces; see [`Image::fingerprint`].
    #[must_use]
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// The position of the cut that left this image.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The contents now, with the writes since the cut.
    #[must_use]
    pub fn image(&self) -> Image {
        self.view
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .flatten()
    }

    pub(crate) fn into_view(self) -> View {
        self.view
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<Image> for CrashImage {
    fn from(image: Image) -> CrashImage {
        CrashImage {
            fingerprint: image.fingerprint(),
            view: RwLock::new(View {
                base: image,
                overlay: BlockMap::default(),
            }),
            position: 0,
            survivors: Vec::new(),
        }
    }
}

impl From<CrashImage> for Image {
    fn from(image: CrashImage) -> Image {
        image.into_view().flatten()
    }
}

impl Clone for CrashImage {
    fn clone(&self) -> CrashImage {
        CrashImage {
            view: RwLock::new(
                self.view
                    .read()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone(),
            ),
            fingerprint: self.fingerprint,
            position: self.position,
            survivors: self.survivors.clone(),
        }
    }
}

/// Says which cut left the image and which pending blocks survived it, and how: `#2` is the
/// second of a block's different pending contents; of a torn block, the number for each
/// sector, 0 being the durable content.
impl fmt::Display for CrashImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cut after {} events", self.position)?;
        if self.survivors.is_empty() {
            return f.write_str(", only the durable survived");
        }
        for (number, (at, fate)) in self.survivors.iter().enumerate() {
            f.write_str(if number == 0 { ", survived: " } else { ", " })?;
            if *fate == [fate[0]; SECTORS] {
                write!(f, "{at:?} #{}", fate[0])?;
            } else {
                write!(f, "{at:?} torn {fate:?}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CrashImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CrashImage({self}, {:032x})", self.fingerprint)
    }
}

impl BlockDevice for CrashImage {
    fn geometry(&self) -> Geometry {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        Geometry {
            blocks: view.base.blocks(),
            volatile_cache: false,
            read_only: false,
        }
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        let view = self.view.read().unwrap_or_else(PoisonError::into_inner);
        check_range(DeviceOp::Read, at, buf.len(), view.base.blocks())?;
        view.read(at, buf);
        Ok(())
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        let mut view = self.view.write().unwrap_or_else(PoisonError::into_inner);
        check_segments(at, segments, view.base.blocks())?;
        let blocks = segments.iter().flat_map(|segment| segment.as_chunks().0);
        view.overlay.extend((at.0..).zip(blocks.map(share)));
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Checked and ignored.
    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        check_count(DeviceOp::Discard, at, count, self.geometry().blocks)
    }
}

/// The fingerprint of the image of `cut` with the given fates, without making it.
fn fingerprint(cut: &Cut, fates: &[Fate]) -> u128 {
    let mut total = cut.durable.fingerprint();
    for (block, fate) in cut.blocks.iter().zip(fates) {
        if *fate == [0; SECTORS] {
            continue;
        }
        for (sector, number) in fate.iter().enumerate() {
            total = total
                .wrapping_sub(block.candidates[0].hashes[sector])
                .wrapping_add(block.candidates[usize::from(*number)].hashes[sector]);
        }
    }
    total
}

/// The images of a cut, each once. Made by [`Cut::images`](super::Cut::images).
pub struct CrashImages<'a> {
    cut: &'a Cut,
    limits: Limits,
    stage: Stage,
    /// Whether everything that the cut allows is listed.
    exhaustive: bool,
    seen: HashSet<u128>,
    /// The fates of the image being made.
    fates: Vec<Fate>,
    rng: Rng,
}

enum Stage {
    Everything,
    Durable,
    /// Every combination of the counter's digits.
    Listed(Units, Counter),
    /// Images still to sample, and tries left to find new ones.
    Sampled {
        left: usize,
        tries: usize,
    },
}

/// Units that survive independently in a listing.
enum Units {
    /// Digit `i` is a position in the candidates of one sector.
    Sectors(Vec<SectorUnit>),
    /// Digit `i` is the candidate that block `i` shows.
    Blocks,
    /// Digit `i` is whether write `i` survived; the last one, whether an older write wins
    /// over a newer one.
    Writes,
}

/// A sector with more than one possible content.
struct SectorUnit {
    block: usize,
    sector: usize,
    /// One candidate for each different content.
    candidates: Vec<u16>,
}

impl<'a> CrashImages<'a> {
    pub(crate) fn new(cut: &'a Cut, limits: &Limits) -> CrashImages<'a> {
        CrashImages {
            cut,
            limits: limits.clone(),
            stage: Stage::Everything,
            exhaustive: listing(cut, limits).is_some_and(|(units, _)| units.is_complete(limits)),
            seen: HashSet::new(),
            fates: vec![[0; SECTORS]; cut.blocks.len()],
            rng: Rng::new(limits.seed, cut.position as u64),
        }
    }

    /// Whether every content that the cut allows is listed (without tears, if the limits
    /// exclude them), so that none is left to chance.
    #[must_use]
    pub fn is_exhaustive(&self) -> bool {
        self.exhaustive
    }

    /// Sets the fates of the next image to consider and goes on to the next stage at the
    /// end of one. False at the end of the last.
    fn advance(&mut self) -> bool {
        match &mut self.stage {
            Stage::Everything => {
                for (fate, block) in self.fates.iter_mut().zip(&self.cut.blocks) {
                    *fate = [block.newest; SECTORS];
                }
                self.stage = Stage::Durable;
            }
            Stage::Durable => {
                self.fates.fill([0; SECTORS]);
                self.stage = match listing(self.cut, &self.limits) {
                    Some((units, counter)) => Stage::Listed(units, counter),
                    None => self.sampling(),
                };
            }
            Stage::Listed(units, counter) => {
                units.apply(self.cut, counter.digits(), &mut self.fates);
                if !counter.advance() {
                    self.stage = self.sampling();
                }
            }
            Stage::Sampled { left: 0, .. } | Stage::Sampled { tries: 0, .. } => return false,
            Stage::Sampled { tries, .. } => {
                *tries -= 1;
                self.sample();
            }
        }
        true
    }

    fn sampling(&self) -> Stage {
        let left = if self.exhaustive {
            0
        } else {
            self.limits.sampled
        };
        Stage::Sampled {
            left,
            tries: left.saturating_mul(4),
        }
    }

    /// Chooses fates at random, in one of the ways that bugs are sensitive to.
    fn sample(&mut self) {
        let cut = self.cut;
        let rng = &mut self.rng;
        let one = rng.below(cut.writes.len());
        let of_eight = 1 + rng.below(7) as u64;
        // The writes that survived.
        let survived: Vec<bool> = match rng.below(6) {
            0 => (0..cut.writes.len()).map(|write| write != one).collect(),
            1 => (0..cut.writes.len()).map(|write| write == one).collect(),
            2 => (0..cut.writes.len()).map(|write| write <= one).collect(),
            3 => (0..cut.writes.len()).map(|write| write >= one).collect(),
            4 => vec![true; cut.writes.len()],
            _ => (0..cut.writes.len())
                .map(|_| rng.chance(of_eight))
                .collect(),
        };
        let older_wins = rng.chance(2);
        apply_writes(cut, |write| survived[write], older_wins, &mut self.fates);
        // Those of their blocks that did not survive, or only in part.
        match rng.below(if self.limits.tears { 5 } else { 2 }) {
            0 => {}
            1 => {
                for (fate, block) in self.fates.iter_mut().zip(&cut.blocks) {
                    if rng.chance(of_eight) {
                        *fate = [rng.below(block.candidates.len()) as u16; SECTORS];
                    }
                }
            }
            2 => {
                let block = rng.below(cut.blocks.len());
                tear(rng, &cut.blocks[block], &mut self.fates[block]);
            }
            3 => {
                for (block, _) in &cut.writes[one].members {
                    tear(rng, &cut.blocks[*block], &mut self.fates[*block]);
                }
            }
            _ => {
                for (fate, block) in self.fates.iter_mut().zip(&cut.blocks) {
                    if rng.chance(of_eight) {
                        tear(rng, block, fate);
                    }
                }
            }
        }
    }
}

impl Iterator for CrashImages<'_> {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        loop {
            let sampled = matches!(self.stage, Stage::Sampled { .. });
            if !self.advance() {
                return None;
            }
            if !self.seen.insert(fingerprint(self.cut, &self.fates)) {
                continue;
            }
            if let (true, Stage::Sampled { left, .. }) = (sampled, &mut self.stage) {
                *left -= 1;
            }
            return Some(CrashImage::assemble(self.cut, &self.fates));
        }
    }
}

/// Tears a block: it takes over some sectors of one of its candidates, either a run at its
/// beginning or end or any of them.
fn tear(rng: &mut Rng, block: &PendingBlock, fate: &mut Fate) {
    let other = rng.below(block.candidates.len()) as u16;
    let (way, at, of_eight) = (rng.below(3), 1 + rng.below(SECTORS - 1), 1 + rng.below(7));
    for (sector, number) in fate.iter_mut().enumerate() {
        let taken = match way {
            0 => sector < at,
            1 => sector >= at,
            _ => rng.chance(of_eight as u64),
        };
        if taken {
            *number = other;
        }
    }
}

/// Sets the fates that result if exactly some writes survived, as wholes.
fn apply_writes(cut: &Cut, survived: impl Fn(usize) -> bool, older_wins: bool, fates: &mut [Fate]) {
    fates.fill([0; SECTORS]);
    let mut apply = |write: usize| {
        if survived(write) {
            for (block, candidate) in &cut.writes[write].members {
                fates[*block] = [*candidate; SECTORS];
            }
        }
    };
    if older_wins {
        (0..cut.writes.len()).rev().for_each(&mut apply);
    } else {
        (0..cut.writes.len()).for_each(&mut apply);
    }
}

/// The finest listing within the limits, if there is one.
fn listing(cut: &Cut, limits: &Limits) -> Option<(Units, Counter)> {
    let bound = 1_u64
        .checked_shl(limits.exhaustive_writes.min(64) as u32)
        .unwrap_or(u64::MAX);
    let blocks = Counter::new(cut.blocks.iter().map(|block| block.candidates.len()), bound);
    if let Some(blocks) = blocks {
        if limits.tears {
            let units = sector_units(cut);
            let sectors = Counter::new(units.iter().map(|unit| unit.candidates.len()), bound);
            if let Some(sectors) = sectors {
                return Some((Units::Sectors(units), sectors));
            }
        }
        return Some((Units::Blocks, blocks));
    }
    let members: usize = cut.writes.iter().map(|write| write.members.len()).sum();
    let overlap = members > cut.blocks.len();
    let radices = cut.writes.iter().map(|_| 2).chain(overlap.then_some(2));
    Counter::new(radices, bound).map(|counter| (Units::Writes, counter))
}

/// The sectors with more than one possible content.
fn sector_units(cut: &Cut) -> Vec<SectorUnit> {
    let mut units = Vec::new();
    for (index, block) in cut.blocks.iter().enumerate() {
        for sector in 0..SECTORS {
            let mut candidates: Vec<u16> = Vec::with_capacity(block.candidates.len());
            for (number, candidate) in (0..).zip(&block.candidates) {
                let known = candidates.iter().any(|known| {
                    block.candidates[usize::from(*known)].hashes[sector] == candidate.hashes[sector]
                });
                if !known {
                    candidates.push(number);
                }
            }
            if candidates.len() > 1 {
                units.push(SectorUnit {
                    block: index,
                    sector,
                    candidates,
                });
            }
        }
    }
    units
}

impl Units {
    fn is_complete(&self, limits: &Limits) -> bool {
        match self {
            Units::Sectors(_) => true,
            Units::Blocks => !limits.tears,
            Units::Writes => false,
        }
    }

    fn apply(&self, cut: &Cut, digits: &[u16], fates: &mut [Fate]) {
        match self {
            Units::Sectors(units) => {
                fates.fill([0; SECTORS]);
                for (unit, digit) in units.iter().zip(digits) {
                    fates[unit.block][unit.sector] = unit.candidates[usize::from(*digit)];
                }
            }
            Units::Blocks => {
                for (fate, digit) in fates.iter_mut().zip(digits) {
                    *fate = [*digit; SECTORS];
                }
            }
            Units::Writes => {
                let older_wins = digits.get(cut.writes.len()) == Some(&1);
                apply_writes(cut, |write| digits[write] == 1, older_wins, fates);
            }
        }
    }
}

/// Counts through all combinations of digits, each with its own radix.
struct Counter {
    radices: Vec<u16>,
    digits: Vec<u16>,
}

impl Counter {
    /// A counter at its first combination, if there are no more than `bound`.
    fn new(radices: impl Iterator<Item = usize>, bound: u64) -> Option<Counter> {
        let mut combinations = 1_u64;
        let mut kept = Vec::new();
        for radix in radices {
            combinations = combinations.checked_mul(radix as u64)?;
            if combinations > bound {
                return None;
            }
            kept.push(u16::try_from(radix).ok()?);
        }
        Some(Counter {
            digits: vec![0; kept.len()],
            radices: kept,
        })
    }

    fn digits(&self) -> &[u16] {
        &self.digits
    }

    /// Goes on to the next combination; false after the last.
    fn advance(&mut self) -> bool {
        for (digit, radix) in self.digits.iter_mut().zip(&self.radices) {
            *digit += 1;
            if *digit < *radix {
                return true;
            }
            *digit = 0;
        }
        false
    }
}
