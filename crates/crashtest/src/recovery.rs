//! Power cuts inside the recovery: the recovery of states that the program survives is recorded, and its states are
//! judged in turn.
//!
//! The recovery of a state is a run like any other. Acknowledgements of the state must hold after every cut inside
//! it, too.

use crate::check::{Checker, Verdict, lay_out};
use crate::effects::{Effects, Run, What};
use crate::judge::{Judge, Kind, Options, groups, kin as kin_of};
use crate::models::Model;
use crate::planted::{self, Planted};
use crate::record;
use crate::states::{Limits, State, enumerate};
use crate::trace::{Ended, Trace};
use crate::why::{self, Cause};
use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of states of each way inside one recovery.
const EACH_MAX: usize = 300;
/// Number of random states inside one recovery.
const SAMPLES: usize = 20;

/// Result of cuts inside recoveries.
#[derive(Clone, Debug, Default)]
pub struct Recoveries {
    /// States whose recovery was recorded.
    pub recorded: usize,
    /// Number of recoveries among them that change something.
    pub writing: usize,
    /// Number of judged trees inside them.
    pub judged: usize,
    /// The findings, one for each first line.
    pub findings: Vec<Inside>,
}

/// A state inside a recovery that the next recovery does not mend.
#[derive(Clone, Debug)]
pub struct Inside {
    /// Position of the model.
    pub model: usize,
    /// Its kind.
    pub kind: Kind,
    /// The first line of the checker's output.
    pub line: String,
    /// The whole output.
    pub output: String,
    /// Broken states.
    pub broken: usize,
    /// The state that was recovered.
    pub outer: State,
    /// Durable and lost effects of that state.
    pub outer_cause: Cause,
    /// The run of the recovery.
    pub run: Run,
    /// Durable and lost effects of the recovery.
    pub cause: Cause,
}

/// Records recoveries, once for each tree.
pub(crate) struct Recorder<'a> {
    recover: &'a str,
    checker: &'a Checker,
    known: HashMap<u128, Option<Arc<Run>>>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(recover: &'a str, checker: &'a Checker) -> Recorder<'a> {
        Recorder {
            recover,
            checker,
            known: HashMap::new(),
        }
    }

    /// The run of the recovery of a tree; None if it failed.
    fn run(
        &mut self,
        tree: &crate::effects::Disk,
        digest: u128,
        acks: (&[String], &[String]),
    ) -> io::Result<Option<Arc<Run>>> {
        if let Some(known) = self.known.get(&digest) {
            return Ok(known.clone());
        }
        let place = tempfile::Builder::new()
            .prefix("steadfast-crash-recovery.")
            .tempdir()?;
        let from = place.path().join("state");
        lay_out(tree, &from)?;
        let run = self.recorded(place.path(), &from, acks)?.map(Arc::new);
        self.known.insert(digest, run.clone());
        Ok(run)
    }

    fn recorded(
        &self,
        place: &Path,
        from: &Path,
        (acked, issued): (&[String], &[String]),
    ) -> io::Result<Option<Run>> {
        let lines = |name: &str, lines: &[String]| -> io::Result<OsString> {
            let path = place.join(name);
            let text: String = lines.iter().map(|l| format!("{l}\n")).collect();
            std::fs::write(&path, text)?;
            Ok(path.into_os_string())
        };
        let script =
            "CRASH_ACKED=$1 CRASH_ISSUED=$2; export CRASH_ACKED CRASH_ISSUED; exec sh -c \"$0\"";
        let command = vec![
            "sh".into(),
            "-c".into(),
            script.into(),
            self.recover.into(),
            lines("acked", acked)?,
            lines("issued", issued)?,
        ];
        let mut options = record::Options::new(command, place.join("trace"));
        options.from = Some(from.to_owned());
        options.time_limit = self.checker.time;
        options.interrupted = Arc::clone(&self.checker.stop);
        let trace = options.trace.clone();
        let recorded = record::record(options).map_err(io::Error::other)?;
        if recorded.end.how != Ended::Exited(0) {
            return Ok(None);
        }
        let trace = Trace::open(&trace).map_err(io::Error::other)?;
        let mut run = Run::of_trace(&trace).map_err(io::Error::other)?;
        // Its output acknowledges nothing.
        run.steps.retain(|s| !matches!(s.what, What::Ack { .. }));
        Ok(Some(run))
    }
}

/// At most `max` of them, evenly spread.
fn spread(all: &[usize], max: usize) -> Vec<usize> {
    let max = max.min(all.len());
    (0..max).map(|i| all[i * all.len() / max]).collect()
}

/// Cuts inside the recoveries of `max` of these states.
///
/// # Errors
/// If a state cannot be laid out, or a recovery not be recorded.
pub(crate) fn explore(
    judge: &Judge<'_>,
    recorder: &mut Recorder<'_>,
    effects: &Effects,
    (position, model): (usize, &Model),
    (states, verdicts): (&[State], &[Option<Verdict>]),
    options: &Options,
    into: &mut Recoveries,
) -> io::Result<()> {
    let former = crate::states::Former::new(effects);
    let fine: Vec<usize> = (0..states.len())
        .filter(|i| matches!(verdicts[*i], Some(Verdict::Fine)))
        .collect();
    for i in spread(&fine, options.recovery_cuts) {
        if judge.is_over() {
            return Ok(());
        }
        let outer = &states[i];
        let must = effects.acked_at(outer.moments.1);
        let may = (must + 1).min(effects.acks.len());
        let acks = (&effects.acks[..must], &effects.acks[..may]);
        let tree = former.disk(&outer.bits, outer.tear);
        let Some(run) = recorder.run(&tree, outer.digest, acks)? else {
            continue;
        };
        into.recorded += 1;
        let mut inner = Effects::new(&run, model);
        if inner.all.is_empty() {
            continue;
        }
        into.writing += 1;
        inner.acks = effects.acks[..may].to_vec();
        let must = match planted::is(Planted::RecoveryForgets) {
            true => 0,
            false => must,
        };
        inner.acked = vec![must; inner.steps() + 1];
        let limits = Limits {
            each_max: options.limits.each_max.min(EACH_MAX),
            samples: options.limits.samples.min(SAMPLES),
            seed: options.limits.seed,
        };
        let mut inside = enumerate(&inner, model.sync_jumps, model.tear, limits);
        if planted::is(Planted::RecoveryWhole) {
            let ends = [0, inner.steps()].map(|n| inner.disk(&inner.prefix(n)).digest());
            inside.all.retain(|s| ends.contains(&s.digest));
        }
        let verdicts = judge.all(&inner, &inside.all, options.jobs)?;
        into.judged += verdicts.iter().flatten().count();
        for ((kind, kin), broken) in groups(judge, &inner, &inside.all, &verdicts)? {
            let first = broken.first().map(|i| (&inside.all[*i], &verdicts[*i]));
            let Some((state, Some(Verdict::Broken { line, output }))) = first else {
                continue;
            };
            let known = |f: &&mut Inside| f.kind == kind && kin_of(&f.line) == kin;
            if let Some(known) = into.findings.iter_mut().find(known) {
                known.broken += broken.len();
                continue;
            }
            // The last acknowledgement is one of the state, not of the recovery: only the effects are reduced.
            let (_, cause) = why::reduce(judge, &inner, model, state, Kind::Broken, &kin)?;
            into.findings.push(Inside {
                model: position,
                kind,
                line: line.clone(),
                output: output.clone(),
                broken: broken.len(),
                outer: outer.clone(),
                outer_cause: why::cause(effects, outer, Kind::Broken, outer.moments.1),
                run: Run::clone(&run),
                cause,
            });
        }
    }
    Ok(())
}
