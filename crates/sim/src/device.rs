//! The simulated device itself: contents as its cache shows them, and the trace.
//!
//! The durable state is not kept here; [`Explorer`] derives it from the trace. A request is
//! one step under the lock for its contents and one for its return, with the caller's hook
//! in between and no lock held there, so that a scheduler can interleave requests: a write
//! that another thread's flush overtakes is in the trace, but not covered by that flush.

use crate::fault::{Fault, Plan};
use crate::image::{Image, SECTORS, View, share};
use crate::rng::Rng;
use crate::{CrashImage, Explorer, FlushOutcome, TraceEvent};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use steadfast_block::{
    BLOCK_SIZE, Block, BlockDevice, BlockNo, DeviceError, DeviceOp, Geometry, Result, SECTOR_SIZE,
    check_count, check_range, check_segments, check_writes,
};

/// The content of discarded blocks here: the contract promises nothing, so neither
/// zeros nor the old bytes.
static DISCARDED: LazyLock<Arc<Block>> = LazyLock::new(|| Arc::new([0xA5; BLOCK_SIZE]));

/// A moment in the life of a request, for [`SimDevice::with_hook`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The request was made and has had no effect yet.
    Submitted,
    /// It has had its effect (a flush: the writes that it covers are fixed), but did not return.
    InFlight,
}

/// Requests that a device has carried out or failed since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Blocks in write requests.
    pub blocks_written: u64,
    /// Flushes.
    pub flushes: u64,
}

type Hook = Box<dyn Fn(DeviceOp, Phase) + Send + Sync>;

/// A disk in memory with a volatile cache, a trace and a plan of failures.
///
/// Reads show the content of the cache, as on a real disk. Discarded blocks read as
/// garbage; a discard is a write of that garbage as far as crashes are concerned.
pub struct SimDevice {
    /// Contents before the first event.
    initial: View,
    state: RwLock<State>,
    plan: Mutex<Plan>,
    /// Whether the plan holds anything, so that a request need not lock it.
    planned: AtomicBool,
    ignore_flushes: AtomicBool,
    seed: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    blocks_written: AtomicU64,
    flushes: AtomicU64,
    hook: Option<Hook>,
}

struct State {
    /// Contents as the cache shows them.
    view: View,
    trace: Vec<TraceEvent>,
    /// Positions of writes that have not returned.
    in_flight: Vec<usize>,
}

impl SimDevice {
    /// A disk of `blocks` durable blocks of zeros.
    #[must_use]
    pub fn new(blocks: u64) -> SimDevice {
        SimDevice::from_image(Image::zeroed(blocks))
    }

    /// A disk whose durable contents are `image` (an [`Image`] or a [`CrashImage`]), with an
    /// empty trace: the disk at the next start of the machine. Copies no contents.
    #[must_use]
    pub fn from_image(image: impl Into<CrashImage>) -> SimDevice {
        SimDevice::with_trace(image.into().into_view(), Vec::new())
    }

    /// A disk that starts with `trace` already carried out on `initial`.
    pub(crate) fn with_trace(initial: View, trace: Vec<TraceEvent>) -> SimDevice {
        let mut view = initial.clone();
        for event in &trace {
            if let TraceEvent::Write { at, data } = event {
                view.overlay.extend((at.0..).zip(data.iter().cloned()));
            }
        }
        SimDevice {
            initial,
            state: RwLock::new(State {
                view,
                trace,
                in_flight: Vec::new(),
            }),
            plan: Mutex::default(),
            planned: AtomicBool::new(false),
            ignore_flushes: AtomicBool::new(false),
            seed: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            blocks_written: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            hook: None,
        }
    }

    /// Calls `hook` at the [`Phase`]s of every request, with no lock held: the place where a
    /// deterministic scheduler yields.
    #[must_use]
    pub fn with_hook(mut self, hook: impl Fn(DeviceOp, Phase) + Send + Sync + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }

    /// Adds a failure to the plan.
    pub fn inject(&self, fault: Fault) {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        plan.add(fault);
        self.planned.store(true, Relaxed);
    }

    /// Forgets all planned failures, sticky ones too.
    pub fn clear_faults(&self) {
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        *plan = Plan::default();
        self.planned.store(false, Relaxed);
    }

    /// From now on, acknowledges flushes without doing them (or stops doing so): a disk that
    /// lies. For showing that a harness notices.
    pub fn ignore_flushes(&self, ignore: bool) {
        self.ignore_flushes.store(ignore, Relaxed);
    }

    /// Decides which sectors of failed writes are new. The default is 0.
    pub fn set_seed(&self, seed: u64) {
        self.seed.store(seed, Relaxed);
    }

    /// Notes `n` in the trace, such as "operation `n` is acknowledged now"; returns the
    /// note's position. [`Cut::marks`](super::Cut::marks) gives the notes before a cut.
    pub fn mark(&self, n: u64) -> usize {
        let mut state = self.state_mut();
        state.trace.push(TraceEvent::Mark(n));
        state.trace.len() - 1
    }

    /// Number of events so far.
    #[must_use]
    pub fn trace_len(&self) -> usize {
        self.state().trace.len()
    }

    /// The events so far. Contents are shared, not copied.
    #[must_use]
    pub fn trace(&self) -> Vec<TraceEvent> {
        self.state().trace.clone()
    }

    /// The requests so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            blocks_written: self.blocks_written.load(Relaxed),
            flushes: self.flushes.load(Relaxed),
        }
    }

    /// The contents as the cache shows them, as after a clean shutdown.
    #[must_use]
    pub fn image(&self) -> Image {
        self.state().view.flatten()
    }

    /// Everything that a power cut at any position of the trace so far could leave.
    #[must_use]
    pub fn explorer(&self) -> Explorer {
        Explorer::new(self.initial.flatten(), self.trace())
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn blocks(&self) -> u64 {
        self.initial.base.blocks()
    }

    fn reached(&self, op: DeviceOp, phase: Phase) {
        if let Some(hook) = &self.hook {
            hook(op, phase);
        }
    }

    /// The planned failure of this request, if there is one.
    fn strike(&self, op: DeviceOp, at: BlockNo, count: u64) -> Option<DeviceError> {
        if !self.planned.load(Relaxed) {
            return None;
        }
        let mut plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let error = plan.strike(op, at, count)?;
        self.planned.store(!plan.is_empty(), Relaxed);
        let source = Arc::new(io::Error::from_raw_os_error(error));
        Some(DeviceError::Io {
            op,
            at,
            count,
            source,
        })
    }

    /// Records a write, which is in flight until it is ended; returns its position.
    fn begin(&self, op: DeviceOp, at: BlockNo, data: Arc<[Arc<Block>]>) -> usize {
        let position = {
            let mut state = self.state_mut();
            state
                .view
                .overlay
                .extend((at.0..).zip(data.iter().cloned()));
            let position = state.trace.len();
            state.trace.push(TraceEvent::Write { at, data });
            state.in_flight.push(position);
            position
        };
        self.reached(op, Phase::InFlight);
        position
    }

    /// Lets writes return.
    fn end(&self, positions: &[usize]) {
        let mut state = self.state_mut();
        state.in_flight.retain(|other| !positions.contains(other));
    }

    /// Carries out writes that are in flight together until all of them have completed. If
    /// one fails, each of them may be written, or not, or in part.
    fn write_together(&self, writes: &[(BlockNo, &[&[u8]])]) -> Result<()> {
        let op = DeviceOp::Write;
        let mut failure = None;
        let mut parts: Vec<(BlockNo, Arc<[Arc<Block>]>)> = Vec::with_capacity(writes.len());
        for (at, segments) in writes {
            let blocks = segments
                .iter()
                .flat_map(|segment| segment.as_chunks::<BLOCK_SIZE>().0);
            let data: Arc<[Arc<Block>]> = blocks.map(share).collect();
            let count = data.len() as u64;
            self.writes.fetch_add(1, Relaxed);
            self.blocks_written.fetch_add(count, Relaxed);
            self.reached(op, Phase::Submitted);
            let error = self.strike(op, *at, count);
            failure = failure.or(error);
            parts.push((*at, data));
        }
        let began: Vec<usize> = parts
            .into_iter()
            .map(|(at, data)| match failure {
                None => self.begin(op, at, data),
                Some(_) => self.begin(op, at, self.mixture(at, &data)),
            })
            .collect();
        self.end(&began);
        failure.map_or(Ok(()), Err)
    }

    /// The blocks after a failed write: all old, all new, or some sectors of each.
    fn mixture(&self, at: BlockNo, new: &[Arc<Block>]) -> Arc<[Arc<Block>]> {
        let state = self.state();
        let mut rng = Rng::new(self.seed.load(Relaxed), state.trace.len() as u64);
        let new_of_eight = [0, 4, 4, 8][rng.below(4)];
        (at.0..)
            .zip(new)
            .map(|(at, new)| {
                let mut block = **state.view.get(at);
                for sector in 0..SECTORS {
                    if rng.chance(new_of_eight) {
                        let range = sector * SECTOR_SIZE..(sector + 1) * SECTOR_SIZE;
                        block[range.clone()].copy_from_slice(&new[range]);
                    }
                }
                share(&block)
            })
            .collect()
    }
}

impl BlockDevice for SimDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks(),
            volatile_cache: true,
            read_only: false,
        }
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> Result<()> {
        let count = check_range(DeviceOp::Read, at, buf.len(), self.blocks())?;
        self.reads.fetch_add(1, Relaxed);
        self.reached(DeviceOp::Read, Phase::Submitted);
        if let Some(error) = self.strike(DeviceOp::Read, at, count) {
            buf.fill(0xEE);
            return Err(error);
        }
        self.state().view.read(at, buf);
        self.reached(DeviceOp::Read, Phase::InFlight);
        Ok(())
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> Result<()> {
        check_segments(at, segments, self.blocks())?;
        self.write_together(&[(at, segments)])
    }

    fn write_scattered(&self, writes: &[(BlockNo, &[&[u8]])]) -> Result<()> {
        check_writes(writes, self.blocks())?;
        self.write_together(writes)
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Relaxed);
        self.reached(DeviceOp::Flush, Phase::Submitted);
        let (began, in_flight) = {
            let state = self.state();
            (state.trace.len(), state.in_flight.clone())
        };
        self.reached(DeviceOp::Flush, Phase::InFlight);
        let failure = self.strike(DeviceOp::Flush, BlockNo(0), self.blocks());
        let outcome = match failure {
            Some(_) => FlushOutcome::Failed,
            None if self.ignore_flushes.load(Relaxed) => FlushOutcome::Ignored,
            None => FlushOutcome::Done,
        };
        self.state_mut().trace.push(TraceEvent::Flush {
            began,
            in_flight,
            outcome,
        });
        failure.map_or(Ok(()), Err)
    }

    fn discard(&self, at: BlockNo, count: u64) -> Result<()> {
        check_count(DeviceOp::Discard, at, count, self.blocks())?;
        self.reached(DeviceOp::Discard, Phase::Submitted);
        if let Some(error) = self.strike(DeviceOp::Discard, at, count) {
            return Err(error);
        }
        let garbage = (0..count).map(|_| DISCARDED.clone()).collect();
        let began = self.begin(DeviceOp::Discard, at, garbage);
        self.end(&[began]);
        Ok(())
    }
}

impl std::fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        f.debug_struct("SimDevice")
            .field("blocks", &self.blocks())
            .field("trace", &state.trace)
            .field("in_flight", &state.in_flight)
            .finish_non_exhaustive()
    }
}
