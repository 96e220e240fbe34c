//! `fallocate` and `lseek` for data and holes.
//!
//! Ranges that are too large for one operation take several, in order: each leaves the
//! file whole, the call as such is not atomic. Punching and zeroing happen from the end
//! of the range on. A zeroed range is punched and allocated anew, because an unwritten
//! extent promises that its blocks have not been written since they were allocated.

use crate::btree;
use crate::data::{ATTEMPTS_MAX, check_end, require_file, shape};
use crate::error::from_journal;
use crate::extents::{self, Extent};
use crate::in_place::Concerns;
use crate::inode::{self, Inode, Place, State};
use crate::layout::DiskInode;
use crate::mounted::Mounted;
use crate::pages::{COST_INODE, Needs, PAGE, Shape};
use crate::reader::Current;
use crate::truncate::{slice_bytes, zero_written};
use crate::work::{COST_BITS, COST_BLOCK, COST_RANGE, Work};
use steadfast_block::BLOCK_SIZE;
use steadfast_journal::{Access, Credits, Object};
use steadfast_vfs::policy::{self, attrs::perm_after_write};
use steadfast_vfs::{AllocateMode, Caller, Errno, Error, Ino, Result, Seek};

/// Most blocks that one operation allocates.
const ALLOCATE_RUNS_MAX: u64 = 64;

/// Blocks that a tree may grow by while a range is punched and allocated anew.
const SPARE_NODES: u64 = 3;

/// Progress of a long call.
enum Step {
    /// The next operation starts (or, punching, ends) at this page of the file.
    At(u64),
    /// The end.
    Done,
    /// The file changed: try again.
    Retry,
}

impl Mounted {
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
                // Without space for the second half, the first one must not begin.
                self.room(ino, offset / PAGE, end.div_ceil(PAGE), SPARE_NODES)?;
                self.punch(caller, ino, offset, end)?;
            }
        }
        self.fill(caller, ino, offset / PAGE, end.div_ceil(PAGE), grow)
    }

    /// Allocates unwritten blocks for the holes in `from .. to`; the last operation lets the
    /// size grow to `grow`.
    fn fill(&self, caller: &Caller, ino: Ino, from: u64, to: u64, grow: Option<u64>) -> Result<()> {
        self.room(ino, from, to, 0)?;
        let inode = self.table.get(ino);
        let mut at = from;
        let mut attempts = 0;
        loop {
            let step = self.store.with_space(|| {
                self.settle(caller.stream, ino)?;
                self.write_out(ino)?;
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

    /// ENOSPC unless there are blocks for the holes in `from .. to`, and `spare` more.
    fn room(&self, ino: Ino, from: u64, to: u64, spare: u64) -> Result<()> {
        let inode = self.table.get(ino);
        self.store.with_space(|| {
            let missing = self.missing(&inode, from, to)?;
            if !self.store.alloc.has_free(missing + spare) {
                return Err(Errno::NoSpc.into());
            }
            Ok(())
        })
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
        Ok(missing.saturating_sub(state.pages.new_blocks_in(from, to)))
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
        let Some((peeked, slack)) = self.peek(caller, inode)? else {
            return Ok(Step::Retry);
        };
        // Cost of one more run: its bit, and growing the tree.
        let per_run = COST_BITS + btree::change_credits(peeked.level);
        let room =
            (store.journal.op_bytes_max() / 4 * 3).saturating_sub(COST_INODE + slack.log_bytes);
        let runs_max = (room / per_run).clamp(1, ALLOCATE_RUNS_MAX);
        let log_bytes = COST_INODE + slack.log_bytes + runs_max * per_run;
        let mut work = store.begin(caller.stream, Credits::log(log_bytes))?;
        work.relate(Object::File(inode.ino), Access::Exclusive);
        let mut state = inode.exclusive();
        if state.pages.cut.is_some() || !state.pages.places.is_empty() {
            return Ok(Step::Retry);
        }
        let old = inode::read(volume, &mut work, inode.ino)?;
        require_file(&old)?;
        policy::may_grow(&old.subject())?;
        if !self.still_covers(&state, &old, peeked, &slack)? {
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
                    let extent = Extent {
                        logical: start,
                        block,
                        len,
                        unwritten: true,
                    };
                    let change = extents::insert(&mut work, &mut new.body, extent)?;
                    new.blocks = change.apply(new.blocks.get().saturating_add(len)).into();
                    at = start + len;
                    runs += 1;
                }
            }
        }
        if at >= to {
            new.size = new.size.get().max(grow.unwrap_or(0)).into();
        }
        let end = End {
            caller,
            work,
            ino: inode.ino,
            state: &mut state,
            old,
            new,
            slack,
        };
        self.finish(end, |_| {})?;
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
                self.write_out(ino)?;
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
        let Some((peeked, slack)) = self.peek(caller, inode)? else {
            return Ok(Step::Retry);
        };
        let edge_bytes = if edges.is_some() {
            2 * (COST_BLOCK + COST_RANGE + PAGE)
        } else {
            0
        };
        let fixed = COST_INODE + slack.log_bytes + extents::remove_credits(peeked.level, false);
        let most = store
            .journal
            .op_bytes_max()
            .saturating_sub(fixed + edge_bytes);
        let free_bytes = most.min(slice_bytes(store));
        let log_bytes = fixed + edge_bytes + free_bytes;
        let mut work = store.begin(caller.stream, Credits::log(log_bytes))?;
        work.use_emergency_space();
        work.relate(Object::File(inode.ino), Access::Exclusive);
        let mut state = inode.exclusive();
        if state.pages.cut.is_some() || !state.pages.places.is_empty() {
            return Ok(Step::Retry);
        }
        let old = inode::read(volume, &mut work, inode.ino)?;
        require_file(&old)?;
        policy::not_fixed(&old.subject())?;
        if !self.still_covers(&state, &old, peeked, &slack)? {
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
        let end = End {
            caller,
            work,
            ino: inode.ino,
            state: &mut state,
            old,
            new,
            slack,
        };
        self.finish(end, |state| {
            for (page, from, to) in zeros {
                state.pages.zero(page, from, to);
            }
            state.pages.drop_range(first, to);
            if state.pages.is_empty() {
                let reserved = state.pages.settle();
                store.alloc.unreserve(reserved);
            }
        })?;
        // Freed blocks stay freed: the next slice finds by itself where to go on.
        Ok(if done { Step::Done } else { Step::At(to) })
    }

    /// Shape of the file's tree, and the additional needs of its delayed pages when an
    /// operation lets the tree grow by a level. `None`: that would be too much, so the file
    /// was committed; look again.
    fn peek(&self, caller: &Caller, inode: &Inode) -> Result<Option<(Shape, Needs)>> {
        let volume = &self.store.volume;
        let journal = &self.store.journal;
        {
            let state = inode.shared();
            let disk = inode::read(volume, &mut Current(journal), inode.ino)?;
            require_file(&disk)?;
            let shape = shape(volume, &disk)?;
            let grown = Shape {
                level: shape.level + 1,
                items: None,
            };
            let needs = state
                .pages
                .tally_cut(disk.size.get(), self.store.small_bytes_max)
                .needs(grown);
            let log_bytes = needs.log_bytes.saturating_sub(state.pages.log_bytes);
            if log_bytes <= journal.op_bytes_max() / 4 {
                return Ok(Some((
                    shape,
                    Needs {
                        blocks: needs.blocks,
                        log_bytes,
                    },
                )));
            }
        }
        let stream = self.store.stream(caller.stream);
        journal
            .sync(stream, &[Object::File(inode.ino)])
            .map_err(from_journal)?;
        Ok(None)
    }

    /// Whether the earlier look still holds for the file as it is now.
    fn still_covers(
        &self,
        state: &State,
        disk: &DiskInode,
        peeked: Shape,
        slack: &Needs,
    ) -> Result<bool> {
        let shape = shape(&self.store.volume, disk)?;
        let grown = Shape {
            level: peeked.level + 1,
            items: None,
        };
        let needs = state
            .pages
            .tally_cut(disk.size.get(), self.store.small_bytes_max)
            .needs(grown);
        let more = needs.log_bytes.saturating_sub(state.pages.log_bytes);
        Ok(shape.level <= peeked.level && more <= slack.log_bytes)
    }

    /// Ends an operation that changed the tree: reserves for the delayed pages, stores the
    /// inode, changes the pages, commits.
    fn finish(&self, mut end: End<'_, '_>, pages: impl FnOnce(&mut State)) -> Result<()> {
        let store = &self.store;
        let volume = &store.volume;
        let now = self.now();
        let (old, mut new) = (end.old, end.new);
        new.set_perm(perm_after_write(end.caller, old.perm(), old.gid.get()));
        (new.mtime, new.ctime) = (now, now);
        // With the old size: the bytes that may go into the record do not grow by this.
        let tally = end
            .state
            .pages
            .tally_cut(old.size.get(), store.small_bytes_max);
        let needs = tally.needs(shape(volume, &new)?);
        let more = store
            .alloc
            .reserve(needs.blocks.saturating_sub(end.state.pages.reserved))?;
        let log_bytes = needs.log_bytes.saturating_sub(end.state.pages.log_bytes);
        debug_assert!(
            log_bytes <= end.slack.log_bytes,
            "the tree grew by more than a level"
        );
        if log_bytes > 0 {
            end.work.attach(end.ino, Credits::log(log_bytes))?;
        }
        inode::patch(&mut end.work, Place::of(volume, end.ino)?, &old, &new)?;
        // Nothing can fail from here on.
        end.state.pages.reserved += more.keep();
        end.state.pages.log_bytes += log_bytes;
        pages(end.state);
        let ticket = end.work.commit();
        self.note_change(end.ino, Concerns::Size, ticket);
        Ok(())
    }

    /// Finds data or a hole at or after `offset`. Unwritten extents are holes.
    ///
    /// # Errors
    /// ENXIO past the end; ESTALE, EISDIR, EINVAL, EUCLEAN, EIO.
    pub(crate) fn seek_file(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let inode = self.table.get(ino);
        let state = inode.shared();
        let volume = &self.store.volume;
        let mut reader = Current(&self.store.journal);
        let disk = inode::read(volume, &mut reader, ino)?;
        require_file(&disk)?;
        let size = disk.size.get();
        if offset >= size {
            return Err(Errno::NxIo.into());
        }
        let dead = state.pages.cut.unwrap_or(u64::MAX);
        let end = size.div_ceil(PAGE);
        let mut page = offset / PAGE;
        while page < end {
            let extent = extents::at_or_over(&mut reader, volume, &disk.body, page)?
                .filter(|extent| extent.logical < dead);
            let (is_data, until) = match extent {
                Some(extent) if extent.logical <= page => (!extent.unwritten, extent.end()),
                Some(extent) => (false, extent.logical),
                None => (false, u64::MAX),
            };
            let delayed = state
                .pages
                .range(page, until.min(end))
                .next()
                .map(|(page, _)| page);
            let (is_data, until) = match delayed {
                Some(delayed) if delayed == page => (true, page + 1),
                Some(delayed) if !is_data => (false, delayed),
                _ => (is_data, until),
            };
            if is_data == (whence == Seek::Data) {
                return Ok(offset.max(page * PAGE));
            }
            page = until;
        }
        match whence {
            Seek::Data => Err(Errno::NxIo.into()),
            Seek::Hole => Ok(size),
        }
    }
}

/// An operation that is about to end.
struct End<'a, 'w> {
    caller: &'a Caller,
    work: Work<'w>,
    ino: Ino,
    state: &'a mut State,
    old: DiskInode,
    new: DiskInode,
    /// Credits requested in case that the delayed pages need more.
    slack: Needs,
}

fn changes_too_fast() -> Error {
    Error::new(Errno::Again, "the file changes too fast to be allocated")
}

/// The first run of pages in `from .. to` that have neither a block nor a delayed page.
fn next_hole(
    work: &mut Work<'_>,
    state: &State,
    disk: &DiskInode,
    from: u64,
    to: u64,
) -> Result<Option<(u64, u64)>> {
    let volume = work.volume();
    let mut at = from;
    while at < to {
        let end = match extents::at_or_over(work, volume, &disk.body, at)? {
            Some(extent) if extent.logical <= at => {
                at = extent.end();
                continue;
            }
            Some(extent) => extent.logical.min(to),
            None => to,
        };
        let mut end = end;
        let mut start = at;
        for (page, _) in state.pages.range(at, end) {
            if page > start {
                end = page;
                break;
            }
            start = page + 1;
        }
        if start < end {
            return Ok(Some((start, end)));
        }
        at = end;
    }
    Ok(None)
}

/// The parts of pages at both ends of a range of bytes: page, first byte, last byte + 1.
fn edge_parts(offset: u64, end: u64) -> Vec<(u64, usize, usize)> {
    let part = |from: u64, to: u64| {
        let page = from / PAGE;
        (
            page,
            (from - page * PAGE) as usize,
            (to - page * PAGE) as usize,
        )
    };
    if offset >= end {
        return Vec::new();
    }
    let (head_end, tail_start) = (offset.next_multiple_of(PAGE), end / PAGE * PAGE);
    if offset / PAGE == end / PAGE {
        let whole = offset.is_multiple_of(PAGE) && end.is_multiple_of(PAGE);
        return if whole {
            Vec::new()
        } else {
            vec![part(offset, end)]
        };
    }
    let mut parts = Vec::new();
    if offset < head_end {
        parts.push(part(offset, head_end));
    }
    if tail_start < end {
        parts.push(part(tail_start, end));
    }
    parts
}

const _: () = assert!(PAGE == BLOCK_SIZE as u64);
