//! Crash at every point, recover (cut at every point, too), compare with the specification; then go on.

use crate::ops::{Choice, Groups, groups};
use crate::plan::{Plan, phases};
use crate::pm::*;
use crate::spec::*;
use crate::volume::*;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

/// The tree that a mount finds, and the times of its inodes by number.
type Found = (Rc<str>, Rc<BTreeMap<u64, [u64; 4]>>);

/// A running system: the durable words, the stores without a fence, and the inode held open, if any.
#[derive(Clone)]
pub struct State {
    pub image: Image,
    pub pending: Vec<Store>,
    pub open: Option<u64>,
}

/// Fences of a call, and lines that it writes back.
pub type Cost = (usize, usize);

/// The search: the states seen, under one layout and one model.
pub struct Checker {
    pub layout: Layout,
    pub model: Model,
    /// Distinct images that were recovered.
    pub images: u64,
    /// Descriptors in three groups.
    pub fine: bool,
    seen: HashMap<u64, Result<Found, String>>,
    /// Images after recovery, where wanted.
    settled: Option<HashMap<u64, Image>>,
}

fn lines(stores: &[Store]) -> usize {
    let mut lines: Vec<usize> = stores.iter().map(|x| x.at / LINE).collect();
    lines.sort_unstable();
    lines.dedup();
    lines.len()
}

/// Names and attributes of the scenarios that follow a crash.
const LATER: At = At(TOP, b'z' as u64);

impl Checker {
    /// Nothing seen yet.
    pub fn new(layout: Layout, model: Model) -> Checker {
        Checker {
            layout,
            model,
            images: 0,
            fine: model == Model::Word,
            seen: HashMap::new(),
            settled: None,
        }
    }

    /// The state after `setup`, durable. No crashes here: these calls are scenarios of their own.
    pub fn run(&self, setup: &[Op], plans: &dyn Fn(&Op) -> Plan, pick: usize) -> State {
        let mut state = State {
            image: self.layout.mkfs(),
            pending: vec![],
            open: None,
        };
        for op in setup {
            let choice = Choice {
                pick,
                fine: self.fine,
                before: None,
            };
            let groups = groups(self.layout, &state.image, state.open, op, choice);
            let groups = groups.unwrap_or_else(|| panic!("no room for {op:?} in {setup:?}"));
            let plan = if matches!(op, Op::Poke(_)) {
                vec![vec!["poke"]]
            } else {
                plans(op)
            };
            for phase in phases(&groups, &plan) {
                state.image.apply(&phase);
            }
            state.open = opened(self.layout, &state.image, op, &groups, state.open);
        }
        state
    }

    /// Begins to collect images after recovery.
    pub fn watch(&mut self) {
        self.settled = Some(HashMap::new());
    }

    /// Collected images, by hash.
    pub fn watched(&mut self) -> HashMap<u64, Image> {
        self.settled.take().unwrap_or_default()
    }

    fn recovered(&self, image: &Image) -> Result<Image, String> {
        let mut image = image.clone();
        for phase in self.layout.recovery_of(&self.layout.scan(&image, None)?) {
            image.apply(&phase);
        }
        Ok(image)
    }

    /// The result of recovering an image: the same if the recovery itself is cut, and a second recovery has nothing to do.
    fn settle(&mut self, image: &Image) -> Result<Found, String> {
        if let Some(found) = self.seen.get(&image.hash()) {
            return found.clone();
        }
        self.images += 1;
        let found = self.settle_new(image);
        self.seen.insert(image.hash(), found.clone());
        found
    }

    fn settle_new(&mut self, image: &Image) -> Result<Found, String> {
        let phases = self.layout.recovery_of(&self.layout.scan(image, None)?);
        let mut base = image.clone();
        let mut cuts: Vec<Image> = vec![];
        for phase in &phases {
            images(self.model, &base, phase, &mut |i| {
                cuts.push(i.clone());
                Ok(())
            })?;
            base.apply(phase);
        }
        let end = self
            .layout
            .scan(&base, None)
            .map_err(|e| format!("after recovery: {e}"))?;
        if self.layout.recovery == Recovery::Right && !self.layout.recovery_of(&end).is_empty() {
            return Err("recovery leaves work for recovery".into());
        }
        let found: Found = (end.tree.text().into(), Rc::new(end.times));
        self.seen.insert(image.hash(), Ok(found.clone()));
        for cut in cuts {
            match self.settle(&cut) {
                Ok(other) if other == found => {}
                Ok(other) => {
                    return Err(format!("recovery cut: {} instead of {}", other.0, found.0));
                }
                Err(e) => return Err(format!("recovery cut: {e}")),
            }
        }
        Ok(found)
    }

    /// Runs `op` by `plan`. `Ok(None)`: the call fails, nothing is stored.
    pub fn attempt(
        &mut self,
        from: &State,
        op: &Op,
        plan: &Plan,
        pick: usize,
    ) -> Result<Option<(State, Cost)>, String> {
        let layout = self.layout;
        let mut cache = from.image.clone();
        cache.apply(&from.pending);
        let view = layout.scan(&cache, from.open)?;
        let Some(after) = view.tree.apply(op) else {
            return Ok(None);
        };
        let choice = Choice {
            pick,
            fine: self.fine,
            before: None,
        };
        let Some(groups) = groups(layout, &cache, from.open, op, choice) else {
            return Ok(None);
        };
        let outcomes = view.tree.outcomes(op, &after);
        let returned = after.text();
        let phases = phases(&groups, plan);
        let mut end = cache.clone();
        phases.iter().for_each(|p| end.apply(p));
        let times = layout
            .times
            .then(|| (times_in(layout, &cache), times_in(layout, &end)));

        let mut state = from.clone();
        let (mut fences, mut written) = (0, 0);
        let last = phases.len() - 1;
        for (k, phase) in phases.iter().enumerate() {
            if phase.is_empty() && k < last && plan[k] != ["fence"] {
                continue;
            }
            state.pending.extend(phase);
            written += lines(phase);
            let (durable, pending) = (state.image.clone(), state.pending.clone());
            let mut keep: HashMap<u64, Image> = HashMap::new();
            images(self.model, &durable, &pending, &mut |image| {
                let found = self.settle(image);
                if self.settled.is_some() {
                    keep.entry(image.hash()).or_insert_with(|| image.clone());
                }
                let problem = match &found {
                    Ok((text, _)) if k == last && **text != *returned => {
                        format!("recovered {text}, allowed {returned}")
                    }
                    Ok((text, _)) if !outcomes.iter().any(|o| **o == **text) => {
                        format!("recovered {text}, allowed {}", outcomes.join(" or "))
                    }
                    Ok((_, found)) => match &times {
                        Some((old, new)) => match torn_time(found, old, new, k == last) {
                            Some(problem) => problem,
                            None => return Ok(()),
                        },
                        None => return Ok(()),
                    },
                    Err(e) => e.clone(),
                };
                let returned = if k == last { " after return" } else { "" };
                Err(format!(
                    "crash{returned} with {}: {problem}",
                    held(&groups, &pending, image)
                ))
            })?;
            for image in keep.into_values() {
                if let (Ok(image), Some(settled)) = (self.recovered(&image), self.settled.as_mut())
                {
                    settled.insert(image.hash(), image);
                }
            }
            if k < last {
                let pending = std::mem::take(&mut state.pending);
                state.image.apply(&pending);
                fences += 1;
            }
        }
        let mut cache = state.image.clone();
        cache.apply(&state.pending);
        state.open = opened(layout, &cache, op, &groups, state.open);
        let found = layout.scan(&cache, state.open)?;
        if found.tree.text() != returned {
            return Err(format!("the call returns with {}", found.tree.text()));
        }
        let leaks = !(found.fix_names.is_empty()
            && found.fix_pointers.is_empty()
            && found.fix_rest.is_empty());
        if !layout.generations && state.pending.is_empty() && leaks {
            return Err("the call returns and leaves something leaked".into());
        }
        Ok(Some((state, (fences, written))))
    }

    /// `op` after `setup`, then every follower, which may share objects with it, with and without a crash between. `chain`:
    /// the followers one after another.
    pub fn full(
        &mut self,
        setup: &[Op],
        op: &Op,
        plan: &Plan,
        plans: &dyn Fn(&Op) -> Plan,
        followers: &[Op],
        chain: bool,
    ) -> Result<Cost, String> {
        let second = if self.layout.generations {
            vec![Op::Create(LATER), Op::Truncate(LATER, 3)]
        } else {
            vec![]
        };
        let mut cost = (0, 0);
        for pick in 0..3 {
            let state = self.run(setup, plans, pick);
            self.watch();
            let done = self.attempt(&state, op, plan, pick);
            let settled = self.watched();
            let Some((state, spent)) = done? else {
                return Err(format!("{op:?} fails in {setup:?}"));
            };
            cost = spent;
            let after_crash = settled.into_values().map(|image| State {
                image,
                pending: vec![],
                open: None,
            });
            for (k, start) in std::iter::once(state).chain(after_crash).enumerate() {
                let crashed = if k > 0 { "crash, recovery, " } else { "" };
                if k > 0 || chain {
                    // The remains of a cut call may come alive only two calls later.
                    let mut at = start.clone();
                    for next in if chain { followers } else { &second } {
                        let done = self.attempt(&at, next, &plans(next), pick);
                        match done.map_err(|e| format!("{crashed}then .. {next:?}: {e}"))? {
                            Some((state, _)) => at = state,
                            None => continue,
                        }
                    }
                    if chain {
                        continue;
                    }
                }
                for next in followers {
                    for pick in 0..2 {
                        if let Err(e) = self.attempt(&start, next, &plans(next), pick) {
                            return Err(format!("{crashed}then {next:?}: {e}"));
                        }
                    }
                }
            }
        }
        Ok(cost)
    }

    /// Stops `op` after each of its fences but the last, without a crash, and goes on: whether a call may fail there.
    pub fn abandoned(
        &mut self,
        setup: &[Op],
        op: &Op,
        plans: &dyn Fn(&Op) -> Plan,
        followers: &[Op],
    ) -> Result<(), String> {
        let state = self.run(setup, plans, 0);
        let before = self.layout.scan(&state.image, state.open)?.tree;
        let choice = Choice {
            pick: 0,
            fine: self.fine,
            before: None,
        };
        let Some(groups) = groups(self.layout, &state.image, state.open, op, choice) else {
            return Ok(());
        };
        let phases: Vec<_> = phases(&groups, &plans(op))
            .into_iter()
            .filter(|p| !p.is_empty())
            .collect();
        let mut at = state;
        for phase in phases.iter().take(phases.len().saturating_sub(1)) {
            at.image.apply(phase);
            let found = self.layout.scan(&at.image, at.open)?.tree;
            if found != before {
                return Err(format!("leaves {}", found.text()));
            }
            let mut after = at.clone();
            for next in [Op::Create(LATER), Op::Truncate(LATER, 3)] {
                if let Some((state, _)) = self.attempt(&after, &next, &plans(&next), 0)? {
                    after = state;
                }
            }
            for next in followers {
                self.attempt(&at, next, &plans(next), 0)
                    .map_err(|e| format!("then {next:?}: {e}"))?;
            }
        }
        Ok(())
    }

    /// Two calls at once on objects that locks keep apart: each may be anywhere. `hold`: objects that the first frees are
    /// reused only after its last fence.
    pub fn pair(
        &mut self,
        start: &State,
        a: &Op,
        b: &Op,
        plans: &dyn Fn(&Op) -> Plan,
        hold: bool,
    ) -> Result<bool, String> {
        let layout = self.layout;
        let view = layout.scan(&start.image, start.open)?;
        let tree = view.tree.clone();
        let (Some(after_a), Some(after_b)) = (tree.apply(a), tree.apply(b)) else {
            return Ok(false);
        };
        let Some(both) = after_a.apply(b) else {
            return Ok(false);
        };
        let choice = Choice {
            fine: self.fine,
            ..Choice::default()
        };
        let Some(groups_a) = groups(layout, &start.image, start.open, a, choice) else {
            return Ok(false);
        };
        let phases_a: Vec<_> = phases(&groups_a, &plans(a))
            .into_iter()
            .filter(|p| !p.is_empty())
            .collect();
        let mut image_a = start.image.clone();
        phases_a.iter().for_each(|p| image_a.apply(p));
        let choice = Choice {
            before: hold.then_some(&view),
            ..choice
        };
        let open = opened(layout, &image_a, a, &groups_a, start.open);
        let Some(groups_b) = groups(layout, &image_a, open, b, choice) else {
            return Ok(false);
        };
        let phases_b: Vec<_> = phases(&groups_b, &plans(b))
            .into_iter()
            .filter(|p| !p.is_empty())
            .collect();
        let texts = [tree.text(), after_a.text(), after_b.text(), both.text()];
        for i in 0..=phases_a.len() {
            for j in 0..=phases_b.len() {
                let mut base = start.image.clone();
                phases_a[..i]
                    .iter()
                    .chain(&phases_b[..j])
                    .for_each(|p| base.apply(p));
                let none = vec![];
                let (x, y) = (
                    phases_a.get(i).unwrap_or(&none),
                    phases_b.get(j).unwrap_or(&none),
                );
                for pending in [
                    [x.clone(), y.clone()].concat(),
                    [y.clone(), x.clone()].concat(),
                ] {
                    let whole = (i == phases_a.len(), j == phases_b.len());
                    images(self.model, &base, &pending, &mut |image| {
                        let (found, _) = self
                            .settle(image)
                            .map_err(|e| format!("{a:?} beside {b:?}: {e}"))?;
                        let allowed = |k: usize| {
                            *texts[k] == *found
                                && (!whole.0 || k & 1 == 1)
                                && (!whole.1 || k & 2 == 2)
                        };
                        if (0..4).any(allowed) {
                            Ok(())
                        } else {
                            Err(format!("{a:?} beside {b:?}: {found}"))
                        }
                    })?;
                }
            }
        }
        Ok(true)
    }
}

/// The inode that is held open after `op`.
fn opened(
    layout: Layout,
    image: &Image,
    op: &Op,
    groups: &Groups,
    before: Option<u64>,
) -> Option<u64> {
    use words::inode as inode_word;
    match op {
        Op::Open(at) => {
            let view = layout.scan(image, before).ok()?;
            view.tree.get(*at).map(|key| key >> 32)
        }
        Op::Tmpfile => {
            let birth = groups.iter().find(|g| g.0 == "inode.birth")?.1[0].at;
            (1..=INODES).find(|&i| inode(i, inode_word::BIRTH) == birth)
        }
        _ => before,
    }
}

fn times_in(layout: Layout, image: &Image) -> BTreeMap<u64, [u64; 4]> {
    (1..=INODES)
        .map(|i| (i, layout.times_of(image, i)))
        .collect()
}

/// A time that is neither the old nor the new one.
fn torn_time(
    found: &BTreeMap<u64, [u64; 4]>,
    old: &BTreeMap<u64, [u64; 4]>,
    new: &BTreeMap<u64, [u64; 4]>,
    returned: bool,
) -> Option<String> {
    for (number, times) in found {
        for (k, time) in times.iter().enumerate() {
            let is = |of: &BTreeMap<u64, [u64; 4]>| of.get(number).is_some_and(|t| t[k] == *time);
            if !is(new) && (returned || !is(old)) {
                return Some(format!("inode {number} has time {time} that it never had"));
            }
        }
    }
    None
}

/// Groups of the call that reached the medium: all (+), none (-), a part (~).
fn held(groups: &Groups, pending: &[Store], image: &Image) -> String {
    let in_flight = groups
        .iter()
        .filter(|g| g.1.iter().any(|s| pending.contains(s)));
    let marks = in_flight.map(|(label, stores)| {
        let there = stores.iter().filter(|s| image[s.at] == s.word).count();
        let mark = match there {
            n if n == stores.len() => "+",
            0 => "-",
            _ => "~",
        };
        format!("{mark}{label}")
    });
    marks.collect::<Vec<_>>().join(" ")
}
