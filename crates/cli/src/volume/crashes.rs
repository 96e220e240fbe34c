//! Crash exploration of this stack, for the commands.

use serde::Serialize;

use super::{Contract, Medium};
use crate::failure::Failure;

/// Result of a crash exploration.
#[derive(Serialize)]
pub(crate) struct Explored {
    pub(crate) on: &'static str,
    pub(crate) contract: &'static str,
    pub(crate) seed: u64,
    pub(crate) images: u64,
    pub(crate) recoveries_cut: u64,
    pub(crate) volumes_used: u64,
    pub(crate) pairs: u64,
    pub(crate) pairs_all: u64,
    pub(crate) triples: u64,
    pub(crate) sequences: u64,
    pub(crate) seconds: f64,
    pub(crate) violations: Vec<String>,
}

/// Explores crashes of this stack. `progress` gets the number of images done, and of all.
pub(crate) fn explore_crashes(
    medium: Medium,
    contract: Contract,
    seed: u64,
    images: u64,
    jobs: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Explored, Failure> {
    let options = steadfast_crash::Options {
        medium,
        contract,
        seed,
        images,
        jobs,
        mutation: None,
    };
    let report = steadfast_crash::explore(&options, &|p| progress(p.images, p.wanted))
        .map_err(|e| Failure::new(format!("crash exploration: {e}")))?;
    Ok(Explored {
        on: match medium {
            Medium::Block => "block",
            Medium::Flash => "flash",
        },
        contract: contract.name(),
        seed,
        images: report.images,
        recoveries_cut: report.recoveries,
        volumes_used: report.used,
        pairs: report.pairs,
        pairs_all: report.pairs_all,
        triples: report.triples,
        sequences: report.sequences,
        seconds: report.elapsed.as_secs_f64(),
        violations: report
            .violations
            .iter()
            .map(|v| format!("{}\n{}", v.what, v.scenario))
            .collect(),
    })
}

/// Crash states of one way to replace a file.
#[derive(Serialize)]
pub(crate) struct PutExplored {
    /// The contract of the volume, or `weakest`: no more than POSIX promises.
    pub(crate) file_system: &'static str,
    pub(crate) variant: String,
    /// Whether the steps are right, so that there must be no violation.
    pub(crate) right: bool,
    /// Whether the file existed before.
    pub(crate) exists: bool,
    /// Whether commits of the volume were put between the steps.
    pub(crate) commits: bool,
    pub(crate) disks: u64,
    pub(crate) exhaustive: bool,
    pub(crate) trees: Vec<PutTree>,
    pub(crate) violations: u64,
    pub(crate) examples: Vec<String>,
    pub(crate) seconds: f64,
}

/// A tree that crashes leave, and the number of disks with it.
#[derive(Serialize)]
pub(crate) struct PutTree {
    pub(crate) text: String,
    pub(crate) disks: u64,
}

/// Explores every crash state of the replacement of a file by this many bytes, and of replacements with bugs, here
/// and on the weakest file system.
pub(crate) fn explore_put(
    contract: Contract,
    bytes: u64,
    tears: bool,
) -> Result<Vec<PutExplored>, Failure> {
    use steadfast_crash::replace::{Options, Variant, explore, explore_weakest};
    let mut all = Vec::new();
    for variant in Variant::ALL {
        for exists in [false, true] {
            for (file_system, commits) in [
                (contract.name(), false),
                (contract.name(), true),
                ("weakest", false),
            ] {
                let options = Options {
                    contract,
                    bytes,
                    exists,
                    commits,
                    tears,
                    variant,
                    mutation: None,
                };
                let explored = match file_system {
                    "weakest" => explore_weakest(&options),
                    _ => explore(&options),
                };
                let report =
                    explored.map_err(|e| Failure::new(format!("crash exploration: {e}")))?;
                let trees = report.trees.into_iter();
                all.push(PutExplored {
                    file_system,
                    variant: variant.text().to_owned(),
                    right: variant == Variant::Whole,
                    exists,
                    commits,
                    disks: report.disks,
                    exhaustive: report.exhaustive,
                    trees: trees
                        .map(|tree| PutTree {
                            text: tree.text,
                            disks: tree.disks,
                        })
                        .collect(),
                    violations: report.violations,
                    examples: report.examples,
                    seconds: report.elapsed.as_secs_f64(),
                });
            }
        }
    }
    Ok(all)
}
