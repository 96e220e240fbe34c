//! One operation: a private collection of edits that becomes visible atomically.

use crate::around::Around;
use crate::changes::NoteFn;
use crate::core::{BlockMap, DataRun, OpBlock, OpChanges, Run, TxnId};
use crate::engine::Inner;
use crate::lanes::LaneId;
use crate::patch::{Edit, Patch};
use crate::probe::OpName;
use crate::record::{COVERED_BYTES, ENTRY_BYTES};
use crate::{
    Access, BLOCK_CREDIT, CommitMode, Credits, Error, Kind, META_BYTES, Object, Result, StreamId,
    Ticket,
};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};

/// Touched blocks that are searched one by one; more get an index.
const SEARCHED_MAX: usize = 16;

struct Touched {
    at: BlockNo,
    kind: Kind,
    /// The block as this operation sees it, from its first read on.
    view: Option<Arc<Block>>,
    /// The block begins a new life here: its base is zeros.
    life: bool,
    /// The cache entry is held, because the block is changed.
    held: bool,
    edits: SmallVec<[Edit; 2]>,
}

impl Touched {
    fn new(at: BlockNo, kind: Kind) -> Touched {
        Touched {
            at,
            kind,
            view: None,
            life: false,
            held: false,
            edits: SmallVec::new(),
        }
    }

    fn is_changed(&self) -> bool {
        self.life || !self.edits.is_empty()
    }

    /// The image with this operation's edits.
    fn edited(&self, mut image: Arc<Block>, bytes: &[u8]) -> Arc<Block> {
        if !self.edits.is_empty() {
            let block = Arc::make_mut(&mut image);
            self.edits.iter().for_each(|edit| edit.apply(bytes, block));
        }
        image
    }

    /// Upper bound of the log bytes that the edits take, with a further one.
    fn log_bytes(&self, further: Option<Edit>) -> u64 {
        let mut patch = Patch::default();
        let edits = self.edits.iter().chain(further.as_ref());
        let grown: u64 = edits.map(|edit| patch.take(edit)).sum();
        ENTRY_BYTES as u64 + grown
    }
}

/// An open operation. Its changes are seen by itself alone until [`commit`](Op::commit);
/// dropping it undoes everything. While it is open no transaction with delayed work closes, so
/// it must not wait for anything but device reads, and its thread must not begin another.
#[must_use = "an operation that is dropped is undone"]
pub struct Op<'a> {
    inner: &'a Inner,
    stream: StreamId,
    /// The transaction that it closes, or the lane that it was admitted in.
    closing: Option<TxnId>,
    lane: Option<LaneId>,
    credits: Credits,
    done: bool,
    blocks: Vec<Touched>,
    /// Index of a block in `blocks`, once there are more than a few.
    index: BlockMap<usize>,
    /// The bytes of all edits.
    bytes: Vec<u8>,
    relations: Vec<(Object, Access)>,
    frees: Vec<Run>,
    data: Around,
    attached: Vec<(u64, Credits)>,
    note: Option<NoteFn>,
    /// Upper bound of its use so far: the sum of the bounds of its calls.
    used: Credits,
    /// Log bytes of `used` that calls have added which are not edits.
    fixed_bytes: u64,
}

impl<'a> Op<'a> {
    pub(crate) fn new(
        inner: &'a Inner,
        stream: StreamId,
        admitted: std::result::Result<LaneId, TxnId>,
        credits: Credits,
    ) -> Op<'a> {
        Op {
            inner,
            stream,
            closing: admitted.err(),
            lane: admitted.ok(),
            credits,
            done: false,
            blocks: Vec::new(),
            index: BlockMap::default(),
            bytes: Vec::new(),
            relations: Vec::new(),
            frees: Vec::new(),
            data: Around::default(),
            attached: Vec::new(),
            note: None,
            used: Credits::default(),
            fixed_bytes: 0,
        }
    }

    /// The stream that the operation belongs to.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// The operation depends on, or is depended on by, uncommitted ones of other streams
    /// that name the same object, unless both share it (ARCHITECTURE.md, section 2.12). Merges at commit.
    pub fn relate(&mut self, object: Object, access: Access) {
        if self.inner.config.one_stream {
            return;
        }
        match self.relations.iter_mut().find(|(o, _)| *o == object) {
            Some((_, a)) => *a = (*a).max(access),
            None => self.relations.push((object, access)),
        }
    }

    /// Charges a call for its upper bound: an edit (none: a new life) of a block, and fixed credits. If the sum of the bounds
    /// exceeds the operation's credits, counts the bytes of all edits together, which may be fewer; refuses the call if
    /// these do not fit either.
    fn charge(&mut self, edit: Option<(BlockNo, Option<Edit>)>, fixed: Credits) -> Result<()> {
        if self.closing.is_some() {
            // Pays with the attached credits.
            return Ok(());
        }
        let (credits, used) = (self.credits, self.used);
        let fixed_bytes = self.fixed_bytes.saturating_add(fixed.log_bytes);
        let added = edit.map_or(0, |edit| self.bytes_of(edit)) + used.log_bytes;
        let mut needed = Credits {
            log_bytes: added.saturating_add(fixed.log_bytes),
            data_blocks: used.data_blocks.saturating_add(fixed.data_blocks),
        };
        if needed.log_bytes > credits.log_bytes {
            needed.log_bytes = self.edit_bytes(edit).saturating_add(fixed_bytes);
        }
        if needed.log_bytes > credits.log_bytes || needed.data_blocks > credits.data_blocks {
            return Err(Error::OverCredits { needed, credits });
        }
        (self.used, self.fixed_bytes) = (needed, fixed_bytes);
        Ok(())
    }

    /// Upper bound of the log bytes of an edit.
    fn bytes_of(&self, (at, edit): (BlockNo, Option<Edit>)) -> u64 {
        let known = (self.find(at)).is_some_and(|i| self.blocks[i].is_changed());
        match self.inner.config.commit_mode {
            CommitMode::Log => {
                let header = if known { 0 } else { ENTRY_BYTES as u64 };
                header + edit.map_or(0, |edit| edit.log_bytes())
            }
            CommitMode::Home if known => 0,
            CommitMode::Home => BLOCK_CREDIT,
        }
    }

    /// Upper bound of the log bytes of all edits, with a further one.
    fn edit_bytes(&self, further: Option<(BlockNo, Option<Edit>)>) -> u64 {
        let known = further.and_then(|(at, _)| self.find(at));
        let new = match (known, further) {
            (None, Some(further)) => self.bytes_of(further),
            _ => 0,
        };
        let changed = |i: usize| known == Some(i) || self.blocks[i].is_changed();
        let blocks = (0..self.blocks.len()).filter(|i| changed(*i));
        let bytes: u64 = match self.inner.config.commit_mode {
            CommitMode::Log => blocks
                .map(|i| {
                    let further = further
                        .filter(|_| known == Some(i))
                        .and_then(|(_, edit)| edit);
                    self.blocks[i].log_bytes(further)
                })
                .sum(),
            CommitMode::Home => blocks.count() as u64 * BLOCK_CREDIT,
        };
        bytes + new
    }

    fn find(&self, at: BlockNo) -> Option<usize> {
        if self.blocks.len() <= SEARCHED_MAX {
            self.blocks.iter().rposition(|t| t.at == at)
        } else {
            self.index.get(&at.0).copied()
        }
    }

    fn insert(&mut self, touched: Touched) -> usize {
        let i = self.blocks.len();
        if i == SEARCHED_MAX {
            let known = self.blocks.iter().enumerate();
            self.index = known.map(|(i, t)| (t.at.0, i)).collect();
        }
        if i >= SEARCHED_MAX {
            self.index.insert(touched.at.0, i);
        }
        self.blocks.push(touched);
        i
    }

    /// The block as this operation sees it: everything committed in memory and its own writes.
    ///
    /// # Errors
    /// A read error, or [`Error::BadSeal`](crate::Error::BadSeal).
    pub fn read(&mut self, at: BlockNo, kind: Kind) -> Result<&Block> {
        if let Some(spot) = self.data.find(at) {
            return Ok(self.data.block(spot));
        }
        let i = match self.find(at) {
            Some(i) => i,
            None => self.insert(Touched::new(at, kind)),
        };
        let touched = &mut self.blocks[i];
        if touched.kind != kind {
            return Err(Error::WrongKind { at, kind });
        }
        if touched.view.is_none() {
            let base = if touched.life {
                Arc::new([0; BLOCK_SIZE])
            } else {
                self.inner.image(at, kind, false)?
            };
            touched.view = Some(touched.edited(base, &self.bytes));
        }
        let view = touched
            .view
            .get_or_insert_with(|| Arc::new([0; BLOCK_SIZE]));
        Ok(view)
    }

    /// Adds an edit, whose bytes were put into the buffer already.
    fn edit(&mut self, at: BlockNo, kind: Kind, edit: Edit) -> Result<()> {
        self.inner.check_run(at, 1)?;
        if let Some(spot) = self.data.find(at) {
            edit.apply(&self.bytes, self.data.block_mut(spot));
            return Ok(());
        }
        self.charge(Some((at, Some(edit))), Credits::default())?;
        let i = match self.find(at) {
            Some(i) => i,
            None => self.insert(Touched::new(at, kind)),
        };
        let touched = &mut self.blocks[i];
        if touched.kind != kind {
            return Err(Error::WrongKind { at, kind });
        }
        if !touched.held && !touched.life {
            self.inner.hold(at, kind)?;
            touched.held = true;
        }
        if let Some(view) = &mut touched.view {
            // The view may be older than the cache; only bytes of objects that the caller
            // has locked count, and they are the same.
            edit.apply(&self.bytes, Arc::make_mut(view));
        }
        touched.edits.push(edit);
        Ok(())
    }

    /// Puts an edit's bytes into the buffer; returns where.
    fn keep(&mut self, bytes: &[u8]) -> u32 {
        let from = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        from
    }

    fn check_bounds(kind: Kind, offset: usize, len: usize) {
        let limit = if kind == Kind::Meta {
            META_BYTES
        } else {
            BLOCK_SIZE
        };
        assert!(
            offset + len <= limit,
            "a patch of {len} bytes at {offset} leaves its block"
        );
    }

    /// Patches bytes of a block.
    ///
    /// # Errors
    /// The block's present contents could not be read; [`Error::OverCredits`], [`Error::JournalBlock`],
    /// [`Error::OutOfRange`].
    ///
    /// # Panics
    /// If the range leaves the block's caller bytes: a bug of the caller.
    pub fn write(&mut self, at: BlockNo, kind: Kind, offset: usize, bytes: &[u8]) -> Result<()> {
        Self::check_bounds(kind, offset, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        let from = self.keep(bytes);
        let (offset, len) = (offset as u16, bytes.len() as u16);
        self.edit(at, kind, Edit::Bytes { offset, len, from })
    }

    /// Patches bytes that several streams write without relating (a directory's times): the value
    /// that reaches the log is the newest when the transaction closes, or an even newer one that is
    /// there already.
    ///
    /// # Errors
    /// The block's present contents could not be read; [`Error::OverCredits`], [`Error::JournalBlock`],
    /// [`Error::OutOfRange`].
    ///
    /// # Panics
    /// If the range leaves the block's caller bytes: a bug of the caller.
    pub fn write_latest(&mut self, at: BlockNo, offset: usize, bytes: &[u8]) -> Result<()> {
        Self::check_bounds(Kind::Meta, offset, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        let from = self.keep(bytes);
        let (offset, len) = (offset as u16, bytes.len() as u16);
        self.edit(at, Kind::Meta, Edit::Latest { offset, len, from })
    }

    /// Adds to a 64-bit counter. Additions of different streams commute and do not relate, so a
    /// counter has one place: no operation adds or writes at a part of it.
    ///
    /// # Errors
    /// The block's present contents could not be read; [`Error::OverCredits`], [`Error::JournalBlock`],
    /// [`Error::OutOfRange`].
    ///
    /// # Panics
    /// If the counter leaves the block's caller bytes: a bug of the caller.
    pub fn add(&mut self, at: BlockNo, offset: usize, delta: i64) -> Result<()> {
        Self::check_bounds(Kind::Meta, offset, 8);
        let offset = offset as u16;
        self.edit(at, Kind::Meta, Edit::Add { offset, delta })
    }

    /// Sets or clears bits of a bitmap block; bit `i` is bit `i % 8` of byte `i / 8`.
    ///
    /// # Errors
    /// The block's present contents could not be read; [`Error::OverCredits`], [`Error::JournalBlock`],
    /// [`Error::OutOfRange`].
    ///
    /// # Panics
    /// If the bits leave the block's caller bytes: a bug of the caller.
    pub fn set_bits(&mut self, at: BlockNo, first: usize, count: usize, value: bool) -> Result<()> {
        Self::check_bounds(
            Kind::Meta,
            first / 8,
            (first + count).div_ceil(8) - first / 8,
        );
        if count == 0 {
            return Ok(());
        }
        let edit = Edit::Bits {
            first: first as u16,
            count: count as u16,
            value,
        };
        self.edit(at, Kind::Meta, edit)
    }

    /// Begins a new life of a newly allocated block: zeros, not the content of its home.
    /// Mandatory before any patch of such a block.
    ///
    /// # Errors
    /// [`Error::OverCredits`], [`Error::JournalBlock`], [`Error::OutOfRange`].
    pub fn zero(&mut self, at: BlockNo, kind: Kind) -> Result<()> {
        self.inner.check_run(at, 1)?;
        self.charge(Some((at, None)), Credits::default())?;
        let fresh = Touched {
            life: true,
            ..Touched::new(at, kind)
        };
        match self.find(at) {
            Some(i) => {
                let old = std::mem::replace(&mut self.blocks[i], fresh);
                self.let_go(&old);
            }
            None => {
                self.insert(fresh);
            }
        }
        Ok(())
    }

    fn let_go(&self, touched: &Touched) {
        if touched.held {
            self.inner.cache.unhold(touched.at, 1);
        }
    }

    /// Frees blocks: their patches in the log are void once this operation is durable. The
    /// caller must not use them again before [`Client::released`](crate::Client::released)
    /// names them. O(blocks of the run that have patches in the log).
    ///
    /// # Errors
    /// [`Error::OverCredits`], [`Error::JournalBlock`], [`Error::OutOfRange`].
    pub fn free(&mut self, at: BlockNo, count: u64) -> Result<()> {
        self.inner.check_run(at, count)?;
        let revokes = |blocks: u64| Credits {
            log_bytes: match self.inner.config.commit_mode {
                CommitMode::Log => blocks.saturating_mul(ENTRY_BYTES as u64),
                CommitMode::Home => 0,
            },
            data_blocks: 0,
        };
        // At worst the log has patches of all of them; how many there are is asked for only if that is too much. No
        // more of them can come: the blocks are the caller's.
        let (worst, inner) = (revokes(count), self.inner);
        if self.charge(None, worst).is_err() {
            let exact = revokes(inner.told().1.count_known((at, count)));
            self.charge(None, exact)?;
        }
        self.frees.push((at, count));
        Ok(())
    }

    /// Writes newly allocated data blocks in place, outside the log. They are durable and
    /// visible together with the operation: the record covers them by hash, or they are
    /// flushed before it. Earlier changes of these blocks by this operation are void.
    ///
    /// # Errors
    /// [`Error::Logged`] if a block has patches in the log or in an uncommitted operation: free
    /// it first, or patch it.
    pub fn write_around(&mut self, at: BlockNo, data: Vec<Arc<Block>>) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.inner.check_run(at, data.len() as u64)?;
        let run = (at, data.len() as u64);
        if let Some(at) = self.inner.told().1.kept_from_around(run)
            && !self.inner.config.faults.reuse_early
        {
            return Err(Error::Logged { at });
        }
        let log_bytes = match self.inner.config.commit_mode {
            CommitMode::Log => COVERED_BYTES as u64,
            CommitMode::Home => 0,
        };
        let data_blocks = data.len() as u64;
        self.charge(
            None,
            Credits {
                log_bytes,
                data_blocks,
            },
        )?;
        for at in (at.0..at.0 + data.len() as u64).map(BlockNo) {
            if let Some(i) = self.find(at) {
                let unchanged = Touched::new(at, self.blocks[i].kind);
                let old = std::mem::replace(&mut self.blocks[i], unchanged);
                self.let_go(&old);
            }
        }
        self.data.push(at, data);
        Ok(())
    }

    /// The transaction must call [`Client::close`](crate::Client::close) for `key` before it
    /// commits; `credits` stay reserved for that beyond this operation.
    ///
    /// # Errors
    /// [`Error::OverCredits`].
    pub fn attach(&mut self, key: u64, credits: Credits) -> Result<()> {
        self.charge(None, credits)?;
        self.attached.push((key, credits));
        Ok(())
    }

    /// Leaves a note with the epoch that commits this operation, on a device that keeps some
    /// ([`steadfast_block::Snapshot::note`]); elsewhere it is dropped. An operation without changes leaves none.
    pub fn note(&mut self, note: NoteFn) {
        self.note = Some(note);
    }

    /// Makes all changes visible at once, in memory. Not durable yet: see
    /// [`Journal::wait`](crate::Journal::wait).
    pub fn commit(mut self) -> Ticket {
        self.done = true;
        let mut touched = std::mem::take(&mut self.blocks);
        let freed = Freed::new(&self.frees);
        let dies = |touched: &Touched| freed.contains(touched.at);
        touched.retain(|touched| {
            let lives = touched.is_changed() && !dies(touched);
            if !lives {
                self.let_go(touched);
            }
            lives
        });
        let mut blocks = Vec::with_capacity(touched.len());
        for touched in &mut touched {
            // Only the cache should hold the image: it would be copied for the edits.
            if !touched.life {
                touched.view = None;
            }
            blocks.push(OpBlock {
                at: touched.at,
                kind: touched.kind,
                zero: touched.life,
                revoke: false,
                edits: touched.edits.clone(),
            });
        }
        let data = self.data.take();
        let lives: Vec<DataRun> = data.clone();
        let changes = OpChanges {
            name: OpName::default(),
            stream: self.stream,
            closing: self.closing,
            reserved: self.lane.map_or(0, |_| self.reserved()),
            lane: self.lane,
            number: 0,
            since: Duration::ZERO,
            relations: std::mem::take(&mut self.relations),
            blocks,
            frees: std::mem::take(&mut self.frees),
            data,
            attached: std::mem::take(&mut self.attached),
            note: self.note.take(),
        };
        // An operation that stops half-way must stop the journal: others would build on it.
        let halfway = self.inner.halfway(self.lane);
        let (cache, bytes) = (&self.inner.cache, &self.bytes);
        let ticket = self.inner.commit_op(changes, || {
            for touched in touched {
                let at = touched.at;
                if touched.life {
                    let image = touched.edited(Arc::new([0; BLOCK_SIZE]), bytes);
                    cache.begin_life(at, touched.kind, image);
                } else {
                    cache.edit(at, &touched.edits, bytes);
                }
            }
            for (at, images) in lives {
                for (i, image) in images.into_iter().enumerate() {
                    cache.begin_life(at.offset(i as u64), Kind::Data, image);
                }
            }
        });
        std::mem::forget(halfway);
        ticket
    }

    /// Reservation of the operation: blocks of the log, or writes of an epoch.
    fn reserved(&self) -> u64 {
        self.inner
            .config
            .commit_mode
            .need_blocks(self.credits.log_bytes)
    }
}

/// Runs of blocks that an operation frees, by address: where a run begins, and how far it and those before it reach.
struct Freed(Vec<(u64, u64)>);

impl Freed {
    fn new(runs: &[Run]) -> Freed {
        let mut runs: Vec<(u64, u64)> = (runs.iter())
            .map(|(at, count)| (at.0, at.0 + count))
            .collect();
        runs.sort_unstable();
        let mut reach = 0;
        for (_, end) in &mut runs {
            reach = reach.max(*end);
            *end = reach;
        }
        Freed(runs)
    }

    fn contains(&self, at: BlockNo) -> bool {
        let before = self.0.partition_point(|(first, _)| *first <= at.0);
        before > 0 && at.0 < self.0[before - 1].1
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        for touched in &self.blocks {
            self.let_go(touched);
        }
        if let Some(lane) = self.lane {
            self.inner.abort_op(lane, self.reserved());
        }
    }
}
