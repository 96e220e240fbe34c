//! Reading and writing file data.
//!
//! A write of one page goes one of these ways: into a delayed page that is there already;
//! as a patch of the journal over a written block (selective data journaling: order is kept), or in
//! place where the contract lets it (`in_place`); or into a new delayed page, for which space and log bytes are kept from then on,
//! also over written blocks if they are many (`out_of_place`). Size,
//! times and mode change in the same operation. A write too large for one operation becomes
//! several, split at page boundaries, in order (corner 62).
//!
//! An operation first does everything that can fail, then changes the pages in memory,
//! then commits; so a failed one leaves no trace (corner 30). Neighbours: `pages`,
//! `writeback` (allocation at commit), `truncate`, `allocate`.

use crate::alloc::{Purpose, Reservation};
use crate::btree;
use crate::error::{damaged, from_journal};
use crate::extents::{self, Extent};
use crate::in_place::Concerns;
use crate::inode::{self, Inode, Place, State};
use crate::layout::{DiskInode, FILE_BYTES_MAX};
use crate::mounted::Mounted;
use crate::out_of_place::{self, Overwrite};
pub(crate) use crate::pages::Pages;
use crate::pages::{Added, COST_INODE, Needs, PAGE, Shape, Target, Under};
use crate::reader::{Current, Reader};
use crate::superblock::Volume;
use crate::work::{COST_BLOCK, COST_RANGE, Store, Work};
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, BlockNo, SECTOR_SIZE};
use steadfast_journal::{Access, Credits, Kind, Object};
use steadfast_vfs::policy::{self, attrs::perm_after_write};
use steadfast_vfs::{Caller, Errno, Error, Ino, Result};

/// Bytes that a crash leaves whole.
const SECTOR: u64 = SECTOR_SIZE as u64;
/// Most pages that one operation writes.
const CHUNK_PAGES_MAX: u64 = 256;
/// Attempts to begin an operation whose file changes in between, before giving up.
pub(crate) const ATTEMPTS_MAX: usize = 64;

/// Source of file data that is not in a delayed page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    /// The device, if it is not in memory.
    Device,
    /// The same, and it stays in memory then.
    Kept,
}

/// Plan of a write: computed once to ask for credits, and again under the lock.
struct Plan {
    first: u64,
    targets: Vec<Target>,
    /// New delayed pages.
    new: Vec<u64>,
    /// Pages whose blocks will be replaced from now on, and pages of a unit.
    moving: Vec<u64>,
    unit: u64,
    /// Log bytes of the operation itself.
    own_bytes: u64,
    /// Total reservation for the file's delayed pages afterwards.
    needs: Needs,
    /// Log bytes that must be attached in addition to those that are.
    attach_bytes: u64,
}

impl Plan {
    fn credits(&self) -> Credits {
        Credits {
            log_bytes: self.own_bytes + self.attach_bytes,
            data_blocks: self.new.len() as u64,
        }
    }
}

/// Whether `granted` suffices for `needed`.
fn covers(granted: &Credits, needed: &Credits) -> bool {
    granted.log_bytes >= needed.log_bytes && granted.data_blocks >= needed.data_blocks
}

/// The shape of a file's extent tree.
pub(crate) fn shape(volume: &Volume, disk: &DiskInode) -> Result<Shape> {
    Ok(Shape {
        level: btree::level(volume, &disk.body)?,
        items: btree::inline_items(volume, &disk.body)?,
    })
}

/// EISDIR or EINVAL unless the inode has file data.
pub(crate) fn require_file(disk: &DiskInode) -> Result<()> {
    policy::require_file(disk.kind())
}

/// The range of pages that bytes lie in.
pub(crate) fn page_range(offset: u64, len: u64) -> (u64, u64) {
    (offset / PAGE, (offset + len).div_ceil(PAGE))
}

impl Mounted {
    /// Reads up to `buf.len()` bytes at `offset`; returns how many, fewer only at the end.
    ///
    /// # Errors
    /// ESTALE, EISDIR, EINVAL, EIO, EUCLEAN.
    pub(crate) fn read_file(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.table.get(ino);
        let state = inode.shared();
        let mut reader = Current(&self.store.journal);
        let disk = inode::read(&self.store.volume, &mut reader, ino)?;
        require_file(&disk)?;
        let len = disk.size.get().saturating_sub(offset).min(buf.len() as u64) as usize;
        let from = if self.keeps_data {
            From::Kept
        } else {
            From::Device
        };
        read_range(
            &self.store,
            &state.pages,
            &disk,
            offset,
            &mut buf[..len],
            from,
        )?;
        Ok(len)
    }

    /// Writes `data` at `offset`, or at the end. Returns where it went and how much of it
    /// was written: all, unless there is space for a part only, or a later part of a long write failed.
    ///
    /// # Errors
    /// ESTALE, EISDIR, EINVAL, EFBIG, ENOSPC before any effect; EIO, EROFS.
    pub(crate) fn write_file(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<(u64, usize)> {
        if let Some(offset) = offset {
            check_end(offset, data.len())?;
        }
        // The parts of an append are adjacent, also if other threads append.
        let inode = self.table.get(ino);
        let _alone = offset.is_none().then(|| inode.append_alone());
        let mut written = 0;
        let mut start = offset;
        let mut pages_max = CHUNK_PAGES_MAX;
        let mut purpose = Purpose::Normal;
        loop {
            let at = offset.map(|offset| offset + written as u64);
            let rest = &data[written..];
            // Without its last byte's page a part may fit.
            let spanned = (at.unwrap_or(0) % PAGE + rest.len() as u64).div_ceil(PAGE);
            let first_try = pages_max == CHUNK_PAGES_MAX;
            let step = || self.write_some(caller, ino, at, rest, (pages_max, purpose));
            let step = match first_try {
                true => self.store.with_space(step),
                false => step(),
            };
            match step {
                Ok((at, count)) => {
                    start = start.or(Some(at));
                    written += count;
                    purpose = Purpose::Normal;
                }
                Err(error) if error == Errno::NoSpc && pages_max.min(spanned) > 1 => {
                    pages_max = pages_max.min(spanned) / 2;
                    continue;
                }
                Err(error) => {
                    // Only the tree may lack a block: preallocated ones can be written without.
                    let why = match error == Errno::NoSpc {
                        true => match at
                            .map_or(Ok(false), |at| self.write_zeros_under(caller, ino, at))
                        {
                            Ok(true) => {
                                pages_max = CHUNK_PAGES_MAX;
                                continue;
                            }
                            Ok(false) if purpose == Purpose::Normal => {
                                purpose = Purpose::Splitting;
                                continue;
                            }
                            Ok(false) => error,
                            Err(other) => other,
                        },
                        false => error,
                    };
                    if written > 0 {
                        // A part is there: that is a short write. The caller will meet the error again.
                        break;
                    }
                    return Err(why);
                }
            }
            self.write_out_surplus()?;
            if written == data.len() {
                break;
            }
        }
        Ok((start.unwrap_or(0), written))
    }

    /// One operation: writes as much of the beginning of `data` as fits into it, in at most `pages_max` pages.
    fn write_some(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: Option<u64>,
        data: &[u8],
        (pages_max, purpose): (u64, Purpose),
    ) -> Result<(u64, usize)> {
        let store = &self.store;
        let inode = self.table.get(ino);
        let mut out_of_place = true;
        for _ in 0..ATTEMPTS_MAX {
            self.settle(caller.stream, ino)?;
            // A look ahead, to ask for credits before taking the lock.
            let mut ways = Ways {
                in_place: self.may_write_in_place(ino),
                out_of_place: out_of_place.then_some(data.len() as u64),
                cut: self.options.faults.moved_cut,
            };
            let (peeked, mut count, waits) = {
                let state = inode.shared();
                let mut reader = Current(&store.journal);
                let disk = inode::read(&store.volume, &mut reader, ino)?;
                require_file(&disk)?;
                let at = offset.unwrap_or(disk.size.get());
                check_end(at, data.len())?;
                if data.is_empty() {
                    return Ok((at, 0));
                }
                let most = (at / PAGE + pages_max) * PAGE - at;
                let len = most.min(data.len() as u64);
                let (plan, count) =
                    largest_plan(store, &mut reader, &state, &disk, (at, len), &mut ways)?;
                // A write that extends the file needs a file without waiting overwrites.
                let waits = at + count > disk.size.get() && !state.pages.places.is_empty();
                (plan, count, waits)
            };
            if waits {
                self.write_out(ino)?;
            }
            let granted = peeked.credits();
            if granted.log_bytes > store.journal.op_bytes_max() && !inode.shared().pages.is_empty()
            {
                // The reservation for the delayed pages outgrows a small log: place them first.
                let stream = store.stream(caller.stream);
                store
                    .journal
                    .sync(stream, &[Object::File(ino)])
                    .map_err(from_journal)?;
                continue;
            }
            let mut work = store.begin_for(caller, granted)?;
            work.relate(Object::File(ino), Access::Exclusive);
            let mut state = inode.exclusive();
            if state.pages.cut.is_some() {
                continue;
            }
            let old = inode::read(&store.volume, &mut work, ino)?;
            require_file(&old)?;
            let at = offset.unwrap_or(old.size.get());
            if offset.is_none() {
                // The end may have moved within its page.
                count = count
                    .min((page_range(at, 1).1 + peeked.targets.len() as u64 - 1) * PAGE - at)
                    .min(data.len() as u64);
            }
            check_end(at, count as usize)?;
            policy::may_write_at(&old.subject(), at)?;
            ways.in_place = self.may_write_in_place(ino);
            let plan = plan_in(store, &mut work, &state, &old, (at, count), ways)?;
            let waits = at + count > old.size.get() && !state.pages.places.is_empty();
            // The file changed since the look ahead: ask again.
            if waits || !covers(&granted, &plan.credits()) {
                continue;
            }
            let data = &data[..count as usize];
            let over = |target: &Target| !matches!(target, Target::New(Under::Nothing));
            // Only a write to preallocated blocks may take more than others.
            let purpose = match plan.targets.iter().all(over) {
                true => purpose,
                false => Purpose::Normal,
            };
            let needed = plan.needs.blocks.saturating_sub(state.pages.reserved);
            let reservation = if plan.moving.is_empty() {
                store.alloc.reserve_for(purpose, needed)?
            } else {
                let looked = out_of_place::look_at_old_blocks(store, &mut work, &old, &plan.moving);
                let spare = store.overwrite_spare();
                match looked.and_then(|()| store.alloc.reserve_sparing(needed, spare)) {
                    Ok(reservation) => reservation,
                    // The log takes it: nothing is missing, and nothing is given up.
                    Err(_) => {
                        out_of_place = false;
                        continue;
                    }
                }
            };
            self.write_planned(
                caller,
                work,
                &inode,
                &mut state,
                &old,
                at,
                data,
                (&plan, reservation),
            )?;
            return Ok((at, data.len()));
        }
        Err(Error::new(
            Errno::Again,
            "the file changes too fast to be written",
        ))
    }

    #[allow(clippy::too_many_arguments)]
    fn write_planned(
        &self,
        caller: &Caller,
        mut work: Work<'_>,
        inode: &Inode,
        state: &mut State,
        old: &DiskInode,
        at: u64,
        data: &[u8],
        (plan, reservation): (&Plan, Reservation<'_>),
    ) -> Result<()> {
        let store = work.store();
        // Blocks to be overwritten in place, as they will be.
        let mut places = Vec::new();
        for ((target, piece), page) in plan.targets.iter().zip(pieces(at, data)).zip(plan.first..) {
            match target {
                Target::Written(block) => {
                    debug_assert!(!state.pages.places.contains_key(&page), "it waits");
                    patch_data(&mut work, *block, &piece, self.patch_unit())?;
                }
                Target::InPlace(home) => {
                    let mut block = match state.pages.places.get(&page) {
                        Some((_, block)) => Arc::clone(block),
                        None if piece.bytes.len() == BLOCK_SIZE => Arc::new([0; BLOCK_SIZE]),
                        None => Arc::new(*work.read(*home, Kind::Data)?),
                    };
                    Arc::make_mut(&mut block)[piece.offset..][..piece.bytes.len()]
                        .copy_from_slice(piece.bytes);
                    places.push((page, (*home, block)));
                }
                Target::Delayed | Target::New(_) => {}
            }
        }
        let now = self.now();
        let mut new = *old;
        new.size = old.size.get().max(at + data.len() as u64).into();
        new.set_perm(perm_after_write(caller, old.perm(), old.gid.get()));
        (new.mtime, new.ctime) = (now, now);
        let place = Place::of(&store.volume, inode.ino)?;
        inode::patch(&mut work, place, old, &new)?;
        if plan.attach_bytes > 0 || !plan.new.is_empty() {
            let credits = Credits {
                log_bytes: plan.attach_bytes,
                data_blocks: plan.new.len() as u64,
            };
            work.attach(inode.ino, credits)?;
        }
        // Nothing can fail from here on.
        state.pages.reserved += reservation.keep();
        state.pages.log_bytes += plan.attach_bytes;
        for ((target, piece), page) in plan.targets.iter().zip(pieces(at, data)).zip(plan.first..) {
            match *target {
                Target::Written(_) | Target::InPlace(_) => {}
                Target::Delayed => {
                    let under = Under::Nothing;
                    state.pages.write(page, piece.offset, piece.bytes, under);
                }
                Target::New(under) => {
                    state.pages.write(page, piece.offset, piece.bytes, under);
                }
            }
        }
        let overwrites = &mut state.pages.overwrites;
        overwrites.set_unit(plan.unit);
        overwrites.will_move(&plan.moving);
        overwrites.wrote(at, data.len() as u64);
        if !places.is_empty() {
            state.pages.places.extend(places);
            let waiting = state.pages.places.len() as u64;
            store.in_place.set_waiting(inode.ino, waiting);
        }
        let patched = |target: &Target| !matches!(target, Target::InPlace(_));
        let concerns = if new.size != old.size {
            Some(Concerns::Size)
        } else {
            plan.targets.iter().any(patched).then_some(Concerns::Data)
        };
        let ticket = work.commit();
        if let Some(concerns) = concerns {
            self.note_change(inode.ino, concerns, ticket);
        }
        Ok(())
    }
}

/// EFBIG if bytes would lie past the largest file's end.
pub(crate) fn check_end(offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(()),
        _ => Err(Errno::FBig.into()),
    }
}

/// The part of a write that falls into one page.
struct Piece<'a> {
    offset: usize,
    bytes: &'a [u8],
}

/// Cuts bytes at page boundaries.
fn pieces(at: u64, data: &[u8]) -> impl Iterator<Item = Piece<'_>> {
    let mut at = at;
    let mut rest = data;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let offset = (at % PAGE) as usize;
        let (bytes, behind) = rest.split_at(rest.len().min(BLOCK_SIZE - offset));
        rest = behind;
        at += bytes.len() as u64;
        Some(Piece { offset, bytes })
    })
}

/// The plan for as much of a write at `at` as one operation takes, and its length in bytes. A write that the log takes as a whole,
/// as patches, is not cut in two in order to go out of place: a call that fits into one operation is atomic. A log that is too small
/// for a unit to move takes the write as patches, too.
fn largest_plan(
    store: &Store,
    reader: &mut impl Reader,
    state: &State,
    disk: &DiskInode,
    (at, len): (u64, u64),
    ways: &mut Ways,
) -> Result<(Plan, u64)> {
    let limit = store.journal.op_bytes_max() / 4 * 3;
    let fits = |plan: &Plan| plan.credits().log_bytes <= limit;
    let mut pages = CHUNK_PAGES_MAX;
    loop {
        let end = (at / PAGE + pages) * PAGE;
        let count = (end - at).min(len);
        let plan = plan_in(store, reader, state, disk, (at, count), *ways)?;
        if fits(&plan) || pages == 1 && plan.moving.is_empty() {
            return Ok((plan, count));
        }
        if pages == CHUNK_PAGES_MAX && ways.out_of_place.is_some() && !ways.cut {
            let patches = Ways {
                out_of_place: None,
                ..*ways
            };
            let plan = plan_in(store, reader, state, disk, (at, count), patches)?;
            if fits(&plan) {
                *ways = patches;
                return Ok((plan, count));
            }
        }
        if !plan.moving.is_empty() && pages <= plan.unit {
            ways.out_of_place = None;
            pages = CHUNK_PAGES_MAX;
            continue;
        }
        pages = (pages / 2).max(1);
    }
}

/// Ways of an overwrite besides the log.
#[derive(Clone, Copy)]
struct Ways {
    /// The file's size is durable, and the contract lets overwrites go in place.
    in_place: bool,
    /// Bytes of the call from here on, if large overwrites may go out of place.
    out_of_place: Option<u64>,
    /// Planted: in two operations rather than through the log.
    cut: bool,
}

fn plan_in(
    store: &Store,
    reader: &mut impl Reader,
    state: &State,
    disk: &DiskInode,
    (at, count): (u64, u64),
    ways: Ways,
) -> Result<Plan> {
    let volume = &store.volume;
    let (first, end) = page_range(at, count);
    let mut targets = vec![Target::New(Under::Nothing); (end - first) as usize];
    for run in extents::runs(reader, volume, &disk.body, first, end)? {
        for index in 0..run.len {
            targets[(run.logical + index - first) as usize] = if run.unwritten {
                Target::New(Under::Unwritten)
            } else {
                Target::Written(run.block.offset(index))
            };
        }
    }
    if ways.in_place && at + count <= disk.size.get() {
        choose_places(store, state, first, &mut targets);
    }
    for (page, _) in state.pages.range(first, end) {
        targets[(page - first) as usize] = Target::Delayed;
    }
    let write = ways
        .out_of_place
        .map(|asked| Overwrite { at, count, asked });
    let chosen = write
        .map(|write| out_of_place::choose(store, &state.pages, disk, write, first, &mut targets));
    let chosen = chosen.unwrap_or_default();
    let mut new = Vec::new();
    let mut over_unwritten = 0;
    let mut over_written = 0;
    let mut own_bytes = COST_INODE;
    for (target, page) in targets.iter().zip(first..) {
        match target {
            Target::Delayed | Target::InPlace(_) => {}
            Target::Written(_) => {
                let from = at.max(page * PAGE) / SECTOR * SECTOR;
                let to = (at + count).min((page + 1) * PAGE).next_multiple_of(SECTOR);
                own_bytes += COST_BLOCK + COST_RANGE + store.patch_bytes(to - from);
            }
            Target::New(under) => {
                new.push(page);
                over_unwritten += u64::from(*under == Under::Unwritten);
                over_written += u64::from(*under == Under::Written);
            }
        }
    }
    let size = disk.size.get().max(at + count);
    let added = Added {
        new: &new,
        over_unwritten,
        over_written,
        moving: &chosen.moving,
    };
    let tally = state.pages.tally_with(added, size, store.small_bytes_max);
    let needs = tally.needs(shape(volume, disk)?);
    let attach_bytes = needs.log_bytes.saturating_sub(state.pages.log_bytes);
    Ok(Plan {
        first,
        targets,
        new,
        moving: chosen.moving,
        unit: chosen.unit,
        own_bytes,
        needs,
        attach_bytes,
    })
}

/// Patches a part of a written block, in whole units: the rest of the first and the last unit may
/// have been written in place and not be durable yet, and belongs to the value that is patched.
fn patch_data(work: &mut Work<'_>, block: BlockNo, piece: &Piece<'_>, unit: usize) -> Result<()> {
    let end = piece.offset + piece.bytes.len();
    let (from, to) = (piece.offset / unit * unit, end.next_multiple_of(unit));
    if (from, to) == (piece.offset, end) {
        return work.write(block, Kind::Data, from, piece.bytes);
    }
    let mut bytes = work.read(block, Kind::Data)?[from..to].to_vec();
    bytes[piece.offset - from..end - from].copy_from_slice(piece.bytes);
    work.write(block, Kind::Data, from, &bytes)
}

/// Lets written blocks be overwritten in place, unless the journal keeps them from it.
/// Waiting overwrites stay allowed.
fn choose_places(store: &Store, state: &State, first: u64, targets: &mut [Target]) {
    let written = targets.iter().filter_map(|target| match target {
        Target::Written(block) => Some((*block, 1)),
        _ => None,
    });
    let runs: Vec<(BlockNo, u64)> = written.collect();
    if runs.is_empty() {
        return;
    }
    let kept = store.journal.kept_from_place(&runs);
    for (target, page) in targets.iter_mut().zip(first..) {
        if let Target::Written(block) = *target
            && (state.pages.places.contains_key(&page) || !kept.contains(&block))
        {
            *target = Target::InPlace(block);
        }
    }
}

/// Reads bytes that lie before the end of the file.
pub(crate) fn read_range(
    store: &Store,
    pages: &Pages,
    disk: &DiskInode,
    offset: u64,
    buf: &mut [u8],
    from: From,
) -> Result<()> {
    if buf.is_empty() {
        return Ok(());
    }
    let len = buf.len() as u64;
    let (first, end) = page_range(offset, len);
    // Behind a truncation under way lie dead extents.
    let mapped_end = pages.cut.unwrap_or(u64::MAX).min(end);
    let mut reader = Current(&store.journal);
    let runs = extents::runs(&mut reader, &store.volume, &disk.body, first, mapped_end)?;
    let mut done = offset;
    for run in runs.iter().filter(|run| !run.unwritten) {
        let start = (run.logical * PAGE).max(offset);
        let stop = (run.end() * PAGE).min(offset + len);
        buf[(done - offset) as usize..(start - offset) as usize].fill(0);
        let part = &mut buf[(start - offset) as usize..(stop - offset) as usize];
        read_run(store, run, start, part, from)?;
        done = stop;
    }
    buf[(done - offset) as usize..].fill(0);
    let places = pages.places.range(first..end);
    let places = places.map(|(page, (_, block))| (*page, block));
    for (page, block) in places.chain(pages.range(first, end)) {
        let start = (page * PAGE).max(offset);
        let stop = ((page + 1) * PAGE).min(offset + len);
        buf[(start - offset) as usize..(stop - offset) as usize]
            .copy_from_slice(&block[(start - page * PAGE) as usize..(stop - page * PAGE) as usize]);
    }
    Ok(())
}

/// Reads bytes of one written extent, from byte `start` of the file on.
fn read_run(store: &Store, run: &Extent, start: u64, buf: &mut [u8], from: From) -> Result<()> {
    let read = |page: u64, buf: &mut [u8]| {
        let (journal, at) = (&store.journal, run.block.offset(page - run.logical));
        let read = match from {
            From::Device => journal.read_data(at, buf),
            From::Kept => journal.read_data_kept(at, buf),
        };
        read.map_err(from_journal)
    };
    let mut partial = [0; BLOCK_SIZE];
    let mut page = start / PAGE;
    let skip = (start % PAGE) as usize;
    let head = if skip > 0 || buf.len() < BLOCK_SIZE {
        buf.len().min(BLOCK_SIZE - skip)
    } else {
        0
    };
    let (front, rest) = buf.split_at_mut(head);
    if head > 0 {
        read(page, &mut partial)?;
        front.copy_from_slice(&partial[skip..skip + head]);
        page += 1;
    }
    let whole = rest.len() / BLOCK_SIZE * BLOCK_SIZE;
    let (middle, tail) = rest.split_at_mut(whole);
    if whole > 0 {
        read(page, middle)?;
        page += (whole / BLOCK_SIZE) as u64;
    }
    if !tail.is_empty() {
        read(page, &mut partial)?;
        tail.copy_from_slice(&partial[..tail.len()]);
    }
    Ok(())
}

/// Stores the bytes of a new long symlink (at most a block) in a block of its own, inside
/// the record. `disk` gets size, body and block count.
///
/// # Errors
/// ENOSPC, EIO.
pub(crate) fn store_block(
    work: &mut Work<'_>,
    disk: &mut DiskInode,
    goal: BlockNo,
    bytes: &[u8],
) -> Result<()> {
    let block = work.allocate_block(goal)?;
    work.zero(block, Kind::Data)?;
    work.write(block, Kind::Data, 0, bytes)?;
    disk.body = btree::empty();
    let extent = Extent {
        logical: 0,
        block,
        len: 1,
        unwritten: false,
    };
    let change = extents::insert(work, &mut disk.body, extent)?;
    disk.blocks = change.apply(disk.blocks.get().saturating_add(1)).into();
    disk.size = (bytes.len() as u64).into();
    Ok(())
}

/// Log bytes of [`store_block`], the inode not included.
pub(crate) fn store_block_credits(len: usize) -> u64 {
    2 * COST_BLOCK + COST_RANGE + len as u64 + crate::work::COST_BITS
}

/// Reads a block that [`store_block`] stored.
///
/// # Errors
/// EUCLEAN, EIO.
pub(crate) fn load_block(store: &Store, disk: &DiskInode) -> Result<Vec<u8>> {
    let size = disk.size.get();
    if size > PAGE {
        return Err(damaged(format!("a symbolic link of {size} bytes")));
    }
    let mut bytes = vec![0; size as usize];
    read_range(store, &Pages::default(), disk, 0, &mut bytes, From::Device)?;
    Ok(bytes)
}
