//! Whether a model allows a tree that was seen after a power cut.
//!
//! A tree is allowed if a set of effects leaves it: closed under the model's order, with all demands of returned
//! syncs, and without calls that were not made yet. Effects are decided one by one in the order of the calls. Data
//! that a power cut may tear is decided last, sector by sector: each holds any of its versions since the
//! effects that are whole.

use crate::effects::{Bits, Body, Disk, Effects, Ino, ROOT};
use crate::models::{Classes, Hole, Model};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use steadfast_vfs::FileKind;

/// Maximum number of sets of effects that are tried for one tree.
const TRIES_MAX: usize = 100_000;
/// Maximum number of explanations whose common relaxations are computed.
const EXPLANATIONS_MAX: usize = 64;

/// A relaxation: two kinds of effects of which the earlier one was lost and the later one was not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Relaxation {
    /// The kind that was lost.
    pub lost: Classes,
    /// The kind that came later and was durable; the same write with `torn`.
    pub durable: Classes,
    /// What the two have in common.
    pub common: Common,
}

/// What two effects have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Common {
    /// They are parts of one write, or sectors of one.
    Write,
    /// The file.
    File,
    /// The directory.
    Directory,
    /// Neither.
    Nothing,
}

impl fmt::Display for Relaxation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let common = match self.common {
            Common::Write if self.lost == self.durable => return f.write_str("torn write"),
            Common::Write => "same write",
            Common::File => "same file",
            Common::Directory => "same directory",
            Common::Nothing => "another file",
        };
        write!(f, "{} lost before {}, {common}", self.lost, self.durable)
    }
}

impl PartialOrd for Relaxation {
    fn partial_cmp(&self, other: &Relaxation) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Relaxation {
    fn cmp(&self, other: &Relaxation) -> std::cmp::Ordering {
        (self.to_string(), self.common).cmp(&(other.to_string(), other.common))
    }
}

/// Moment of a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Calls that had returned; one more may be in flight.
    pub returned: usize,
}

/// The answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The model allows it; with the relaxations that all explanations have.
    Allowed(BTreeSet<Relaxation>),
    /// No set of effects leaves this tree; with the differences of the nearest one.
    Forbidden(String),
    /// Too many sets to decide.
    Undecided,
}

struct Search<'a> {
    effects: &'a Effects,
    model: &'a Model,
    seen: &'a Disk,
    count: usize,
    floor: &'a Bits,
    /// Effects that a sync in flight may have written ahead of the order.
    named: &'a Bits,
    /// Whether a later effect waits for this one.
    needed: Vec<bool>,
    tries: usize,
    explanations: usize,
    common: Option<BTreeSet<Relaxation>>,
    nearest: Option<(usize, String)>,
}

/// Whether a model allows a tree at a moment.
#[must_use]
pub fn allowed(effects: &Effects, model: &Model, moment: Moment, seen: &Disk) -> Answer {
    let steps = effects.steps();
    let returned = moment.returned.min(steps);
    let next = (returned + 1).min(steps);
    let count = effects.upto[next];
    let needed = (0..count)
        .map(|i| effects.all[i + 1..count].iter().any(|e| e.before.get(i)))
        .collect();
    let mut search = Search {
        effects,
        model,
        seen,
        count,
        floor: &effects.demanded[returned],
        named: &effects.demanded[next],
        needed,
        tries: 0,
        explanations: 0,
        common: None,
        nearest: None,
    };
    search.go(0, &mut Bits::new(), &mut Bits::new(), &effects.base);
    match search.common {
        Some(common) => Answer::Allowed(common),
        None if search.tries >= TRIES_MAX => Answer::Undecided,
        None => Answer::Forbidden(search.nearest.map_or_else(String::new, |(_, t)| t)),
    }
}

impl Search<'_> {
    fn over(&self) -> bool {
        self.tries >= TRIES_MAX || self.explanations >= EXPLANATIONS_MAX
    }

    fn go(&mut self, i: usize, whole: &mut Bits, partial: &mut Bits, disk: &Disk) {
        if self.over() {
            return;
        }
        if i == self.count {
            self.tries += 1;
            self.compare(whole, partial, disk);
            return;
        }
        let effect = &self.effects.all[i];
        let must = self.floor.get(i);
        let jumps = self.model.sync_jumps && self.named.get(i);
        let before = if jumps { &effect.cells } else { &effect.before };
        let possible = whole.contains(before);
        let tears = effect.tears && effect.class == Classes::DATA && !must;
        if possible && (!tears || self.needed[i]) {
            let mut after = disk.clone();
            for change in &effect.changes {
                after.apply(change);
            }
            whole.insert(i);
            self.go(i + 1, whole, partial, &after);
            whole.remove(i);
        }
        if must {
            return;
        }
        if tears {
            // Earlier versions of the same sectors may be missing as well.
            let mut needs = before.clone();
            needs.subtract(partial);
            if whole.contains(&needs) {
                partial.insert(i);
                self.go(i + 1, whole, partial, disk);
                partial.remove(i);
                return;
            }
        }
        self.go(i + 1, whole, partial, disk);
    }

    fn compare(&mut self, whole: &Bits, partial: &Bits, disk: &Disk) {
        let pairs = match structure(disk, self.seen) {
            Ok(pairs) => pairs,
            Err((near, difference)) => return self.note(near, difference),
        };
        let mut versions: Option<Vec<Disk>> = None;
        let mut torn = Bits::new();
        let mut lost = partial.clone();
        for (ours, theirs) in pairs {
            let sectors = differing(disk, ours, self.seen, theirs);
            for sector in sectors {
                if self.is_garbage(disk, ours, sector) {
                    continue;
                }
                let versions = versions.get_or_insert_with(|| self.versions(whole, partial));
                let wanted = sector_of(self.seen, theirs, sector);
                let found = versions
                    .iter()
                    .position(|v| sector_of(v, ours, sector) == wanted);
                if found.is_none() {
                    let at = sector * SECTOR;
                    return self.note(1_000_000, format!("content of a file at {at}"));
                }
            }
        }
        // Choose the partial effects that are there, in whole or in part.
        for e in partial.iter() {
            let effect = &self.effects.all[e];
            let (Some(ino), Some((from, to))) = (effect.file, effect.part) else {
                continue;
            };
            let Some(theirs) = self.partner(disk, ino) else {
                continue;
            };
            let mut with = disk.clone();
            for change in &effect.changes {
                with.apply(change);
            }
            let sectors = from / SECTOR..to.div_ceil(SECTOR);
            let (mut old, mut new) = (0, 0);
            for s in sectors {
                let seen = sector_of(self.seen, theirs, s);
                let (a, b) = (sector_of(disk, ino, s), sector_of(&with, ino, s));
                match (seen == a, seen == b) {
                    (true, false) => old += 1,
                    (false, true) => new += 1,
                    _ => {}
                }
            }
            if old == 0 {
                lost.remove(e);
            }
            if old > 0 && new > 0 {
                torn.insert(e);
            }
        }
        let relaxed = self.relaxed(whole, &lost, &torn);
        self.explanations += 1;
        match &mut self.common {
            None => self.common = Some(relaxed),
            Some(common) => common.retain(|r| relaxed.contains(r)),
        }
    }

    /// The file of the seen tree under one of the names of ours.
    fn partner(&self, disk: &Disk, ino: Ino) -> Option<Ino> {
        let pairs = structure(disk, self.seen).ok()?;
        pairs.into_iter().find(|(o, _)| *o == ino).map(|(_, t)| t)
    }

    /// The trees with the first, the first two, … of the partial effects.
    fn versions(&self, whole: &Bits, partial: &Bits) -> Vec<Disk> {
        let mut all = Vec::new();
        let mut chosen = Bits::new();
        let mut add = |chosen: &Bits| {
            let mut disk = self.effects.base.clone();
            for i in 0..self.count {
                if whole.get(i) || chosen.get(i) {
                    for change in &self.effects.all[i].changes {
                        disk.apply(change);
                    }
                }
            }
            all.push(disk);
        };
        for e in partial.iter() {
            chosen.insert(e);
            add(&chosen);
        }
        all
    }

    /// Old content of the medium: the model says no more about it.
    fn is_garbage(&self, disk: &Disk, ino: Ino, sector: u64) -> bool {
        if self.model.hole != Hole::Garbage {
            return false;
        }
        let from = sector * SECTOR;
        let bytes = sector_of(disk, ino, sector);
        !bytes.is_empty() && {
            let mut garbage = bytes.iter().enumerate();
            garbage.any(|(i, b)| *b == crate::effects::garbage(from + i as u64))
        }
    }

    fn note(&mut self, near: usize, difference: String) {
        if self.nearest.as_ref().is_none_or(|(n, _)| near > *n) {
            self.nearest = Some((near, difference));
        }
    }

    fn relaxed(&self, whole: &Bits, lost_data: &Bits, torn: &Bits) -> BTreeSet<Relaxation> {
        let mut all = BTreeSet::new();
        let partial_kept = |i: usize| self.effects.all[i].tears && !lost_data.get(i);
        let there = |i: usize| {
            whole.get(i) || (partial_kept(i) && self.effects.all[i].class == Classes::DATA)
        };
        for i in 0..self.count {
            if torn.get(i) {
                all.insert(Relaxation {
                    lost: Classes::DATA,
                    durable: Classes::DATA,
                    common: Common::Write,
                });
            }
            if there(i) || torn.get(i) {
                continue;
            }
            for j in i + 1..self.count {
                if there(j) {
                    all.insert(relaxation(self.effects, i, j));
                }
            }
        }
        all
    }
}

fn relaxation(effects: &Effects, i: usize, j: usize) -> Relaxation {
    let (a, b) = (&effects.all[i], &effects.all[j]);
    let common = if a.step == b.step && a.class != b.class {
        Common::Write
    } else if a.file.is_some() && a.file == b.file {
        Common::File
    } else if a.dir.is_some() && a.dir == b.dir {
        Common::Directory
    } else {
        Common::Nothing
    };
    Relaxation {
        lost: a.class,
        durable: b.class,
        common,
    }
}

/// Relaxations of a model in a run: effects that may be lost before something durable.
#[must_use]
pub fn relaxations(effects: &Effects, jumps: bool) -> BTreeSet<Relaxation> {
    let mut all = BTreeSet::new();
    let n = effects.all.len();
    for i in 0..n {
        let effect = &effects.all[i];
        // Demanded as soon as it is called: it is never lost.
        let ever = effects.demanded.get(effect.step + 1);
        if ever.is_some_and(|d| d.get(i)) {
            continue;
        }
        if effect.tears && effect.part.is_some_and(|(from, to)| to - from > SECTOR) {
            all.insert(Relaxation {
                lost: Classes::DATA,
                durable: Classes::DATA,
                common: Common::Write,
            });
        }
        for j in i + 1..n {
            let later = &effects.all[j];
            let demanded = effects.demanded[later.step].get(i);
            if !demanded && !later.before.get(i) {
                all.insert(relaxation(effects, i, j));
            }
            let jumped = |t: usize| {
                let d = &effects.demanded[t];
                jumps && d.get(j) && !d.get(i) && !later.cells.get(i)
            };
            if (later.step + 1..effects.demanded.len()).any(jumped) {
                all.insert(relaxation(effects, i, j));
            }
        }
    }
    all
}

const SECTOR: u64 = super::disk::SECTOR;

fn sector_of(disk: &Disk, ino: Ino, sector: u64) -> Vec<u8> {
    let Some(Body::File { size, data }) = disk.node(ino).map(|n| &n.body) else {
        return Vec::new();
    };
    let from = sector * SECTOR;
    let len = size.saturating_sub(from).min(SECTOR) as usize;
    let mut bytes = vec![0; len];
    // Bytes that were never written read as zeros.
    data.read(from, &mut bytes);
    bytes
}

fn differing(disk: &Disk, ours: Ino, seen: &Disk, theirs: Ino) -> Vec<u64> {
    let end = disk.size(ours).div_ceil(SECTOR);
    (0..end)
        .filter(|s| sector_of(disk, ours, *s) != sector_of(seen, theirs, *s))
        .collect()
}

/// Whether two trees have the same names, kinds, attributes, sizes and links; returns the pairs of files whose
/// content is to be compared.
fn structure(ours: &Disk, theirs: &Disk) -> Result<Vec<(Ino, Ino)>, (usize, String)> {
    let mut pairs: BTreeMap<Ino, Ino> = BTreeMap::new();
    let mut back: HashMap<Ino, Ino> = HashMap::new();
    let mut files = Vec::new();
    let mut done = 0;
    let mut dirs = BTreeSet::from([ROOT]);
    let mut todo = vec![(String::new(), ROOT, ROOT)];
    while let Some((path, a, b)) = todo.pop() {
        let here = done;
        let fail = |why: &str| Err((here, format!("{path}: {why}")));
        let (Some(x), Some(y)) = (ours.node(a), theirs.node(b)) else {
            return fail("missing");
        };
        if x.kind != y.kind {
            return fail("another kind");
        }
        if x.kind != FileKind::Symlink && (x.perm, x.uid, x.gid) != (y.perm, y.uid, y.gid) {
            return Err((done, format!("{path}: mode {:o}, not {:o}", y.perm, x.perm)));
        }
        if x.xattrs != y.xattrs {
            return fail("other extended attributes");
        }
        done += 1;
        match (&x.body, &y.body) {
            (Body::Dir(one), Body::Dir(two)) => {
                // A directory with two names in the model is seen at the first: recovery does not keep two.
                let mut mine = BTreeMap::new();
                for (name, ino) in one {
                    let is_dir = ours
                        .node(*ino)
                        .is_some_and(|n| n.kind == FileKind::Directory);
                    if !is_dir || dirs.insert(*ino) {
                        mine.insert(name, *ino);
                    }
                }
                for name in two.keys() {
                    if !mine.contains_key(name) {
                        let name = crate::effects::readable(name);
                        return Err((done, format!("{path}/{name} is there")));
                    }
                }
                for (name, ino) in mine {
                    let text = crate::effects::readable(name);
                    let Some(other) = two.get(name) else {
                        return Err((done, format!("{path}/{text} is not there")));
                    };
                    todo.push((format!("{path}/{text}"), ino, *other));
                }
            }
            (Body::File { size, .. }, Body::File { size: other, .. }) if size != other => {
                return Err((done, format!("{path}: {other} bytes, not {size}")));
            }
            (Body::Link(one), Body::Link(two)) if one != two => return fail("another target"),
            _ => {}
        }
        if x.kind != FileKind::Directory {
            let known = (pairs.insert(a, b), back.insert(b, a));
            if known.0.is_some_and(|o| o != b) || known.1.is_some_and(|o| o != a) {
                return fail("another inode");
            }
            if x.kind == FileKind::Regular && known.0.is_none() {
                files.push((a, b));
            }
        }
        done += 1;
    }
    Ok(files)
}

/// Whether two trees are equal, apart from times.
#[must_use]
pub fn same(one: &Disk, other: &Disk) -> bool {
    structure(one, other).is_ok_and(|pairs| {
        pairs
            .into_iter()
            .all(|(a, b)| differing(one, a, other, b).is_empty())
    })
}

/// A tree in a few words: paths, sizes, and runs of bytes.
#[must_use]
pub fn describe(disk: &Disk) -> String {
    let mut parts = Vec::new();
    for (path, seen) in disk.observe() {
        if path.is_empty() {
            continue;
        }
        let name = crate::effects::readable(path.get(1..).unwrap_or_default());
        let what = match seen.kind {
            FileKind::Directory => "/".to_owned(),
            FileKind::Symlink => format!(" -> {}", crate::effects::readable(&seen.target)),
            FileKind::Regular => {
                let size = seen.data.size();
                let mut runs: Vec<(u8, u64)> = Vec::new();
                for sector in 0..size.div_ceil(SECTOR).min(64) {
                    let mut byte = [0];
                    seen.data.read(sector * SECTOR, &mut byte);
                    match runs.last_mut() {
                        Some((b, n)) if *b == byte[0] => *n += 1,
                        _ => runs.push((byte[0], 1)),
                    }
                }
                let runs: Vec<String> = runs
                    .iter()
                    .map(|(b, n)| match b {
                        0 => format!("0x{n}"),
                        b => format!("{}x{n}", crate::effects::readable(&[*b])),
                    })
                    .collect();
                format!(
                    " {size}{}{}",
                    if runs.is_empty() { "" } else { " " },
                    runs.join(" ")
                )
            }
            _ => " special".to_owned(),
        };
        let mode = match seen.kind {
            FileKind::Regular if seen.perm != 0o644 => format!(" mode {:o}", seen.perm),
            _ => String::new(),
        };
        parts.push(format!("{name}{what}{mode}"));
    }
    parts.join(", ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::models::Model;
    use crate::script::Script;
    use crate::states::{Former, Limits, enumerate};

    fn runs() -> Vec<crate::effects::Run> {
        let file = || {
            Script::new()
                .make("a")
                .write("a", 0, &[b'a'; 5120])
                .durable()
        };
        vec![
            file()
                .make("b")
                .write("b", 0, &[b'b'; 5120])
                .close("b")
                .rename("b", "a")
                .run(),
            file()
                .write("a", 512, &[b'b'; 4096])
                .fdatasync("a")
                .unlink("a")
                .run(),
            file()
                .truncate("a", 1000)
                .write("a", 1000, &[b'c'; 600])
                .chmod("a", 0o600)
                .mkdir("d")
                .run(),
            file().mkdir("d").rename("a", "d/a").fsync("d/a").run(),
        ]
    }

    /// Two answers to the same question: the states that exploration forms, and the search here.
    #[test]
    fn every_state_that_exploration_forms_is_allowed_at_its_moments() {
        for name in Model::names() {
            let model = Model::shipped(name).unwrap();
            for run in runs() {
                let effects = Effects::new(&run, &model);
                let former = Former::new(&effects);
                let limits = Limits {
                    samples: 50,
                    ..Limits::default()
                };
                for state in enumerate(&effects, model.sync_jumps, model.tear, limits).all {
                    let disk = former.disk(&state.bits, state.tear);
                    // An effect that a sync writes ahead of the order is there at the earliest while the sync runs.
                    let first = if model.sync_jumps {
                        state.moments.1
                    } else {
                        state.moments.0
                    };
                    for returned in [first, state.moments.1] {
                        let answer = allowed(&effects, &model, Moment { returned }, &disk);
                        assert!(
                            matches!(answer, Answer::Allowed(_)),
                            "{name}, {returned}: {}: {answer:?}",
                            describe(&disk)
                        );
                    }
                }
            }
        }
    }

    /// And what a weaker model allows besides is forbidden by the stronger one.
    #[test]
    fn what_only_a_weaker_model_allows_is_forbidden() {
        let (posix, ordered) = (Model::shipped("posix"), Model::shipped("ordered"));
        let (posix, ordered) = (posix.unwrap(), ordered.unwrap());
        let mut forbidden = 0;
        for run in runs() {
            let (weak, strong) = (Effects::new(&run, &posix), Effects::new(&run, &ordered));
            let (weak_former, strong_former) = (Former::new(&weak), Former::new(&strong));
            let states = |effects: &Effects, model: &Model| {
                enumerate(effects, model.sync_jumps, model.tear, Limits::default()).all
            };
            let known: BTreeSet<u128> = states(&strong, &ordered)
                .iter()
                .map(|s| strong_former.disk(&s.bits, s.tear).digest())
                .collect();
            for state in states(&weak, &posix) {
                let disk = weak_former.disk(&state.bits, state.tear);
                let moment = Moment {
                    returned: state.moments.0,
                };
                let answer = allowed(&strong, &ordered, moment, &disk);
                match answer {
                    Answer::Forbidden(_) => forbidden += 1,
                    Answer::Allowed(_) => assert!(known.contains(&disk.digest())),
                    Answer::Undecided => panic!("given up"),
                }
            }
        }
        assert!(forbidden > 100, "{forbidden}");
    }

    #[test]
    fn what_a_sync_demanded_must_be_there_after_it_returned() {
        let run = Script::new().make("a").fsync("a").run();
        let model = Model::shipped("ext4").unwrap();
        let effects = Effects::new(&run, &model);
        let empty = Disk::default();
        let at = |returned| allowed(&effects, &model, Moment { returned }, &empty);
        assert!(matches!(at(1), Answer::Allowed(_)));
        assert!(matches!(at(2), Answer::Forbidden(_)));
    }
}
