//! Prints the log line by line as it is read, or as one JSON value.

use std::path::Path;

use serde::Serialize;
use steadfast_journal::{
    CoveredItem, CoveredState, EntryItem, HeaderFound, HeaderItem, Kind, LogItem, LogSummary,
    RecordItem, TailHeader,
};

use super::BLOCK;
use crate::failure::Failure;
use crate::volume::{self, VolumeMap};
use crate::{size, text};

/// Amount of detail of a record.
#[derive(Clone, Copy)]
pub(super) struct Detail {
    pub(super) entries: bool,
    pub(super) bytes: bool,
}

/// The whole log, as in the JSON output.
#[derive(Serialize)]
pub(super) struct Log {
    headers: Vec<Header>,
    records: Vec<Record>,
    record_count: u64,
    record_blocks: u64,
    proved_sequence: u64,
    end: Option<End>,
    recovery: Recovery,
}

#[derive(Serialize)]
struct Header {
    block: u64,
    /// `valid`, `invalid` or `unreadable`.
    state: &'static str,
    why: Option<String>,
    counts: bool,
    #[serde(flatten)]
    fields: Option<Fields>,
}

#[derive(Serialize)]
struct Fields {
    generation: u64,
    epoch: u64,
    record_epoch: u64,
    tail_position: u64,
    tail_sequence: u64,
    flushed_sequence: u64,
    clean: bool,
    verdict: Option<Verdict>,
}

#[derive(Serialize)]
struct Verdict {
    end_position: u64,
    end_sequence: u64,
}

#[derive(Serialize)]
struct Record {
    position: u64,
    block: u64,
    sequence: u64,
    epoch: u64,
    flushed_sequence: u64,
    blocks: u64,
    body_bytes: u64,
    proved: bool,
    accepted: bool,
    entries: Vec<Entry>,
    covered: Vec<Covered>,
}

#[derive(Serialize)]
struct Entry {
    block: u64,
    kind: &'static str,
    zero: bool,
    revoke: bool,
    checksum: Option<String>,
    ranges: Vec<Range>,
    bit_runs: Vec<BitRun>,
}

#[derive(Serialize)]
struct Range {
    offset: usize,
    length: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<String>,
}

#[derive(Serialize)]
struct BitRun {
    first: usize,
    count: usize,
    value: bool,
}

#[derive(Serialize)]
struct Covered {
    block: u64,
    blocks: u64,
    hash: String,
    /// `holds`, `differs` or `unreadable`.
    state: &'static str,
    why: Option<String>,
}

#[derive(Serialize)]
struct End {
    position: u64,
    block: u64,
    sequence: u64,
    why: String,
}

#[derive(Serialize)]
struct Recovery {
    /// `clean`, `replays` or `refuses`.
    outcome: &'static str,
    records: u64,
    log_blocks: u64,
    home_blocks: u64,
    last_sequence: Option<u64>,
    resumed: bool,
    /// Reason for the end of the log, or for its refusal.
    why: String,
}

/// The whole log as one value.
pub(super) fn gather(
    image: &Path,
    device: &volume::Device,
    map: &VolumeMap,
    detail: Detail,
) -> Result<Log, Failure> {
    let (mut headers, mut records) = (Vec::new(), Vec::new());
    let summary = volume::dump_log(image, device, map, &mut |item| match item {
        LogItem::Header(item) => headers.push(header(&item)),
        LogItem::Record(item) => records.push(record(&item, detail)),
    })?;
    Ok(Log {
        headers,
        records,
        record_count: summary.records,
        record_blocks: summary.log_blocks,
        proved_sequence: summary.proved_seq,
        recovery: recovery(&summary),
        end: summary.end.map(|end| End {
            position: end.pos,
            block: end.at.0,
            sequence: end.seq,
            why: end.why,
        }),
    })
}

fn header(item: &HeaderItem) -> Header {
    let (state, why, fields) = match &item.found {
        HeaderFound::Valid(header) => ("valid", None, Some(fields(header))),
        HeaderFound::Refused(refusal) => ("invalid", Some(refusal.to_string()), None),
        HeaderFound::Unreadable(error) => ("unreadable", Some(error.to_string()), None),
    };
    Header {
        block: item.at.0,
        state,
        why,
        counts: item.counts,
        fields,
    }
}

fn fields(header: &TailHeader) -> Fields {
    Fields {
        generation: header.generation,
        epoch: header.epoch,
        record_epoch: header.record_epoch,
        tail_position: header.tail_pos,
        tail_sequence: header.tail_seq,
        flushed_sequence: header.flushed_seq,
        clean: header.clean,
        verdict: header.verdict.map(|(end_position, end_sequence)| Verdict {
            end_position,
            end_sequence,
        }),
    }
}

fn record(item: &RecordItem<'_>, detail: Detail) -> Record {
    Record {
        position: item.position(),
        block: item.at.0,
        sequence: item.sequence(),
        epoch: item.epoch(),
        flushed_sequence: item.flushed_seq(),
        blocks: item.blocks(),
        body_bytes: item.body_bytes(),
        proved: item.proved,
        accepted: item.accepted,
        entries: item.entries().map(|e| entry(&e, detail)).collect(),
        covered: item.covered.iter().map(covered).collect(),
    }
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Meta => "metadata",
        Kind::Data => "data",
    }
}

fn entry(item: &EntryItem<'_>, detail: Detail) -> Entry {
    let range = |(offset, bytes): (usize, &[u8])| Range {
        offset,
        length: bytes.len(),
        bytes: detail.bytes.then(|| text::hex(bytes)),
    };
    let bit_run = |(first, count, value)| BitRun {
        first,
        count,
        value,
    };
    Entry {
        block: item.block().0,
        kind: kind(item.kind()),
        zero: item.zero(),
        revoke: item.revoke(),
        checksum: item.checksum().map(|sum| format!("{sum:016x}")),
        ranges: item.ranges().map(range).collect(),
        bit_runs: item.bit_runs().map(bit_run).collect(),
    }
}

fn covered(item: &CoveredItem) -> Covered {
    let (state, why) = match &item.state {
        CoveredState::Holds => ("holds", None),
        CoveredState::Differs => ("differs", None),
        CoveredState::Unreadable(error) => ("unreadable", Some(error.to_string())),
    };
    Covered {
        block: item.at.0,
        blocks: item.count,
        hash: text::hex(&item.hash),
        state,
        why,
    }
}

fn recovery(summary: &LogSummary) -> Recovery {
    match &summary.recovery {
        Ok(found) => Recovery {
            outcome: if found.clean { "clean" } else { "replays" },
            records: found.records,
            log_blocks: found.log_blocks,
            home_blocks: found.home_blocks,
            last_sequence: Some(found.last_seq),
            resumed: found.resumed,
            why: found.end.clone(),
        },
        Err(error) => Recovery {
            outcome: "refuses",
            records: 0,
            log_blocks: 0,
            home_blocks: 0,
            last_sequence: None,
            resumed: false,
            why: error.to_string(),
        },
    }
}

/// The log, line by line.
pub(super) fn print(
    image: &Path,
    device: &volume::Device,
    map: &VolumeMap,
    detail: Detail,
) -> Result<(), Failure> {
    let mut printed = Ok(());
    let mut say = |lines: &str| {
        if printed.is_ok() {
            printed = text::print(lines);
        }
    };
    let summary = volume::dump_log(image, device, map, &mut |item| match item {
        LogItem::Header(item) => say(&header_line(&item)),
        LogItem::Record(item) => say(&record_lines(&item, detail)),
    })?;
    if let Some(end) = &summary.end {
        say(&format!(
            "end of the log at position {} (block {}), no record {}: {}",
            end.pos, end.at, end.seq, end.why
        ));
    }
    let found = recovery(&summary);
    say(&match found.outcome {
        "clean" => "recovery: nothing to do, the volume was closed".to_owned(),
        "refuses" => format!("recovery: refused: {}", found.why),
        _ => format!(
            "recovery: {} records ({}) accepted, {} blocks ({}) brought up to date{}",
            found.records,
            size::show(found.log_blocks * BLOCK),
            found.home_blocks,
            size::show(found.home_blocks * BLOCK),
            if found.resumed {
                "; it finishes an earlier recovery".to_owned()
            } else {
                format!("; {}", found.why)
            }
        ),
    });
    printed
}

fn header_line(item: &HeaderItem) -> String {
    let name = format!("tail header {} (block {})", item.slot, item.at);
    match &item.found {
        HeaderFound::Refused(refusal) => format!("{name}: not valid: {refusal}"),
        HeaderFound::Unreadable(error) => format!("{name}: {error}"),
        HeaderFound::Valid(header) => {
            let mut line = format!(
                "{name}: generation {}, epoch {}, tail at position {} with record {} of epoch {}, \
                 durable up to record {}",
                header.generation,
                header.epoch,
                header.tail_pos,
                header.tail_seq,
                header.record_epoch,
                header.flushed_seq
            );
            if let Some((pos, seq)) = header.verdict {
                line += &format!(", verdict: ends before record {seq} at position {pos}");
            }
            if header.clean {
                line += ", closed cleanly";
            }
            if item.counts {
                line += "; this one counts";
            }
            line
        }
    }
}

fn record_lines(item: &RecordItem<'_>, detail: Detail) -> String {
    let proof = match (item.accepted, item.proved) {
        (true, true) => "durable",
        (true, false) => "whole",
        (false, _) => "not accepted",
    };
    let mut lines = format!(
        "record {} at position {} (block {}): epoch {}, after record {} was durable, {} in {} \
         block(s), {} entries, {} covered runs; {proof}",
        item.sequence(),
        item.position(),
        item.at,
        item.epoch(),
        item.flushed_seq(),
        size::show(item.body_bytes()),
        item.blocks(),
        item.entries().len(),
        item.covered.len()
    );
    if detail.entries {
        for entry in item.entries() {
            lines += &entry_lines(&entry, detail);
        }
        for run in &item.covered {
            lines += "\n";
            lines += &covered_line(run, item.proved);
        }
    }
    lines
}

fn entry_lines(item: &EntryItem<'_>, detail: Detail) -> String {
    let mut lines = format!("\n  block {}", item.block());
    if item.revoke() {
        return lines + ": freed, earlier patches are void";
    }
    lines += &format!(" ({})", kind(item.kind()));
    if let Some(sum) = item.checksum() {
        lines += &format!(", checksum {sum:016x}");
    }
    if item.zero() {
        lines += ", from zeros";
    }
    for (offset, bytes) in item.ranges() {
        lines += &format!("\n    {} B at offset {offset}", bytes.len());
        if detail.bytes {
            lines += &format!(": {}", text::hex(bytes));
        }
    }
    for (first, count, value) in item.bit_runs() {
        lines += &format!(
            "\n    {count} bit(s) from bit {first} on = {}",
            u8::from(value)
        );
    }
    lines
}

fn covered_line(run: &CoveredItem, proved: bool) -> String {
    let state = match &run.state {
        CoveredState::Holds => "they hold what the hash says".to_owned(),
        CoveredState::Differs if proved => {
            "they hold something else, as they may once the record is durable".to_owned()
        }
        CoveredState::Differs => "they do not hold what the hash says".to_owned(),
        CoveredState::Unreadable(error) => error.to_string(),
    };
    format!(
        "  covers {} block(s) from block {} on: {state}",
        run.count, run.at
    )
}
