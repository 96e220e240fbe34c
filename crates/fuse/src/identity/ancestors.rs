//! The way from a process up to the nearest ancestor whose stream was set.
//!
//! A parent's number is read from the child, and the number may be another's when it is looked at. So the child's parent is
//! read again after the parent was looked at: a child whose parent has ended has another one before the number is free. And
//! no process starts before its parent: if the presumed parent started later, its number was used again. Either of these shows without a
//! second look at the child that the number was not used again:
//! * the parent started in an earlier clock tick than the child: it had its number when the child was made;
//! * the server held a descriptor of the parent before it read the number, and the parent has not ended.
//!
//! An ancestor that has been decided ends the way, also where it was decided that nothing puts it into a stream: a child begins
//! where its parent is.

use super::placed::{By, Process};
use super::process::{Held, Proc};
use super::registry::Member;
use super::resolver::Origin;

/// Most processes between one and the ancestor that is looked for, and attempts to see one of them.
const HOPS_MAX: usize = 128;

/// Result of a look at an ancestor.
pub(super) enum Seen {
    /// The way ends here.
    Decided(Ancestry),
    /// Nothing: on to its parent.
    Unknown,
}

/// Result of the walk to the ancestors.
#[derive(Clone, Debug)]
pub(super) enum Ancestry {
    /// The stream of this ancestor was set.
    Set(u32, Member),
    /// The parent was moved by the rule of a directory.
    Directory(By, Member),
    /// None of them.
    Nothing,
}

impl Ancestry {
    /// The stream that a process passes on to its children; `None` if it is not decided.
    pub(super) fn of(process: &Process, sets: u64) -> Seen {
        let passed_on = match process.decision() {
            Some(decision) => match decision.by {
                By::Set => Ancestry::Set(process.number, decision.member),
                By::Ancestor(number) => Ancestry::Set(number, decision.member),
                by @ By::Directory(_) => Ancestry::Directory(by, decision.member),
                By::Cgroup(_) | By::Environment | By::Nothing => Ancestry::Nothing,
            },
            None if process.clear_at() == Some(sets) => Ancestry::Nothing,
            None => return Seen::Unknown,
        };
        Seen::Decided(passed_on)
    }
}

/// Goes up from a process. `known` finds processes that the server has held since before it read `origin`; `look` is asked for
/// all other ancestors. Returns the ancestors that neither of them knew.
pub(super) fn walk(
    proc: &Proc,
    (process, origin): (u32, Origin),
    known: impl Fn(u32) -> Option<Ancestry>,
    look: impl Fn(&Held) -> Seen,
) -> (Ancestry, Vec<Held>) {
    let mut passed = Vec::new();
    let (mut child, mut parent, mut start) = (process, origin.parent, origin.start);
    for _ in 0..HOPS_MAX {
        if parent == 0 {
            break;
        }
        if let Some(ancestry) = known(parent) {
            return (ancestry, passed);
        }
        let seen = proc.hold(parent).map(|held| {
            let seen = look(&held);
            (held, seen)
        });
        let stat = match seen {
            Some((_, Seen::Unknown)) => proc.stat(parent),
            _ => None,
        };
        let older = stat.zip(start).is_some_and(|(stat, of)| stat.start < of);
        if !older {
            let Some(again) = proc.stat(child) else {
                break; // It has ended; only its children would ask.
            };
            start = Some(again.start);
            if again.parent != parent {
                parent = again.parent;
                continue;
            }
        }
        match (seen, stat) {
            // One that is known by its identity has not started after its child.
            (Some((_, Seen::Decided(ancestry))), _) => return (ancestry, passed),
            (Some((held, Seen::Unknown)), Some(stat))
                if start.is_some_and(|start| stat.start <= start) =>
            {
                passed.push(held);
                (child, parent, start) = (parent, stat.parent, Some(stat.start));
            }
            _ => {}
        }
    }
    (Ancestry::Nothing, passed)
}
