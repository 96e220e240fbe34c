//! Scenarios: each call after the histories that matter to it.

use super::{A, B, C, D, DE, DX, E, FORGED, LONG, LONG2, call, w};
use crate::pm::Model;
use crate::spec::OPENED;
use crate::spec::{At, Op};
use crate::volume::*;
use Op::*;
use words::{Pointer, Tag, inode as inode_word, slot as slot_word};

/// Shapes of one call that share a plan.
pub struct Family {
    /// The call.
    pub call: &'static str,
    /// Its distinguishing feature.
    pub shape: &'static str,
    /// Histories, and the call.
    pub cases: Vec<(Vec<Op>, Op)>,
    /// Calls that follow one after another.
    pub chains: Vec<Vec<Op>>,
    /// Less would do: nothing of it survives a crash. It has its plan so that one plan serves all files.
    pub vanishes: bool,
}

impl Family {
    /// Call and shape.
    pub fn name(&self) -> String {
        if self.shape.is_empty() {
            self.call.into()
        } else {
            format!("{}: {}", self.call, self.shape)
        }
    }
}

const NAMELESS: &str = "of a nameless file";

fn family(shape: &'static str, cases: Vec<(Vec<Op>, Op)>) -> Family {
    Family {
        call: call(&cases[0].1),
        shape,
        cases,
        chains: vec![],
        vanishes: shape == NAMELESS,
    }
}

/// Calls tried after each call, with the names that exist by then.
pub fn followers(layout: Layout, model: Model) -> Vec<Op> {
    let names = [
        Create(A),
        Create(C),
        Link(A, C),
        Link(B, C),
        Unlink(A),
        Unlink(B),
        Rename(A, B),
        Rename(B, A),
        Rename(B, C),
        Rename(DX, C),
        Mkdir(C),
        Rmdir(D),
    ];
    let rest = [
        Exchange(A, B),
        Whiteout(A, C),
        w(A, 0, &[0x71, 0x72]),
        w(A, 1, &[0x73, 0x74, 0x75]),
        Punch(A, 0, 1),
        Zero(A, 0, 1),
        Truncate(A, 1),
        Truncate(A, 5),
        Chmod(A, 0x5600),
        SetAttributes(A, vec![0x77]),
        Symlink(C, vec![0x78]),
    ];
    // Exchanges are not offered for free words.
    let swaps = |op: &Op| matches!(op, Exchange(..) | Whiteout(..));
    let offered = |op: &Op| layout.generations && !(model == Model::Word && swaps(op));
    let rest = rest.into_iter().filter(offered);
    names.into_iter().chain(rest).collect()
}

/// The tag of a name's slot, as if many names had been created before it.
fn retag(slot: Slot, name: At, tag: u64) -> Op {
    let word = Tag {
        tag,
        len: 1,
        hash: name.1 as u8,
    }
    .word();
    Poke(vec![(RECOMMENDED.slot(slot, slot_word::TAG), word)])
}

/// Generations of unused inodes, as if they had been used that often.
pub fn aged(last: &[u64], retired: &[u64]) -> Op {
    let age = |numbers: &[u64], generation: u64| {
        let words = numbers
            .iter()
            .map(|&i| (inode(i, inode_word::BIRTH), birth(generation, FILE)));
        words.collect::<Vec<_>>()
    };
    let max = u64::from(u32::MAX);
    Poke([age(last, max - 1), age(retired, max)].concat())
}

/// A file, and an empty directory with a page.
pub fn forged_before() -> Vec<Op> {
    vec![
        Create(A),
        retag((0, 0), A, 1 << 32),
        Mkdir(D),
        Create(DX),
        Create(B),
        Unlink(DX),
    ]
}

/// A file takes the first free page, with data that looks like a name with a rename pointer to A.
pub fn forged_write() -> Vec<Op> {
    let pointer = Pointer {
        from: place((0, 0)),
        tag: 1 << 32,
        exchange: None,
    };
    vec![w(B, 0, &[FORGED, pointer.words().0])]
}

/// A page of a directory that is gone is taken by a file.
pub fn forged() -> (Vec<Op>, Op) {
    let before = [forged_before(), vec![Rmdir(D)]].concat();
    (before, forged_write().remove(0))
}

/// The first free page holds bytes that look like a name of A.
pub fn forged_names() -> Vec<Op> {
    vec![
        Create(A),
        Create(B),
        w(B, 0, &[FORGED, 0]),
        Unlink(B),
        Mkdir(D),
    ]
}

/// The two words of B's old pointer and new one, mixed, mean the name A: their tags differ by 2^32.
pub fn mixed() -> (Vec<Op>, Op) {
    let before = vec![
        Create(A),
        Rename(A, B),
        Link(B, A),
        Create(C),
        retag((0, 2), C, (1 << 32) + 3),
    ];
    (before, Rename(C, B))
}

/// Cases of each call.
pub fn families(layout: Layout) -> Vec<Family> {
    let old = vec![Create(A), Unlink(A)]; // an inode, a slot and a tag with a past
    let used = vec![Create(A), w(A, 0, &[0x11, 0x12]), Unlink(A), Create(A)];
    let forged_page = forged_names();
    // The root's page has no slot left, and the first free page holds bytes that look like a name.
    let full_dir = [forged_names(), vec![Create(B), Create(C)]].concat();
    let mut all = vec![
        family(
            "",
            vec![
                (vec![], Create(A)),
                (old.clone(), Create(B)),
                (used.clone(), Create(B)),
            ],
        ),
        family(
            "new page",
            vec![
                (vec![Mkdir(D)], Create(DX)),
                (forged_page, Create(DX)),
                (full_dir.clone(), Create(E)),
            ],
        ),
        family("", vec![(vec![], Mkdir(D)), (old.clone(), Mkdir(D))]),
        family(
            "",
            vec![
                (vec![Create(A)], Link(A, B)),
                (vec![Create(A), Create(B), Unlink(B)], Link(A, C)),
            ],
        ),
        family(
            "",
            vec![
                (vec![Create(A)], Unlink(A)),
                (vec![Create(A), Link(A, B)], Unlink(A)),
                (vec![Mkdir(D), Create(DX)], Unlink(DX)),
            ],
        ),
        family(
            "",
            vec![
                (vec![Mkdir(D)], Rmdir(D)),
                (vec![Mkdir(D), Create(DX), Unlink(DX)], Rmdir(D)),
            ],
        ),
        family(
            "new name",
            vec![
                (vec![Create(A)], Rename(A, B)),
                (vec![Create(A), Rename(A, B), Rename(B, A)], Rename(A, B)),
                (
                    vec![Mkdir(D), Create(DX), Create(A), Unlink(DX)],
                    Rename(A, DX),
                ),
            ],
        ),
        family(
            "over a name",
            vec![
                (vec![Create(A), Create(B), Chmod(B, 0x8600)], Rename(A, B)),
                (
                    vec![Create(A), Chmod(A, 0x8600), Link(A, C), Create(B)],
                    Rename(A, B),
                ),
                (
                    vec![Create(A), Chmod(A, 0x8600), Rename(A, B), Create(A)],
                    Rename(B, A),
                ),
            ],
        ),
        family(
            "directory, to another one",
            vec![(
                vec![Mkdir(D), Create(DX), Mkdir(E), Unlink(DX)],
                Rename(E, DE),
            )],
        ),
        family(
            "over an empty directory",
            vec![(vec![Mkdir(D), Create(DX), Mkdir(E)], Rename(D, E))],
        ),
    ];
    for f in &mut all {
        let over = f.shape == "over an empty directory";
        if layout.generations && (f.call == "rmdir" || over) {
            f.cases.push(if over {
                (with(&forged_before(), Mkdir(E)), Rename(E, D))
            } else {
                (forged_before(), Rmdir(D))
            });
            f.chains.push(forged_write());
        }
    }
    if !layout.generations {
        all.retain(|f| !f.name().starts_with("rename: directory, to") || layout.wide);
        for f in &mut all {
            f.cases
                .retain(|c| !c.0.iter().any(|o| matches!(o, Write(..))));
        }
        return all;
    }
    all.extend(names(&old, &used, &full_dir));
    all.extend(contents());
    all
}

fn with(before: &[Op], op: Op) -> Vec<Op> {
    [before, &[op]].concat()
}

fn names(old: &[Op], used: &[Op], full_dir: &[Op]) -> Vec<Family> {
    let mut all = vec![
        family(
            "long name",
            vec![
                (old.to_vec(), Create(LONG)),
                (vec![Create(LONG), Unlink(LONG)], Create(LONG2)),
            ],
        ),
        family(
            "long name, new page",
            vec![(full_dir.to_vec(), Create(LONG))],
        ),
        family(
            "last generation",
            vec![(vec![aged(&[2], &[3, 4, 5, 6, 7])], Create(A))],
        ),
        family("inline", vec![(used.to_vec(), CreateWith(B, vec![0x35]))]),
        family(
            "page",
            vec![(used.to_vec(), CreateWith(B, vec![0x35, 0x36]))],
        ),
        family("", vec![(vec![], Tmpfile), (old.to_vec(), Tmpfile)]),
        family(
            "of a nameless file",
            vec![(vec![Tmpfile, w(OPENED, 0, &[0x13, 0x14])], Link(OPENED, A))],
        ),
        family("new page", vec![(forged_names(), Link(A, DX))]),
        family(
            "long name",
            vec![(vec![Create(A), Create(LONG), Unlink(LONG)], Link(A, LONG2))],
        ),
        family(
            "of an open file",
            vec![(vec![Create(A), w(A, 0, &[1]), Open(A)], Unlink(A))],
        ),
        family(
            "inline target",
            vec![
                (used.to_vec(), Symlink(B, vec![0x31])),
                (
                    vec![Symlink(A, vec![0x32]), Unlink(A)],
                    Symlink(A, vec![0x31]),
                ),
            ],
        ),
        family(
            "target in a page",
            vec![(used.to_vec(), Symlink(B, vec![0x31, 0x32]))],
        ),
        family("new page", vec![(forged_names(), Rename(A, DX))]),
        family(
            "long name",
            vec![
                (
                    vec![Create(LONG), Unlink(LONG), Create(A)],
                    Rename(A, LONG2),
                ),
                (vec![Create(LONG)], Rename(LONG, B)),
            ],
        ),
        family("over a name, pointers mixed", vec![mixed()]),
        family(
            "two names of one file",
            vec![(vec![Create(A), Link(A, B)], Rename(A, B))],
        ),
        family(
            "",
            vec![
                (vec![Create(A), Create(B), Chmod(B, 0x8600)], Exchange(A, B)),
                (vec![Create(A), Mkdir(D), Create(DX)], Exchange(A, D)),
                (
                    vec![Create(A), Chmod(A, 0x8600), Mkdir(D), Create(DX)],
                    Exchange(A, DX),
                ),
                (
                    vec![Create(A), Create(B), Chmod(B, 0x8600), Exchange(A, B)],
                    Exchange(A, B),
                ),
                (
                    vec![
                        Create(A),
                        Create(B),
                        Chmod(B, 0x8600),
                        Exchange(A, B),
                        Link(B, C),
                    ],
                    Exchange(A, C),
                ),
            ],
        ),
        family(
            "new name",
            vec![
                (vec![Create(A)], Whiteout(A, B)),
                (vec![Create(A), Unlink(A), Create(B)], Whiteout(B, A)),
            ],
        ),
        family(
            "over a name",
            vec![(vec![Create(A), Create(B), Chmod(B, 0x8600)], Whiteout(A, B))],
        ),
        family("new page", vec![(forged_names(), Whiteout(A, DX))]),
    ];
    for f in &mut all {
        if ["exchange", "whiteout"].contains(&f.call) {
            f.chains = [Link(B, C), Unlink(A)]
                .map(|first| vec![first, Exchange(A, C)])
                .to_vec();
            f.chains.push(vec![Link(B, C), Rename(C, A)]);
            f.chains.push(vec![Link(B, C), Exchange(C, A)]);
        }
    }
    all
}

fn contents() -> Vec<Family> {
    let file = vec![Create(A), w(A, 0, &[0x21, 0x22, 0x23])];
    let short = with(&file, Truncate(A, 1));
    let busy = [
        Create(B),
        w(B, 0, &[1, 2]),
        w(B, 0, &[3, 4]),
        w(B, 0, &[5, 6]),
        w(B, 0, &[7, 8]),
        Create(A),
    ];
    let wide = [
        Create(B),
        w(B, 0, &[1, 2, 3, 4]),
        w(B, 0, &[3, 4, 5, 6]),
        w(B, 0, &[5, 6, 7, 8]),
        Create(A),
    ];
    let holes = vec![Create(B), w(B, 0, &[0x91, 0x92]), Create(A), Unlink(B)];
    let inline = with(&file, SetAttributes(A, vec![0x81]));
    let paged = with(&file, SetAttributes(A, vec![0x81, 0x82]));
    vec![
        family(
            "append, new page",
            vec![(holes.clone(), w(A, 0, &[0x41, 0x42, 0x43]))],
        ),
        family(
            "page of a live file",
            vec![
                (busy.to_vec(), w(A, 0, &[0x41, 0x42])),
                (with(&wide, w(A, 0, &[0x43, 0x44])), w(A, 0, &[0x41, 0x42])),
            ],
        ),
        family("page of a removed directory", vec![forged()]),
        family(
            "append in the page",
            vec![
                (file.clone(), w(A, 3, &[0x44])),
                (short.clone(), w(A, 1, &[0x45])),
            ],
        ),
        family(
            "over two pages",
            vec![(
                with(&file, w(A, 0, &[0x24, 0x25, 0x26])),
                w(A, 0, &[0x51, 0x52, 0x53]),
            )],
        ),
        family(
            "over a page and append",
            vec![(with(&file, w(A, 0, &[0x24])), w(A, 2, &[0x52, 0x53, 0x54]))],
        ),
        family("past the end", vec![(short.clone(), w(A, 3, &[0x55]))]),
        family(
            "unwritten page",
            vec![
                (with(&holes, Falloc(A, 2)), w(A, 1, &[0x61, 0x62])),
                (with(&holes, Reserve(A, 1)), w(A, 0, &[0x61])),
            ],
        ),
        family(
            NAMELESS,
            vec![(vec![Tmpfile, w(OPENED, 0, &[1])], w(OPENED, 0, &[2, 3]))],
        ),
        family("", vec![(file.clone(), Overwrite(A, 1, vec![0x52, 0x53]))]),
        family(
            "down",
            vec![
                (file.clone(), Truncate(A, 1)),
                (file.clone(), Truncate(A, 0)),
                (with(&file, Reserve(A, 3)), Truncate(A, 1)),
            ],
        ),
        family("up, a tail to clear", vec![(short.clone(), Truncate(A, 4))]),
        family(
            "up, on a page's end",
            vec![(with(&file, Truncate(A, 2)), Truncate(A, 4))],
        ),
        family(
            "and owner",
            vec![
                (file.clone(), Chmod(A, 0x9600)),
                (vec![Mkdir(D), Create(DX)], Chmod(D, 0x9600)),
            ],
        ),
        family("two pages", vec![(file.clone(), Punch(A, 0, 2))]),
        family(
            "unwritten pages",
            vec![(with(&holes, Falloc(A, 2)), Punch(A, 0, 2))],
        ),
        family(
            "pages written and not",
            vec![(with(&file, Reserve(A, 3)), Punch(A, 0, 3))],
        ),
        family("written pages", vec![(file.clone(), Zero(A, 0, 2))]),
        family(
            "written pages and holes",
            vec![(
                vec![Create(A), w(A, 0, &[1, 2, 3, 4, 5]), Punch(A, 1, 1)],
                Zero(A, 0, 3),
            )],
        ),
        family("a tail to clear", vec![(short.clone(), Falloc(A, 3))]),
        family(
            "on a page's end",
            vec![(with(&file, Truncate(A, 2)), Falloc(A, 3))],
        ),
        family("the size kept", vec![(short, Reserve(A, 3))]),
        family(
            "inline, first",
            vec![
                (file.clone(), SetAttributes(A, vec![0x83])),
                (
                    with(&inline, SetAttributes(A, vec![])),
                    SetAttributes(A, vec![0x83]),
                ),
            ],
        ),
        family(
            "inline to page",
            vec![
                (inline.clone(), SetAttributes(A, vec![0x83])),
                (inline.clone(), SetAttributes(A, vec![0x83, 0x84])),
            ],
        ),
        family(
            "page to page",
            vec![(paged.clone(), SetAttributes(A, vec![0x83, 0x84]))],
        ),
        family(
            "page to inline",
            vec![(paged.clone(), SetAttributes(A, vec![0x83]))],
        ),
        family("inline to none", vec![(inline, SetAttributes(A, vec![]))]),
        family("page to none", vec![(paged, SetAttributes(A, vec![]))]),
        family(
            "of a symlink",
            vec![(
                with(&holes, Symlink(C, vec![0x33])),
                SetAttributes(C, vec![0x83]),
            )],
        ),
        family("", vec![(file, SetTimes(A))]),
    ]
}

/// Calls on three names of two files, for long sequences.
pub fn name_calls() -> Vec<Op> {
    vec![
        Create(A),
        Link(A, C),
        Link(B, C),
        Unlink(A),
        Unlink(C),
        Rename(A, B),
        Rename(B, A),
        Rename(A, C),
        Rename(B, C),
        Rename(C, A),
        Rename(C, B),
        Exchange(A, B),
        Exchange(B, A),
        Exchange(A, C),
        Exchange(C, A),
        Whiteout(A, C),
    ]
}

/// States in which two calls run at once.
pub fn pair_setups() -> Vec<Vec<Op>> {
    let files = vec![
        Create(A),
        w(A, 0, &[1, 2]),
        Create(B),
        w(B, 0, &[3, 4]),
        Mkdir(D),
        Create(DX),
    ];
    vec![files]
}

/// Calls that run at once, two by two.
pub fn pair_calls() -> Vec<Op> {
    let dy = At(D.1, b'y' as u64);
    vec![
        Create(C),
        Mkdir(C),
        Symlink(C, vec![0x31]),
        Link(A, C),
        Unlink(A),
        Rename(A, C),
        Rename(B, A),
        Whiteout(A, C),
        Exchange(A, B),
        Exchange(A, D),
        Rename(D, E),
        Exchange(D, B),
        Create(dy),
        Symlink(dy, vec![0x31, 0x32]),
        Link(B, dy),
        Unlink(DX),
        Rename(DX, dy),
        Rename(A, dy),
        Rename(DX, C),
        w(A, 0, &[5, 6]),
        w(A, 2, &[5]),
        w(B, 0, &[7, 8]),
        w(DX, 0, &[9]),
        Truncate(A, 0),
        Truncate(B, 1),
        Falloc(B, 2),
        Chmod(A, 0x8600),
        SetAttributes(A, vec![0x83]),
        SetAttributes(B, vec![0x83, 0x84]),
        Punch(B, 0, 1),
        Tmpfile,
    ]
}
