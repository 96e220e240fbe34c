//! Reports of an exploration. A [`Report`] is all of it as a value, in JSON as in `docs/crash-test.schema.json`;
//! text, JUnit, SARIF and HTML are made from it.

mod files;
mod formats;
mod html;
mod html_files;
mod make;
mod points;
mod sources;
#[cfg(test)]
mod tests;
mod text;
mod timeline;

pub use formats::{junit, sarif};
pub use html::html;
pub use make::{About, BlindSpot, make};
pub use text::{explain, text};

use crate::real::confirm::Confirmation;

use crate::effects::{Bits, Effects};
use crate::judge::kin;
use crate::states::{State, Tear, Way};
use serde::{Deserialize, Serialize};
use steadfast_model::Hasher128;

/// Version of the JSON form.
pub const VERSION: u32 = 1;

/// The whole report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Version of this form.
    pub version: u32,
    /// The workload.
    pub command: String,
    /// Calls of the run that have an effect or a meaning.
    pub calls: usize,
    /// Acknowledgements.
    pub acknowledged: usize,
    /// Runs of the checker.
    pub checks: usize,
    /// The models.
    pub models: Vec<ModelReport>,
    /// The findings, worst first.
    pub findings: Vec<FindingReport>,
    /// Power cuts inside recoveries, if they were asked for.
    #[serde(default)]
    pub recovery: Option<RecoveryReport>,
    /// Superfluous syncs, by model, if they were asked for.
    #[serde(default)]
    pub superfluous: Vec<SuperfluousReport>,
    /// Blind spots of the recorder.
    pub blind: Vec<String>,
    /// Reasons to trust the result less: a flaky checker, a budget that ended.
    pub warnings: Vec<String>,
    /// Whether all states with one lost effect were judged.
    pub basic: bool,
    /// Whether a signal ended it.
    pub interrupted: bool,
    /// The steps, for views of the whole run.
    pub steps: Vec<StepReport>,
    /// Source lines of the calls, for pages ([`Report::add_sources`]).
    #[serde(skip)]
    pub sources: Vec<SourceReport>,
}

/// Lines of a source around a line that calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceReport {
    /// The place, as reports write it: `FILE:LINE`.
    pub place: String,
    /// The line that calls.
    pub line: u32,
    /// Number of the first line that is shown.
    pub first: u32,
    /// The lines.
    pub lines: Vec<String>,
}

/// A file that differs after a power cut from what the calls had made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileReport {
    /// Its path.
    pub path: String,
    /// The file as the calls had made it: size or target, and mode. None if there was no such file.
    pub written: Option<String>,
    /// The file as it is found after the cut.
    pub found: Option<String>,
    /// Whether the rows are bytes in hexadecimal, at offsets; else lines, with their numbers.
    pub bytes: bool,
    /// Both contents side by side, where they differ.
    pub rows: Vec<RowReport>,
    /// Whether there are more rows.
    pub cut: bool,
}

/// Content of a file before and after a power cut.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RowReport {
    /// Whether both are the same.
    pub same: bool,
    /// Number or offset, and content, as the calls had made it.
    pub written: Option<(u64, String)>,
    /// The same as it is found.
    pub found: Option<(u64, String)>,
}

/// Losses of a power cut at a point of the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PointReport {
    /// Number of steps before it.
    pub after: usize,
    /// Files that differ from what the calls had made, if only what must survive survives.
    pub files: Vec<FileReport>,
    /// Number of other such files.
    pub more: usize,
}

/// One call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StepReport {
    /// Its number in the trace.
    pub number: u64,
    /// Text of the call.
    pub text: String,
    /// File and line of its caller.
    pub location: Option<Place>,
    /// Thread of the call; 0: unknown.
    #[serde(default)]
    pub thread: u32,
}

impl StepReport {
    /// Number, text and place.
    fn told(&self) -> String {
        let place = self.location.as_ref();
        let place = place.map_or_else(String::new, |l| format!(" ({})", l.text()));
        format!("#{} {}{place}", self.number, self.text)
    }
}

/// A place in a source; in a program without source lines, a function or an address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The file, or what there is instead.
    pub file: String,
    /// The line.
    pub line: Option<u32>,
}

impl Place {
    /// `FILE:LINE`.
    fn text(&self) -> String {
        let file = crate::effects::readable(self.file.as_bytes());
        match self.line {
            Some(line) => format!("{file}:{line}"),
            None => file,
        }
    }
}

/// Result of one model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ModelReport {
    /// Its name.
    pub name: String,
    /// How far it is calibrated.
    pub calibration: String,
    /// Number of different trees.
    pub trees: usize,
    /// Number of judged trees.
    pub judged: usize,
    /// Number of broken trees.
    pub broken: usize,
    /// Number of trees without a verdict.
    pub no_verdict: usize,
    /// The ways in which the states came about.
    pub ways: Vec<WayReport>,
    /// For each step of the run: the number of steps after which it is durable, whatever is lost; -1 if it never is,
    /// None if it changes nothing.
    #[serde(default)]
    pub durable: Vec<Option<i64>>,
    /// Losses of a power cut, point by point, for pages ([`Report::add_points`]).
    #[serde(skip)]
    pub points: Vec<PointReport>,
}

/// States of one way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WayReport {
    /// Name of the way.
    pub way: String,
    /// Number of sets of effects that were formed.
    pub formed: usize,
    /// Number of trees that no earlier way gave.
    pub trees: usize,
    /// Whether nothing was left out.
    pub exhaustive: bool,
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FindingReport {
    /// `V1`, `V2`, …
    pub id: String,
    /// A key, the same for the same finding in other runs: a hash of kind, first line and the calls to blame.
    pub key: String,
    /// `broken` or `acknowledged and lost`.
    pub kind: String,
    /// The first line of the checker's output.
    pub line: String,
    /// The whole output.
    pub output: String,
    /// Whether it is in the baseline.
    pub known: bool,
    /// By model.
    pub under: Vec<UnderReport>,
    /// Models that do not have it.
    pub not_on: Vec<String>,
}

/// A finding under one model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnderReport {
    /// The model.
    pub model: String,
    /// Broken states.
    pub broken: usize,
    /// The last durable effect.
    pub durable: Option<EffectReport>,
    /// Effects that are lost.
    pub lost: Vec<EffectReport>,
    /// The write that is torn.
    pub torn: Option<EffectReport>,
    /// The acknowledgement that does not hold.
    pub acknowledged: Option<String>,
    /// Whether a plain prefix is enough.
    pub prefix: bool,
    /// The repair.
    pub repair: RepairReport,
    /// The state.
    pub state: StateReport,
    /// The files of the state that differ from what the calls had made.
    #[serde(default)]
    pub files: Vec<FileReport>,
    /// Number of other such files.
    #[serde(default)]
    pub more_files: usize,
    /// Result on the real file system, if that was asked for.
    #[serde(default)]
    pub confirmation: Option<ConfirmationReport>,
}

/// Search for a finding on the real file system.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ConfirmationReport {
    /// Number of power cuts.
    pub cuts: usize,
    /// Number of cuts that showed it.
    pub shown: usize,
    /// The result in a line.
    pub line: String,
}

impl From<&Confirmation> for ConfirmationReport {
    fn from(found: &Confirmation) -> ConfirmationReport {
        ConfirmationReport {
            cuts: found.cuts,
            shown: found.shown(),
            line: found.line(),
        }
    }
}

/// Power cuts inside recoveries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// Number of states whose recovery was recorded.
    pub recorded: usize,
    /// Number of recoveries among them that change something.
    pub writing: usize,
    /// Number of judged trees inside them.
    pub judged: usize,
    /// The findings.
    pub findings: Vec<InsideReport>,
}

/// A state inside a recovery that the next recovery does not mend.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InsideReport {
    /// The model on which it was found first.
    pub model: String,
    /// `broken` or `acknowledged and lost`.
    pub kind: String,
    /// The first line of the checker's output.
    pub line: String,
    /// The whole output.
    pub output: String,
    /// Broken states.
    pub broken: usize,
    /// The last call of the run that the recovered state has.
    pub after: Option<EffectReport>,
    /// Calls before it that the recovered state does not have.
    pub without: Vec<EffectReport>,
    /// The last durable effect of the recovery.
    pub durable: Option<EffectReport>,
    /// Effects of the recovery that are lost.
    pub lost: Vec<EffectReport>,
    /// Its write that is torn.
    pub torn: Option<EffectReport>,
}

impl InsideReport {
    /// The same for the same finding in other runs.
    fn key(&self) -> String {
        let mut hash = Hasher128::new(72);
        hash.bytes(self.kind.as_bytes())
            .bytes(kin(&self.line).as_bytes());
        format!("{:016x}", hash.finish() as u64)
    }
}

/// Superfluous syncs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SuperfluousReport {
    /// The model.
    pub model: String,
    /// The syncs; all of them can go at once.
    pub syncs: Vec<StepReport>,
    /// Syncs of the run.
    pub of: usize,
    /// Syncs that were tried.
    pub tried: usize,
}

/// An effect to blame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EffectReport {
    /// The call's number.
    pub call: u64,
    /// `data`, `size`, `entry`, …
    pub class: String,
    /// Text of the call.
    pub text: String,
    /// Place that it came from.
    pub location: Option<Place>,
    /// Bytes of the file, if it is a part of a write.
    pub bytes: Option<(u64, u64)>,
}

/// Result of the repair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub enum RepairReport {
    /// No repair was asked for.
    NotTried,
    /// No sync helps: a prefix is broken.
    NoSyncHelps,
    /// Nothing is broken with these syncs.
    Found {
        /// The syncs to insert.
        syncs: Vec<SyncReport>,
        /// Broken states before.
        broken_before: usize,
        /// States with the syncs, none broken.
        states_after: usize,
    },
    /// No tried set is enough.
    NotFound {
        /// Sets of syncs that were tried.
        tried: usize,
    },
    /// The budget ended first.
    OutOfTime,
}

/// A sync to insert.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SyncReport {
    /// `fsync` or `fdatasync`.
    pub call: String,
    /// File or directory to sync.
    pub of: String,
    /// Before this call.
    pub before: EffectReport,
}

/// A state, to form it again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StateReport {
    /// Durable effects, as ranges: first and one after last.
    pub durable: Vec<(usize, usize)>,
    /// An effect with the part of it that is durable.
    pub torn: Option<(usize, u64, u64)>,
    /// Hash of the tree.
    pub digest: String,
    /// The first and the last moment at which it can arise, in calls that returned.
    pub moments: (usize, usize),
    /// Acknowledgements at the last moment.
    pub acknowledged: usize,
}

impl StateReport {
    /// A state for a report.
    #[must_use]
    pub fn new(state: &State, effects: &Effects) -> StateReport {
        let mut durable: Vec<(usize, usize)> = Vec::new();
        for i in state.bits.iter() {
            match durable.last_mut() {
                Some(range) if range.1 == i => range.1 += 1,
                _ => durable.push((i, i + 1)),
            }
        }
        StateReport {
            durable,
            torn: state.tear.map(|t| (t.effect, t.kept.0, t.kept.1)),
            digest: format!("{:032x}", state.digest),
            moments: state.moments,
            acknowledged: effects.acked.get(state.moments.1).copied().unwrap_or(0),
        }
    }

    /// The state of this report.
    ///
    /// # Errors
    /// If it does not fit these effects.
    pub fn state(&self, effects: &Effects) -> Result<State, String> {
        let max = effects.all.len();
        let fits = self.durable.iter().all(|(a, b)| a < b && *b <= max);
        let torn_fits = self.torn.is_none_or(|(e, _, _)| e < max);
        if !fits || !torn_fits {
            return Err("the report does not belong to this trace".to_owned());
        }
        let bits: Bits = self.durable.iter().flat_map(|(a, b)| *a..*b).collect();
        let tear = self.torn.map(|(effect, from, to)| Tear {
            effect,
            kept: (from, to),
        });
        let digest = crate::states::Former::new(effects)
            .disk(&bits, tear)
            .digest();
        if format!("{digest:032x}") != self.digest {
            return Err(
                "the report does not belong to this trace, or the model has changed".to_owned(),
            );
        }
        let way = Way::Sample;
        Ok(State {
            way,
            bits,
            tear,
            digest,
            moments: self.moments,
        })
    }
}

impl Report {
    /// Findings that count: not in the baseline, and on one of these models, if some are given.
    pub fn counted<'a>(&'a self, fail_on: &'a [String]) -> impl Iterator<Item = &'a FindingReport> {
        self.findings.iter().filter(move |f| {
            let on = |u: &UnderReport| fail_on.is_empty() || fail_on.contains(&u.model);
            !f.known && f.under.iter().any(on)
        })
    }

    /// Whether anything counts: a finding ([`Report::counted`]), or one inside a recovery.
    #[must_use]
    pub fn fails(&self, fail_on: &[String]) -> bool {
        let inside = self.recovery.iter().flat_map(|r| &r.findings);
        let on = |f: &InsideReport| fail_on.is_empty() || fail_on.contains(&f.model);
        self.counted(fail_on).next().is_some() || inside.into_iter().any(on)
    }

    /// Marks findings that another report has, too.
    pub fn forgive(&mut self, baseline: &Report) {
        for finding in &mut self.findings {
            finding.known = baseline.findings.iter().any(|b| b.key == finding.key);
        }
    }
}
