//! Recovery: scan, verdict, replay.
//!
//! Order, and why a cut anywhere is harmless:
//! 1. read both tail headers; the newer valid one counts;
//! 2. scan from the tail, reads only: the chain ends at the first invalid record or, past the
//!    highest sequence that something valid proves durable, at the first record whose
//!    covered blocks do not match;
//! 3. flush: the bytes read may have come from a volatile cache (kill -9 is a cut whose caches
//!    survive);
//! 4. write the verdict into the older header, under a new epoch; flush. From here on every
//!    recovery accepts exactly these records, whatever else becomes valid;
//! 5. replay: patches after a block's newest revoke, applied in order to its home (or to
//!    zeros); checksums compared; written home; flush;
//! 6. write the header of the empty log under the new epoch; flush. Only then the first record.
//!
//! Up to step 4 nothing was written, so the next recovery sees the same. After it, replay is
//! repeated from the same records, which nothing overwrites before step 6 is durable.
//!
//! A tail header that is not valid, or not the predecessor of the other one, was never written,
//! or was cut while it was written, and the other one counts; or it has rotted. The log tells: the first record of an
//! epoch comes after that epoch's header is durable, so a record of a later epoch than the
//! header's proves that a newer header is lost. Going on with the older one would forget
//! committed operations.
//!
//! An invalid record is *corruption* only if something valid proves that it was durable: a
//! header or a later record with `flushed_seq` at or past it. Else it ends the log.

use crate::cache::Cache;
use crate::checkpoint::log_runs;
use crate::codec::scan::Scan;
use crate::codec::tail;
use crate::engine::WRITE_BLOCKS_MAX;
use crate::layout::{Homes, Identity, Refusal, TailHeader};
use crate::record::{Covered, Record, RecordClaim, decode_expected};
use crate::replay::{Held, Made, Replay};
use crate::{Config, Error, Region, Result};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, BlockBuf, BlockDevice, BlockNo};

/// Laps of the log that are hashed in search of records past a gap, before the search is given
/// up: each block may claim to begin a record as long as the log.
const SEARCH_LAPS_MAX: u64 = 8;

/// Runs of home blocks that one request carries.
const WRITE_RUNS_MAX: usize = 1024;

/// Findings and actions of opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The journal had been closed cleanly.
    pub clean: bool,
    /// An earlier recovery was cut after its verdict and has been finished.
    pub resumed: bool,
    /// Epoch of this mount.
    pub epoch: u64,
    /// Records accepted.
    pub records: u64,
    /// Log blocks they take.
    pub log_blocks: u64,
    /// Blocks brought up to date at their homes (or in memory, read-only).
    pub home_blocks: u64,
    /// Sequence number of the last record accepted (or before the tail, if none was).
    pub last_seq: u64,
    /// Reason why the log ends there.
    pub end: String,
}

impl Recovery {
    /// Result where there is no log.
    #[must_use]
    pub fn without_log() -> Recovery {
        Recovery {
            clean: true,
            epoch: 1,
            end: "there is no log".into(),
            ..Recovery::default()
        }
    }
}

/// Content of a tail header's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderState {
    /// A header of this volume.
    Valid(TailHeader),
    /// Zeros: never written.
    Blank,
    /// Something else.
    Invalid,
}

/// The losses of a recovery that goes on past damage; see `Journal::salvage`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvage {
    /// Losses, in words.
    pub losses: Vec<String>,
    /// Metadata blocks that do not lead to their logged checksums. They were left without a valid seal.
    pub rotten: Vec<BlockNo>,
}

/// Position from which the log goes on.
pub(crate) struct Start {
    pub(crate) epoch: u64,
    pub(crate) generation: u64,
    pub(crate) newer_header: usize,
    pub(crate) pos: u64,
    pub(crate) seq: u64,
}

/// Without a log there is nothing to recover: the device has the state of the last batch.
pub(crate) fn nothing() -> (Recovery, Start) {
    let start = Start {
        epoch: 1,
        generation: 0,
        newer_header: 0,
        pos: 0,
        seq: 1,
    };
    (Recovery::without_log(), start)
}

/// Writes an empty journal.
pub(crate) fn format(device: &dyn BlockDevice, region: &Region, id: &Identity) -> Result<()> {
    let zeros = BlockBuf::zeroed(WRITE_BLOCKS_MAX);
    let mut done = 0;
    while done < region.log_blocks {
        let n = (region.log_blocks - done).min(WRITE_BLOCKS_MAX as u64);
        device.write(
            region.log.offset(done),
            &[&zeros.as_bytes()[..n as usize * BLOCK_SIZE]],
        )?;
        done += n;
    }
    let header = TailHeader {
        generation: 1,
        epoch: 1,
        record_epoch: 1,
        tail_pos: 0,
        tail_seq: 1,
        verdict: None,
        flushed_seq: 0,
        clean: true,
    };
    device.write(region.headers[0], &[&header.encode(id)[..]])?;
    device.write(region.headers[1], &[&zeros.as_bytes()[..BLOCK_SIZE]])?;
    device.flush()?;
    Ok(())
}

/// Whether headers and log hold nothing but zeros: there never was a journal, or nothing is left of it.
fn is_blank(device: &dyn BlockDevice, region: &Region) -> Result<bool> {
    let log = (0..region.log_blocks)
        .step_by(WRITE_BLOCKS_MAX)
        .map(|done| {
            let count = (region.log_blocks - done).min(WRITE_BLOCKS_MAX as u64);
            (region.log.offset(done), count)
        });
    let mut buffer = BlockBuf::zeroed(WRITE_BLOCKS_MAX);
    for (at, count) in region.headers.into_iter().map(|at| (at, 1)).chain(log) {
        let bytes = &mut buffer.as_bytes_mut()[..count as usize * BLOCK_SIZE];
        device.read(at, bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

struct Recoverer<'a> {
    device: &'a Arc<dyn BlockDevice>,
    config: &'a Config,
    id: &'a Identity,
    region: Region,
    /// Present: damage is noted here, and is not fatal where something can be recovered in spite of it.
    salvage: Option<RefCell<&'a mut Salvage>>,
    /// Log blocks that the search past a gap may still hash.
    search: Cell<u64>,
}

/// The tail header in block `at`, or why there is none.
pub(crate) fn read_header(
    device: &dyn BlockDevice,
    at: BlockNo,
    id: &Identity,
) -> Result<std::result::Result<TailHeader, Refusal>> {
    let mut block = BlockBuf::zeroed(1);
    device.read(at, block.as_bytes_mut())?;
    Ok(TailHeader::decode(id, block.as_bytes()))
}

/// Reads both tail headers.
pub(crate) fn read_headers(
    device: &dyn BlockDevice,
    region: &Region,
    id: &Identity,
) -> Result<[HeaderState; 2]> {
    let mut states = [HeaderState::Blank; 2];
    for (state, at) in states.iter_mut().zip(&region.headers) {
        *state = match read_header(device, *at, id)? {
            Ok(header) => HeaderState::Valid(header),
            Err(Refusal::Blank) => HeaderState::Blank,
            Err(_) => HeaderState::Invalid,
        };
    }
    Ok(states)
}

/// Whether the numbers of a header can be computed with.
pub(crate) fn makes_sense(header: &TailHeader, region: &Region) -> bool {
    tail::makes_sense(header, region.log_blocks)
}

/// Reads log blocks, around the end of the log if need be.
pub(crate) fn read_log(
    device: &dyn BlockDevice,
    region: &Region,
    pos: u64,
    blocks: u64,
) -> Result<BlockBuf> {
    let mut buf = BlockBuf::zeroed(blocks as usize);
    for (at, range) in log_runs(region, pos, blocks) {
        let bytes = range.start as usize * BLOCK_SIZE..range.end as usize * BLOCK_SIZE;
        device.read(at, &mut buf.as_bytes_mut()[bytes])?;
    }
    Ok(buf)
}

/// Whether the blocks of a covered run match its hash.
pub(crate) fn covered_holds(
    device: &dyn BlockDevice,
    id: &Identity,
    run: &Covered,
) -> Result<bool> {
    let mut buf = BlockBuf::zeroed(run.count as usize);
    device.read(run.at, buf.as_bytes_mut())?;
    let (blocks, _) = buf.as_bytes().as_chunks::<BLOCK_SIZE>();
    Ok(id.covered_hash(run.at, blocks.iter()) == run.hash)
}

/// Recovers a journal; see the module's header.
pub(crate) fn recover(
    device: &Arc<dyn BlockDevice>,
    config: &Config,
    id: &Identity,
    cache: &Cache,
    salvage: Option<&mut Salvage>,
) -> Result<(Recovery, Start)> {
    let this = Recoverer {
        device,
        config,
        id,
        region: config.region,
        salvage: salvage.map(RefCell::new),
        search: Cell::new(SEARCH_LAPS_MAX * config.region.log_blocks),
    };
    let (header, newer) = this.newest_header()?;
    let (chain, end) = match header.verdict {
        Some((_, end_seq)) => (
            this.judged(&header, end_seq)?,
            "at an earlier recovery's verdict".to_owned(),
        ),
        None => this.scan(&header)?,
    };
    let tail = header.tail_pos;
    let end_pos = tail + chain.iter().map(|h| h.blocks).sum::<u64>();
    let end_seq = header.tail_seq + chain.len() as u64;
    let mut recovery = Recovery {
        clean: header.clean && chain.is_empty(),
        resumed: header.verdict.is_some(),
        epoch: header.epoch + 1,
        records: chain.len() as u64,
        log_blocks: end_pos - tail,
        home_blocks: 0,
        last_seq: end_seq - 1,
        end,
    };
    let mut start = Start {
        epoch: header.epoch + 1,
        generation: header.generation,
        newer_header: newer,
        pos: end_pos,
        seq: end_seq,
    };
    if config.read_only {
        recovery.home_blocks = this.replay(&chain, &mut |made| {
            let (images, _) = made.bytes.as_chunks::<BLOCK_SIZE>();
            for ((at, kind), image) in made.blocks.iter().zip(images) {
                cache.begin_life(*at, *kind, Arc::new(*image));
            }
            Ok(())
        })?;
        return Ok((recovery, start));
    }
    if !config.faults.replay_before_verdict {
        device.flush()?;
    }
    if !chain.is_empty() {
        if header.verdict.is_none() && !config.faults.replay_before_verdict {
            let verdict = tail::judged(&header, end_pos, end_seq);
            this.write_header(&mut start, &verdict)?;
        }
        recovery.home_blocks = this.replay(&chain, &mut |made| {
            for runs in made.runs().chunks(WRITE_RUNS_MAX) {
                let runs: Vec<(BlockNo, [&[u8]; 1])> =
                    runs.iter().map(|(at, bytes)| (*at, [*bytes])).collect();
                let writes: Vec<(BlockNo, &[&[u8]])> =
                    runs.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
                device.write_scattered(&writes)?;
            }
            Ok(())
        })?;
        device.flush()?;
    }
    let fresh = tail::empty(start.generation, start.epoch, end_pos, end_seq);
    this.write_header(&mut start, &fresh)?;
    Ok((recovery, start))
}

impl Recoverer<'_> {
    fn newest_header(&self) -> Result<(TailHeader, usize)> {
        let read = [
            read_header(&**self.device, self.region.headers[0], self.id)?,
            read_header(&**self.device, self.region.headers[1], self.id)?,
        ];
        let valid = |slot: usize| read[slot].as_ref().ok();
        let best = tail::newest([valid(0), valid(1)]);
        let Some((header, slot)) = best.and_then(|slot| Some((*valid(slot)?, slot))) else {
            let why = |slot: usize| {
                let at = self.region.headers[slot];
                let why = read[slot].err().unwrap_or(Refusal::Fields);
                format!("block {at}: {why}")
            };
            if is_blank(&**self.device, &self.region)? {
                return Err(Error::NotFormatted);
            }
            return Err(Error::Corrupt {
                what: format!("neither tail header is valid ({}; {})", why(0), why(1)),
            });
        };
        if !makes_sense(&header, &self.region) {
            return Err(Error::Corrupt {
                what: format!(
                    "the tail header in block {} contradicts itself: {header:?}",
                    self.region.headers[slot]
                ),
            });
        }
        if !valid(1 - slot).is_some_and(|other| tail::follows(&header, other))
            && let Some(epoch) = self.later_epoch(&header)?
        {
            return Err(Error::Corrupt {
                what: format!(
                    "the tail header in block {} is lost, and the log has records of epoch \
                     {epoch}, which the other header does not know",
                    self.region.headers[1 - slot]
                ),
            });
        }
        Ok((header, slot))
    }

    /// The epoch of a valid record that is later than the header's, if there is one.
    fn later_epoch(&self, header: &TailHeader) -> Result<Option<u64>> {
        let mut at = 0;
        while at < self.region.log_blocks {
            let n = (self.region.log_blocks - at).min(WRITE_BLOCKS_MAX as u64);
            let buf = self.read_log(at, n)?;
            for (i, block) in buf.as_bytes().chunks_exact(BLOCK_SIZE).enumerate() {
                let here = |c: &RecordClaim| {
                    c.id.epoch > header.epoch
                        && c.id.pos % self.region.log_blocks == at + i as u64
                        && c.blocks <= self.region.log_blocks
                };
                if let Some(claim) = RecordClaim::read(self.id, block).ok().filter(here)
                    && self.may_search(&claim)?
                    && let Some((held, _)) =
                        self.record_at(claim.id.pos, |c| c.id.pos == claim.id.pos && here(c))?
                {
                    return Ok(Some(held.record.id.epoch));
                }
            }
            at += n;
        }
        Ok(None)
    }

    /// Whether one more claim past a gap may be looked into.
    fn may_search(&self, claim: &RecordClaim) -> Result<bool> {
        let rest = self.search.get().checked_sub(claim.blocks);
        self.search.set(rest.unwrap_or(0));
        if rest.is_none() {
            self.lose(format!(
                "the log at block {} is full of starts of records that are none",
                self.region.log
            ))?;
        }
        Ok(rest.is_some())
    }

    /// Notes a loss if this recovery goes on past damage, else returns it as the error.
    fn lose(&self, what: String) -> Result<()> {
        match &self.salvage {
            Some(salvage) => {
                let losses = &mut salvage.borrow_mut().losses;
                if losses.last() != Some(&what) {
                    losses.push(what);
                }
                Ok(())
            }
            None => Err(Error::Corrupt { what }),
        }
    }

    fn write_header(&self, start: &mut Start, header: &TailHeader) -> Result<()> {
        let slot = 1 - start.newer_header;
        self.device
            .write(self.region.headers[slot], &[&header.encode(self.id)[..]])?;
        self.device.flush()?;
        start.newer_header = slot;
        start.generation = header.generation;
        Ok(())
    }

    fn read_log(&self, pos: u64, blocks: u64) -> Result<BlockBuf> {
        read_log(&**self.device, &self.region, pos, blocks)
    }

    /// The valid record at `pos`, if it is the one expected there. The first block's claim only
    /// decides how much to read: a second read of the medium may return something else.
    fn record_at(
        &self,
        pos: u64,
        expected: impl Fn(&RecordClaim) -> bool,
    ) -> Result<Option<(Held, RecordClaim)>> {
        let first = self.read_log(pos, 1)?;
        let claim = RecordClaim::read(self.id, first.as_bytes());
        let Some(claim) = claim.ok().filter(&expected) else {
            return Ok(None);
        };
        let bytes = if claim.blocks == 1 {
            first
        } else {
            self.read_log(pos, claim.blocks)?
        };
        let homes = Homes {
            region: &self.region,
            device_blocks: self.device.geometry().blocks,
        };
        let decoded = match decode_expected(self.id, bytes.as_bytes(), homes, expected) {
            Err(Error::Corrupt { what }) => {
                self.lose(what)?;
                None
            }
            decoded => decoded?,
        };
        Ok(decoded.map(|(record, claim)| {
            let held = Held {
                record,
                blocks: claim.blocks,
                bytes,
            };
            (held, claim)
        }))
    }

    /// The next record of the scan; the scan advances past it.
    fn next(&self, scan: &mut Scan) -> Result<Option<Held>> {
        if scan.room() == 0 {
            return Ok(None);
        }
        let found = self.record_at(scan.pos, |claim| scan.expects(claim))?;
        Ok(found.map(|(held, claim)| {
            scan.take(&claim);
            held
        }))
    }

    /// The records of an earlier recovery's verdict: all of them must be there.
    fn judged(&self, header: &TailHeader, end_seq: u64) -> Result<Vec<Held>> {
        let mut chain = Vec::new();
        let mut scan = Scan::new(header, self.region.log_blocks);
        while scan.seq < end_seq {
            let Some(held) = self.next(&mut scan)? else {
                self.lose(format!(
                    "log record {} at position {} was accepted by an earlier recovery and is damaged now",
                    scan.seq, scan.pos
                ))?;
                break;
            };
            chain.push(held);
        }
        Ok(chain)
    }

    fn scan(&self, header: &TailHeader) -> Result<(Vec<Held>, String)> {
        let mut chain: Vec<Held> = Vec::new();
        let mut scan = Scan::new(header, self.region.log_blocks);
        while let Some(held) = self.next(&mut scan)? {
            chain.push(held);
        }
        let Scan {
            pos, seq, proved, ..
        } = scan;
        if proved >= seq {
            self.lose(self.damaged(pos, seq, "a header or record proves that it was durable"))?;
        } else if !(header.clean && chain.is_empty())
            && let Some(later) = self.later_record(header, &scan)?
        {
            let why = format!("record {later} after it is valid");
            if self.config.faults.replay_past_bad {
                return Ok((chain, why));
            }
            self.lose(self.damaged(pos, seq, &why))?;
        }
        let mut end = format!("no valid record {seq} at log position {pos}");
        if !self.config.faults.skip_covered_check {
            let unproved = chain
                .iter()
                .position(|h| h.record.id.seq > proved)
                .unwrap_or(chain.len());
            for i in unproved..chain.len() {
                if let Some(at) = self.covered_mismatch(&chain[i].record)? {
                    end = format!(
                        "record {} is not whole: the blocks it covers at {at} had not reached the disk",
                        chain[i].record.id.seq
                    );
                    chain.truncate(i);
                    break;
                }
            }
        }
        Ok((chain, end))
    }

    fn damaged(&self, pos: u64, seq: u64, why: &str) -> String {
        let at = self.region.log.offset(pos % self.region.log_blocks);
        format!("log record {seq} at block {at} is damaged ({why}): the medium lost committed data")
    }

    /// Sequence number of a valid record after the gap that ended the scan, if there is one in this lap. It may
    /// reach over the tail: then a newer header, which freed that space, is lost.
    fn later_record(&self, header: &TailHeader, scan: &Scan) -> Result<Option<u64>> {
        let lap_end = scan.lap_end();
        let mut at = scan.pos + 1;
        while at < lap_end {
            let n = (lap_end - at).min(WRITE_BLOCKS_MAX as u64);
            let buf = self.read_log(at, n)?;
            for (i, block) in buf.as_bytes().chunks_exact(BLOCK_SIZE).enumerate() {
                let candidate = at + i as u64;
                let plausible = |c: &RecordClaim| {
                    c.id.pos == candidate
                        && c.id.epoch == header.record_epoch
                        && c.id.seq > scan.seq
                        && c.blocks <= self.region.log_blocks
                };
                if let Some(claim) = RecordClaim::read(self.id, block).ok().filter(plausible)
                    && self.may_search(&claim)?
                    && let Some((held, _)) = self.record_at(candidate, plausible)?
                {
                    return Ok(Some(held.record.id.seq));
                }
            }
            at += n;
        }
        Ok(None)
    }

    /// The first covered run whose blocks do not match the record.
    fn covered_mismatch(&self, record: &Record) -> Result<Option<BlockNo>> {
        for run in &record.covered {
            if !covered_holds(&**self.device, self.id, run)? {
                return Ok(Some(run.at));
            }
        }
        Ok(None)
    }

    /// Makes every block that the chain patches, and hands them to `put`.
    fn replay(&self, chain: &[Held], put: &mut dyn FnMut(Made<'_>) -> Result<()>) -> Result<u64> {
        let replay = Replay::new(&**self.device, &self.config.volume, chain);
        let rotten = &mut |at| {
            self.lose(format!(
                "block {at} does not lead to its logged checksum: the medium damaged it"
            ))?;
            if let Some(salvage) = &self.salvage {
                salvage.borrow_mut().rotten.push(at);
            }
            Ok(())
        };
        replay.run(rotten, put)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::record::{RecordId, RecordWriter};
    use crate::{Journal, Kind};
    use steadfast_block::{DeviceError, Geometry, MemDevice};

    const REGION: Region = Region {
        headers: [BlockNo(0), BlockNo(1)],
        log: BlockNo(2),
        log_blocks: 64,
    };
    const VOLUME: [u8; 16] = [7; 16];

    /// A medium that shows the log's first block as it once was, and then as it is now.
    struct Flickering {
        medium: MemDevice,
        once: Vec<u8>,
    }

    impl BlockDevice for Flickering {
        fn geometry(&self) -> Geometry {
            self.medium.geometry()
        }

        fn read(&self, at: BlockNo, buf: &mut [u8]) -> std::result::Result<(), DeviceError> {
            self.medium.read(at, buf)?;
            if at == REGION.log && buf.len() == BLOCK_SIZE {
                buf.copy_from_slice(&self.once[..BLOCK_SIZE]);
            }
            Ok(())
        }

        fn write(&self, at: BlockNo, segments: &[&[u8]]) -> std::result::Result<(), DeviceError> {
            self.medium.write(at, segments)
        }

        fn flush(&self) -> std::result::Result<(), DeviceError> {
            self.medium.flush()
        }

        fn discard(&self, at: BlockNo, count: u64) -> std::result::Result<(), DeviceError> {
            self.medium.discard(at, count)
        }
    }

    /// A record of two blocks that fills block 70 with `byte`.
    fn record(seq: u64, byte: u8) -> Vec<u8> {
        let mut writer = RecordWriter::new(BLOCK_SIZE);
        let image = [byte; BLOCK_SIZE];
        writer.patches(BlockNo(70), false, None, &[(0, BLOCK_SIZE)], &[], &image);
        let id = RecordId {
            epoch: 1,
            seq,
            pos: 0,
            flushed_seq: 0,
        };
        let buf = writer.finish(&Identity::new(VOLUME), id);
        buf.as_bytes().to_vec()
    }

    /// The record's first block was read, found to be the expected one, and read again with the
    /// others: the accepted record was only known to be one of this volume.
    #[test]
    fn the_record_that_is_accepted_is_the_one_whose_bytes_were_checked() {
        for (seq, accepted) in [(1, 1), (9, 0)] {
            let medium = MemDevice::new(80);
            Journal::format(&medium, &REGION, &VOLUME).unwrap();
            medium.write(REGION.log, &[&record(seq, 0xee)]).unwrap();
            let device: Arc<dyn BlockDevice> = Arc::new(Flickering {
                medium,
                once: record(1, 0x11),
            });
            let config = Config {
                read_only: true,
                ..Config::new(REGION, VOLUME).without_workers()
            };
            let (journal, recovery) = Journal::open(Arc::clone(&device), config).unwrap();
            assert_eq!(recovery.records, accepted, "{}", recovery.end);
            let expected = if accepted == 1 { 0xee } else { 0 };
            let block = journal.read(BlockNo(70), Kind::Data).unwrap();
            assert!(block.iter().all(|byte| *byte == expected));
        }
    }
}
