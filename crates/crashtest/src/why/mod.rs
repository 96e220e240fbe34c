//! Why a state is broken: the smallest deviation from a prefix, and the syncs under which it does not arise.

use crate::check::Verdict;
use crate::effects::{Effects, Ino, Run, Step, What, is_dir_of};
use crate::explore::Finding;
use crate::judge::{Judge, Kind, Options, kin, still_broken};
use crate::models::{Classes, Model};
use crate::planted::{self, Planted};
use crate::states::{Former, State, Way};
use std::io;

/// Maximum number of runs of the checker to reduce one state.
const REDUCE_MAX: usize = 200;
/// Maximum number of sets of syncs that are tried.
const SETS_MAX: usize = 60;
/// Maximum number of syncs of one repair.
const SYNCS_MAX: usize = 8;

/// An effect for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Position of its step.
    pub step: usize,
    /// Its kind.
    pub class: Classes,
    /// Bytes of the file, if it is a part of a write.
    pub part: Option<(u64, u64)>,
    /// The inode.
    pub file: Option<Ino>,
    /// The directory.
    pub dir: Option<Ino>,
}

/// Durable and lost effects of a state.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Cause {
    /// The last durable effect; none if the state is the initial tree.
    pub durable: Option<Told>,
    /// Earlier effects that are lost, without those that only follow from others.
    pub lost: Vec<Told>,
    /// A write of which a part is durable, and which part.
    pub torn: Option<(Told, (u64, u64))>,
    /// The acknowledgement that does not hold, and the position of its step.
    pub acked: Option<(String, usize)>,
    /// Whether it is a prefix: killing the process at this place leaves the same.
    pub is_prefix: bool,
}

/// A sync to insert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sync {
    /// The step that follows it.
    pub before: usize,
    /// The inode to sync.
    pub ino: Ino,
    /// Whether that is a directory.
    pub dir: bool,
    /// Whether fdatasync is enough.
    pub data_only: bool,
    /// The call whose file it is.
    pub of: usize,
}

/// Result of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Repairs were not asked for.
    NotTried,
    /// The state is a prefix: no sync helps.
    Useless,
    /// With these syncs no state is broken.
    Found {
        /// The syncs.
        syncs: Vec<Sync>,
        /// Number of broken states without them.
        broken: usize,
        /// Number of states with them.
        states: usize,
    },
    /// No tried set is enough.
    NotFound {
        /// Sets of syncs that were tried.
        tried: usize,
    },
    /// The budget ended first.
    OutOfTime,
}

/// A finding to be repaired.
pub struct Target<'a> {
    /// Its kind.
    pub kind: Kind,
    /// Its first line, reduced by [`kin`].
    pub kin: &'a str,
    /// Its cause.
    pub cause: &'a Cause,
    /// Broken states.
    pub broken: usize,
    /// The same finding under models that were explored before: its repairs are tried first.
    pub hint: Option<&'a Finding>,
}

fn told(effects: &Effects, e: usize) -> Told {
    let effect = &effects.all[e];
    Told {
        step: effect.step,
        class: effect.class,
        part: effect.part,
        file: effect.file,
        dir: effect.dir,
    }
}

/// The smallest state like this one with the same verdict, and its cause.
///
/// # Errors
/// If a state cannot be laid out.
pub fn reduce(
    judge: &Judge<'_>,
    effects: &Effects,
    model: &Model,
    state: &State,
    kind: Kind,
    kin_of_line: &str,
) -> io::Result<(State, Cause)> {
    let former = Former::new(effects);
    let mut best = state.clone();
    let mut left = REDUCE_MAX;
    let mut same = |candidate: &State| -> io::Result<bool> {
        if left == 0 || planted::is(Planted::NotReduced) {
            return Ok(false);
        }
        left -= 1;
        let verdict = judge.at(effects, &former, candidate, candidate.moments.1)?;
        Ok(matches!(verdict, Some(Verdict::Broken { line, .. }) if kin(&line) == kin_of_line))
    };
    let of = |bits: crate::effects::Bits, tear: Option<crate::states::Tear>| -> Option<State> {
        let mut moments = effects.moments(&bits)?;
        if let Some(t) = tear {
            moments.0 = moments.0.max(effects.all[t.effect].step);
        }
        let jumped = model
            .sync_jumps
            .then(|| effects.demanded[moments.1].as_ref());
        let closed = moments.0 <= moments.1 && effects.is_closed(&bits, jumped);
        let digest = former.disk(&bits, tear).digest();
        closed.then_some(State {
            way: Way::Sample,
            bits,
            tear,
            digest,
            moments,
        })
    };
    // Whole without the tear?
    if best.tear.is_some()
        && let Some(whole) = of(best.bits.clone(), None)
        && same(&whole)?
    {
        best = whole;
    }
    let mut moment = best.moments.1;
    if kind == Kind::Lost {
        // The first acknowledgement that does not hold: more of them demand more.
        let (mut fine, mut lost) = (0, effects.acked_at(moment));
        let may = (lost + 1).min(effects.acks.len());
        while fine + 1 < lost {
            let middle = usize::midpoint(fine, lost);
            match judge.counting(effects, &former, &best, (middle, may))? {
                Some(Verdict::Fine) => fine = middle,
                _ => lost = middle,
            }
        }
        moment = effects.acked.partition_point(|n| *n < lost);
    }
    // Remove later effects that do not matter, the last first; for a lost acknowledgement, those after it.
    let keep = match kind {
        Kind::Lost => effects.upto.get(moment).copied().unwrap_or(0),
        Kind::Broken => 0,
    };
    while let Some(last) = best.bits.last().filter(|l| *l >= keep) {
        let mut bits = best.bits.clone();
        bits.remove(last);
        match of(bits, best.tear) {
            Some(smaller) if same(&smaller)? => best = smaller,
            _ => break,
        }
    }
    // Restore lost effects that do not matter.
    let mut missing = missing(effects, &best, keep);
    while let Some(e) = missing.pop() {
        let mut bits = best.bits.clone();
        bits.add(&effects.all[e].before);
        bits.insert(e);
        if let Some(fuller) = of(bits, best.tear)
            && same(&fuller)?
        {
            best = fuller;
            missing.retain(|m| !best.bits.get(*m));
        }
    }
    let cause = cause(effects, &best, kind, moment);
    Ok((best, cause))
}

/// Effects before the last durable one, and of the first `count`, that are not durable.
fn missing(effects: &Effects, state: &State, count: usize) -> Vec<usize> {
    let last = state.bits.last().unwrap_or(0).max(count);
    let torn = state.tear.map(|t| t.effect);
    (0..last.min(effects.all.len()))
        .filter(|e| !state.bits.get(*e) && Some(*e) != torn)
        .collect()
}

/// Durable and lost effects of a state. `moment`: when the lost acknowledgement was there.
pub(crate) fn cause(effects: &Effects, state: &State, kind: Kind, moment: usize) -> Cause {
    let count = match kind {
        Kind::Lost => effects.upto.get(moment).copied().unwrap_or(0),
        Kind::Broken => 0,
    };
    let missing = missing(effects, state, count);
    let torn = state.tear.map(|t| t.effect);
    // Effects that are lost only because another is are not reported.
    let roots = missing.iter().filter(|e| {
        let before = &effects.all[**e].before;
        !missing.iter().any(|m| m < *e && before.get(*m)) && torn.is_none_or(|t| !before.get(t))
    });
    let lost: Vec<Told> = roots.map(|e| told(effects, *e)).collect();
    let durable = state.bits.last().map(|e| told(effects, e));
    let is_prefix = missing.is_empty() && state.tear.is_none();
    let acked = effects.acked_at(moment);
    Cause {
        durable,
        lost,
        torn: state.tear.map(|t| (told(effects, t.effect), t.kept)),
        acked: acked
            .checked_sub(1)
            .filter(|_| kind == Kind::Lost)
            .map(|i| (effects.acks[i].clone(), moment.saturating_sub(1))),
        is_prefix,
    }
}

/// The step before which everything lost must be durable.
fn deadline(cause: &Cause, kind: Kind) -> Option<usize> {
    match kind {
        Kind::Lost => cause.acked.as_ref().map(|(_, step)| *step),
        Kind::Broken => cause.durable.as_ref().map(|d| d.step),
    }
}

/// Syncs that could make what is lost durable in time.
fn candidates(run: &Run, cause: &Cause, kind: Kind) -> Vec<Sync> {
    let Some(before) = deadline(cause, kind) else {
        return Vec::new();
    };
    let mut all: Vec<Sync> = Vec::new();
    let torn = cause.torn.as_ref().map(|(t, _)| t);
    for lost in cause.lost.iter().chain(torn) {
        let entry = lost.class.meets(Classes::ENTRY);
        let mut add = |ino: Ino, dir: bool, data_only: bool| {
            let sync = Sync {
                before,
                ino,
                dir,
                data_only,
                of: lost.step,
            };
            let same = |s: &Sync| (s.ino, s.before, s.data_only) == (ino, before, data_only);
            if lost.step < before && !all.iter().any(same) {
                all.push(sync);
            }
        };
        if let Some(ino) = lost.file.filter(|_| !entry) {
            add(ino, false, true);
            add(ino, false, false);
        }
        if let Some(dir) = lost.dir.filter(|_| entry) {
            add(dir, true, false);
        }
        if let Some(ino) = lost.file.filter(|ino| entry && !is_dir_of(run, *ino)) {
            add(ino, false, false);
        }
    }
    all
}

/// The run with these syncs.
#[must_use]
pub fn with_syncs(run: &Run, syncs: &[Sync]) -> Run {
    let mut repaired = Run {
        base: run.base.clone(),
        steps: Vec::with_capacity(run.steps.len() + syncs.len()),
    };
    for (i, step) in run.steps.iter().enumerate() {
        for sync in syncs.iter().filter(|s| s.before == i) {
            repaired.steps.push(Step {
                number: step.number,
                what: What::Fsync {
                    ino: sync.ino,
                    data_only: sync.data_only,
                },
                text: "inserted sync".to_owned(),
                location: None,
                thread: 0,
                stack: 0,
            });
        }
        repaired.steps.push(step.clone());
    }
    repaired
}

/// The smallest set of syncs under which nothing of the finding is left; each set is explored again.
///
/// # Errors
/// If states cannot be laid out.
pub fn repair(
    judge: &Judge<'_>,
    run: &Run,
    model: &Model,
    options: &Options,
    target: &Target<'_>,
) -> io::Result<Repair> {
    if target.cause.is_prefix {
        return Ok(Repair::Useless);
    }
    let mut tried = 0;
    let hints = target.hint.into_iter().flat_map(|f| &f.under);
    for hint in hints {
        let Repair::Found { syncs, .. } = &hint.repair else {
            continue;
        };
        tried += 1;
        let repaired = with_syncs(run, syncs);
        match still_broken(judge, &repaired, model, options, (target.kind, target.kin))? {
            None => return Ok(Repair::OutOfTime),
            Some((0, states)) => {
                return Ok(Repair::Found {
                    syncs: syncs.clone(),
                    broken: target.broken,
                    states,
                });
            }
            Some(_) => {}
        }
    }
    let mut chosen: Vec<Sync> = Vec::new();
    let mut left = target.broken;
    let mut cause = target.cause.clone();
    // One sync at a time, the best first; the rest then has a cause of its own.
    for _ in 0..SYNCS_MAX {
        let mut best: Option<(usize, Sync)> = None;
        for sync in candidates(run, &cause, target.kind) {
            if chosen.contains(&sync) {
                continue;
            }
            if tried == SETS_MAX {
                return Ok(Repair::NotFound { tried });
            }
            tried += 1;
            let mut set = chosen.clone();
            set.push(sync.clone());
            let repaired = with_syncs(run, &set);
            let still = still_broken(judge, &repaired, model, options, (target.kind, target.kin))?;
            let Some((broken, states)) = still else {
                return Ok(Repair::OutOfTime);
            };
            if broken == 0 {
                let syncs = fewest(judge, run, model, options, target, set)?;
                return Ok(Repair::Found {
                    syncs,
                    broken: target.broken,
                    states,
                });
            }
            if best.as_ref().is_none_or(|(b, _)| broken < *b) {
                best = Some((broken, sync));
            }
        }
        let Some((broken, sync)) = best else {
            break;
        };
        if broken >= left && chosen.len() >= 2 {
            break;
        }
        left = broken;
        chosen.push(sync);
        let repaired = with_syncs(run, &chosen);
        match next_cause(judge, &repaired, model, options, target)? {
            Some(next) => cause = original(run, next, &chosen),
            None => break,
        }
    }
    Ok(Repair::NotFound { tried })
}

/// Removes the syncs that the rest makes superfluous.
fn fewest(
    judge: &Judge<'_>,
    run: &Run,
    model: &Model,
    options: &Options,
    target: &Target<'_>,
    mut set: Vec<Sync>,
) -> io::Result<Vec<Sync>> {
    let mut i = 0;
    while set.len() > 1 && i < set.len() {
        let mut fewer = set.clone();
        fewer.remove(i);
        let repaired = with_syncs(run, &fewer);
        match still_broken(judge, &repaired, model, options, (target.kind, target.kin))? {
            Some((0, _)) => set = fewer,
            _ => i += 1,
        }
    }
    Ok(set)
}

/// The cause of the rest under a repaired run.
fn next_cause(
    judge: &Judge<'_>,
    run: &Run,
    model: &Model,
    options: &Options,
    target: &Target<'_>,
) -> io::Result<Option<Cause>> {
    let effects = Effects::new(run, model);
    let states = crate::judge::states_of(judge, &effects, model, options.limits);
    let verdicts = judge.all(&effects, &states.all, options.jobs)?;
    let broken =
        states.all.iter().zip(&verdicts).find(
            |(_, v)| matches!(v, Some(Verdict::Broken { line, .. }) if kin(line) == target.kin),
        );
    let Some((state, _)) = broken else {
        return Ok(None);
    };
    let (_, cause) = reduce(judge, &effects, model, state, target.kind, target.kin)?;
    Ok((!cause.is_prefix).then_some(cause))
}

/// A cause in a repaired run, in the steps of the run that was recorded.
fn original(run: &Run, mut cause: Cause, syncs: &[Sync]) -> Cause {
    let map = |step: usize| {
        let mut at = step;
        let mut inserted = 0;
        let mut before: Vec<usize> = syncs.iter().map(|s| s.before).collect();
        before.sort_unstable();
        for b in before {
            if b + inserted <= step {
                inserted += 1;
                at = step.saturating_sub(inserted);
            }
        }
        at.min(run.steps.len().saturating_sub(1))
    };
    if let Some((_, step)) = &mut cause.acked {
        *step = map(*step);
    }
    let torn = cause.torn.iter_mut().map(|(t, _)| t);
    for told in cause
        .lost
        .iter_mut()
        .chain(cause.durable.iter_mut())
        .chain(torn)
    {
        told.step = map(told.step);
    }
    cause
}
