//! Bodies of the fuzz targets: conditions that hold for any bytes that a codec or a recovery reads.
//! A violation is a panic. Behind the feature `fuzz`; no part of the public interface.
//!
//! The hashes are keyed by the volume's identity, which lies open in every image: so the
//! bodies seal the bytes that they mutate, to reach the code after the checks. Offsets are those of
//! `layout`'s byte map, written down a second time.

use crate::layout::{Homes, Identity, TailHeader};
use crate::record::{
    Covered, Entries, RECORD_HEADER_BYTES, Record, RecordClaim, RecordId, RecordWriter,
    decode_record,
};
use crate::recover::{makes_sense, read_header};
use crate::seal::{META_BYTES, seal};
use crate::{Config, Credits, Error, Journal, Kind, LogItem, Recovery, Region, Result, StreamId};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use steadfast_block::{BLOCK_SIZE, Block, BlockDevice, BlockNo, DeviceOp, MemDevice};
use steadfast_sim::{Fault, SimDevice};

const VOLUME: [u8; 16] = *b"a fuzzed volume!";
const REGION: Region = Region {
    headers: [BlockNo(0), BlockNo(1)],
    log: BlockNo(2),
    log_blocks: 64,
};
/// First block of metadata, after the log.
const META: u64 = 66;
/// First block of data.
const DATA: u64 = 74;
const BLOCKS: u64 = 96;
const HOMES: Homes<'static> = Homes {
    region: &REGION,
    device_blocks: BLOCKS,
};

/// The fuzzer's bytes as a source of decisions; zeros when they are used up.
struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn word(&mut self, bytes: usize) -> u64 {
        let mut word = [0; 8];
        let taken = self.bytes(bytes);
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    fn below(&mut self, n: usize) -> usize {
        self.word(2) as usize % n
    }

    fn yes(&mut self) -> bool {
        self.word(1) & 1 == 1
    }

    fn block(&mut self) -> Block {
        let seed = self.word(8) | 1;
        let mut block = [0; BLOCK_SIZE];
        for (i, word) in block.chunks_exact_mut(8).enumerate() {
            let mixed = seed.wrapping_mul(i as u64 * 2 + 1).rotate_left(i as u32);
            word.copy_from_slice(&mixed.to_le_bytes());
        }
        block
    }
}

/// Gives a header's block the hash that its fields need.
fn seal_header(id: &Identity, block: &mut [u8]) {
    block[96..128].fill(0);
    let hash = *id.hasher().update(&block[..128]).finalize().as_bytes();
    block[96..128].copy_from_slice(&hash);
}

/// Gives a record that lies in one piece the hash that its bytes need.
fn seal_record(id: &Identity, buf: &mut [u8]) {
    let body = u32::from_le_bytes([buf[64], buf[65], buf[66], buf[67]]) as usize;
    buf[80..112].fill(0);
    let end = buf.len().min(RECORD_HEADER_BYTES + body);
    let hash = *id.hasher().update(&buf[..end]).finalize().as_bytes();
    buf[80..112].copy_from_slice(&hash);
}

/// The same for the headers and records of any volume, whose mount and check are fuzzed.
pub fn reseal_header(volume: [u8; 16], block: &mut Block) {
    seal_header(&Identity::new(volume), block);
}

/// See [`reseal_header`]; the record lies in one piece.
pub fn reseal_record(volume: [u8; 16], record: &mut [u8]) {
    seal_record(&Identity::new(volume), record);
}

/// Any bytes as a tail header; any fields there and back.
pub fn tail_header(data: &[u8]) {
    let id = Identity::new(VOLUME);
    let _ = TailHeader::decode(&id, data);

    let mut block = [0; BLOCK_SIZE];
    let len = data.len().min(BLOCK_SIZE);
    block[..len].copy_from_slice(&data[..len]);
    block[..12].copy_from_slice(b"STDFTAIL\x01\0\0\0");
    block[16..32].copy_from_slice(&VOLUME);
    seal_header(&id, &mut block);
    if let Ok(header) = TailHeader::decode(&id, &block) {
        assert_eq!(TailHeader::decode(&id, &header.encode(&id)[..]), Ok(header));
        assert!(TailHeader::decode(&Identity::new([9; 16]), &block).is_err());
    } else {
        assert!(
            block[12] > 3 || block[13..16] != [0; 3],
            "a valid header was refused"
        );
    }

    let mut choices = Choices(data);
    let header = TailHeader {
        generation: choices.word(8),
        epoch: choices.word(8),
        record_epoch: choices.word(8),
        tail_pos: choices.word(8),
        tail_seq: choices.word(8),
        flushed_seq: choices.word(8),
        verdict: (choices.yes()).then(|| (choices.word(8), choices.word(8))),
        clean: choices.yes(),
    };
    let mut block = header.encode(&id);
    assert_eq!(TailHeader::decode(&id, &block[..]), Ok(header));
    block[choices.below(128)] ^= 1 << choices.below(8);
    assert!(TailHeader::decode(&id, &block[..]).is_err());
}

/// Any bytes as a record; any body under a valid hash; any entries encoded and decoded.
pub fn record(data: &[u8]) {
    let id = Identity::new(VOLUME);
    let _ = RecordClaim::read(&id, data);
    let _ = decode_record(&id, data, HOMES);
    sealed_body(&id, data);
    written_record(&id, &mut Choices(data));
}

fn sealed_body(id: &Identity, data: &[u8]) {
    let mut choices = Choices(data);
    let (entries, covered) = (choices.word(1) as u32, choices.word(1) as u32);
    let body = choices.0;
    let blocks = (RECORD_HEADER_BYTES + body.len()).div_ceil(BLOCK_SIZE);
    let mut buf = vec![0; blocks * BLOCK_SIZE];
    buf[..12].copy_from_slice(b"STDFRECD\x01\0\0\0");
    buf[16..32].copy_from_slice(&VOLUME);
    for (at, field) in [
        (64, body.len() as u32),
        (68, blocks as u32),
        (72, entries),
        (76, covered),
    ] {
        buf[at..at + 4].copy_from_slice(&field.to_le_bytes());
    }
    buf[112..112 + body.len()].copy_from_slice(body);
    seal_record(id, &mut buf);
    match decode_record(id, &buf, HOMES) {
        Ok(Some(record)) => use_record(&record, &buf),
        Ok(None) => unreachable!("the hash holds"),
        Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
    }
}

/// Uses a decoded record as recovery may.
fn use_record(record: &Record, buf: &[u8]) {
    let mut image = [0; BLOCK_SIZE];
    for entry in Entries::of(record, buf) {
        assert!(entry.at >= META && entry.at < BLOCKS);
        entry.apply(buf, &mut image);
    }
    for run in &record.covered {
        assert!(run.count == 0 || run.at.0 >= META && run.at.0 + u64::from(run.count) <= BLOCKS);
    }
}

/// Changes of one block that were handed to a writer.
struct Written {
    at: u64,
    zero: bool,
    checksum: Option<u64>,
    ranges: Vec<(usize, usize)>,
    bits: Vec<(usize, usize)>,
    image: Block,
}

impl Written {
    fn choose(choices: &mut Choices<'_>) -> Written {
        let runs = |choices: &mut Choices<'_>, end: usize| {
            let (mut at, mut runs) = (0, Vec::new());
            for _ in 0..choices.below(4) {
                let from = at + choices.below(600);
                let len = 1 + choices.below(600);
                at = from + len;
                if at <= end {
                    runs.push((from, len));
                }
            }
            runs
        };
        Written {
            at: META + choices.below((BLOCKS - META) as usize) as u64,
            zero: choices.yes(),
            checksum: choices.yes().then(|| choices.word(8)),
            ranges: runs(choices, BLOCK_SIZE),
            bits: runs(choices, BLOCK_SIZE * 8),
            image: choices.block(),
        }
    }

    /// Applies the patches to `image`.
    fn apply(&self, image: &mut Block) {
        if self.zero {
            *image = [0; BLOCK_SIZE];
        }
        for &(from, len) in &self.ranges {
            image[from..from + len].copy_from_slice(&self.image[from..from + len]);
        }
        for &(from, len) in &self.bits {
            for bit in from..from + len {
                let mask = 1 << (bit % 8);
                image[bit / 8] = image[bit / 8] & !mask | self.image[bit / 8] & mask;
            }
        }
    }
}

fn written_record(id: &Identity, choices: &mut Choices<'_>) {
    let mut writer = RecordWriter::new(BLOCK_SIZE);
    let mut written = Vec::new();
    for _ in 0..choices.below(5) {
        if choices.word(1) < 40 {
            let at = META + choices.below((BLOCKS - META) as usize) as u64;
            writer.revoke(BlockNo(at));
            written.push(Err(at));
        } else {
            let w = Written::choose(choices);
            let at = BlockNo(w.at);
            writer.patches(at, w.zero, w.checksum, &w.ranges, &w.bits, &w.image);
            written.push(Ok(w));
        }
    }
    let mut covered = Vec::new();
    for _ in 0..choices.below(3) {
        let at = META + choices.below((BLOCKS - META) as usize) as u64;
        covered.push(Covered {
            at: BlockNo(at),
            count: choices.below((BLOCKS - at) as usize + 1) as u32,
            hash: [choices.word(1) as u8; 32],
        });
        writer.covered(&covered[covered.len() - 1]);
    }
    let record_id = RecordId {
        epoch: choices.word(8),
        seq: choices.word(8),
        pos: choices.word(8),
        flushed_seq: choices.word(8),
    };
    let mut buf = writer.finish(id, record_id);
    let decoded = decode_record(id, buf.as_bytes(), HOMES);
    let Ok(Some(record)) = decoded else {
        unreachable!("what was written is a record");
    };
    assert_eq!(record.id, record_id);
    assert_eq!(record.covered, covered);
    assert_eq!(record.entries, written.len());
    let base = choices.block();
    let entries = Entries::of(&record, buf.as_bytes());
    for (entry, written) in entries.zip(&written) {
        match written {
            Err(at) => assert!(entry.revoke && entry.at == *at),
            Ok(w) => {
                assert!(!entry.revoke && entry.at == w.at && entry.zero == w.zero);
                assert_eq!(entry.meta.then_some(entry.checksum), w.checksum);
                let (mut found, mut expected) = (base, base);
                entry.apply(buf.as_bytes(), &mut found);
                w.apply(&mut expected);
                assert!(found == expected, "patches of block {} differ", w.at);
            }
        }
    }
    let used = RECORD_HEADER_BYTES + record.body_bytes as usize;
    let mut torn = buf.as_bytes().to_vec();
    torn[choices.below(used)] ^= 1 << choices.below(8);
    assert!(!matches!(decode_record(id, &torn, HOMES), Ok(Some(_))));

    // Fields that make no sense, under a valid hash.
    let buf = buf.as_bytes_mut();
    for _ in 0..=choices.below(3) {
        let near = choices.yes();
        let at = RECORD_HEADER_BYTES + choices.below(if near { 64 } else { BLOCK_SIZE });
        if at < used {
            buf[at] = choices.word(1) as u8;
        }
    }
    seal_record(id, buf);
    match decode_record(id, buf, HOMES) {
        Ok(Some(record)) => use_record(&record, buf),
        Ok(None) => unreachable!("the hash holds"),
        Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
    }
}

/// Any damage to a log or its headers, sealed or not: recovery gives an error or a state, the
/// same one read-only, for writing, and the next time. Returns how many records were accepted.
pub fn recovery(data: &[u8]) -> Option<u64> {
    let mut choices = Choices(data);
    let bases = bases();
    let base = &bases[choices.below(bases.len())];
    let mut bytes = base.clone();
    for _ in 0..=choices.below(5) {
        mutate(&mut choices, &mut bytes, base);
    }
    if choices.word(1) == 77 {
        bytes.truncate(choices.below(BLOCKS as usize + 1) * BLOCK_SIZE);
    }
    check_salvage(&bytes);
    check_recovery(&bytes)
}

/// The seeds of the corpus are decisions, as any bytes are: these are the images that they change.
fn bases() -> &'static [Vec<u8>] {
    static BASES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    BASES.get_or_init(|| match make_bases() {
        Ok(bases) => bases,
        Err(error) => unreachable!("a valid log could not be made: {error}"),
    })
}

fn config(read_only: bool) -> Config {
    Config {
        read_only,
        cache_blocks_max: 64,
        ..Config::new(REGION, VOLUME).without_workers()
    }
}

/// One operation that depends on `i`: sealed blocks patched, zeroed, freed; data in the log and around it.
fn operation(journal: &Journal, i: u64) -> Result<()> {
    let credits = Credits {
        log_bytes: 20_000,
        data_blocks: 4,
    };
    let mut op = journal.begin(StreamId(0), credits)?;
    let meta = BlockNo(META + i % 7);
    op.write(meta, Kind::Meta, (i as usize * 40) % 4000, &[i as u8; 30])?;
    op.set_bits(BlockNo(META + 7), 100 + i as usize, 3, true)?;
    let data = |n: u64| BlockNo(DATA + n % (BLOCKS - DATA));
    let image = Arc::new([i as u8; BLOCK_SIZE]);
    match i % 5 {
        0 => op.write_around(data(2 * i), vec![image; 2])?,
        1 => op.free(data(2 * i - 2), 1)?,
        2 => op.zero(data(2 * i + 1), Kind::Data)?,
        3 => {
            for n in 0..3 {
                op.write(data(2 * i + n), Kind::Data, 0, &[i as u8; 3000])?;
            }
        }
        _ => {}
    }
    let _ = op.commit();
    journal.sync_all()
}

/// A fresh log; one after a checkpoint; one that wraps; one with a verdict; a closed one.
fn make_bases() -> Result<Vec<Vec<u8>>> {
    let device = Arc::new(MemDevice::new(BLOCKS));
    Journal::format(&*device, &REGION, &VOLUME)?;
    for at in META..DATA {
        let mut block = [0; BLOCK_SIZE];
        seal(&VOLUME, BlockNo(at), &mut block);
        device.write(BlockNo(at), &[&block])?;
    }
    let (journal, _) = Journal::open(device.clone(), config(false))?;
    let mut bases = Vec::new();
    for i in 1..=6 {
        operation(&journal, i)?;
    }
    bases.push(device.to_bytes());
    journal.checkpoint()?;
    for i in 7..=11 {
        operation(&journal, i)?;
    }
    bases.push(device.to_bytes());
    for i in 12..=40 {
        journal.checkpoint()?;
        operation(&journal, i)?;
    }
    for i in 41..=46 {
        operation(&journal, i)?;
    }
    bases.push(device.to_bytes());

    // The first write of a recovery is its verdict, the second goes home.
    let cut = SimDevice::from_image(steadfast_sim::Image::from_bytes(&device.to_bytes()));
    let cut = Arc::new(cut);
    cut.inject(Fault::nth(DeviceOp::Write, 2));
    assert!(Journal::open(cut.clone(), config(false)).is_err());
    bases.push(cut.image().to_bytes());

    journal.close()?;
    bases.push(device.to_bytes());
    Ok(bases)
}

/// Changes a header or a log block, and seals it again or not.
fn mutate(choices: &mut Choices<'_>, bytes: &mut [u8], base: &[u8]) {
    let log = |choices: &mut Choices<'_>| 2 + choices.below(64);
    let index = match choices.below(4) {
        0 => choices.below(2),
        _ => log(choices),
    };
    let other = log(choices);
    let block = &mut bytes[index * BLOCK_SIZE..(index + 1) * BLOCK_SIZE];
    match choices.below(6) {
        0 => block[choices.below(300)] = choices.word(1) as u8,
        1 => {
            let at = 8 * choices.below(40);
            let old = block[at..at + 8]
                .iter()
                .rev()
                .fold(0, |n, b| n << 8 | u64::from(*b));
            let new = match choices.below(8) {
                0 => 0,
                1 => old.wrapping_add(1),
                2 => old.wrapping_sub(1),
                3 => u64::MAX,
                4 => u64::MAX / 4 - choices.below(3) as u64,
                5 => choices.below(100) as u64,
                6 => old ^ 1 << choices.below(64),
                _ => choices.word(8),
            };
            block[at..at + 8].copy_from_slice(&new.to_le_bytes());
        }
        2 => {
            let at = choices.below(BLOCK_SIZE);
            let new = choices.bytes((BLOCK_SIZE - at).min(48));
            block[at..at + new.len()].copy_from_slice(new);
        }
        3 => block.copy_from_slice(&base[other * BLOCK_SIZE..(other + 1) * BLOCK_SIZE]),
        4 => block[512 * choices.below(8)..].fill(0),
        _ => {
            let at = 64 + 4 * choices.below(4);
            let small = choices.yes();
            let new = choices.word(if small { 1 } else { 4 }) as u32;
            block[at..at + 4].copy_from_slice(&new.to_le_bytes());
        }
    }
    if choices.yes() {
        reseal(bytes);
    }
}

/// Seals both headers and everything in the log that begins like a record.
fn reseal(bytes: &mut [u8]) {
    let id = Identity::new(VOLUME);
    for slot in 0..2 {
        seal_header(&id, &mut bytes[slot * BLOCK_SIZE..]);
    }
    let log = &mut bytes[2 * BLOCK_SIZE..META as usize * BLOCK_SIZE];
    for start in (0..log.len()).step_by(BLOCK_SIZE) {
        if let Ok(claim) = RecordClaim::read(&id, &log[start..start + BLOCK_SIZE])
            && claim.blocks <= REGION.log_blocks
        {
            log.rotate_left(start);
            seal_record(&id, &mut log[..claim.blocks as usize * BLOCK_SIZE]);
            log.rotate_right(start);
        }
    }
}

fn typed(error: &Error) {
    assert!(
        matches!(error, Error::Corrupt { .. } | Error::BadRegion { .. }),
        "{error}"
    );
}

fn open(device: &Arc<MemDevice>, read_only: bool) -> Result<(Journal, Recovery)> {
    let opened = Journal::open(device.clone(), config(read_only));
    if let Err(error) = &opened {
        typed(error);
    }
    opened
}

/// The blocks outside the journal.
fn homes(device: &MemDevice) -> Vec<u8> {
    let bytes = device.to_bytes();
    bytes[bytes.len().min(META as usize * BLOCK_SIZE)..].to_vec()
}

/// Whether the image is one that the journal does not protect against: its log holds a record that
/// the next mount could take for one of its own, or a header's numbers are so near their end that there is
/// no next mount.
fn foresees(bytes: &[u8], epoch: u64) -> bool {
    let id = Identity::new(VOLUME);
    let device = MemDevice::from_bytes(bytes);
    let ends = |at: BlockNo| {
        read_header(&device, at, &id).is_ok_and(|header| {
            header.is_ok_and(|header| {
                let later = TailHeader {
                    generation: header.generation.saturating_add(8),
                    epoch: header.epoch.saturating_add(8),
                    ..header
                };
                makes_sense(&header, &REGION) && !makes_sense(&later, &REGION)
            })
        })
    };
    if REGION.headers.into_iter().any(ends) {
        return true;
    }
    let log = &bytes[2 * BLOCK_SIZE..META as usize * BLOCK_SIZE];
    log.chunks_exact(BLOCK_SIZE)
        .filter_map(|block| RecordClaim::read(&id, block).ok())
        .any(|claim| claim.id.epoch >= epoch)
}

fn check_recovery(bytes: &[u8]) -> Option<u64> {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let seen = open(&device, true);
    let (dumped, sums) = dump(&device);
    assert!(device.to_bytes() == bytes, "reading changed something");
    let text = |r: &Result<Recovery>| format!("{r:?}");
    let recovery = seen.as_ref().map(|(_, r)| r.clone()).map_err(Clone::clone);
    assert_eq!(text(&recovery), text(&dumped));

    let opened = open(&device, false);
    let replayed = opened
        .as_ref()
        .map(|(_, r)| r.clone())
        .map_err(Clone::clone);
    assert_eq!(text(&recovery), text(&replayed));
    let blocks = homes(&device);
    let Ok((journal, recovery)) = seen else {
        assert!(bytes.ends_with(&blocks), "a refused log changed something");
        assert!(open(&device, false).is_err());
        return None;
    };
    for (at, home) in (META..).zip(blocks.chunks_exact(BLOCK_SIZE)) {
        if let Some(Some(sum)) = sums.get(&at) {
            assert!(
                home[META_BYTES + 8..] == sum.to_le_bytes(),
                "block {at} has rotted"
            );
        }
        let mut block = [0; BLOCK_SIZE];
        let read = journal.read_data(BlockNo(at), &mut block);
        assert!(read.is_ok() && block == home, "block {at} differs");
    }
    drop(opened);
    if !foresees(bytes, recovery.epoch) {
        let again = open(&device, false);
        assert!(
            again.is_ok_and(|(_, again)| again.records == 0 && again.last_seq == recovery.last_seq)
        );
        assert!(
            homes(&device) == blocks,
            "a second recovery changed something"
        );
    }
    Some(recovery.records)
}

/// Dumps everything; returns the dump's verdict on recovery, and the newest checksums.
fn dump(device: &Arc<MemDevice>) -> (Result<Recovery>, HashMap<u64, Option<u64>>) {
    let mut sums = HashMap::new();
    let (mut headers, mut records, mut accepted) = (0, 0, 0);
    let device: Arc<dyn BlockDevice> = device.clone();
    let summary = Journal::dump(&device, &REGION, &VOLUME, &mut |item| match item {
        LogItem::Header(_) => headers += 1,
        LogItem::Record(record) => {
            records += 1;
            accepted += u64::from(record.accepted);
            let mut bytes = 0;
            for entry in record.entries() {
                bytes += entry.ranges().map(|(_, bytes)| bytes.len()).sum::<usize>();
                assert!(entry.bit_runs().all(|(at, n, _)| at + n <= BLOCK_SIZE * 8));
            }
            assert!(bytes as u64 <= record.body_bytes());
            // A revoke counts for all of its record.
            for revoke in [false, true] {
                let entries = record.entries().filter(|e| e.revoke() == revoke);
                for entry in entries.filter(|_| record.accepted) {
                    sums.insert(entry.block().0, entry.checksum());
                }
            }
        }
    });
    let summary = match summary {
        Ok(summary) => summary,
        Err(error) => return (Err(error), sums),
    };
    assert_eq!((headers, records), (2, summary.records));
    if let Ok(recovery) = &summary.recovery {
        assert_eq!(recovery.records, accepted);
        assert!(summary.end.is_some());
        let known = recovery.resumed || summary.proved_seq <= recovery.last_seq;
        assert!(known, "a durable record was forgotten");
    }
    (summary.recovery, sums)
}

/// A salvage leaves a log that opens.
fn check_salvage(bytes: &[u8]) {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    match Journal::salvage(device.clone(), config(false)) {
        Err(error) => typed(&error),
        Ok((journal, recovery, salvage)) => {
            drop(journal);
            if salvage.losses.is_empty() {
                assert!(open(&Arc::new(MemDevice::from_bytes(bytes)), true).is_ok());
            }
            assert!(foresees(bytes, recovery.epoch) || open(&device, false).is_ok());
        }
    }
}
