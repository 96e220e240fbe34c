//! Checks of volumes that are not mounted.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use steadfast_fs::{FsckOptions, Outcome};

use super::{Device, fs_failure, memory};
use crate::failure::Failure;

/// One finding of a check.
#[derive(Serialize)]
pub(crate) struct Finding {
    pub(crate) kind: &'static str,
    pub(crate) severity: String,
    /// The damaged block, or the first one.
    pub(crate) block: Option<u64>,
    pub(crate) inode: Option<u64>,
    /// One of the inode's names, from the root directory on.
    pub(crate) path: Option<String>,
    /// The details.
    pub(crate) detail: String,
    /// Action of a repair.
    pub(crate) repair: &'static str,
    /// The whole finding in a sentence.
    pub(crate) text: String,
}

/// Result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Nothing is wrong.
    Clean,
    /// Something was wrong and has been put right.
    Repaired,
    /// Something is wrong.
    DamageLeft,
}

/// Findings and counts of a check.
pub(crate) struct Checked {
    pub(crate) verdict: Verdict,
    /// All findings, repaired or not.
    pub(crate) findings: Vec<Finding>,
    /// Findings that are left after a repair.
    pub(crate) left: Vec<Finding>,
    /// Findings that were only counted.
    pub(crate) left_out: u64,
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) others: u64,
    pub(crate) used_blocks: u64,
    pub(crate) blocks: u64,
}

impl Checked {
    /// Whether a finding concerns names, attributes or contents of files, or was only counted.
    pub(crate) fn concerns_content(&self) -> bool {
        let damage = steadfast_fs::Severity::Damage.to_string();
        self.left_out > 0
            || self
                .findings
                .iter()
                .any(|finding| finding.severity == damage)
    }
}

/// Checks a volume, and repairs it if asked to. Closes it.
pub(crate) fn check(
    image: &Path,
    device: Device,
    repair: bool,
    progress: impl Fn(&str, u64, u64) + Send + Sync + 'static,
) -> Result<Checked, Failure> {
    let device = match device {
        Device::Block(device) => device,
        Device::Memory(region) => return memory::check(image, region, repair, progress),
    };
    let options = FsckOptions {
        repair,
        progress: Some(Arc::new(move |p| progress(p.step, p.done, p.total))),
        ..FsckOptions::default()
    };
    let report = steadfast_fs::fsck(device, &options).map_err(|e| fs_failure(image, &e))?;
    let shown = |finding: &steadfast_fs::Finding| Finding {
        kind: finding.problem.name(),
        severity: finding.severity().to_string(),
        block: finding.place.block.map(|block| block.0),
        inode: finding.place.ino,
        path: finding.place.path.clone(),
        detail: finding.detail.clone(),
        repair: finding.problem.repair(),
        text: finding.to_string(),
    };
    Ok(Checked {
        verdict: match report.outcome() {
            Outcome::Clean => Verdict::Clean,
            Outcome::Repaired => Verdict::Repaired,
            Outcome::DamageLeft => Verdict::DamageLeft,
        },
        findings: report
            .findings
            .iter()
            .chain(&report.further)
            .map(shown)
            .collect(),
        left: report.left.iter().map(shown).collect(),
        left_out: report.left_out,
        files: report.usage.files,
        directories: report.usage.directories,
        others: report.usage.others,
        used_blocks: report.usage.used,
        blocks: report.usage.blocks,
    })
}
