//! The layer between programs and a volume under `relaxed`: a kernel with a write-back cache.
//!
//! Writes stay in memory, page by page. A page is sent, as one write of its part inside the file, alone or with
//! its neighbours, when
//!
//! * the exploration lets time pass ([`PageCache::pass_time`]): some pages, in any order;
//! * its file is closed or synced, or everything is: all pages of the file, in any order;
//! * set-id bits are there for a write to clear, which goes through then.
//!
//! Sizes are the kernel's: the volume's file may be shorter. Truncation, holes and allocation go to the volume at once, and
//! change the pages as well. All other calls pass. Under the other contracts everything does.
//!
//! The same seed repeats the pages sent and their times.

use crate::Contract;
use crate::record::Mutation;
use crate::scenario::Scenario;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use steadfast_flash::Rng;
use steadfast_vfs::{
    AllocateMode, Attr, Caller, Error, FileKind, FileSystem, Ino, NewNode, RenameMode, Result,
    Seek, SetAttr, Shutdown,
};

/// Whether this bug is planted. Without the feature `faults` there is none to name.
macro_rules! planted {
    ($cache:expr, $bug:ident) => {{
        #[cfg(feature = "faults")]
        let planted = $cache.mutation == Some(Mutation::$bug);
        #[cfg(not(feature = "faults"))]
        let planted = $cache.mutation.is_some();
        planted
    }};
}

const PAGE: u64 = 4096;
/// Writes that end past this are the volume's to refuse.
const KEPT_END_MAX: u64 = 1 << 30;
const SET_ID: u16 = 0o6000;

/// A file with pages that have not been sent.
struct Kept {
    size: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

struct State {
    kept: BTreeMap<Ino, Kept>,
    rng: Rng,
    /// A file that was closed, and whose pages are sent after the next call: a planted bug.
    late: Option<Ino>,
    failed: Option<Error>,
}

/// Pace of the kernel's write-back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Never,
    Seldom,
    Often,
}

/// See the module's header.
pub(crate) struct PageCache {
    fs: Arc<dyn FileSystem>,
    on: bool,
    pace: Pace,
    mutation: Option<Mutation>,
    state: Mutex<State>,
}

/// A number that follows from the scenario.
fn seed_of(scenario: &Scenario) -> u64 {
    let name = scenario.name.bytes();
    name.fold(scenario.steps.len() as u64, |seed, byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl PageCache {
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        contract: Contract,
        scenario: &Scenario,
        mutation: Option<Mutation>,
    ) -> PageCache {
        let mut rng = Rng::new(seed_of(scenario));
        let pace = match rng.below(4) {
            0 => Pace::Never,
            1 => Pace::Seldom,
            _ => Pace::Often,
        };
        PageCache {
            fs,
            on: contract.allows_write_back(),
            pace,
            mutation,
            state: Mutex::new(State {
                kept: BTreeMap::new(),
                rng,
                late: None,
                failed: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Between two calls, some pages are sent.
    pub(crate) fn pass_time(&self) {
        let mut state = self.state();
        let tries = match self.pace {
            Pace::Never => 0,
            Pace::Seldom => state.rng.below(6) / 5,
            Pace::Often => state.rng.below(4),
        };
        for _ in 0..tries {
            let files: Vec<Ino> = state.kept.keys().copied().collect();
            let Some(ino) = pick(&mut state.rng, &files) else {
                return;
            };
            self.send_some(&mut state, ino);
        }
    }

    /// Sends everything, as an unmount does. An error if a page could not be sent at any time.
    pub(crate) fn finish(&self) -> Result<()> {
        let mut state = self.state();
        self.send_all(&mut state);
        state.failed.clone().map_or(Ok(()), Err)
    }

    fn send_all(&self, state: &mut State) {
        let files: Vec<Ino> = state.kept.keys().copied().collect();
        for ino in files {
            self.send_file(state, ino);
        }
    }

    fn send_file(&self, state: &mut State, ino: Ino) {
        while state.kept.contains_key(&ino) {
            self.send_some(state, ino);
        }
    }

    /// Sends a page of a file, and as many of its neighbours as chance has it.
    fn send_some(&self, state: &mut State, ino: Ino) {
        let Some(kept) = state.kept.get_mut(&ino) else {
            return;
        };
        let numbers: Vec<u64> = kept.pages.keys().copied().collect();
        let Some(first) = pick(&mut state.rng, &numbers) else {
            state.kept.remove(&ino);
            return;
        };
        let most = 1 + state.rng.below(4);
        let mut bytes = Vec::new();
        for number in (first..).take(most as usize) {
            match kept.pages.remove(&number) {
                Some(page) => bytes.extend_from_slice(&*page),
                None => break,
            }
        }
        let at = first * PAGE;
        // Pages that a faulty kernel keeps past the end go as well.
        let inside = match planted!(self, TruncateKeeps) {
            true => u64::MAX,
            false => kept.size.saturating_sub(at),
        };
        bytes.truncate(usize::try_from(inside).unwrap_or(usize::MAX));
        if kept.pages.is_empty() {
            state.kept.remove(&ino);
        }
        let mut done = 0;
        while done < bytes.len() {
            let offset = at + done as u64;
            match self.fs.write(&Caller::root(), ino, offset, &bytes[done..]) {
                Ok(count) if count > 0 => done += count,
                Ok(_) => return,
                Err(e) => {
                    state.failed.get_or_insert(e);
                    return;
                }
            }
        }
    }

    /// Pages of files that are gone go nowhere: another file may get the number.
    fn drop_gone(&self) {
        let mut state = self.state();
        let gone = |ino: &Ino| self.fs.getattr(&Caller::root(), *ino).is_err();
        state.kept.retain(|ino, _| !gone(ino));
    }

    /// Sends the writes that a planted bug has put off until after this call.
    fn send_late(&self) {
        let mut state = self.state();
        if let Some(ino) = state.late.take() {
            self.send_file(&mut state, ino);
        }
    }

    /// A call that may take the last name of a file.
    fn naming<T>(&self, call: impl FnOnce(&dyn FileSystem) -> Result<T>) -> Result<T> {
        let result = call(&*self.fs);
        self.drop_gone();
        self.send_late();
        result
    }

    /// The attributes of an inode, with the size that programs see.
    fn seen(&self, attr: Result<Attr>) -> Result<Attr> {
        let mut attr = attr?;
        if let Some(kept) = self.state().kept.get(&attr.ino) {
            attr.size = kept.size;
        }
        Ok(attr)
    }

    /// Whether a write is kept; if not, all of the file has been sent.
    fn keeps(&self, ino: Ino, end: Option<u64>) -> bool {
        let attr = self.fs.getattr(&Caller::root(), ino);
        let keeps = self.on
            && end.is_some_and(|end| end <= KEPT_END_MAX)
            && attr.is_ok_and(|a| a.kind == FileKind::Regular && a.perm & SET_ID == 0);
        if !keeps {
            self.send_file(&mut self.state(), ino);
        }
        keeps
    }

    fn keep(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (number, from) = (at / PAGE, (at % PAGE) as usize);
            let len = (PAGE as usize - from).min(data.len() - done);
            let mut page = Box::new([0; PAGE as usize]);
            self.read(&Caller::root(), ino, number * PAGE, &mut *page)?;
            page[from..from + len].copy_from_slice(&data[done..done + len]);
            let size = self.getattr(&Caller::root(), ino)?.size;
            let mut state = self.state();
            let kept = state.kept.entry(ino).or_insert_with(|| Kept {
                size,
                pages: BTreeMap::new(),
            });
            kept.pages.insert(number, page);
            done += len;
        }
        let end = offset + data.len() as u64;
        let mut state = self.state();
        if let Some(kept) = state.kept.get_mut(&ino)
            && kept.size < end
        {
            kept.size = end;
            if planted!(self, SizeAhead) {
                let set = SetAttr {
                    size: Some(end),
                    ..SetAttr::default()
                };
                self.fs.setattr(&Caller::root(), ino, &set)?;
            }
        }
        Ok(())
    }

    /// The end of a file was put at `size`.
    fn resized(&self, ino: Ino, size: u64) {
        let keeps = planted!(self, TruncateKeeps);
        let mut state = self.state();
        let Some(kept) = state.kept.get_mut(&ino) else {
            return;
        };
        kept.size = size;
        if keeps {
            return;
        }
        kept.pages.retain(|number, _| number * PAGE < size);
        if let Some(page) = kept.pages.get_mut(&(size / PAGE)) {
            page[(size % PAGE) as usize..].fill(0);
        }
    }

    /// The allocation of a range was changed.
    fn reallocated(&self, ino: Ino, mode: AllocateMode, offset: u64, end: u64) {
        let mut state = self.state();
        let Some(kept) = state.kept.get_mut(&ino) else {
            return;
        };
        if !matches!(mode, AllocateMode::Allocate | AllocateMode::KeepSize) {
            for (number, page) in &mut kept.pages {
                let base = number * PAGE;
                let from = offset.clamp(base, base + PAGE) - base;
                let to = end.clamp(base, base + PAGE) - base;
                if from < to {
                    page[from as usize..to as usize].fill(0);
                }
            }
        }
        if matches!(mode, AllocateMode::Allocate | AllocateMode::ZeroRange) {
            kept.size = kept.size.max(end);
        }
    }
}

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> Option<T> {
    match of.len() {
        0 => None,
        n => of.get(rng.below(n as u64) as usize).copied(),
    }
}

impl FileSystem for PageCache {
    steadfast_vfs::pass_through! { fs:
        all but lookup, getattr, setattr, mknod, mkdir, symlink, link, unlink, rmdir, rename, release, read, write, append,
        fsync, fallocate, seek, sync, freeze, shutdown
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.seen(self.fs.lookup(caller, parent, name))
    }

    fn getattr(&self, caller: &Caller, ino: Ino) -> Result<Attr> {
        self.seen(self.fs.getattr(caller, ino))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let attr = self.fs.setattr(caller, ino, set);
        if let (Ok(_), Some(size)) = (&attr, set.size) {
            self.resized(ino, size);
        }
        self.send_late();
        self.seen(attr)
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        self.naming(|fs| fs.mknod(caller, parent, name, node))
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        self.naming(|fs| fs.mkdir(caller, parent, name, perm))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.naming(|fs| fs.symlink(caller, parent, name, target))
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        let attr = self.naming(|fs| fs.link(caller, ino, parent, name));
        self.seen(attr)
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.naming(|fs| fs.unlink(caller, parent, name))
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
        self.naming(|fs| fs.rmdir(caller, parent, name))
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.naming(|fs| fs.rename(caller, from, to, mode))
    }

    fn release(&self, ino: Ino) {
        if planted!(self, CloseLate) {
            self.state().late = Some(ino);
        } else if !planted!(self, CloseKeeps) {
            self.send_file(&mut self.state(), ino);
        }
        self.fs.release(ino);
        self.drop_gone();
    }

    fn read(&self, caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let count = self.fs.read(caller, ino, offset, buf)?;
        let state = self.state();
        let Some(kept) = state.kept.get(&ino) else {
            return Ok(count);
        };
        let len = kept.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        buf[count.min(len)..len].fill(0);
        for (number, page) in &kept.pages {
            let base = number * PAGE;
            let from = base.max(offset);
            let to = (base + PAGE).min(offset + len as u64);
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&page[(from - base) as usize..(to - base) as usize]);
            }
        }
        Ok(len)
    }

    fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        if data.is_empty() || !self.keeps(ino, offset.checked_add(data.len() as u64)) {
            return self.fs.write(caller, ino, offset, data);
        }
        self.keep(ino, offset, data)?;
        Ok(data.len())
    }

    fn append(&self, caller: &Caller, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        let size = self.getattr(caller, ino)?.size;
        if data.is_empty() || !self.keeps(ino, size.checked_add(data.len() as u64)) {
            return self.fs.append(caller, ino, data);
        }
        self.keep(ino, size, data)?;
        Ok((size, data.len()))
    }

    fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
        if !planted!(self, FsyncKeeps) {
            self.send_file(&mut self.state(), ino);
        }
        let synced = match planted!(self, FsyncUncommitted) {
            true => Ok(()),
            false => self.fs.fsync(caller, ino, data_only),
        };
        self.send_late();
        synced
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.fs.fallocate(caller, ino, mode, offset, len)?;
        self.reallocated(ino, mode, offset, offset.saturating_add(len));
        Ok(())
    }

    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        self.send_file(&mut self.state(), ino);
        self.fs.seek(caller, ino, offset, whence)
    }

    fn sync(&self) -> Result<()> {
        if !planted!(self, SyncKeeps) {
            self.send_all(&mut self.state());
        }
        self.fs.sync()
    }

    fn freeze(&self, limit: Duration) -> Result<()> {
        self.send_all(&mut self.state());
        self.fs.freeze(limit)
    }

    fn shutdown(&self, how: Shutdown) -> Result<()> {
        if how != Shutdown::Nothing {
            self.send_all(&mut self.state());
        }
        self.fs.shutdown(how)
    }
}
