//! A dump of the journal: both tail headers, every record from the tail on, where the
//! log ends and why, and the outcome of a recovery.
//!
//! Reads only, with any bytes: damage is part of the output, never a reason to stop. Holds
//! one record in memory at a time, besides the memory of a read-only recovery. The log is
//! read twice, because only its last record says which records are proved.

use crate::handle::Journal;
use crate::layout::{Homes, Identity, Refusal, TailHeader};
use crate::record::{Covered, Entries, Entry, RecordClaim, decode_expected};
use crate::recover::{Recovery, covered_holds, makes_sense, read_header, read_log};
use crate::replay::Held;
use crate::{Config, Error, Kind, Region, Result};
use std::sync::Arc;
use steadfast_block::{BlockDevice, BlockNo};

/// One thing that a dump shows: first the two tail headers, then the records in log order.
pub enum LogItem<'a> {
    /// A tail header.
    Header(HeaderItem),
    /// A record.
    Record(RecordItem<'a>),
}

/// A tail header's block.
#[derive(Clone, Debug)]
pub struct HeaderItem {
    /// Slot: 0 or 1.
    pub slot: usize,
    /// Its block.
    pub at: BlockNo,
    /// Content of the block.
    pub found: HeaderFound,
    /// It is the newer valid one, from which the log is read.
    pub counts: bool,
}

/// Content of a tail header's block.
#[derive(Clone, Debug)]
pub enum HeaderFound {
    /// A header of this volume.
    Valid(TailHeader),
    /// Something else, and why.
    Refused(Refusal),
    /// The device could not read it.
    Unreadable(Error),
}

/// A valid record of the log.
pub struct RecordItem<'a> {
    held: &'a Held,
    /// First block of it.
    pub at: BlockNo,
    /// Something valid proves that it was durable, so its covered runs count no longer.
    pub proved: bool,
    /// Recovery would replay it.
    pub accepted: bool,
    /// The blocks that it vouches for.
    pub covered: Vec<CoveredItem>,
}

impl RecordItem<'_> {
    /// Its position: log blocks since the volume was made.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.held.record.id.pos
    }

    /// Its sequence number.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.held.record.id.seq
    }

    /// Epoch of the mount that wrote it.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.held.record.id.epoch
    }

    /// Highest sequence number known durable when it was laid.
    #[must_use]
    pub fn flushed_seq(&self) -> u64 {
        self.held.record.id.flushed_seq
    }

    /// Log blocks that it takes.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.held.blocks
    }

    /// Bytes of its entries and covered runs.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        self.held.record.body_bytes
    }

    /// The parts of it, one per block, in the order in which they are applied.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = EntryItem<'_>> {
        let bytes = self.held.bytes.as_bytes();
        let entries = Entries::of(&self.held.record, bytes);
        entries.map(move |entry| EntryItem { entry, bytes })
    }
}

/// A record's entry of one block.
#[derive(Clone, Copy, Debug)]
pub struct EntryItem<'a> {
    entry: Entry,
    bytes: &'a [u8],
}

impl<'a> EntryItem<'a> {
    /// The block.
    #[must_use]
    pub fn block(&self) -> BlockNo {
        BlockNo(self.entry.at)
    }

    /// The patches begin with zeros instead of the block's old contents.
    #[must_use]
    pub fn zero(&self) -> bool {
        self.entry.zero
    }

    /// The block was freed: earlier patches of it are void.
    #[must_use]
    pub fn revoke(&self) -> bool {
        self.entry.revoke
    }

    /// Kind of the block.
    #[must_use]
    pub fn kind(&self) -> Kind {
        if self.entry.meta {
            Kind::Meta
        } else {
            Kind::Data
        }
    }

    /// The checksum of a metadata block after this record.
    #[must_use]
    pub fn checksum(&self) -> Option<u64> {
        (self.entry.meta && !self.entry.revoke).then_some(self.entry.checksum)
    }

    /// Byte ranges: offset in the block, and the bytes.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = (usize, &'a [u8])> {
        self.entry.ranges(self.bytes)
    }

    /// Runs of bits: first bit of the block, count, value.
    pub fn bit_runs(&self) -> impl ExactSizeIterator<Item = (usize, usize, bool)> {
        self.entry.bits(self.bytes)
    }
}

/// A run of blocks written around the log.
#[derive(Clone, Debug)]
pub struct CoveredItem {
    /// First block.
    pub at: BlockNo,
    /// Number of blocks.
    pub count: u64,
    /// Their hash when the record was laid.
    pub hash: [u8; 32],
    /// Whether the blocks match the hash now.
    pub state: CoveredState,
}

/// Whether covered blocks match their record.
#[derive(Clone, Debug)]
pub enum CoveredState {
    /// They do.
    Holds,
    /// They do not: they never reached the disk, or were overwritten once the record was proved.
    Differs,
    /// The device could not read them.
    Unreadable(Error),
}

/// End of the chain of valid records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Position of the record that is not there.
    pub pos: u64,
    /// Its block.
    pub at: BlockNo,
    /// The sequence number that it would have.
    pub seq: u64,
    /// Reason why it is none.
    pub why: String,
}

/// Result of a dump.
#[derive(Clone, Debug)]
pub struct LogSummary {
    /// Records shown.
    pub records: u64,
    /// Log blocks that they take.
    pub log_blocks: u64,
    /// Highest sequence number that something valid proves durable.
    pub proved_seq: u64,
    /// End of the chain; absent when no tail header says where it begins.
    pub end: Option<LogEnd>,
    /// State that recovery would accept, or the reason of its refusal.
    pub recovery: Result<Recovery>,
}

impl Journal {
    /// Shows the journal on `device` to `each`, item by item. Writes nothing. O(log), and
    /// the blocks that its records cover are read.
    ///
    /// # Errors
    /// [`Error::BadRegion`] alone: everything else that is wrong is part of the dump.
    pub fn dump(
        device: &Arc<dyn BlockDevice>,
        region: &Region,
        volume: &[u8; 16],
        each: &mut dyn FnMut(LogItem<'_>),
    ) -> Result<LogSummary> {
        let config = Config {
            read_only: true,
            ..Config::new(*region, *volume)
        };
        let recovery = match Journal::open(Arc::clone(device), config) {
            Err(error @ Error::BadRegion { .. }) => return Err(error),
            opened => opened.map(|(_, recovery)| recovery),
        };
        let id = Identity::new(*volume);
        let walker = Walker {
            device: &**device,
            region,
            id: &id,
        };
        let mut summary = LogSummary {
            records: 0,
            log_blocks: 0,
            proved_seq: 0,
            end: None,
            recovery,
        };
        let Some(header) = walker.headers(each) else {
            return Ok(summary);
        };
        summary.proved_seq = header.flushed_seq;
        walker.walk(&header, &mut |held| {
            summary.proved_seq = summary.proved_seq.max(held.record.id.flushed_seq);
        });
        let last = summary.recovery.as_ref().map_or(0, |r| r.last_seq);
        let proved = summary.proved_seq;
        summary.end = Some(walker.walk(&header, &mut |held| {
            let id = held.record.id;
            summary.records += 1;
            summary.log_blocks += held.blocks;
            let covered = held.record.covered.iter();
            each(LogItem::Record(RecordItem {
                held,
                at: region.log.offset(id.pos % region.log_blocks),
                proved: id.seq <= proved,
                accepted: id.seq <= last,
                covered: covered.map(|run| walker.covered(run)).collect(),
            }));
        }));
        Ok(summary)
    }
}

struct Walker<'a> {
    device: &'a dyn BlockDevice,
    region: &'a Region,
    id: &'a Identity,
}

impl Walker<'_> {
    /// Shows both headers; returns the one that counts, if the log can be read from it.
    fn headers(&self, each: &mut dyn FnMut(LogItem<'_>)) -> Option<TailHeader> {
        let found = self
            .region
            .headers
            .map(|at| match read_header(self.device, at, self.id) {
                Ok(Ok(header)) => HeaderFound::Valid(header),
                Ok(Err(refusal)) => HeaderFound::Refused(refusal),
                Err(error) => HeaderFound::Unreadable(error),
            });
        let generation = |found: &HeaderFound| match found {
            HeaderFound::Valid(header) => Some(header.generation),
            _ => None,
        };
        let newer = usize::from(generation(&found[1]) > generation(&found[0]));
        let mut newest = None;
        for (slot, found) in found.into_iter().enumerate() {
            let counts = slot == newer && generation(&found).is_some();
            if let HeaderFound::Valid(header) = &found
                && counts
            {
                newest = Some(*header);
            }
            each(LogItem::Header(HeaderItem {
                slot,
                at: self.region.headers[slot],
                found,
                counts,
            }));
        }
        newest.filter(|header| makes_sense(header, self.region))
    }

    /// Hands the chain of valid records from the tail on to `each`; returns the chain's end.
    fn walk(&self, header: &TailHeader, each: &mut dyn FnMut(&Held)) -> LogEnd {
        let (mut pos, mut seq) = (header.tail_pos, header.tail_seq);
        loop {
            match self.record(header, pos, seq) {
                Ok(held) => {
                    each(&held);
                    pos += held.blocks;
                    seq += 1;
                }
                Err(why) => {
                    let at = self.region.log.offset(pos % self.region.log_blocks);
                    return LogEnd { pos, at, seq, why };
                }
            }
        }
    }

    /// The record expected at `pos`, or why there is none.
    fn record(&self, header: &TailHeader, pos: u64, seq: u64) -> std::result::Result<Held, String> {
        if header.verdict.is_some_and(|(_, end_seq)| seq >= end_seq) {
            return Err("an earlier recovery's verdict ends the log here".to_owned());
        }
        let room = self.region.log_blocks - (pos - header.tail_pos);
        if room == 0 {
            return Err("the records fill the log".to_owned());
        }
        let read = |blocks| {
            read_log(self.device, self.region, pos, blocks).map_err(|error| error.to_string())
        };
        let first = read(1)?;
        let claim =
            RecordClaim::read(self.id, first.as_bytes()).map_err(|refusal| refusal.to_string())?;
        let differs = |what: &str, found: u64, expected: u64| {
            Err(format!("it has {what} {found}, not {expected}"))
        };
        if claim.id.epoch != header.record_epoch {
            return differs("epoch", claim.id.epoch, header.record_epoch);
        }
        if claim.id.seq != seq {
            return differs("sequence number", claim.id.seq, seq);
        }
        if claim.id.pos != pos {
            return differs("position", claim.id.pos, pos);
        }
        if claim.blocks > room {
            return Err(format!(
                "it claims {} blocks, only {room} are left before the tail",
                claim.blocks
            ));
        }
        let bytes = if claim.blocks == 1 {
            first
        } else {
            read(claim.blocks)?
        };
        let homes = Homes {
            region: self.region,
            device_blocks: self.device.geometry().blocks,
        };
        // The bytes that are shown are those that are judged.
        let same = |read: &RecordClaim| read.id == claim.id && read.blocks == claim.blocks;
        match decode_expected(self.id, bytes.as_bytes(), homes, same) {
            Ok(Some((record, _))) => Ok(Held {
                record,
                blocks: claim.blocks,
                bytes,
            }),
            Ok(None) => Err(Refusal::Hash.to_string()),
            Err(Error::Corrupt { what }) => Err(what),
            Err(error) => Err(error.to_string()),
        }
    }

    fn covered(&self, run: &Covered) -> CoveredItem {
        CoveredItem {
            at: run.at,
            count: u64::from(run.count),
            hash: run.hash,
            state: match covered_holds(self.device, self.id, run) {
                Ok(true) => CoveredState::Holds,
                Ok(false) => CoveredState::Differs,
                Err(error) => CoveredState::Unreadable(error),
            },
        }
    }
}
