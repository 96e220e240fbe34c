//! Plans: which groups of stores a call issues between its fences, in which order.

use crate::ops::Groups;
use crate::pm::Store;

/// Groups between fences. As text: labels, and `|` for a fence; stores after the last `|` are left to the next call's fence.
pub type Plan = Vec<Vec<&'static str>>;

/// Every group of stores that some call has, with its content.
pub const LABELS: &[(&str, &str)] = &[
    ("fence", "nothing; a fence of its own"),
    ("poke", "setup"),
    ("page.zero", "zeros over a page that becomes a directory's"),
    ("data", "data, targets and attributes in pages"),
    (
        "desc",
        "descriptor of an adopted page: life := 0, owner, offset, life",
    ),
    ("desc.kill", "its life := 0"),
    ("desc.body", "its owner and offset"),
    ("desc.life", "its life"),
    ("dirpage", "the same of a directory page"),
    ("dirpage.kill", ""),
    ("dirpage.body", ""),
    ("dirpage.life", ""),
    (
        "inode.extra",
        "second line of a new inode: times, inline bytes, generation and length of inline attributes",
    ),
    ("inode.body", "first line of a new inode but its birth word"),
    ("inode.birth", "its birth word"),
    (
        "inode.inline",
        "inline attributes of an existing inode, then their length",
    ),
    ("inode.slot", "the size and owner that do not count yet"),
    ("inode.commit", "the word that makes them count"),
    ("inode.times", "times of an existing inode"),
    ("inode.nlink", "stored link count"),
    ("parent.nlink", "stored link count"),
    ("new.nlink", "stored link count"),
    ("old.nlink", "stored link count"),
    ("touch", "times of a directory"),
    (
        "old.die",
        "death mark of a page: its life becomes {sequence + 1, state, free}",
    ),
    (
        "old.drop",
        "the same of a page that shows nothing: unwritten, or past the new end",
    ),
    (
        "reserve",
        "descriptor of an adopted page without content, as `desc`",
    ),
    (
        "olddir.die",
        "life := 0 of the pages of a directory that loses its name",
    ),
    (
        "old.clear",
        "mark of a written page: {sequence + 1, written, unwritten}",
    ),
    (
        "old.turn",
        "mark of an unwritten page: {sequence + 1, unwritten, written}",
    ),
    ("dentry.cont", "rest of a long name"),
    ("dentry.body", "pointer := 0, tag, name"),
    ("dentry.ino", "commit word"),
    ("dentry.zero", "a dead slot wiped"),
    ("D.body", "target of a rename: tag, name"),
    (
        "D.rptr",
        "its rename pointer: pointer := 0, second word, pointer",
    ),
    ("D.tag", "its new tag"),
    ("D.ino", "its commit word"),
    ("D.unptr", "its pointer := 0"),
    (
        "S.ino",
        "source of a rename: commit word := 0 or the other inode",
    ),
    (
        "S.ptr",
        "its own pointer := 0, if it goes on naming something",
    ),
    ("S.tag", "its new tag, if it goes on naming something"),
    ("S.zero", "the source wiped"),
    ("inode.zero", "an inode wiped"),
    ("desc.zero", "a descriptor wiped"),
];

/// Groups that may be in any phase: times of existing inodes, which are no part of the atomic change.
pub const ANYWHERE: &[&str] = &["touch", "inode.times"];

/// Groups that may be in an earlier phase, too, if there is one.
pub const EARLIER: &[&str] = &["reserve", "old.drop"];

/// The plan, with all groups that may be in an earlier phase in the first one.
pub fn earlier(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    if plan.len() > 2 {
        for phase in &mut plan[1..] {
            phase.retain(|l| !EARLIER.contains(l));
        }
        plan[0].extend(EARLIER);
    }
    plan
}

/// A plan from its text.
pub fn plan(text: &str) -> Plan {
    let label = |word: &str| {
        let known = LABELS.iter().find(|l| l.0 == word);
        known.unwrap_or_else(|| panic!("no such label: {word}")).0
    };
    text.split('|')
        .map(|phase| phase.split_whitespace().map(label).collect())
        .collect()
}

/// A plan as text.
pub fn show(plan: &Plan) -> String {
    let phases: Vec<String> = plan.iter().map(|phase| phase.join(" ")).collect();
    phases.join(" | ").trim().to_string()
}

/// The plan without groups that do not occur, and without the fences that then have nothing to wait for.
pub fn only(plan: &Plan, labels: &[&'static str]) -> Plan {
    let last = plan.len() - 1;
    let kept = plan.iter().map(|phase| {
        phase
            .iter()
            .copied()
            .filter(|l| labels.contains(l))
            .collect::<Vec<_>>()
    });
    kept.enumerate()
        .filter(|(k, phase)| *k == last || !phase.is_empty())
        .map(|x| x.1)
        .collect()
}

/// The stores of each phase. A group that the plan does not name is left out.
pub fn phases(groups: &Groups, plan: &Plan) -> Vec<Vec<Store>> {
    let of = |label: &str| {
        groups
            .iter()
            .filter(|g| g.0 == label)
            .flat_map(|g| g.1.clone())
            .collect::<Vec<_>>()
    };
    plan.iter()
        .map(|phase| phase.iter().flat_map(|label| of(label)).collect())
        .collect()
}

/// Every way to put `labels` into exactly `k` fenced phases; in a phase every order of the labels of one object.
pub fn all_plans(labels: &[&'static str], k: usize) -> Vec<Plan> {
    let mut plans = vec![];
    for code in 0..k.pow(labels.len() as u32) {
        let (mut rest, mut phases) = (code, vec![vec![]; k]);
        for label in labels {
            phases[rest % k].push(*label);
            rest /= k;
        }
        if phases.iter().any(|p| p.is_empty()) {
            continue;
        }
        let mut prefixes: Vec<Plan> = vec![vec![]];
        for phase in &phases {
            let orders = orders(phase);
            prefixes = prefixes
                .iter()
                .flat_map(|p| {
                    orders
                        .iter()
                        .map(move |o| [p.clone(), vec![o.clone()]].concat())
                })
                .collect();
        }
        plans.extend(prefixes.into_iter().map(|p| [p, vec![vec![]]].concat()));
    }
    plans
}

/// The object, and with it the line, that a label belongs to.
fn object(label: &str) -> &str {
    match label {
        "inode.extra" | "inode.inline" => "second line",
        _ => label.split('.').next().unwrap_or(label),
    }
}

/// Orders that differ in the order of labels of one object.
fn orders(labels: &[&'static str]) -> Vec<Vec<&'static str>> {
    if labels.is_empty() {
        return vec![vec![]];
    }
    let mut all = vec![];
    for k in 0..labels.len() {
        // A label of another object needs no order against the first.
        if object(labels[k]) != object(labels[0]) {
            continue;
        }
        let mut rest = labels.to_vec();
        let label = rest.remove(k);
        all.extend(orders(&rest).into_iter().map(|o| [vec![label], o].concat()));
    }
    all.sort();
    all.dedup();
    all
}
