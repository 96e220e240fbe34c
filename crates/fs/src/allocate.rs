//! `fallocate` and `lseek` for data and holes.
//!
//! Ranges that are too large for one operation take several, in order: each leaves the
//! file whole, the call as such is not atomic. Punching and zeroing happen from the end
//! of the range on. A zeroed range is punched and allocated anew, because an unwritten
//! extent promises that its blocks have not been written since they were allocated.

use crate::data::{ATTEMPTS_MAX, PAGE, check_end, require_file, shape};
use crate::btree;
use crate::extents::{self, Extent};
use crate::inode::{self, Inode, Place, State};
use crate::layout::DiskInode;
use crate::mount::Fs;
use crate::pages::{COST_INODE, Needs, Shape};
use crate::perm;
use crate::reader::Current;
use crate::truncate::{slice_bytes, zero_written};
use crate::work::{COST_BITS, COST_BLOCK, COST_RANGE, Work};
use steadfast_block::BLOCK_SIZE;
use steadfast_journal::{Access, Credits, Object};
use steadfast_vfs::{AllocateMode, Caller, Errno, Error, Ino, Result, Seek};

/// Most blocks that one operation allocates.
const ALLOCATE_RUNS_MAX: u64 = 64;

/// How far a long call has come.
enum Step {
    /// Up to this page of the file, or down to it.
    At(u64),
    /// The end.
    Done,
    /// The file changed: try again.
    Retry,
}

impl Fs {
    /// Changes the allocation of a range of a file.
    ///
    /// # Errors
    /// EINVAL for an empty range, EFBIG, ENOSPC, EISDIR, ESTALE; EIO, EROFS.
    pub(crate) fn allocate_file(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        if len == 0 {
            return Err(Errno::Inval.into());
        }
        check_end(offset, usize::try_from(len).map_err(|_| Errno::FBig)?)?;
        let end = offset + len;
        let grow = match mode {
            AllocateMode::Allocate | AllocateMode::ZeroRange => Some(end),
            _ => None,
        };
        match mode {
            AllocateMode::Allocate | AllocateMode::KeepSize => {}
            AllocateMode::PunchHole => return self.punch(caller, ino, offset, end),
            AllocateMode::ZeroRange | AllocateMode::ZeroRangeKeepSize => {
                self.punch(caller, ino, offset, end)?;
            }
        }
        self.fill(caller, ino, offset / PAGE, end.div_ceil(PAGE), grow)
    }

    /// Allocates unwritten blocks for the holes in `from .. to`; the last operation lets the
    /// size grow to `grow`.
    fn fill(&self, caller: &Caller, ino: Ino, from: u64, to: u64, grow: Option<u64>) -> Result<()> {
        let inode = self.table.get(ino);
        self.store.with_space(|| {
            let missing = self.missing(&inode, from, to)?;
            if missing > self.store.alloc.space().free {
                return Err(Errno::NoSpc.into());
            }
            Ok(())
        })?;
        let mut at = from;
        let mut attempts = 0;
        loop {
            let step = self.store.with_space(|| {
                self.settle(caller.stream, ino)?;
                self.fill_some(caller, &inode, at, to, grow)
            })?;
            match step {
                Step::At(next) => at = next,
                Step::Done => return Ok(()),
                Step::Retry if attempts < ATTEMPTS_MAX => attempts += 1,
                Step::Retry => return Err(changes_too_fast()),
            }
        }
    }

    /// Blocks that `from .. to` of the file lack.
    fn missing(&self, inode: &Inode, from: u64, to: u64) -> Result<u64> {
        let state = inode.shared();
        let volume = &self.store.volume;
        let mut reader = Current(&self.store.journal);
        let disk = inode::read(volume, &mut reader, inode.ino)?;
        require_file(&disk)?;
        let mut missing = to - from;
        let mut at = from;
        while let Some(extent) = extents::at_or_over(&mut reader, volume, &disk.body, at)?
            && extent.logical < to
        {
            missing -= extent.end().min(to) - extent.logical.max(at);
            at = extent.end();
            if at >= to {
                break;
            }
        }
        Ok(missing.saturating_sub(state.pages.range(from, to).count() as u64))
    }

    fn fill_some(
        &self,
        caller: &Caller,
        inode: &Inode,
        from: u64,
        to: u64,
        grow: Option<u64>,
    ) -> Result<Step> {
        let store = &self.store;
        let volume = &store.volume;
        let (peeked, slack) = self.peek(inode)?;
        // What one more run costs: its bit, and growing the tree.
        let per_run = COST_BITS + btree::change_credits(peeked.level + 1);
        let room = (store.journal.op_bytes_max() / 4 * 3).saturating_sub(COST_INODE + slack.log_bytes);
        let runs_max = (room / per_run).clamp(1, ALLOCATE_RUNS_MAX);
        let log_bytes = COST_INODE + slack.log_bytes + runs_max * per_run;
        let mut work = store.begin(caller.stream, Credits { log_bytes, data_blocks: 0 })?;
        work.relate(Object::File(inode.ino), Access::Exclusive);
        let mut state = inode.exclusive();
        if state.pages.cut.is_some() {
            return Ok(Step::Retry);
        }
        let old = inode::read(volume, &mut work, inode.ino)?;
        require_file(&old)?;
        if shape(volume, &old)?.level > peeked.level {
            return Ok(Step::Retry);
        }
        let place = Place::of(volume, inode.ino)?;
        let mut new = old;
        let mut at = from;
        let mut runs = 0;
        while at < to && runs < runs_max {
            match next_hole(&mut work, &state, &new, at, to)? {
                None => at = to,
                Some((start, end)) => {
                    let goal = extents::goal(&mut work, volume, &new.body, start, place.block)?;
                    let (block, len) = work.allocate_run(goal, end - start)?;
                    let extent = Extent { logical: start, block, len, unwritten: true };
                    let change = extents::insert(&mut work, &mut new.body, extent)?;
                    new.blocks = change.apply(new.blocks.get() + len).into();
                    at = start + len;
                    runs += 1;
                }
            }
        }
        if at >= to {
            new.size = new.size.get().max(grow.unwrap_or(0)).into();
        }
        self.finish(caller, work, inode.ino, &mut state, &old, new, &slack)?;
        Ok(if at >= to { Step::Done } else { Step::At(at) })
    }

    /// Turns the bytes `offset .. end` into a hole, the parts of blocks at its ends into zeros.
    fn punch(&self, caller: &Caller, ino: Ino, offset: u64, end: u64) -> Result<()> {
        let inode = self.table.get(ino);
        let first = offset.div_ceil(PAGE);
        let mut to = (end / PAGE).max(first);
        let mut edges = Some((offset, end));
        let mut attempts = 0;
        loop {
            let step = self.store.with_space(|| {
                self.settle(caller.stream, ino)?;
                self.punch_some(caller, &inode, edges, first, to)
            })?;
            match step {
                Step::At(next) => {
                    to = next;
                    edges = None;
                }
                Step::Done => return Ok(()),
                Step::Retry if attempts < ATTEMPTS_MAX => attempts += 1,
                Step::Retry => return Err(changes_too_fast()),
            }
        }
    }

    fn punch_some(
        &self,
        caller: &Caller,
        inode: &Inode,
        edges: Option<(u64, u64)>,
        first: u64,
        to: u64,
    ) -> Result<Step> {
        let store = &self.store;
        let volume = &store.volume;
        let (peeked, slack) = self.peek(inode)?;
        let edge_bytes = if edges.is_some() { 2 * (COST_BLOCK + COST_RANGE + PAGE) } else { 0 };
        let fixed = COST_INODE + slack.log_bytes + extents::remove_credits(peeked.level) + COST_BITS;
        let most = store.journal.op_bytes_max().saturating_sub(fixed + edge_bytes);
        let free_bytes = most.min(slice_bytes(store));
        let log_bytes = fixed + edge_bytes + free_bytes;
        let mut work = store.begin(caller.stream, Credits { log_bytes, data_blocks: 0 })?;
        work.use_emergency_space();
        work.relate(Object::File(inode.ino), Access::Exclusive);
        let mut state = inode.exclusive();
        if state.pages.cut.is_some() {
            return Ok(Step::Retry);
        }
        let old = inode::read(volume, &mut work, inode.ino)?;
        require_file(&old)?;
        if shape(volume, &old)?.level > peeked.level {
            return Ok(Step::Retry);
        }
        let mut new = old;
        let mut zeros = Vec::new();
        if let Some((offset, end)) = edges {
            zeros = edge_parts(offset, end.min(old.size.get()));
            for (page, from, to) in &zeros {
                if state.pages.get(*page).is_none() {
                    zero_written(&mut work, &old, *page, *from, *to)?;
                }
            }
        }
        let (change, done) = extents::remove(&mut work, &mut new.body, first, to, free_bytes)?;
        new.blocks = change.apply(new.blocks.get()).into();
        let left = if done { first } else { dead_end(&mut work, &new, first, to)? };
        // Pages go with the last slice, so that a failure before it leaves them alone.
        let pages = if done { Some((zeros, first, to)) } else { None };
        self.finish_punch(caller, work, inode.ino, &mut state, &old, new, &slack, pages)?;
        Ok(if done { Step::Done } else { Step::At(left) })
    }

    /// Shape of the file's tree, and what its delayed pages may need in addition when an
    /// operation lets the tree grow by a level.
    fn peek(&self, inode: &Inode) -> Result<(Shape, Needs)> {
        let state = inode.shared();
        let volume = &self.store.volume;
        let disk = inode::read(volume, &mut Current(&self.store.journal), inode.ino)?;
        require_file(&disk)?;
        let shape = shape(volume, &disk)?;
        let grown = Shape { level: shape.level + 1, items: None };
        let needs = state.pages.tally_with(&[], 0, disk.size.get()).needs(grown);
        let log_bytes = needs.log_bytes.saturating_sub(state.pages.log_bytes);
        Ok((shape, Needs { blocks: needs.blocks, log_bytes }))
    }
}
