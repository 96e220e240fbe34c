//! The layer's state.

use crate::blocks::Blocks;
use crate::limits::{Intervals, Limits, META_NEXT, Widths};
use crate::platform::{Platform, Queue, Table, Word};
use crate::shape::{NONE, Shape};
use alloc::vec::Vec;

steadfast_faults::planted_faults! {
/// Faults that a test can plant, to see that its harness catches them. Never set otherwise.
pub struct Faults {
    /// Blocks are erased when they are empty, before the flush that commits it.
    pub erase_before_flush: bool,
    /// Empty blocks count as erasable at once, and one is erased.
    pub free_stable: bool,
    /// A flush returns without a sync.
    pub skip_sync: bool,
    /// A flush's last page does not say that it commits.
    pub skip_commit_tag: bool,
    /// The last of a run of delta pages does not say that it commits.
    pub skip_delta_commit: bool,
    /// Recovery accepts pages after the last commit.
    pub accept_uncommitted: bool,
    /// Recovery goes on after a missing page.
    pub skip_gap: bool,
    /// Recovery does not look past the end of the logs.
    pub trust_the_end: bool,
    /// A damaged root hides the roots after it in its anchor.
    pub damaged_root_ends: bool,
    /// Pages say that a commit is durable before it is.
    pub flushed_early: bool,
    /// Blocks are erased though no durable delta page has the changes of their pages.
    pub forget_age: bool,
    /// A mount erases blocks without valid sectors that the end of the log lies in.
    pub free_tail: bool,
    /// Sectors that the host wrote meanwhile are moved over its newer ones.
    pub move_stale: bool,
    /// The root is written before the tables it names are durable.
    pub root_early: bool,
    /// Old delta and map blocks are given back before the root is durable.
    pub free_old_checkpoint: bool,
    /// Failed programs are not repeated.
    pub ignore_failed: bool,
    /// No checkpoint follows a failed program.
    pub skip_mend: bool,
    /// Trims are not written.
    pub forget_trim: bool,
    /// Changes go to delta pages before the flush that commits them.
    pub delta_early: bool,
    /// A flush commits without first moving the sectors that the reserve needs.
    pub skip_reclaim: bool,
    /// A mount or flush leaves the reserve as it finds it.
    pub skip_room: bool,
    /// Behind a commit of a mount's own, blocks are settled by a delta run before it is durable.
    pub runs_early: bool,
    /// Sectors that a mount moves go to delta pages without a commit.
    pub extra_unsynced: bool,
    /// Mounts in a row take delta blocks from data's share.
    pub skip_mount_checkpoint: bool,
    /// A root is written although its delta run had to go to another place.
    pub root_astray: bool,
    /// A format erases older roots before the one that says that there is no disk is durable.
    pub vacant_unsynced: bool,
}
}

/// Options for making a disk.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Sectors of the disk.
    pub sectors: u64,
    /// Writes and trims from one flush to the next.
    pub epoch: u64,
    /// Delta pages from one checkpoint to the next, or as many as usual ([`Intervals::region`]).
    pub region: Option<u64>,
    /// A number that no other disk on this memory had.
    pub volume: u64,
}

impl Options {
    /// Intervals from one flush to the next, and from one checkpoint to the next.
    #[must_use]
    pub fn intervals(&self) -> Intervals {
        Intervals {
            epoch: self.epoch,
            region: self.region,
        }
    }
}

/// Counts since the disk was mounted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Sectors that the host wrote.
    pub written: u64,
    /// Sectors moved by the collector.
    pub moved: u64,
    /// Flushes that committed something.
    pub flushes: u64,
    /// Data pages programmed, trims included.
    pub data_pages: u64,
    /// Data pages among them that record trims.
    pub trim_pages: u64,
    /// Lists of sectors at the end of data blocks.
    pub summary_pages: u64,
    /// Delta pages.
    pub delta_pages: u64,
    /// Map pages, directories, tables and roots.
    pub map_pages: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Commits without a flush by the host, straight after one of its own.
    pub extra_commits: u64,
    /// Blocks that failed.
    pub failed_blocks: u64,
    /// Proposals of the policy that were refused.
    pub refused_proposals: u64,
}

/// The streams.
pub(crate) const HOST: usize = 0;
pub(crate) const MOVED: usize = 1;
pub(crate) const DELTA: usize = 2;
pub(crate) const MAPS: usize = 3;

/// An open block.
pub(crate) struct Cursor<P: Platform> {
    pub(crate) block: P::W,
    /// The next page.
    pub(crate) page: P::W,
    /// Sectors of its pages so far, for data streams.
    pub(crate) sectors: P::Q,
}

pub(crate) struct Stream<P: Platform> {
    pub(crate) width: usize,
    /// Pages of a block that the stream fills.
    pub(crate) pages: u64,
    pub(crate) open: Vec<Cursor<P>>,
    pub(crate) turn: usize,
    /// The blocks that it opens next.
    pub(crate) next: [P::W; 2],
}

impl<P: Platform> Stream<P> {
    pub(crate) fn new(width: u64, pages: u64) -> Self {
        Stream {
            width: width as usize,
            pages,
            open: Vec::new(),
            turn: 0,
            next: [P::W::of(NONE); 2],
        }
    }
}

/// Sectors that wait for their page to be full.
pub(crate) struct Buffer<P: Platform> {
    pub(crate) page: Option<P::P>,
    pub(crate) sectors: Vec<P::W>,
    /// Former places of sectors that are moved.
    pub(crate) places: Vec<P::W>,
}

impl<P: Platform> Buffer<P> {
    pub(crate) fn new() -> Self {
        Buffer {
            page: None,
            sectors: Vec::new(),
            places: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Idle,
    Maps,
    Named,
    Rooted,
}

/// A position in the delta log.
#[derive(Clone, Copy)]
pub(crate) struct DeltaPosition<W> {
    pub(crate) number: W,
    pub(crate) block: W,
    pub(crate) page: W,
    pub(crate) next: [W; 2],
}

pub(crate) struct Checkpoint<P: Platform> {
    pub(crate) phase: Phase,
    /// Counts checkpoints; the age of delta and map blocks.
    pub(crate) cycle: P::W,
    /// Start of replay for the checkpoint under way.
    pub(crate) from: DeltaPosition<P::W>,
    /// Delta page where replay begins for the durable root.
    pub(crate) durable_from: P::W,
    /// Map pages written.
    pub(crate) written: P::W,
    /// Last page of the delta run that the block table goes with.
    pub(crate) counted: P::W,
    /// Places of directory and table pages.
    pub(crate) directories: P::Q,
    pub(crate) tables: P::Q,
    pub(crate) root: P::W,
    pub(crate) anchor: P::W,
    /// The anchor of the durable root, which is not erased before another one is durable.
    pub(crate) durable_anchor: P::W,
    pub(crate) anchor_page: P::W,
    /// Roots say that there is no disk.
    pub(crate) vacant: bool,
}

impl<P: Platform> Checkpoint<P> {
    pub(crate) fn new() -> Self {
        let n = P::W::of;
        Checkpoint {
            phase: Phase::Idle,
            cycle: n(0),
            from: DeltaPosition {
                number: n(1),
                block: n(NONE),
                page: n(0),
                next: [n(NONE); 2],
            },
            durable_from: n(1),
            written: n(0),
            counted: n(0),
            directories: P::Q::default(),
            tables: P::Q::default(),
            root: n(0),
            anchor: n(0),
            durable_anchor: n(NONE),
            anchor_page: n(0),
            vacant: false,
        }
    }
}

/// A block that is being emptied.
pub(crate) struct Victim<P: Platform> {
    pub(crate) block: P::W,
    /// Sectors by place in the block.
    pub(crate) sectors: P::Q,
    /// The next place to look at.
    pub(crate) at: P::W,
    pub(crate) valid: u64,
    /// The page fetched last.
    pub(crate) page: Option<(P::W, P::P)>,
}

/// A snapshot-consistent disk over flash memory. See the crate's header.
pub struct Ftl<P: Platform, Y> {
    pub(crate) platform: P,
    pub(crate) policy: Y,
    pub(crate) shape: Shape,
    pub(crate) limits: Limits,
    pub(crate) faults: Faults,
    pub(crate) volume: P::W,
    pub(crate) incarnation: P::W,

    pub(crate) map: P::T,
    /// Set of the map pages in memory.
    pub(crate) loaded: P::T,
    /// Places of the map pages in flash.
    pub(crate) directory: P::T,
    pub(crate) blocks: Blocks<P>,
    pub(crate) streams: [Stream<P>; 4],
    pub(crate) host: Buffer<P>,
    pub(crate) moved: Buffer<P>,
    pub(crate) victim: Option<Victim<P>>,
    /// Blocks that metadata occupies.
    pub(crate) meta_used: P::W,
    /// Bad blocks.
    pub(crate) bad: P::W,

    /// Number of the newest data page.
    pub(crate) number: P::W,
    /// Number of the newest durable commit.
    pub(crate) flushed: P::W,
    /// Changes that no delta page says yet: sector and place, or trimmed range.
    pub(crate) pairs: P::Q,
    /// Ranges trimmed in this epoch.
    pub(crate) trims: P::Q,
    /// Number of the next delta page.
    pub(crate) delta: P::W,
    /// Delta runs written.
    pub(crate) runs: P::W,
    pub(crate) checkpoint: Checkpoint<P>,

    /// Writes and trims of this epoch, and how many it may have.
    pub(crate) writes: P::W,
    pub(crate) budget: P::W,
    /// Something was written or moved since the last commit.
    pub(crate) dirty: bool,
    pub(crate) stopped: bool,
    /// A mount is under way: map pages are read side by side.
    pub(crate) recovering: bool,
    pub(crate) stats: Stats,
}

impl<P: Platform, Y> Ftl<P, Y> {
    /// A layer that knows no map yet.
    pub(crate) fn empty(
        platform: P,
        policy: Y,
        shape: Shape,
        limits: Limits,
        volume: P::W,
        faults: Faults,
    ) -> Self {
        let n = P::W::of;
        let widths = Widths::of(&shape);
        let entries = n(limits.map_pages << shape.entry_bits());
        let data_pages = shape.data_pages();
        let mut blocks = Blocks::new(n(shape.blocks));
        blocks.forget_age = faults.forget_age;
        Ftl {
            map: P::T::filled(entries, n(NONE)),
            loaded: P::T::filled(n(limits.map_pages), n(0)),
            directory: P::T::filled(n(limits.map_pages), n(NONE)),
            blocks,
            streams: [
                Stream::new(widths.host, data_pages),
                Stream::new(widths.moved, data_pages),
                Stream::new(1, shape.pages),
                Stream::new(widths.map, shape.pages),
            ],
            host: Buffer::new(),
            moved: Buffer::new(),
            victim: None,
            meta_used: n(0),
            bad: n(0),
            number: n(0),
            flushed: n(0),
            pairs: P::Q::default(),
            trims: P::Q::default(),
            delta: n(1),
            runs: n(0),
            checkpoint: Checkpoint::new(),
            writes: n(0),
            budget: n(limits.epoch),
            dirty: false,
            stopped: false,
            recovering: false,
            stats: Stats::default(),
            incarnation: n(1),
            platform,
            policy,
            shape,
            limits,
            faults,
            volume,
        }
    }

    /// Limits of the disk.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The geometry it works with.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Counts so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The blocks' uses.
    pub fn blocks(&self) -> &Blocks<P> {
        &self.blocks
    }

    /// Writes and trims that this epoch still has room for. A client that makes atomic changes
    /// asks before each, and flushes first if it does not fit.
    pub fn room(&self) -> P::W {
        if self.budget > self.writes {
            self.budget - self.writes
        } else {
            P::W::of(0)
        }
    }

    /// Writes that wait for a flush.
    pub fn unflushed(&self) -> P::W {
        self.writes
    }

    /// Whether an earlier failure stopped the disk: it can be read, and be mounted again.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// The flash memory, for its time and counts.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// The flash memory, to inject failures.
    pub fn platform_mut(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Releases the flash memory; unflushed writes are lost.
    pub fn into_platform(self) -> P {
        self.platform
    }

    /// Pages that the data streams can still program if `blocks` blocks have no valid sectors: the pages of
    /// those beyond the claims of metadata and bad blocks, and those left in open blocks, less one block for
    /// each place that a stream is open in. The reason: streams that take turns fill all their blocks at
    /// the same time, and then need as many at once.
    pub(crate) fn pages_in(&self, blocks: P::W) -> P::W {
        let n = P::W::of;
        let claims = rest(n(self.limits.meta_blocks), self.meta_used + n(META_NEXT))
            + rest(n(self.limits.bad_blocks), self.bad);
        let per_block = self.shape.data_pages();
        let mut pages = rest(blocks, claims).times(per_block);
        let mut kept = 0;
        for stream in [HOST, MOVED] {
            let s = &self.streams[stream];
            kept += s.width as u64 * per_block;
            for cursor in &s.open {
                pages = pages + rest(n(s.pages), cursor.page);
            }
        }
        rest(pages, n(kept))
    }

    /// Pages that will be free for data once all blocks without valid sectors are erasable.
    pub(crate) fn available(&self) -> P::W {
        self.pages_in(self.blocks.spare)
    }

    /// Pages that are free for data now: no flush and no delta page is waited for.
    pub(crate) fn ready(&self) -> P::W {
        self.pages_in(rest(self.blocks.spare, self.blocks.invalid.length()))
    }

    /// Pages of `blocks` blocks.
    pub(crate) fn in_pages(&self, blocks: u64) -> P::W {
        P::W::of(blocks * self.shape.data_pages())
    }
}

/// Difference of two numbers, at least 0.
pub(crate) fn rest<W: Word>(have: W, claim: W) -> W {
    if have > claim { have - claim } else { W::of(0) }
}

/// The blocks in a list of cursors and announcements.
pub(crate) fn gathered<P: Platform>(stream: &Stream<P>) -> Vec<P::W> {
    let mut others: Vec<P::W> = stream.open.iter().map(|cursor| cursor.block).collect();
    others.extend(stream.next);
    others
}
