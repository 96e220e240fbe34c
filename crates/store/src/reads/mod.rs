//! The read cache: cells of objects, on a device or a file of this machine. It survives restarts.
//!
//! A cell is kept as in its object, encrypted if the volume is. Its hash, or its tag, covers the volume, the object's name, the
//! place and the contents. So a cached cell is checked exactly like one from the store, and a cell that was damaged, torn or
//! exchanged, or that belongs to another volume, is read from the store instead. No cell is ever invalidated: objects do not
//! change, and no name is used again. The cache is never needed: a cell that is lost, or fails its check, costs one request.
//!
//! ```text
//! block 0        header: volume, identity of the cache, size
//! block 1 …      segments of 4 MiB: a table of the cells in it, then the cells
//! ```
//!
//! Fetched cells gather in memory. When they fill a segment, a separate thread writes it; if the thread cannot keep up, cells
//! are left out. The oldest segment is replaced first; its cells that were used are written once more. After a restart the
//! tables are read at once, and cells when they are needed. The order of writes does not matter: a table and a cell are each
//! checked by their own hash, and a segment that is overwritten while it is read fails the check.

mod table;

use crate::cache_kind::{CacheError, LOOKED_AT, is_log, is_reads};
use crate::memory::Memory;
use crate::object::VolumeId;
use crate::place::{PlaceError, random_volume};
use crate::protocol::ObjectName;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use steadfast_block::{BLOCK_SIZE, BlockBuf, BlockDevice, BlockNo};
use table::{Header, TABLE_MOST, decode_table, encode_table, table_bytes};

/// Blocks of a segment.
const SEGMENT: u64 = 1024;
const SEGMENT_BYTES: usize = SEGMENT as usize * BLOCK_SIZE;
/// Fewest segments of a cache.
const SEGMENTS_LEAST: u64 = 2;
/// Most segments that wait to be written.
const WAITING: usize = 2;
/// Largest part of a new segment that is filled with used cells of the replaced one (reciprocal).
const AGAIN_SHARE: usize = 2;
/// Most bytes of one read from the device.
const READ_MOST: usize = 1 << 20;
/// Buffers for such reads that are kept, at most.
const BUFFERS_MOST: usize = 16;

/// Identifies a cell: index of its volume (0 this one, or a parent), its object, its offset there.
pub(crate) type Key = (u16, ObjectName, u32);

/// A cell, its place in its segment and its length there.
type Listed = (Key, u32, u32);

/// The place of a cell, in bytes of its segment.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// None: the cell is not written yet.
    segment: Option<u32>,
    at: u32,
    len: u32,
    used: bool,
}

/// Cells that gather for one segment.
#[derive(Clone)]
struct Gathered {
    /// The cells, without the table.
    bytes: Vec<u8>,
    cells: Vec<Listed>,
    /// The segment that has the first of them already. It is written again with more cells.
    segment: Option<u32>,
    /// Number of cells in that segment.
    written: usize,
}

impl Gathered {
    fn new() -> Gathered {
        Gathered {
            bytes: Vec::new(),
            cells: Vec::new(),
            segment: None,
            written: 0,
        }
    }

    fn has_room(&self, len: usize) -> bool {
        let table = table_bytes(self.cells.len() + 1);
        table <= TABLE_MOST
            && table.next_multiple_of(BLOCK_SIZE) + self.bytes.len() + len <= SEGMENT_BYTES
    }

    fn push(&mut self, key: Key, cell: &[u8]) {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(cell);
        self.cells.push((key, at, cell.len() as u32));
    }
}

struct State {
    index: HashMap<Key, Place>,
    /// Number and cells of each segment. Number 0: empty.
    segments: Vec<(u64, Vec<Key>)>,
    next: u64,
    open: Gathered,
    waiting: VecDeque<Gathered>,
    writing: bool,
    stop: bool,
}

/// A part of a segment.
struct Buffer {
    blocks: BlockBuf,
    /// Its offset in the segment.
    first: usize,
}

impl Buffer {
    fn bytes(&self, at: u32, len: u32) -> Option<&[u8]> {
        let begin = (at as usize).checked_sub(self.first)?;
        self.blocks.as_bytes().get(begin..begin + len as usize)
    }
}

/// See the module's header.
pub(crate) struct Reads {
    /// None: the cache is closed.
    device: RwLock<Option<Arc<dyn BlockDevice>>>,
    header: Header,
    state: Mutex<State>,
    changed: Condvar,
    /// The device has failed and is not read any more.
    failed: AtomicBool,
    /// Memory of cells, and buffers of reads.
    memory: Memory,
    buffers: Mutex<Vec<BlockBuf>>,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    /// The thread that writes segments. [`close`](Reads::close) ends it.
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reads")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}

fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first block of a segment.
fn first_block(segment: u32) -> BlockNo {
    BlockNo(1 + u64::from(segment) * SEGMENT)
}

impl Reads {
    /// Whether a device of this size has room for a read cache.
    pub(crate) fn fits(blocks: u64) -> bool {
        blocks > SEGMENTS_LEAST * SEGMENT
    }

    /// Opens the cache on a device, or makes one. `ours`: the device holds nothing of others.
    pub(crate) fn open(
        device: Arc<dyn BlockDevice>,
        volume: VolumeId,
        ours: bool,
    ) -> Result<Arc<Reads>, CacheError> {
        let blocks = device.geometry().blocks;
        if !Reads::fits(blocks) {
            let least = 1 + SEGMENTS_LEAST * SEGMENT;
            return Err(CacheError::Small { blocks, least });
        }
        let segments = ((blocks - 1) / SEGMENT).min(u64::from(u32::MAX)) as u32;
        let mut front = BlockBuf::zeroed(LOOKED_AT as usize);
        device.read(BlockNo(0), front.as_bytes_mut())?;
        let found = Header::decode(&front.as_bytes()[..BLOCK_SIZE])?;
        let header = match found {
            // A cache of another size is made anew: nothing in it is needed.
            Some(header) if header.volume == volume && header.blocks == blocks => header,
            Some(header) if header.volume != volume && !ours => {
                return Err(CacheError::OtherVolume(header.volume));
            }
            None if !ours && is_log(front.as_bytes()) => {
                return Err(CacheError::HasLog);
            }
            // A cache with a damaged header is made anew.
            None if !ours
                && !is_reads(front.as_bytes())
                && front.as_bytes().iter().any(|byte| *byte != 0) =>
            {
                return Err(CacheError::Foreign);
            }
            _ => {
                let header = Header {
                    volume,
                    id: random_volume()?,
                    blocks,
                };
                device.write(BlockNo(0), &[&header.encode()])?;
                device.flush()?;
                header
            }
        };
        let mut state = State {
            index: HashMap::new(),
            segments: vec![(0, Vec::new()); segments as usize],
            next: 1,
            open: Gathered::new(),
            waiting: VecDeque::new(),
            writing: false,
            stop: false,
        };
        read_tables(&*device, &header, &mut state)?;
        let reads = Arc::new(Reads {
            device: RwLock::new(Some(device)),
            header,
            state: Mutex::new(state),
            changed: Condvar::new(),
            failed: AtomicBool::new(false),
            memory: Memory::default(),
            buffers: Mutex::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            worker: Mutex::new(None),
        });
        let own = Arc::clone(&reads);
        let worker = std::thread::Builder::new()
            .name("store-reads".to_owned())
            .spawn(move || while own.write_one() {});
        *relock(&reads.worker) = Some(worker.map_err(PlaceError::Threads)?);
        Ok(reads)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        relock(&self.state)
    }

    fn device(&self) -> Option<Arc<dyn BlockDevice>> {
        let device = self.device.read();
        device.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether a cell is in the cache, or will be.
    pub(crate) fn has(&self, key: &Key) -> bool {
        !self.is_failed() && self.lock().index.contains_key(key)
    }

    /// Reads cells, as they were kept; adjacent cells with one request. The caller checks each, and forgets it if it fails.
    pub(crate) fn get(&self, wanted: &[(Key, u32)]) -> Vec<(Key, Bytes)> {
        let mut found = Vec::new();
        if self.is_failed() {
            return found;
        }
        let mut places: Vec<(u32, u32, u32, Key)> = {
            let mut state = self.lock();
            let place = |(key, len): &(Key, u32)| {
                let place = state.index.get_mut(key)?;
                let segment = place.segment.filter(|_| place.len == *len)?;
                place.used = true;
                Some((segment, place.at, place.len, *key))
            };
            wanted.iter().filter_map(place).collect()
        };
        places.sort_unstable_by_key(|place| (place.0, place.1));
        let mut rest = &places[..];
        while let Some(&(segment, from, ..)) = rest.first() {
            let mut end = from;
            let joined = rest.iter().take_while(|(other, at, len, _)| {
                let joins = *other == segment
                    && (*at == end || *at == from)
                    && (*at + *len - from) as usize <= READ_MOST.max(*len as usize);
                end = end.max(*at + *len);
                joins
            });
            let count = joined.count().max(1);
            let (group, others) = rest.split_at(count);
            rest = others;
            let end = group.iter().map(|(_, at, len, _)| at + len).max();
            let Some(buffer) = self.read(segment, from, end.unwrap_or(from)) else {
                return found;
            };
            for (_, at, len, key) in group {
                let Some(bytes) = buffer.bytes(*at, *len) else {
                    return found;
                };
                // Memory of its own: otherwise one cell in a cache would keep the whole buffer.
                let mut cell = self.memory.take(bytes.len());
                cell.extend_from_slice(bytes);
                found.push((*key, self.memory.lend(cell)));
            }
            let mut buffers = relock(&self.buffers);
            if buffers.len() < BUFFERS_MOST {
                buffers.push(buffer.blocks);
            }
        }
        found
    }

    /// Bytes of a segment.
    fn read(&self, segment: u32, from: u32, to: u32) -> Option<Buffer> {
        let (first, end) = (
            from as usize / BLOCK_SIZE,
            (to as usize).div_ceil(BLOCK_SIZE),
        );
        if end > SEGMENT as usize {
            return None;
        }
        let blocks = end - first;
        let kept = relock(&self.buffers).pop();
        let kept = kept.filter(|buffer| buffer.blocks() >= blocks);
        let least = READ_MOST / BLOCK_SIZE + 1;
        let mut buffer = Buffer {
            blocks: kept.unwrap_or_else(|| BlockBuf::zeroed(blocks.max(least))),
            first: first * BLOCK_SIZE,
        };
        let at = first_block(segment).offset(first as u64);
        let wanted = buffer
            .blocks
            .as_bytes_mut()
            .get_mut(..blocks * BLOCK_SIZE)?;
        if self.device()?.read(at, wanted).is_err() {
            self.fail();
            return None;
        }
        Some(buffer)
    }

    /// Removes a cell that failed its check.
    pub(crate) fn forget(&self, key: &Key) {
        self.lock().index.remove(key);
    }

    /// Keeps a cell from the store, unless the writing thread cannot keep up.
    pub(crate) fn put(&self, key: Key, cell: &[u8]) {
        if self.is_failed() || !Gathered::new().has_room(cell.len()) {
            return;
        }
        let mut state = self.lock();
        if state.index.contains_key(&key) || !state.make_room(cell.len()) {
            return;
        }
        state.gather(key, cell);
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until all kept cells are on the device.
    pub(crate) fn write_out(&self) {
        let mut state = self.lock();
        // One write at a time: the segment of the open cells is known only after a write of them.
        while state.writing && !self.is_failed() {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.open.written < state.open.cells.len() {
            let open = state.open.clone();
            state.waiting.push_back(open);
            self.changed.notify_all();
        }
        while (state.writing || !state.waiting.is_empty()) && !self.is_failed() {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        if let Some(device) = self.device().filter(|_| !self.is_failed())
            && device.flush().is_err()
        {
            self.fail();
        }
    }

    fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        state.index.clear();
        state.waiting.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for a full segment and writes it. False: the cache is closed.
    fn write_one(&self) -> bool {
        let (gathered, segment, again) = {
            let mut state = self.lock();
            loop {
                if state.stop {
                    return false;
                }
                if let Some(gathered) = state.waiting.pop_front() {
                    let (segment, again) = match gathered.segment {
                        Some(segment) => (segment, Vec::new()),
                        None => state.empty_oldest(),
                    };
                    state.writing = true;
                    break (gathered, segment, again);
                }
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
        };
        self.keep_used(segment, &again);
        self.write(segment, gathered);
        let mut state = self.lock();
        state.writing = false;
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Keeps used cells of a segment that is replaced. They are checked when they are read.
    fn keep_used(&self, segment: u32, again: &[Listed]) {
        let mut bytes = 0;
        for (key, at, len) in again {
            bytes += *len as usize;
            if bytes > SEGMENT_BYTES / AGAIN_SHARE {
                return;
            }
            let buffer = self.read(segment, *at, at + len);
            let Some(cell) = buffer.as_ref().and_then(|it| it.bytes(*at, *len)) else {
                return;
            };
            let mut state = self.lock();
            // The thread that makes room must not wait for room.
            if !state.open.has_room(cell.len()) {
                return;
            }
            state.gather(*key, cell);
        }
    }

    fn write(&self, segment: u32, gathered: Gathered) {
        let number = {
            let mut state = self.lock();
            state.next += 1;
            state.next - 1
        };
        let room = table_bytes(gathered.cells.len()).next_multiple_of(BLOCK_SIZE);
        let placed = |(key, at, len): &Listed| (*key, at + room as u32, *len);
        let cells: Vec<Listed> = gathered.cells.iter().map(placed).collect();
        let mut bytes = encode_table(&self.header.id, number, &cells);
        bytes.resize(room, 0);
        bytes.extend_from_slice(&gathered.bytes);
        bytes.resize(bytes.len().next_multiple_of(BLOCK_SIZE), 0);
        let written = self
            .device()
            .map(|device| device.write(first_block(segment), &[&bytes]));
        if !matches!(written, Some(Ok(()))) {
            self.fail();
            return;
        }
        let mut state = self.lock();
        // These may be the open cells, to which more are added.
        let open = &mut state.open;
        if !open.cells.is_empty() && open.cells.first() == gathered.cells.first() {
            (open.segment, open.written) = (Some(segment), gathered.cells.len());
        }
        state.segments[segment as usize].1.clear();
        for (key, at, len) in cells {
            let used = state.index.get(&key).is_some_and(|place| place.used);
            let place = Place {
                segment: Some(segment),
                at,
                len,
                used,
            };
            state.index.insert(key, place);
            state.segments[segment as usize].1.push(key);
        }
        state.segments[segment as usize].0 = number;
    }

    /// Bytes of all cells in the cache.
    pub(crate) fn held_bytes(&self) -> u64 {
        let state = self.lock();
        state.index.values().map(|place| u64::from(place.len)).sum()
    }

    /// Writes everything out, and releases the device.
    pub(crate) fn close(&self) {
        if let Some(worker) = relock(&self.worker).take() {
            self.write_out();
            self.lock().stop = true;
            self.changed.notify_all();
            let _ = worker.join();
        }
        self.failed.store(true, Ordering::Relaxed);
        let mut device = self.device.write().unwrap_or_else(PoisonError::into_inner);
        *device = None;
    }
}

impl State {
    /// Makes room for a cell among the gathered ones. False: the device does not keep up.
    fn make_room(&mut self, len: usize) -> bool {
        if self.open.has_room(len) {
            return true;
        }
        if self.waiting.len() >= WAITING {
            return false;
        }
        let full = std::mem::replace(&mut self.open, Gathered::new());
        self.waiting.push_back(full);
        true
    }

    fn gather(&mut self, key: Key, cell: &[u8]) {
        self.open.push(key, cell);
        let place = Place {
            segment: None,
            at: 0,
            len: cell.len() as u32,
            used: false,
        };
        self.index.insert(key, place);
    }

    /// Empties the oldest segment. Returns it, and its cells that were used.
    fn empty_oldest(&mut self) -> (u32, Vec<Listed>) {
        let numbers = self.segments.iter().enumerate();
        let oldest = numbers.min_by_key(|(_, (number, _))| *number);
        let segment = oldest.map_or(0, |(segment, _)| segment);
        let keys = std::mem::take(&mut self.segments[segment].1);
        let mut again = Vec::new();
        for key in keys {
            let here = |place: &Place| place.segment == Some(segment as u32);
            let Some(place) = self.index.get(&key).copied().filter(here) else {
                continue;
            };
            self.index.remove(&key);
            if place.used {
                again.push((key, place.at, place.len));
            }
        }
        (segment as u32, again)
    }
}

/// Continues to fill the newest segment, if it is not full.
fn resume_segment(
    device: &dyn BlockDevice,
    segment: u32,
    cells: &[Listed],
    open: &mut Gathered,
) -> Result<(), CacheError> {
    let ends = cells.iter().map(|(_, at, len)| (at + len) as usize);
    let (from, end) = (
        table_bytes(cells.len()).next_multiple_of(BLOCK_SIZE),
        ends.max().unwrap_or(0),
    );
    let fits = |at: u32| at as usize >= from;
    if end > SEGMENT_BYTES * 7 / 8 || end <= from || !cells.iter().all(|(_, at, _)| fits(*at)) {
        return Ok(());
    }
    let mut buf = BlockBuf::zeroed(end.div_ceil(BLOCK_SIZE));
    device.read(first_block(segment), buf.as_bytes_mut())?;
    *open = Gathered {
        bytes: buf.as_bytes()[from..end].to_vec(),
        cells: (cells.iter())
            .map(|(key, at, len)| (*key, at - from as u32, *len))
            .collect(),
        segment: Some(segment),
        written: cells.len(),
    };
    Ok(())
}

/// Reads the tables of all segments.
fn read_tables(
    device: &dyn BlockDevice,
    header: &Header,
    state: &mut State,
) -> Result<(), CacheError> {
    let mut found = Vec::new();
    for segment in 0..state.segments.len() as u32 {
        let mut buf = BlockBuf::zeroed(1);
        device.read(first_block(segment), buf.as_bytes_mut())?;
        let Some(cells) = table::count(&header.id, buf.as_bytes()) else {
            continue;
        };
        let blocks = table_bytes(cells).div_ceil(BLOCK_SIZE);
        if blocks > 1 {
            buf = BlockBuf::zeroed(blocks);
            device.read(first_block(segment), buf.as_bytes_mut())?;
        }
        if let Some((number, cells)) = decode_table(&header.id, buf.as_bytes()) {
            found.push((number, segment, cells));
        }
    }
    found.sort_unstable_by_key(|(number, ..)| *number);
    if let Some((_, segment, cells)) = found.last() {
        resume_segment(device, *segment, cells, &mut state.open)?;
    }
    for (number, segment, cells) in found {
        state.next = state.next.max(number + 1);
        state.segments[segment as usize].0 = number;
        for (key, at, len) in cells {
            let end = at as usize + len as usize;
            if end > SEGMENT_BYTES {
                continue;
            }
            let place = Place {
                segment: Some(segment),
                at,
                len,
                used: false,
            };
            state.index.insert(key, place);
            state.segments[segment as usize].1.push(key);
        }
    }
    Ok(())
}
