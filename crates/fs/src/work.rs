//! One operation on the volume: [`Work`] is a journal operation together with the blocks
//! (and, through [`Work::on_end`], the inode slots) that it claimed. Committed, all of it
//! becomes visible at once; dropped, nothing remains: the journal forgets the patches and
//! the allocator takes the claims back (corner 30).
//!
//! [`Store`] is the common state of all parts of a mounted file system: journal, geometry,
//! allocator. Neighbours: `alloc` (claims), `reader` (metadata images), everything above.

use crate::alloc::{Allocator, Purpose, bit_of, is_used};
use crate::contract::Contract;
pub(crate) use crate::costs::{COST_BITS, COST_BLOCK, COST_FREE, COST_RANGE, COST_REVOKE};
use crate::error::{damaged, from_journal, refused};
use crate::gaps::Gaps;
use crate::ledger::InPlaceLedger;
use crate::reader::{Image, Reader};
use crate::superblock::Volume;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};
use steadfast_journal::{Access, Credits, Journal, Kind, Object, Op, StreamId, Ticket};
use steadfast_vfs::{Caller, Errno, Error, Note, Result, Stream};

/// The stream of work that no caller asked for: releases, orphans.
pub(crate) const OWN_STREAM: Stream = Stream(0);

/// Transactions committed one by one when a volume seems full, before all are committed.
const HOLDERS_COMMITTED: usize = 3;

/// The parts of a mounted volume below inodes.
pub(crate) struct Store {
    /// The journal; all reads and writes go through it.
    pub(crate) journal: Journal,
    /// Geometry.
    pub(crate) volume: Volume,
    /// Free space.
    pub(crate) alloc: Allocator,
    /// Room in directories that only one stream may use.
    pub(crate) gaps: Gaps,
    /// Overwrites in place.
    pub(crate) in_place: InPlaceLedger,
    /// Bytes of a file that may go into the record instead of to a place of their own.
    pub(crate) small_bytes_max: u64,
    /// Blocks of the smallest overwrite that goes out of place; 0: none does.
    pub(crate) overwrite_blocks: u64,
    /// Planted fault: all callers are in one stream.
    pub(crate) one_stream: bool,
    /// Whether there is a log.
    logs: bool,
}

impl Store {
    /// The store of a recovered journal. Reads nothing.
    pub(crate) fn new(
        journal: Journal,
        volume: Volume,
        small_bytes_max: u64,
        overwrite_bytes: u64,
    ) -> Store {
        let logs = volume.region().is_some();
        let moves = logs && volume.contract != Contract::MetadataPrefix;
        Store {
            alloc: Allocator::new(journal.clone(), volume.clone()),
            journal,
            volume,
            gaps: Gaps::default(),
            in_place: InPlaceLedger::default(),
            // Without a log a block is written once in any case.
            small_bytes_max: if logs { small_bytes_max } else { 0 },
            overwrite_blocks: match moves {
                true => overwrite_bytes.div_ceil(BLOCK_SIZE as u64),
                false => 0,
            },
            one_stream: false,
            logs,
        }
    }

    /// Log bytes of patching `bytes` bytes, besides those of the block and its range.
    pub(crate) fn patch_bytes(&self, bytes: u64) -> u64 {
        if self.logs { bytes } else { 0 }
    }

    /// The journal's stream of a caller's.
    pub(crate) fn stream(&self, stream: Stream) -> StreamId {
        match self.one_stream {
            true => StreamId(0),
            false => StreamId(self.volume.contract.stream(stream).0),
        }
    }

    /// The current image of a metadata block.
    pub(crate) fn read_meta(&self, at: BlockNo) -> Result<Arc<Block>> {
        self.journal.read(at, Kind::Meta).map_err(from_journal)
    }

    /// Begins an operation of at most `credits`. May wait for commits: hold no lock.
    ///
    /// # Errors
    /// The journal has failed, is read-only, or never accepts that much.
    pub(crate) fn begin(&self, stream: Stream, credits: Credits) -> Result<Work<'_>> {
        let op = self
            .journal
            .begin(self.stream(stream), credits)
            .map_err(refused)?;
        Ok(Work::new(self, Slot::Own(op)))
    }

    /// The same for a caller, whose note the operation leaves.
    pub(crate) fn begin_for(&self, caller: &Caller, credits: Credits) -> Result<Work<'_>> {
        let mut work = self.begin(caller.stream, credits)?;
        work.note.clone_from(&caller.note);
        Ok(work)
    }

    /// Runs an operation, and again if it found no space but a commit may have made some: freed blocks, freed inode slots,
    /// or unused reservations of delayed pages. The transaction that holds most blocks is committed first, so that one
    /// that holds little is left alone; everything only if that does not suffice.
    pub(crate) fn with_space<T>(&self, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..HOLDERS_COMMITTED {
            match run() {
                Err(full) if full == Errno::NoSpc => {
                    if !self.journal.reclaim_most().map_err(refused)? {
                        return self.with_all_space(full, run);
                    }
                }
                result => return result,
            }
        }
        match run() {
            Err(full) if full == Errno::NoSpc => self.with_all_space(full, run),
            result => result,
        }
    }

    /// Runs the operation once more if a commit of everything may have made space.
    fn with_all_space<T>(&self, full: Error, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        let before = self.alloc.allocatable();
        let (_, _, uncommitted) = self.journal.usage();
        let released = self.journal.reclaim().map_err(refused)?;
        if uncommitted > 0 || released || self.alloc.allocatable() > before {
            run()
        } else {
            Err(full)
        }
    }
}

/// The journal operation of a [`Work`]: its own, or one lent for the time of `Client::close`.
#[expect(
    clippy::large_enum_variant,
    reason = "lives on the stack of one operation"
)]
enum Slot<'a> {
    Own(Op<'a>),
    Lent(&'a mut (dyn Patches + 'a)),
}

/// The calls of [`Op`] that change blocks, free of its lifetime (so that it can be lent).
trait Patches {
    fn stream(&self) -> StreamId;
    fn relate(&mut self, object: Object, access: Access);
    fn read(&mut self, at: BlockNo, kind: Kind) -> steadfast_journal::Result<&Block>;
    fn write(
        &mut self,
        at: BlockNo,
        kind: Kind,
        offset: usize,
        bytes: &[u8],
    ) -> steadfast_journal::Result<()>;
    fn write_latest(
        &mut self,
        at: BlockNo,
        offset: usize,
        bytes: &[u8],
    ) -> steadfast_journal::Result<()>;
    fn add(&mut self, at: BlockNo, offset: usize, delta: i64) -> steadfast_journal::Result<()>;
    fn set_bits(
        &mut self,
        at: BlockNo,
        first: usize,
        count: usize,
        value: bool,
    ) -> steadfast_journal::Result<()>;
    fn zero(&mut self, at: BlockNo, kind: Kind) -> steadfast_journal::Result<()>;
    fn free(&mut self, at: BlockNo, count: u64) -> steadfast_journal::Result<()>;
    fn write_around(&mut self, at: BlockNo, data: Vec<Arc<Block>>)
    -> steadfast_journal::Result<()>;
    fn attach(&mut self, key: u64, credits: Credits) -> steadfast_journal::Result<()>;
}

impl Patches for Op<'_> {
    fn stream(&self) -> StreamId {
        Op::stream(self)
    }
    fn relate(&mut self, object: Object, access: Access) {
        Op::relate(self, object, access);
    }
    fn read(&mut self, at: BlockNo, kind: Kind) -> steadfast_journal::Result<&Block> {
        Op::read(self, at, kind)
    }
    fn write(
        &mut self,
        at: BlockNo,
        kind: Kind,
        offset: usize,
        bytes: &[u8],
    ) -> steadfast_journal::Result<()> {
        Op::write(self, at, kind, offset, bytes)
    }
    fn write_latest(
        &mut self,
        at: BlockNo,
        offset: usize,
        bytes: &[u8],
    ) -> steadfast_journal::Result<()> {
        Op::write_latest(self, at, offset, bytes)
    }
    fn add(&mut self, at: BlockNo, offset: usize, delta: i64) -> steadfast_journal::Result<()> {
        Op::add(self, at, offset, delta)
    }
    fn set_bits(
        &mut self,
        at: BlockNo,
        first: usize,
        count: usize,
        value: bool,
    ) -> steadfast_journal::Result<()> {
        Op::set_bits(self, at, first, count, value)
    }
    fn zero(&mut self, at: BlockNo, kind: Kind) -> steadfast_journal::Result<()> {
        Op::zero(self, at, kind)
    }
    fn free(&mut self, at: BlockNo, count: u64) -> steadfast_journal::Result<()> {
        Op::free(self, at, count)
    }
    fn write_around(
        &mut self,
        at: BlockNo,
        data: Vec<Arc<Block>>,
    ) -> steadfast_journal::Result<()> {
        Op::write_around(self, at, data)
    }
    fn attach(&mut self, key: u64, credits: Credits) -> steadfast_journal::Result<()> {
        Op::attach(self, key, credits)
    }
}

/// Called when a work ends, with the ticket of its commit.
type AtEnd<'a> = Box<dyn FnOnce(Option<Ticket>) + 'a>;

/// One operation. See the module's header.
pub(crate) struct Work<'a> {
    store: &'a Store,
    op: Option<Slot<'a>>,
    claimed: Vec<(BlockNo, u64)>,
    freed: u64,
    purpose: Purpose,
    gaps: SmallVec<[(BlockNo, Range<u16>); 2]>,
    at_end: Vec<AtEnd<'a>>,
    note: Option<Arc<Note>>,
}

impl<'a> Work<'a> {
    fn new(store: &'a Store, op: Slot<'a>) -> Work<'a> {
        Work {
            store,
            op: Some(op),
            claimed: Vec::new(),
            freed: 0,
            purpose: Purpose::Normal,
            gaps: SmallVec::new(),
            at_end: Vec::new(),
            note: None,
        }
    }

    /// Works through an operation that the journal lends while it closes a transaction
    /// (`Client::close`): allocations use the blocks reserved for delayed pages.
    /// End it with [`Work::commit`] too, which leaves the operation to the journal.
    pub(crate) fn lend(store: &'a Store, op: &'a mut Op<'_>) -> Work<'a> {
        let mut work = Work::new(store, Slot::Lent(op));
        work.purpose = Purpose::Delayed;
        work
    }

    /// Lets this operation use the last blocks, which are kept for operations that free space.
    pub(crate) fn use_emergency_space(&mut self) {
        if self.purpose == Purpose::Normal {
            self.purpose = Purpose::Freeing;
        }
    }

    /// Lets this operation use some of them, to write into preallocated blocks.
    pub(crate) fn use_splitting_space(&mut self) {
        self.purpose = Purpose::Splitting;
    }

    /// The store it works on.
    pub(crate) fn store(&self) -> &'a Store {
        self.store
    }

    /// The volume's geometry.
    pub(crate) fn volume(&self) -> &'a Volume {
        &self.store.volume
    }

    /// The journal's stream of the operation.
    pub(crate) fn stream(&self) -> StreamId {
        match &self.op {
            Some(Slot::Own(op)) => op.stream(),
            Some(Slot::Lent(op)) => op.stream(),
            None => StreamId::default(),
        }
    }

    fn op(&mut self) -> Result<&mut (dyn Patches + 'a)> {
        match &mut self.op {
            Some(Slot::Own(op)) => Ok(op),
            Some(Slot::Lent(op)) => Ok(&mut **op),
            None => Err(Errno::Io.into()),
        }
    }

    /// Declares an object that this operation has in common with others (ccfs §3.3).
    pub(crate) fn relate(&mut self, object: Object, access: Access) {
        if let Ok(op) = self.op() {
            op.relate(object, access);
        }
    }

    /// A block with this operation's own changes.
    pub(crate) fn read(&mut self, at: BlockNo, kind: Kind) -> Result<&Block> {
        self.op()?.read(at, kind).map_err(from_journal)
    }

    /// Patches bytes of a block.
    pub(crate) fn write(
        &mut self,
        at: BlockNo,
        kind: Kind,
        offset: usize,
        bytes: &[u8],
    ) -> Result<()> {
        self.op()?
            .write(at, kind, offset, bytes)
            .map_err(from_journal)
    }

    /// Patches bytes of a metadata block whose newest value counts, and which relate nothing.
    pub(crate) fn write_latest(&mut self, at: BlockNo, offset: usize, bytes: &[u8]) -> Result<()> {
        self.op()?
            .write_latest(at, offset, bytes)
            .map_err(from_journal)
    }

    /// Adds to a counter in a metadata block.
    pub(crate) fn add(&mut self, at: BlockNo, offset: usize, delta: i64) -> Result<()> {
        self.op()?.add(at, offset, delta).map_err(from_journal)
    }

    /// Sets or clears bits of a metadata block.
    pub(crate) fn set_bits(
        &mut self,
        at: BlockNo,
        first: usize,
        count: usize,
        value: bool,
    ) -> Result<()> {
        self.op()?
            .set_bits(at, first, count, value)
            .map_err(from_journal)
    }

    /// Gives a newly allocated block its base of zeros.
    pub(crate) fn zero(&mut self, at: BlockNo, kind: Kind) -> Result<()> {
        self.op()?.zero(at, kind).map_err(from_journal)
    }

    /// Writes newly allocated data blocks in place, covered by the record.
    pub(crate) fn write_around(&mut self, at: BlockNo, data: Vec<Arc<Block>>) -> Result<()> {
        self.op()?.write_around(at, data).map_err(from_journal)
    }

    /// Asks that `Client::close` be called for `key` before this transaction commits.
    pub(crate) fn attach(&mut self, key: u64, credits: Credits) -> Result<()> {
        self.op()?.attach(key, credits).map_err(from_journal)
    }

    /// Allocates one block near `goal` and sets its bit. The caller gives it a base (`zero`).
    ///
    /// # Errors
    /// ENOSPC.
    pub(crate) fn allocate_block(&mut self, goal: BlockNo) -> Result<BlockNo> {
        self.allocate_run(goal, 1).map(|(at, _)| at)
    }

    /// Allocates between one and `max` consecutive blocks of one group, near `goal`.
    ///
    /// # Errors
    /// ENOSPC when no block is available.
    pub(crate) fn allocate_run(&mut self, goal: BlockNo, max: u64) -> Result<(BlockNo, u64)> {
        let store = self.store;
        let (at, count) = store.alloc.claim(goal, max, self.purpose)?;
        self.claimed.push((at, count));
        let (bitmap, bit) = bit_of(&store.volume, at)?;
        self.set_bits(bitmap, bit, count as usize, true)?;
        Ok((at, count))
    }

    /// Frees blocks of one group: allocatable again when this operation is durable and
    /// nothing needs their old content any more.
    ///
    /// # Errors
    /// EUCLEAN if the run is no data run of one group, or free already (two owners).
    pub(crate) fn free_run(&mut self, at: BlockNo, count: u64) -> Result<()> {
        let store = self.store;
        if !store.volume.run_is_data(at, count) {
            return Err(damaged(format!(
                "freeing {count} blocks from block {at} on, which are no blocks of a file"
            )));
        }
        // Loaded before its bits are cleared, or blocks in quarantine would look free.
        store.alloc.ensure_loaded(at)?;
        let (bitmap, bit) = bit_of(&store.volume, at)?;
        // The own view may lack others' allocations, and the current image ours.
        let current = store
            .journal
            .read(bitmap, Kind::Meta)
            .map_err(from_journal)?;
        let own = self.read(bitmap, Kind::Meta)?;
        if (bit..bit + count as usize).any(|bit| !is_used(&current, bit) && !is_used(own, bit)) {
            return Err(damaged(format!(
                "freeing {count} blocks from block {at} on, which are free"
            )));
        }
        self.set_bits(bitmap, bit, count as usize, false)?;
        self.op()?.free(at, count).map_err(from_journal)?;
        self.freed += count;
        Ok(())
    }

    /// Runs `f` when the work ends: with its ticket directly after its commit, with none
    /// when it was given up. `f` must not fail and must not wait. Not for an operation that was lent, which has no
    /// ticket.
    pub(crate) fn on_end(&mut self, f: impl FnOnce(Option<Ticket>) + 'a) {
        debug_assert!(matches!(self.op, Some(Slot::Own(_))));
        self.at_end.push(Box::new(f));
    }

    /// The content of this space of a directory's leaf is removed. The caller holds the directory's lock.
    pub(crate) fn leave_gap(&mut self, leaf: BlockNo, space: Range<u16>) {
        self.gaps.push((leaf, space));
    }

    /// Commits in memory: atomic, cannot fail. Other threads see it from here on.
    pub(crate) fn commit(mut self) -> Option<Ticket> {
        // First the claims: once committed, the blocks may come back through `released` at any time.
        self.claimed.clear();
        self.store.alloc.freed(self.freed);
        let stream = self.stream();
        let ticket = match self.op.take() {
            Some(Slot::Own(mut op)) => {
                if let Some(note) = self.note.take() {
                    let number = note.joins();
                    op.note(Box::new(move || note.of(number)));
                }
                Some(op.commit())
            }
            Some(Slot::Lent(_)) | None => None,
        };
        if let Some(ticket) = ticket {
            for (leaf, space) in self.gaps.drain(..) {
                let store = self.store;
                store
                    .gaps
                    .hold(&store.journal, leaf, space, (stream, ticket));
            }
        }
        for f in self.at_end.drain(..) {
            f(ticket);
        }
        ticket
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        // Committed works have nothing left to undo.
        let Some(op) = self.op.take() else { return };
        drop(op);
        for (at, count) in self.claimed.drain(..) {
            self.store.alloc.unclaim(at, count);
        }
        for f in self.at_end.drain(..) {
            f(None);
        }
    }
}

impl Reader for Work<'_> {
    fn meta(&mut self, at: BlockNo) -> Result<Image<'_>> {
        self.read(at, Kind::Meta).map(Image::Own)
    }
}
