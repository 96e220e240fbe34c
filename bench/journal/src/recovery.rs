//! Recovery of a full log: one process fills it and ends without a word, a fresh one recovers.

use crate::device::{HomeStalled, open_file};
use crate::figures::{Clocks, Figures};
use crate::volume::{Layout, OBJECTS_PER_BLOCK, contents, log_credits, object};
use std::path::Path;
use std::sync::Arc;
use steadfast_block::{BLOCK_SIZE, BlockDevice as _};
use steadfast_journal::{Journal, Kind, Result, StreamId};

/// 256 MiB of log; its objects lie in 64 MiB.
const LAYOUT: Layout = Layout {
    log_blocks: 65536,
    meta_blocks: 16384,
    data_blocks: 0,
};
/// Operations in a record: about 240 KiB.
const RECORD_OPERATIONS: u64 = 1500;
/// Full is 15/16: a running transaction needs room as well.
const FULL: (u64, u64) = (15, 16);
const STRIDE: u64 = 7919;

/// Fills the log and leaves it: home writes never return, and the caller ends the process.
pub(crate) fn fill(path: &Path) -> std::result::Result<Figures, String> {
    fill_layout(path, LAYOUT)
}

/// Opens the journal that [`fill`] left.
pub(crate) fn recover(path: &Path) -> std::result::Result<Figures, String> {
    recover_layout(path, LAYOUT)
}

fn fill_layout(path: &Path, layout: Layout) -> std::result::Result<Figures, String> {
    let device = open_file(path)?;
    let has = device.geometry().blocks;
    if has < layout.blocks() {
        return Err(format!(
            "{} has {has} blocks, the measure needs {}",
            path.display(),
            layout.blocks()
        ));
    }
    layout.format(&device)?;
    let device = Arc::new(HomeStalled {
        device,
        journal_end: layout.journal_end(),
    });
    let opened = Journal::open(device, layout.config());
    let (journal, _) = opened.map_err(|e| e.to_string())?;
    // The checkpointer takes the first checkpoint and never comes back.
    journal.start_workers();
    let mut turn = 0;
    loop {
        let record = RECORD_OPERATIONS.min(layout.log_blocks);
        write_record(&journal, &layout, turn, record).map_err(|e| e.to_string())?;
        turn += record;
        let (tail, head, _) = journal.usage();
        if (head - tail) * FULL.1 >= layout.log_blocks * FULL.0 {
            return Ok(Figures::default()
                .with("operations", turn as f64)
                .with("log_blocks", (head - tail) as f64));
        }
    }
}

fn write_record(journal: &Journal, layout: &Layout, first: u64, operations: u64) -> Result<()> {
    for turn in first..first + operations {
        let index = turn * STRIDE % (layout.meta_blocks * OBJECTS_PER_BLOCK);
        let (block, offset) = object(0, index);
        let mut op = journal.begin(StreamId(1), log_credits(160))?;
        op.write(layout.meta(block), Kind::Meta, offset, &contents(turn))?;
        let _ = op.commit();
    }
    journal.sync(StreamId(1), &[])
}

fn recover_layout(path: &Path, layout: Layout) -> std::result::Result<Figures, String> {
    let device = Arc::new(open_file(path)?);
    let before_kib = status_kib("VmRSS")?;
    let clocks = Clocks::start();
    let opened = Journal::open(device, layout.config());
    let (cpu, wall) = (clocks.cpu_seconds(), clocks.wall_seconds());
    let peak_kib = status_kib("VmHWM")?;
    let (_journal, recovery) = opened.map_err(|e| e.to_string())?;
    if recovery.log_blocks * FULL.1 < layout.log_blocks * FULL.0 {
        return Err(format!(
            "only {} of {} log blocks were recovered ({}): run `fill` first",
            recovery.log_blocks, layout.log_blocks, recovery.end
        ));
    }
    let mib = (recovery.log_blocks as usize * BLOCK_SIZE) as f64 / f64::from(1 << 20);
    Ok(Figures::default()
        .with("cpu_seconds_per_256_mib", cpu * 256.0 / mib)
        .with("wall_seconds_per_256_mib", wall * 256.0 / mib)
        .with("memory_mib", (peak_kib - before_kib) / 1024.0)
        .with("log_mib", mib)
        .with("records", recovery.records as f64)
        .with("home_blocks", recovery.home_blocks as f64))
}

/// A figure of this process from the kernel, in KiB.
fn status_kib(name: &str) -> std::result::Result<f64, String> {
    let path = "/proc/self/status";
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .ok_or_else(|| format!("{path} does not tell {name}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SMALL: Layout = Layout {
        log_blocks: 1024,
        meta_blocks: 256,
        data_blocks: 0,
    };

    #[test]
    fn a_full_log_is_recovered_whole_and_an_empty_one_is_no_measure() {
        let dir = std::env::temp_dir();
        let path = dir.join(format!("steadfast-bench-{}.img", std::process::id()));
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(SMALL.blocks() * BLOCK_SIZE as u64).unwrap();
        let copy = path.with_extension("copy");
        let filled = fill_layout(&path, SMALL);
        // The journal that filled it holds the file until this process ends.
        std::fs::copy(&path, &copy).unwrap();
        let recovered = recover_layout(&copy, SMALL);
        let again = recover_layout(&copy, SMALL);
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&copy).unwrap();
        assert!(filled.unwrap().get("log_blocks") >= 960.0);
        let recovered = recovered.unwrap();
        assert!(recovered.get("records") > 1.0);
        assert!(recovered.get("home_blocks") > 200.0);
        assert!(recovered.get("cpu_seconds_per_256_mib") > 0.0);
        assert!(again.is_err());
    }
}
