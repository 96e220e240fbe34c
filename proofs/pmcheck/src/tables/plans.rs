//! The recommended plan of each call, by layout and model.

use crate::plan::{Plan, plan};
use crate::pm::Model;
use crate::spec::Op;
use crate::volume::*;

/// The name of a call; calls of one name have one plan.
pub fn call(op: &Op) -> &'static str {
    match op {
        Op::Create(_) => "create",
        Op::CreateWith(..) => "create, attributes inherited",
        Op::Mkdir(_) => "mkdir",
        Op::Symlink(..) => "symlink",
        Op::Tmpfile => "nameless",
        Op::Open(_) => "open",
        Op::Link(..) => "link",
        Op::Unlink(_) => "unlink",
        Op::Rmdir(_) => "rmdir",
        Op::Rename(..) => "rename",
        Op::Exchange(..) => "exchange",
        Op::Whiteout(..) => "whiteout",
        Op::Write(..) => "write",
        Op::Overwrite(..) => "overwrite",
        Op::Truncate(..) => "truncate",
        Op::Chmod(..) => "chmod",
        Op::Punch(..) => "punch",
        Op::Zero(..) => "zero",
        Op::Falloc(..) | Op::Reserve(..) => "fallocate",
        Op::SetTimes(_) => "set times",
        Op::SetAttributes(..) => "set attributes",
        Op::Poke(_) => "poke",
    }
}

/// The recommended plan.
pub fn plan_of(op: &Op, layout: Layout, model: Model) -> Plan {
    plan(if !layout.generations {
        published(op)
    } else {
        match model {
            Model::Line => line(op, layout),
            Model::Word => word(op),
            Model::Eadr => EADR,
            Model::EadrStores => EADR_STORES,
        }
    })
}

/// Plan of every call that changes one inode.
const CHANGE: &str = "data desc inode.inline old.die old.turn old.clear | reserve old.drop inode.slot inode.commit |";

fn line(op: &Op, layout: Layout) -> &'static str {
    match op {
        Op::CreateWith(..) | Op::Symlink(..) if layout.second_line == SecondLine::Needed => {
            "page.zero data desc dentry.cont | dirpage inode.extra inode.body inode.birth dentry.body dentry.ino touch |"
        }
        Op::CreateWith(..) | Op::Symlink(..) => {
            "page.zero data desc dentry.cont inode.extra inode.body inode.birth | dirpage dentry.body dentry.ino touch |"
        }
        Op::Create(_) | Op::Mkdir(_) => {
            "page.zero dentry.cont | dirpage inode.extra inode.body inode.birth parent.nlink dentry.body dentry.ino touch |"
        }
        Op::Tmpfile => "data desc inode.extra inode.body inode.birth |",
        Op::Link(..) => {
            "page.zero dentry.cont | dirpage inode.nlink dentry.body dentry.ino touch inode.times |"
        }
        Op::Unlink(_) | Op::Rmdir(_) => {
            "dentry.ino olddir.die touch inode.times | inode.nlink parent.nlink |"
        }
        Op::Rename(..) => {
            "page.zero dentry.cont new.nlink | dirpage D.body D.rptr D.tag D.ino olddir.die touch inode.times | S.ino | D.unptr inode.nlink old.nlink |"
        }
        Op::Exchange(..) => "D.rptr D.tag D.ino touch inode.times | S.ptr S.ino S.tag |",
        Op::Whiteout(..) => {
            "page.zero dentry.cont inode.extra inode.body inode.birth | dirpage D.body D.rptr D.tag D.ino olddir.die touch inode.times | S.ptr S.ino S.tag |"
        }
        Op::Overwrite(..) => "data inode.times |",
        Op::SetTimes(_) => "inode.times |",
        Op::Open(_) | Op::Poke(_) => "",
        _ => CHANGE,
    }
}

const EADR: &str = "page.zero data | dentry.cont desc dirpage reserve old.die old.drop old.turn old.clear inode.inline inode.extra inode.body inode.birth \
    D.body D.rptr D.tag D.ino olddir.die S.ptr S.ino S.tag dentry.body dentry.ino inode.slot inode.commit touch inode.times |";
const EADR_STORES: &str = "page.zero data dentry.cont desc dirpage reserve old.die old.drop old.turn old.clear inode.inline inode.extra inode.body inode.birth \
    D.body D.rptr D.tag D.ino olddir.die S.ptr S.ino S.tag dentry.body dentry.ino inode.slot inode.commit touch inode.times |";

fn word(op: &Op) -> &'static str {
    match op {
        Op::Create(_) | Op::CreateWith(..) | Op::Mkdir(_) | Op::Symlink(..) => {
            "page.zero data desc.kill dirpage.kill dentry.cont inode.extra | desc.body dirpage.body | desc.life dirpage.life inode.body inode.birth dentry.body | dentry.ino |"
        }
        Op::Tmpfile => "inode.extra inode.body inode.birth |",
        Op::Link(..) => {
            "page.zero dirpage.kill dentry.cont | dirpage.body | dirpage.life dentry.body | dentry.ino |"
        }
        Op::Unlink(_) | Op::Rmdir(_) => "dentry.ino olddir.die |",
        Op::Rename(..) => {
            "page.zero dirpage.kill dentry.cont | dirpage.body | dirpage.life D.body D.rptr D.tag | D.ino olddir.die | S.ino |"
        }
        Op::Exchange(..) => "D.rptr D.tag | D.ino | S.ptr | S.ino | S.tag |",
        Op::Whiteout(..) => {
            "inode.body inode.birth D.body D.rptr D.tag | D.ino olddir.die | S.ino | S.tag |"
        }
        Op::Write(..) | Op::Falloc(..) | Op::Reserve(..) | Op::SetAttributes(..) => {
            "desc.kill | desc.body data inode.inline | desc.life old.die old.drop old.turn inode.slot | inode.commit |"
        }
        Op::Truncate(..) | Op::Punch(..) | Op::Zero(..) | Op::Chmod(..) => {
            "desc.kill | desc.body data | desc.life old.die old.drop old.clear inode.slot | inode.commit |"
        }
        Op::Overwrite(..) => "data |",
        Op::SetTimes(_) => "inode.times |",
        Op::Open(_) | Op::Poke(_) => "",
    }
}

fn published(op: &Op) -> &'static str {
    match op {
        Op::Create(_) | Op::Mkdir(_) => {
            "page.zero | dirpage inode.body inode.birth parent.nlink dentry.body | dentry.ino |"
        }
        Op::Link(..) => "page.zero inode.nlink dentry.body | dirpage dentry.ino |",
        Op::Unlink(_) | Op::Rmdir(_) => {
            "dentry.ino | inode.nlink parent.nlink inode.zero desc.zero dentry.zero |"
        }
        Op::Rename(..) => {
            "page.zero new.nlink | dirpage D.body | D.rptr D.ino | S.ino | D.unptr S.zero old.nlink inode.nlink inode.zero desc.zero |"
        }
        _ => "data desc old.die old.turn | inode.slot inode.commit |",
    }
}

/// A search: its title, layout and model, and whether the short form runs it.
pub fn searches() -> Vec<(&'static str, Layout, Model, bool)> {
    let clears = Layout {
        recovery: Recovery::ClearsPointers,
        ..RECOMMENDED
    };
    let needed = Layout {
        second_line: SecondLine::Needed,
        above_both: true,
        ..RECOMMENDED
    };
    vec![
        (
            "Recommended layout, x86 line order",
            RECOMMENDED,
            Model::Line,
            true,
        ),
        (
            "The same, an inode that lost its second line was never born",
            needed,
            Model::Line,
            false,
        ),
        (
            "Recommended layout, eADR (data by non-temporal stores)",
            RECOMMENDED,
            Model::Eadr,
            true,
        ),
        (
            "Recommended layout, eADR (data by ordinary stores)",
            RECOMMENDED,
            Model::EadrStores,
            true,
        ),
        (
            "Recommended layout, recovery also clears rename pointers (two fences)",
            clears,
            Model::Line,
            false,
        ),
        (
            "Recommended layout, any subset of words",
            RECOMMENDED,
            Model::Word,
            false,
        ),
        (
            "Published layout, x86 line order",
            PUBLISHED,
            Model::Line,
            false,
        ),
    ]
}

/// Not offered for free words, or too many plans.
pub fn word_skips(family: &str) -> bool {
    [
        "new page",
        "long name",
        "symlink",
        "exchange",
        "whiteout",
        "mixed",
        "inherited",
    ]
    .iter()
    .any(|part| family.contains(part))
}
