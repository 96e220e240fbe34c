//! Superfluous syncs: without them no state that a power cut may leave is worse than one that it may leave now.
//!
//! Each sync of the run is left out, the last first, and the states are formed and judged again. It stays out if
//! every broken state was a broken state before: the same tree, with no fewer acknowledgements. So all syncs that are
//! reported can go together.

use crate::effects::{Effects, Run, What};
use crate::judge::{Judge, Options, states_of};
use crate::models::Model;
use crate::planted::{self, Planted};
use std::collections::{BTreeSet, HashMap};
use std::io;

/// Maximum number of syncs that are tried.
const TRIED_MAX: usize = 200;

/// Result under one model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Superfluous {
    /// Position of the model.
    pub model: usize,
    /// Positions of the steps that can go, all of them at once.
    pub steps: Vec<usize>,
    /// Number of syncs of the run.
    pub of: usize,
    /// Number of syncs that were tried.
    pub tried: usize,
}

/// Broken trees, with the most acknowledgements under which each is broken.
type Broken = HashMap<u128, usize>;

fn is_sync(what: &What) -> bool {
    matches!(
        what,
        What::Fsync { .. } | What::Sync | What::SyncRange { .. }
    )
}

/// The run without these steps.
#[must_use]
pub fn without(run: &Run, steps: &BTreeSet<usize>) -> Run {
    let kept = run.steps.iter().enumerate();
    Run {
        base: run.base.clone(),
        steps: kept
            .filter(|(i, _)| !steps.contains(i))
            .map(|(_, step)| step.clone())
            .collect(),
    }
}

/// None if the time was not enough.
fn broken(
    judge: &Judge<'_>,
    run: &Run,
    model: &Model,
    options: &Options,
) -> io::Result<Option<Broken>> {
    let effects = Effects::new(run, model);
    let states = states_of(judge, &effects, model, options.limits);
    if states.ended.is_some() {
        return Ok(None);
    }
    let verdicts = judge.all(&effects, &states.all, options.jobs)?;
    let mut broken = Broken::new();
    for (state, verdict) in states.all.iter().zip(&verdicts) {
        match verdict {
            None => return Ok(None),
            Some(v) if v.is_broken() => {
                let acked = effects.acked_at(state.moments.1);
                let most = broken.entry(state.digest).or_insert(acked);
                *most = acked.max(*most);
            }
            Some(_) => {}
        }
    }
    Ok(Some(broken))
}

/// The superfluous syncs under a model.
///
/// # Errors
/// If states cannot be laid out.
pub fn find(
    judge: &Judge<'_>,
    run: &Run,
    (position, model): (usize, &Model),
    options: &Options,
) -> io::Result<Superfluous> {
    let syncs = run.steps.iter().enumerate();
    let syncs: Vec<usize> = syncs
        .filter(|(_, s)| is_sync(&s.what))
        .map(|(i, _)| i)
        .collect();
    let mut found = Superfluous {
        model: position,
        of: syncs.len(),
        ..Superfluous::default()
    };
    let Some(now) = broken(judge, run, model, options)? else {
        return Ok(found);
    };
    let mut gone = BTreeSet::new();
    for step in syncs.into_iter().rev().take(TRIED_MAX) {
        let mut fewer = gone.clone();
        fewer.insert(step);
        let Some(then) = broken(judge, &without(run, &fewer), model, options)? else {
            break;
        };
        found.tried += 1;
        let is_worse = then
            .iter()
            .any(|(tree, acked)| now.get(tree).is_none_or(|most| most < acked));
        if !is_worse || planted::is(Planted::WorseUnseen) {
            gone = fewer;
        }
    }
    found.steps = gone.into_iter().collect();
    Ok(found)
}
