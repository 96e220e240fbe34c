//! From a trace to the states that a power cut could leave.
//!
//! [`Explorer`] walks along a trace and keeps the durable contents and the pending blocks
//! at its position; going on from one cut to a later one costs only the events in between.
//! [`Cut`] is that state, indexed for making images: for every block with a pending write,
//! its *candidates*, of which each sector shows one.

use crate::BlockMap;
use crate::crash::{CrashImage, CrashImages, Limits};
use crate::device::SimDevice;
use crate::image::{Image, SECTORS, View, sector_hashes, sum};
use crate::{FlushOutcome, TraceEvent};
use std::collections::hash_map::Entry;
use std::sync::Arc;
use steadfast_block::{Block, BlockNo};

/// Walks along a trace. Cheap to clone, for several threads to explore parts of it.
#[derive(Clone)]
pub struct Explorer {
    trace: Arc<[TraceEvent]>,
    start: Image,
    /// All marks, in order.
    marks: Arc<[u64]>,
    /// Number of events carried out to reach the state below.
    position: usize,
    durable: Image,
    /// Written, not durable; oldest first.
    pending: Vec<Pending>,
    marks_passed: usize,
}

/// One block of a pending write.
#[derive(Clone)]
struct Pending {
    /// Position of the write in the trace.
    write: usize,
    at: u64,
    content: Arc<Candidate>,
    /// A flush that should have covered it failed: none ever will.
    doubtful: bool,
}

impl Explorer {
    pub(crate) fn new(start: Image, trace: Vec<TraceEvent>) -> Explorer {
        let marks = trace.iter().filter_map(|event| match event {
            TraceEvent::Mark(n) => Some(*n),
            _ => None,
        });
        Explorer {
            marks: marks.collect(),
            trace: trace.into(),
            durable: start.clone(),
            start,
            position: 0,
            pending: Vec::new(),
            marks_passed: 0,
        }
    }

    /// Number of events in the trace: the last position to cut at.
    #[must_use]
    pub fn len(&self) -> usize {
        self.trace.len()
    }

    /// Whether nothing happened at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trace.is_empty()
    }

    /// The events.
    #[must_use]
    pub fn trace(&self) -> &[TraceEvent] {
        &self.trace
    }

    /// The positions whose cuts allow every image that any cut allows: before each flush
    /// that succeeded, and the end. Between two of them images only become more, and marks
    /// as well, so these suffice where limits do not cut the search short.
    #[must_use]
    pub fn maximal_cuts(&self) -> Vec<usize> {
        let flushes = self
            .trace
            .iter()
            .enumerate()
            .filter_map(|(position, event)| match event {
                TraceEvent::Flush {
                    outcome: FlushOutcome::Done,
                    ..
                } => Some(position),
                _ => None,
            });
        flushes.chain([self.len()]).collect()
    }

    /// The state after the first `position` events (all of them, if there are fewer).
    /// Costs the events since the last cut, or all of them when going back.
    pub fn cut(&mut self, position: usize) -> Cut {
        let position = position.min(self.len());
        if position < self.position {
            self.position = 0;
            self.durable = self.start.clone();
            self.pending.clear();
            self.marks_passed = 0;
        }
        let trace = self.trace.clone();
        for (now, event) in trace.iter().enumerate().take(position).skip(self.position) {
            self.step(now, event);
        }
        self.position = position;
        self.cut_here()
    }

    fn step(&mut self, now: usize, event: &TraceEvent) {
        match event {
            TraceEvent::Mark(_) => self.marks_passed += 1,
            TraceEvent::Write { at, data } => {
                self.pending
                    .extend((at.0..).zip(data.iter()).map(|(at, data)| Pending {
                        write: now,
                        at,
                        content: Arc::new(Candidate::new(at, data.clone())),
                        doubtful: false,
                    }));
            }
            TraceEvent::Flush {
                outcome: FlushOutcome::Ignored,
                ..
            } => {}
            TraceEvent::Flush {
                outcome: FlushOutcome::Failed,
                ..
            } => {
                self.pending
                    .iter_mut()
                    .for_each(|pending| pending.doubtful = true);
            }
            TraceEvent::Flush {
                outcome: FlushOutcome::Done,
                began,
                in_flight,
            } => {
                self.flush(*began, in_flight);
            }
        }
    }

    /// Makes the covered writes durable. The content that they replaced cannot come back.
    fn flush(&mut self, began: usize, in_flight: &[usize]) {
        let covered = |p: &Pending| !p.doubtful && p.write < began && !in_flight.contains(&p.write);
        if self.pending.iter().all(covered) {
            for pending in self.pending.drain(..) {
                pending.content.store(&mut self.durable, pending.at);
            }
            return;
        }
        let mut newest: BlockMap<usize> = BlockMap::default();
        for pending in self.pending.iter().filter(|pending| covered(pending)) {
            pending.content.store(&mut self.durable, pending.at);
            newest.insert(pending.at, pending.write);
        }
        self.pending
            .retain(|p| newest.get(&p.at).is_none_or(|newest| p.write > *newest));
    }

    fn cut_here(&self) -> Cut {
        let mut blocks: Vec<PendingBlock> = Vec::new();
        let mut writes: Vec<PendingWrite> = Vec::new();
        let mut index: BlockMap<usize> = BlockMap::default();
        for pending in &self.pending {
            let block = match index.entry(pending.at) {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(entry) => {
                    let durable = self.durable.get(pending.at).clone();
                    blocks.push(PendingBlock {
                        at: BlockNo(pending.at),
                        newest: 0,
                        candidates: vec![Arc::new(Candidate::new(pending.at, durable))],
                    });
                    *entry.insert(blocks.len() - 1)
                }
            };
            let candidate = blocks[block].candidate(&pending.content);
            blocks[block].newest = candidate;
            match writes.last_mut() {
                Some(last) if last.position == pending.write => {
                    last.members.push((block, candidate));
                }
                _ => writes.push(PendingWrite {
                    position: pending.write,
                    doubtful: pending.doubtful,
                    members: vec![(block, candidate)],
                }),
            }
        }
        Cut {
            position: self.position,
            durable: self.durable.clone(),
            blocks,
            writes,
            marks: self.marks.clone(),
            marks_passed: self.marks_passed,
        }
    }
}

/// The moment of a power cut: the durable writes, and those that may or may not have survived.
pub struct Cut {
    pub(crate) position: usize,
    pub(crate) durable: Image,
    pub(crate) blocks: Vec<PendingBlock>,
    pub(crate) writes: Vec<PendingWrite>,
    marks: Arc<[u64]>,
    marks_passed: usize,
}

/// A block with pending writes.
pub(crate) struct PendingBlock {
    pub(crate) at: BlockNo,
    /// The durable content, then the different pending ones.
    pub(crate) candidates: Vec<Arc<Candidate>>,
    /// Content of the cache: the candidate written last.
    pub(crate) newest: u16,
}

/// A content that a block may have.
pub(crate) struct Candidate {
    pub(crate) data: Arc<Block>,
    pub(crate) hashes: [u128; SECTORS],
    hash: u128,
}

/// A pending write: blocks (as indexes) and the candidates it wrote.
pub(crate) struct PendingWrite {
    position: usize,
    doubtful: bool,
    pub(crate) members: Vec<(usize, u16)>,
}

impl Candidate {
    fn new(at: u64, data: Arc<Block>) -> Candidate {
        let hashes = sector_hashes(at, &data);
        Candidate {
            data,
            hashes,
            hash: sum(&hashes),
        }
    }

    fn store(&self, image: &mut Image, at: u64) {
        image.set_hashed(at, self.data.clone(), self.hash);
    }
}

impl PendingBlock {
    /// The number of the candidate with this content, a new one if need be. A block written
    /// more than 65,535 times without a flush merges the excess into the last candidate.
    fn candidate(&mut self, content: &Arc<Candidate>) -> u16 {
        let known = self
            .candidates
            .iter()
            .position(|other| other.hash == content.hash);
        let last = usize::from(u16::MAX);
        let number = known.unwrap_or(self.candidates.len()).min(last);
        if number == self.candidates.len() {
            self.candidates.push(content.clone());
        } else if number == last {
            self.candidates[last] = content.clone();
        }
        number as u16
    }
}

impl Cut {
    /// Number of events that were carried out.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The marks before the cut, oldest first.
    #[must_use]
    pub fn marks(&self) -> &[u64] {
        &self.marks[..self.marks_passed]
    }

    /// The common part of all images: the contents without any pending write.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// The blocks with pending writes, in order of their first one.
    pub fn pending_blocks(&self) -> impl Iterator<Item = BlockNo> {
        self.blocks.iter().map(|block| block.at)
    }

    /// The contents that this cut may leave, each once, within `limits`. The first is that
    /// after a killed process (everything survived), the second has only durable content.
    #[must_use]
    pub fn images(&self, limits: &Limits) -> CrashImages<'_> {
        CrashImages::new(self, limits)
    }

    /// The device as a killed process leaves it to the next one, *still running*: its cache
    /// holds everything, and pending writes are still pending. They are the first events of
    /// its trace, so a later cut may lose them.
    #[must_use]
    pub fn killed(&self) -> SimDevice {
        let mut trace = Vec::with_capacity(self.writes.len() + 1);
        let doubtful = self
            .writes
            .iter()
            .take_while(|write| write.doubtful)
            .count();
        for (number, write) in (1..).zip(&self.writes) {
            // One event for each run: replaced parts of a doubtful write left gaps.
            for run in write
                .members
                .chunk_by(|(a, _), (b, _)| self.address(*a) + 1 == self.address(*b))
            {
                let data = run.iter().map(|(block, candidate)| {
                    self.blocks[*block].candidates[usize::from(*candidate)]
                        .data
                        .clone()
                });
                let at = BlockNo(self.address(run[0].0));
                trace.push(TraceEvent::Write {
                    at,
                    data: data.collect(),
                });
            }
            if number == doubtful {
                let (began, in_flight) = (trace.len(), Vec::new());
                trace.push(TraceEvent::Flush {
                    began,
                    in_flight,
                    outcome: FlushOutcome::Failed,
                });
            }
        }
        let initial = View {
            base: self.durable.clone(),
            overlay: BlockMap::default(),
        };
        SimDevice::with_trace(initial, trace)
    }

    fn address(&self, block: usize) -> u64 {
        self.blocks[block].at.0
    }

    /// The image in which every pending write survived, as the cache shows it.
    #[must_use]
    pub fn everything(&self) -> CrashImage {
        let fates: Vec<_> = self
            .blocks
            .iter()
            .map(|block| [block.newest; SECTORS])
            .collect();
        CrashImage::assemble(self, &fates)
    }
}

impl std::fmt::Debug for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cut")
            .field("position", &self.position)
            .field("durable", &self.durable)
            .field("pending_blocks", &self.pending_blocks().collect::<Vec<_>>())
            .field("marks", &self.marks())
            .finish_non_exhaustive()
    }
}
