//! Reads: from the open epoch, from objects in flight, from the cache, from the store.
//!
//! Adjacent cells of an object are read with one request, and cells of a small object with those that lie near in the map: a
//! flush wrote them together, so they are likely to be read together. A sequential read reads ahead, eight times as far each
//! time, up to a limit: from the store far, since a request takes long; from a cache device so far that it is read while earlier
//! cells are checked.

use super::ahead::{LEAST, OBJECT_BLOCKS};
use super::cache::{Held, Key, Read, Reading};
use super::epoch::Target;
use super::{EPOCH_BLOCKS, Shared, relock};
use crate::driver::Failed;
use crate::fault::DeviceFault;
use crate::io::{Io, StoreError};
use crate::map::{REGION_BLOCKS, Spot};
use crate::object::{CELL_HEADER, CellKind, ENVELOPE, read_cell};
use crate::protocol::ObjectName;
use crate::runtime::runtime;
use bytes::Bytes;
use futures_util::FutureExt;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use steadfast_block::BLOCK_SIZE;

/// Most bytes of one request for cells: a full data object with the headers of its cells.
const REQUEST_MOST: u64 = 9 << 20;
/// Length up to which an object is small: less than two units, so a read of a block never asks for more than it did. And the
/// runs of the map before and after a block that are looked at for other cells of its object.
const SMALL_OBJECT: u64 = 128 << 10;
const NEAR_RUNS: usize = 64;
/// Largest read-ahead in blocks: eight requests. It is also at most half of the cache in memory.
const AHEAD_MOST: u64 = 8 * OBJECT_BLOCKS;
/// The same from a cache device, and the most blocks that one thread reads there.
const AHEAD_KEPT: u64 = 1024;
const KEPT_AT_ONCE: u64 = 128;

/// A cell that a read needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Wanted {
    source: u16,
    name: ObjectName,
    at: u32,
    len: u32,
    /// Length of the object.
    object: u64,
}

impl Wanted {
    fn key(&self) -> Key {
        (self.source, self.name, self.at)
    }
}

/// The source of a block's bytes.
#[derive(Clone)]
enum Origin {
    Zeros,
    Memory(Bytes),
    Cell(Wanted, u16),
}

impl Shared {
    pub(super) fn read(&self, block: u64, buf: &mut [u8]) -> Result<(), Failed> {
        let count = (buf.len() / BLOCK_SIZE) as u64;
        if count == 0 {
            return Ok(());
        }
        let origins = self.plan(block, count)?;
        let mut wanted: Vec<Wanted> = origins
            .iter()
            .filter_map(|origin| match origin {
                Origin::Cell(wanted, _) => Some(*wanted),
                _ => None,
            })
            .collect();
        wanted.dedup();
        let cells = self.cells(&wanted, block, count)?;
        for (origin, out) in origins.iter().zip(buf.chunks_exact_mut(BLOCK_SIZE)) {
            match origin {
                Origin::Zeros => out.fill(0),
                Origin::Memory(bytes) => out.copy_from_slice(bytes),
                Origin::Cell(wanted, skip) => {
                    let from = usize::from(*skip) * BLOCK_SIZE;
                    let cell = cells.get(&wanted.key());
                    let bytes = cell.and_then(|cell| cell.get(from..from + BLOCK_SIZE));
                    let why = "a cell is shorter than the map says";
                    out.copy_from_slice(bytes.ok_or(Failed::Inconsistent(why))?);
                }
            }
        }
        Ok(())
    }

    /// The run of blocks from `block` on that are all mapped, or all unmapped.
    pub(super) fn run(&self, block: u64, count: u64) -> Result<(u64, bool), Failed> {
        // Examines a bounded part: a short answer is allowed.
        let origins = self.plan(block, count.min(EPOCH_BLOCKS))?;
        let mapped = |origin: &Origin| !matches!(origin, Origin::Zeros);
        let Some(first) = origins.first().map(mapped) else {
            return Ok((0, false));
        };
        let run = origins.iter().take_while(|one| mapped(one) == first);
        Ok((run.count() as u64, first))
    }

    /// The source of each block.
    fn plan(&self, block: u64, count: u64) -> Result<Vec<Origin>, Failed> {
        loop {
            let core = self.lock();
            if let Some(region) = core.missing(block, count) {
                drop(core);
                self.load_region(region)?;
                continue;
            }
            let mut origins = vec![Origin::Zeros; count as usize];
            for (first, run, spot) in core.map.over(block, count) {
                let wanted = self.wanted(&core, spot)?;
                for i in 0..u64::from(run) {
                    let skip = spot.skip.wrapping_add(i as u16);
                    origins[(first + i - block) as usize] = Origin::Cell(wanted, skip);
                }
            }
            for (first, run, target) in core.open.placed.over(block, count) {
                for i in 0..u64::from(run) {
                    origins[(first + i - block) as usize] = match target {
                        Target::Hole => Origin::Zeros,
                        Target::Data(spot) => {
                            let data = core.open.data.get(spot.object as usize);
                            let why = Failed::Inconsistent("a block is in no object");
                            let (name, data) = data.ok_or(why)?;
                            let wanted = Wanted {
                                source: 0,
                                name: *name,
                                at: spot.at,
                                len: spot.len,
                                object: data.bytes,
                            };
                            Origin::Cell(wanted, spot.skip.wrapping_add(i as u16))
                        }
                    };
                }
            }
            for (at, bytes) in core.open.buffer.range(block..block + count) {
                origins[(at - block) as usize] = Origin::Memory(bytes.clone());
            }
            return Ok(origins);
        }
    }

    fn wanted(&self, core: &super::Core, spot: Spot) -> Result<Wanted, Failed> {
        let entry = core.map.object(spot.object);
        let entry = entry.ok_or(Failed::Inconsistent("a block is in no object"))?;
        Ok(Wanted {
            source: entry.source,
            name: entry.name,
            at: spot.at,
            len: spot.len,
            object: entry.bytes,
        })
    }

    /// The contents of cells.
    fn cells(
        &self,
        wanted: &[Wanted],
        block: u64,
        count: u64,
    ) -> Result<HashMap<Key, Bytes>, Failed> {
        let mut cells = HashMap::new();
        let mut misses = Vec::new();
        let mut coming: Vec<(Wanted, Reading)> = Vec::new();
        {
            let mut cache = relock(&self.cache);
            for cell in wanted {
                match cache.get(&cell.key()) {
                    Some(Held::Here(bytes)) => {
                        cells.insert(cell.key(), bytes);
                    }
                    Some(Held::Coming(reading)) => coming.push((*cell, reading)),
                    None => misses.push(*cell),
                }
            }
        }
        // Objects that have not landed are in memory.
        let mut absent = Vec::new();
        for cell in misses {
            match self.pending(&cell)? {
                Some(bytes) => {
                    cells.insert(cell.key(), bytes);
                }
                None => absent.push(cell),
            }
        }
        let mut absent = self.kept(absent, &mut cells)?;
        self.add_near(&mut absent, block)?;
        let begun = self.begin(&absent, REQUEST_MOST, read_cells)?;
        // A cell that is only near may be damaged.
        coming.extend(begun.into_iter().filter(|(cell, _)| wanted.contains(cell)));
        if !wanted.is_empty() {
            self.read_ahead(block, count)?;
        }
        let runtime = runtime().map_err(|_| Failed::Inconsistent("no threads for requests"))?;
        for (cell, reading) in coming {
            let found = match runtime.block_on(reading) {
                Ok(found) => found.get(&cell.at).cloned(),
                Err(error) => Some(Err(error)),
            };
            let found = found.ok_or(Failed::Inconsistent("a request lacks a cell"))?;
            let bytes = found.inspect_err(|_| {
                // The next read sends the request again.
                relock(&self.cache).remove(&cell.key());
            })?;
            relock(&self.cache).put(cell.key(), Held::Here(bytes.clone()));
            cells.insert(cell.key(), bytes);
        }
        Ok(cells)
    }

    /// Takes cells from the read cache on a device. Returns those that are not there, or fail their check.
    fn kept(
        &self,
        wanted: Vec<Wanted>,
        cells: &mut HashMap<Key, Bytes>,
    ) -> Result<Vec<Wanted>, Failed> {
        let Some(reads) = self.sources.reads().filter(|_| !wanted.is_empty()) else {
            return Ok(wanted);
        };
        let keys: Vec<(Key, u32)> = wanted.iter().map(|cell| (cell.key(), cell.len)).collect();
        let believed = self.has(DeviceFault::ReadsBelieved);
        for (key, bytes) in reads.get(&keys) {
            let io = self.sources.get(key.0)?;
            match blocks_of(io, key, &bytes, believed) {
                Some(contents) => {
                    relock(&self.cache).put(key, Held::Here(contents.clone()));
                    cells.insert(key, contents);
                }
                None => reads.forget(&key),
            }
        }
        let absent: Vec<Wanted> = (wanted.iter().copied())
            .filter(|cell| !cells.contains_key(&cell.key()))
            .collect();
        let found = (wanted.len() - absent.len()) as u64;
        reads.hits.fetch_add(found, Ordering::Relaxed);
        (reads.misses).fetch_add(absent.len() as u64, Ordering::Relaxed);
        Ok(absent)
    }

    /// Adds the cells that are near `block` in the map, and in the same object as the first small one of `absent`.
    fn add_near(&self, absent: &mut Vec<Wanted>, block: u64) -> Result<(), Failed> {
        let mut small = absent.iter().filter(|cell| cell.object <= SMALL_OBJECT);
        let Some(first) = small.next().copied() else {
            return Ok(());
        };
        let core = self.lock();
        let mut near = Vec::new();
        for spot in core.map.around(block, NEAR_RUNS) {
            let cell = self.wanted(&core, spot)?;
            if (cell.source, cell.name) == (first.source, first.name) && cell != first {
                near.push(cell);
            }
        }
        drop(core);
        let (cache, reads) = (relock(&self.cache), self.sources.reads());
        let is_cached = |key: &Key| cache.has(key) || reads.is_some_and(|reads| reads.has(key));
        absent.extend(near.into_iter().filter(|cell| !is_cached(&cell.key())));
        Ok(())
    }

    fn pending(&self, cell: &Wanted) -> Result<Option<Bytes>, Failed> {
        let Some(driver) = self.driver.as_ref().filter(|_| cell.source == 0) else {
            return Ok(None);
        };
        let Some(object) = driver.pending(cell.name) else {
            return Ok(None);
        };
        let from = cell.at as usize;
        let to = from + cell.len as usize;
        if to > object.len() {
            return Err(Failed::Inconsistent("a cell lies outside of its object"));
        }
        let io = self.sources.own();
        let found = read_cell(&io.coding, cell.name, cell.at, &object.slice(from..to));
        let found = found.map_err(|why| io.damaged(cell.name, why))?;
        Ok(Some(found.contents))
    }

    /// Starts to read cells with `read`, adjacent ones at once, up to `most` bytes.
    fn begin<F>(
        &self,
        cells: &[Wanted],
        most: u64,
        read: impl Fn(Arc<Io>, Vec<Wanted>) -> F,
    ) -> Result<Vec<(Wanted, Reading)>, Failed>
    where
        F: Future<Output = Result<Read, StoreError>> + Send + 'static,
    {
        let mut sorted = cells.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut groups: Vec<Vec<Wanted>> = Vec::new();
        for cell in sorted {
            let joins = |group: &Vec<Wanted>| {
                let (Some(first), Some(last)) = (group.first(), group.last()) else {
                    return false;
                };
                (last.source, last.name) == (cell.source, cell.name)
                    && (last.at + last.len == cell.at || cell.object <= SMALL_OBJECT)
                    && u64::from(cell.at + cell.len - first.at) <= most
            };
            match groups.last_mut().filter(|group| joins(group)) {
                Some(group) => group.push(cell),
                None => groups.push(vec![cell]),
            }
        }
        let runtime = runtime().map_err(|_| Failed::Inconsistent("no threads for requests"))?;
        let mut begun = Vec::with_capacity(cells.len());
        for group in groups {
            let Some(first) = group.first() else { continue };
            let io = Arc::clone(self.sources.get(first.source)?);
            let reading: Reading = read(io, group.clone()).boxed().shared();
            runtime.spawn(reading.clone().map(drop));
            let mut cache = relock(&self.cache);
            for cell in group {
                cache.put(cell.key(), Held::Coming(reading.clone()));
                begun.push((cell, reading.clone()));
            }
        }
        Ok(begun)
    }

    /// After a sequential read: starts to read ahead.
    fn read_ahead(&self, block: u64, count: u64) -> Result<(), Failed> {
        let end = {
            let mut cache = relock(&self.cache);
            let end = cache.ahead.read(block, count);
            end.filter(|_| cache.most() > 0)
        };
        let Some(end) = end else { return Ok(()) };
        let is_kept = self.is_kept(end)?;
        let range = {
            let mut cache = relock(&self.cache);
            let most = cache.most() / (2 * BLOCK_SIZE as u64);
            let most = most.clamp(LEAST, if is_kept { AHEAD_KEPT } else { AHEAD_MOST });
            cache.ahead.next(count, most, self.blocks())
        };
        let Some((from, to)) = range else {
            return Ok(());
        };
        let (ahead, loaded) = {
            let core = self.lock();
            // Read-ahead is not worth loading regions: it goes on when a read has done so.
            let missing = core.missing(from, to - from);
            let loaded = missing.map_or(to, |region| to.min(from.max(region * REGION_BLOCKS)));
            let mut ahead = Vec::new();
            for (first, _, spot) in core.map.over(from, loaded - from) {
                ahead.push((first, self.wanted(&core, spot)?));
            }
            (ahead, loaded)
        };
        let (ahead, until) = to_the_end_of_an_object(ahead, loaded);
        relock(&self.cache).ahead.ended(to, until);
        let (mut kept, mut absent) = (Vec::new(), Vec::new());
        for cell in ahead {
            if relock(&self.cache).has(&cell.key()) {
                continue;
            }
            let reads = self.sources.reads();
            if reads.is_some_and(|reads| reads.has(&cell.key())) {
                // A window for requests to the store is too far.
                if is_kept {
                    kept.push(cell);
                }
            } else if self.pending(&cell)?.is_none() {
                absent.push(cell);
            }
        }
        let at_once = KEPT_AT_ONCE * BLOCK_SIZE as u64;
        let believed = self.has(DeviceFault::ReadsBelieved);
        self.begin(&kept, at_once, |io, group| read_kept(io, group, believed))?;
        self.begin(&absent, REQUEST_MOST, read_cells).map(drop)
    }

    /// Whether the cell of a block is on the cache device.
    fn is_kept(&self, block: u64) -> Result<bool, Failed> {
        let Some(reads) = self.sources.reads() else {
            return Ok(false);
        };
        let core = self.lock();
        if block >= self.blocks() || core.missing(block, 1).is_some() {
            return Ok(false);
        }
        let spot = core.map.over(block, 1).first().map(|(_, _, spot)| *spot);
        let Some(spot) = spot else {
            return Ok(false);
        };
        let cell = self.wanted(&core, spot)?;
        drop(core);
        Ok(reads.has(&cell.key()))
    }
}

/// Leaves out the last cells, with their first blocks, if they are the begin of another object and not most of all: the next
/// read-ahead gets that object with one request. Returns the cells, and the block at which the next read-ahead begins.
fn to_the_end_of_an_object(cells: Vec<(u64, Wanted)>, to: u64) -> (Vec<Wanted>, u64) {
    let object = |cell: &Wanted| (cell.source, cell.name);
    let last = cells.last().map(|(_, cell)| object(cell));
    let before = cells
        .iter()
        .rposition(|(_, cell)| Some(object(cell)) != last);
    let kept = before.map_or(0, |at| at + 1);
    let (kept, until) = match cells.get(kept) {
        Some((first, _)) if kept * 2 >= cells.len() => (kept, *first),
        _ => (cells.len(), to),
    };
    let cells = cells.into_iter().take(kept).map(|(_, cell)| cell);
    (cells.collect(), until)
}

/// The contents of a cell of blocks, if they pass their check. `believed`: that is left out.
fn blocks_of(io: &Io, (_, name, at): Key, bytes: &Bytes, believed: bool) -> Option<Bytes> {
    if believed {
        return Some(bytes.slice(CELL_HEADER.min(bytes.len())..));
    }
    let found = read_cell(&io.coding, name, at, bytes).ok()?;
    (found.kind == CellKind::Blocks).then_some(found.contents)
}

/// Reads cells from the cache device, and checks each; from the store if one is not there or fails its check.
async fn read_kept(io: Arc<Io>, group: Vec<Wanted>, believed: bool) -> Result<Read, StoreError> {
    let found = tokio::task::spawn_blocking({
        let (io, group) = (Arc::clone(&io), group.clone());
        move || {
            let keys: Vec<(Key, u32)> = group.iter().map(|c| (c.key(), c.len)).collect();
            let (_, reads) = io.reads.get()?;
            let mut cells = HashMap::with_capacity(group.len());
            for (key, bytes) in reads.get(&keys) {
                match blocks_of(&io, key, &bytes, believed) {
                    Some(contents) => {
                        cells.insert(key.2, Ok(contents));
                    }
                    None => reads.forget(&key),
                }
            }
            (cells.len() == group.len()).then(|| {
                reads.hits.fetch_add(cells.len() as u64, Ordering::Relaxed);
                Arc::new(cells)
            })
        }
    });
    match found.await {
        Ok(Some(cells)) => Ok(cells),
        _ => read_cells(io, group).await,
    }
}

/// Reads cells of an object with one request, and checks each.
async fn read_cells(io: Arc<Io>, group: Vec<Wanted>) -> Result<Read, StoreError> {
    let (Some(first), Some(last)) = (group.first(), group.last()) else {
        return Ok(Arc::default());
    };
    let name = first.name;
    let range = request(first, last);
    let begin = |cell: &Wanted| u64::from(cell.at) - range.start;
    let parts: Vec<_> = group.iter().map(|c| (begin(c), c.len)).collect();
    let check = |at: u32, bytes: &Bytes| {
        let found = read_cell(&io.coding, name, at, bytes);
        let found = found.map_err(|why| io.damaged(name, why))?;
        if found.kind != CellKind::Blocks {
            let why = crate::object::Bad::Content("a cell of the map stands for blocks");
            return Err(io.damaged(name, why));
        }
        if let Some((source, reads)) = io.reads.get() {
            reads.put((*source, name, at), bytes);
        }
        Ok(found.contents)
    };
    let each = |index: usize, bytes: Bytes| {
        let at = group.get(index).map_or(0, |cell| cell.at);
        (at, check(at, &bytes))
    };
    let cells = io.get_parts(name, range.clone(), &parts, each);
    let cells = cells.await?.ok_or_else(|| io.missing(name))?;
    Ok(Arc::new(cells.into_iter().collect()))
}

/// The range of a request for cells. If only an envelope's bytes are missing to the whole object, that is read: many
/// stores send a file as it is faster than a part of it.
fn request(first: &Wanted, last: &Wanted) -> Range<u64> {
    let (from, to) = (
        u64::from(first.at),
        u64::from(last.at) + u64::from(last.len),
    );
    match from <= ENVELOPE as u64 && to == last.object {
        true => 0..to,
        false => from..to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Term;

    #[test]
    fn a_read_ahead_ends_with_an_object() {
        let cell = |number, at| Wanted {
            source: 0,
            name: ObjectName::Data {
                term: Term(1),
                number,
            },
            at,
            len: 100,
            object: 10_000,
        };
        let run = |objects: &[u64]| {
            let cells = objects.iter().enumerate();
            let cells = cells.map(|(i, number)| (1000 + i as u64 * 16, cell(*number, i as u32)));
            let (kept, until) = to_the_end_of_an_object(cells.collect(), 2000);
            (kept.len(), until)
        };
        assert_eq!(run(&[]), (0, 2000));
        assert_eq!(run(&[1, 1, 1]), (3, 2000));
        assert_eq!(run(&[1, 1, 2]), (2, 1032));
        assert_eq!(run(&[1, 1, 2, 2]), (2, 1032));
        assert_eq!(run(&[1, 2, 2, 2]), (4, 2000), "most of it is left out");
        assert_eq!(run(&[1, 2, 3, 4]), (3, 1048));
    }
}
