//! Short sequences of calls on few names, for calibration: `a` (5 KiB) and `d/` exist before, `b` and `e` do not, and
//! `o` is another program's file.

use super::kinds::Kind;
use crate::effects::{Bytes, Disk, Effects, Ino, Node, ROOT, Run, Step, What};
use crate::models::Model;
use crate::states::Chance;
use std::sync::Arc;
use steadfast_vfs::FileKind;

/// One call, or a few that belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[allow(missing_docs)]
pub(super) enum Act {
    Make(&'static str),
    /// A file with 5 KiB is made and closed.
    Put(&'static str),
    /// One with 100 bytes.
    Small(&'static str),
    Overwrite(&'static str),
    Append(&'static str),
    AppendSmall(&'static str),
    /// Cut to nothing, written anew, closed.
    Rewrite(&'static str),
    Truncate(&'static str, u64),
    Allocate(&'static str, u64),
    Punch(&'static str),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    Mkdir(&'static str),
    Rmdir(&'static str),
    Symlink(&'static str),
    Chmod(&'static str),
    Xattr(&'static str),
    Fsync(&'static str),
    Fdatasync(&'static str),
    Sync,
    /// The kernel writes a file's pages out by itself.
    WriteBack(&'static str),
    /// Another program writes to its file and syncs it.
    Other,
    /// The file system commits by itself.
    Commit,
}

impl Act {
    /// All.
    pub(super) const ALL: &[Act] = &[
        Act::Make("b"),
        Act::Put("b"),
        Act::Small("b"),
        Act::Overwrite("a"),
        Act::Append("a"),
        Act::AppendSmall("a"),
        Act::Append("b"),
        Act::Rewrite("a"),
        Act::Truncate("a", 0),
        Act::Truncate("a", 1000),
        Act::Truncate("a", 10_000),
        Act::Allocate("a", 9000),
        Act::Punch("a"),
        Act::Rename("a", "b"),
        Act::Rename("b", "a"),
        Act::Rename("a", "d/a"),
        Act::Rename("d", "e"),
        Act::Link("a", "b"),
        Act::Unlink("a"),
        Act::Unlink("b"),
        Act::Mkdir("e"),
        Act::Put("d/a"),
        Act::Rmdir("d"),
        Act::Symlink("b"),
        Act::Chmod("a"),
        Act::Xattr("a"),
        Act::Fsync("a"),
        Act::Fdatasync("a"),
        Act::Fsync("b"),
        Act::Fsync("d/a"),
        Act::Fsync("."),
        Act::Fsync("d"),
        Act::Sync,
        Act::WriteBack("a"),
        Act::WriteBack("b"),
        Act::Other,
        Act::Commit,
    ];
}

impl std::fmt::Display for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Act::Make(n) => write!(f, "create {n}"),
            Act::Put(n) => write!(f, "create, write 5K, close {n}"),
            Act::Small(n) => write!(f, "create, write 100, close {n}"),
            Act::Overwrite(n) => write!(f, "overwrite {n}"),
            Act::Append(n) => write!(f, "append 5K {n}"),
            Act::AppendSmall(n) => write!(f, "append 100 {n}"),
            Act::Rewrite(n) => write!(f, "truncate to 0, write 5K, close {n}"),
            Act::Truncate(n, size) => write!(f, "truncate {n} to {size}"),
            Act::Allocate(n, size) => write!(f, "fallocate {n} to {size}"),
            Act::Punch(n) => write!(f, "punch a hole {n}"),
            Act::Rename(a, b) => write!(f, "rename {a} {b}"),
            Act::Link(a, b) => write!(f, "link {a} {b}"),
            Act::Unlink(n) => write!(f, "unlink {n}"),
            Act::Mkdir(n) => write!(f, "mkdir {n}"),
            Act::Rmdir(n) => write!(f, "rmdir {n}"),
            Act::Symlink(n) => write!(f, "symlink {n}"),
            Act::Chmod(n) => write!(f, "chmod {n}"),
            Act::Xattr(n) => write!(f, "setxattr {n}"),
            Act::Fsync(n) => write!(f, "fsync {n}"),
            Act::Fdatasync(n) => write!(f, "fdatasync {n}"),
            Act::Sync => f.write_str("sync"),
            Act::WriteBack(n) => write!(f, "(write-back of {n})"),
            Act::Other => f.write_str("(another file is written and synced)"),
            Act::Commit => f.write_str("(commit)"),
        }
    }
}

/// One action of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Play {
    /// A step of the run.
    Step(usize),
    /// The kernel writes a file out.
    WriteBack(Ino),
    /// The file system commits.
    Commit,
}

/// A sequence as a run.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) text: String,
    /// Number of chosen calls; the others are the kernel's.
    pub(super) calls: usize,
    pub(super) run: Run,
    pub(super) plays: Vec<Play>,
}

struct Scene {
    run: Run,
    now: Disk,
    plays: Vec<Play>,
    next: Ino,
}

/// The bytes of a write: a letter for each, a number in each sector.
fn bytes(letter: u8, len: usize) -> Bytes {
    let mut all = vec![letter; len];
    for (i, sector) in all.chunks_mut(512).enumerate() {
        if let Some(byte) = sector.get_mut(1) {
            *byte = b'0' + (i % 10) as u8;
        }
    }
    all.into()
}

impl Scene {
    fn find(&self, path: &str) -> Option<Ino> {
        let parts = path.split('/').filter(|p| *p != ".");
        let mut at = ROOT;
        for part in parts {
            at = self.now.lookup(at, part.as_bytes())?;
        }
        Some(at)
    }

    fn place(&self, path: &str) -> Option<(Ino, Arc<[u8]>)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        let dir = self.find(dir)?;
        self.is(dir, FileKind::Directory)
            .then(|| (dir, Arc::from(name.as_bytes())))
    }

    fn is(&self, ino: Ino, kind: FileKind) -> bool {
        self.now.node(ino).is_some_and(|n| n.kind == kind)
    }

    fn file(&self, path: &str) -> Option<Ino> {
        self.find(path).filter(|i| self.is(*i, FileKind::Regular))
    }

    fn push(&mut self, what: What) {
        let n = self.run.steps.len();
        let text = format!("{n}");
        self.run.steps.push(Step {
            number: n as u64,
            what,
            text,
            location: None,
            thread: 0,
            stack: 0,
        });
        self.plays.push(Play::Step(n));
        // The run so far, as the process sees it.
        let all = Run {
            base: self.run.base.clone(),
            steps: self.run.steps.clone(),
        };
        if let Ok(model) = Model::shipped("sync") {
            let effects = Effects::new(&all, &model);
            self.now = effects.disk(&effects.prefix(effects.steps()));
        }
    }

    fn letter(&self) -> u8 {
        b'A' + (self.run.steps.len() % 26) as u8
    }

    fn make(&mut self, path: &str, kind: FileKind, perm: u16) -> Option<Ino> {
        let at = self.place(path)?;
        if self.find(path).is_some() {
            return None;
        }
        let ino = self.next;
        self.next += 1;
        let mut node = Node::new(kind, perm);
        if kind == FileKind::Symlink {
            node.body = crate::effects::Body::Link(Arc::from(b"a".as_slice()));
        }
        self.push(What::Make { at, ino, node });
        Some(ino)
    }

    fn write(&mut self, ino: Ino, offset: u64, len: usize) {
        let bytes = bytes(self.letter(), len);
        self.push(What::Write { ino, offset, bytes });
    }

    /// Adds an act; `None` if it cannot be done now.
    fn act(&mut self, act: Act, fs: Kind) -> Option<()> {
        match act {
            Act::Make(name) => {
                let ino = self.make(name, FileKind::Regular, 0o644)?;
                self.push(What::Close { ino });
            }
            Act::Put(name) | Act::Small(name) => {
                let ino = self.make(name, FileKind::Regular, 0o644)?;
                let small = matches!(act, Act::Small(_));
                self.write(ino, 0, if small { 100 } else { 5120 });
                self.push(What::Close { ino });
            }
            Act::Overwrite(name) => {
                let ino = self.file(name)?;
                self.write(ino, 512, 4096);
                self.push(What::Close { ino });
            }
            Act::Append(name) | Act::AppendSmall(name) => {
                let ino = self.file(name)?;
                let small = matches!(act, Act::AppendSmall(_));
                let size = self.now.size(ino);
                self.write(ino, size, if small { 100 } else { 5120 });
                self.push(What::Close { ino });
            }
            Act::Rewrite(name) => {
                let ino = self.file(name)?;
                self.push(What::Truncate { ino, size: 0 });
                self.write(ino, 0, 5120);
                self.push(What::Close { ino });
            }
            Act::Truncate(name, size) => {
                let ino = self.file(name)?;
                if self.now.size(ino) == size {
                    return None;
                }
                self.push(What::Truncate { ino, size });
                self.push(What::Close { ino });
            }
            Act::Allocate(name, size) => {
                let ino = self.file(name)?;
                self.push(What::Allocate { ino, size });
                self.push(What::Close { ino });
            }
            Act::Punch(name) => {
                let ino = self.file(name)?;
                let (offset, len) = (0, 4096);
                self.push(What::Zero { ino, offset, len });
                self.push(What::Close { ino });
            }
            Act::Rename(from, to) => {
                let ino = self.find(from)?;
                let (from, to_at) = (self.place(from)?, self.place(to)?);
                let over = self.find(to);
                let is_dir = self.is(ino, FileKind::Directory);
                // Over nothing or a file; of a directory over nothing; not of a link over its other name.
                if over.is_some_and(|o| is_dir || o == ino || self.is(o, FileKind::Directory)) {
                    return None;
                }
                self.push(What::Rename {
                    from,
                    to: to_at,
                    exchange: false,
                });
            }
            Act::Link(from, to) => {
                let ino = self.file(from)?;
                let at = self.place(to)?;
                if self.find(to).is_some() {
                    return None;
                }
                self.push(What::Link { ino, at });
            }
            Act::Unlink(name) => {
                let ino = self.find(name)?;
                let at = self.place(name)?;
                if self.is(ino, FileKind::Directory) {
                    return None;
                }
                self.push(What::Remove { at });
            }
            Act::Mkdir(name) => {
                self.make(name, FileKind::Directory, 0o755)?;
            }
            Act::Symlink(name) => {
                self.make(name, FileKind::Symlink, 0o777)?;
            }
            Act::Rmdir(name) => {
                let ino = self.find(name)?;
                let empty = self.now.node(ino).is_some_and(
                    |n| matches!(&n.body, crate::effects::Body::Dir(e) if e.is_empty()),
                );
                let at = self.place(name)?;
                if !empty {
                    return None;
                }
                self.push(What::Remove { at });
            }
            Act::Chmod(name) => {
                let ino = self.file(name)?;
                let perm = match self.now.node(ino).map(|n| n.perm) {
                    Some(0o600) => 0o640,
                    _ => 0o600,
                };
                self.push(What::Attr {
                    ino,
                    perm: Some(perm),
                    uid: None,
                    gid: None,
                });
            }
            Act::Xattr(name) => {
                let ino = self.file(name)?;
                let value = Some(vec![self.letter(); 20]);
                self.push(What::Xattr {
                    ino,
                    name: b"user.x".to_vec(),
                    value,
                });
            }
            Act::Fsync(name) | Act::Fdatasync(name) => {
                let ino = self.find(name)?;
                if self.is(ino, FileKind::Symlink) {
                    return None;
                }
                let data_only = matches!(act, Act::Fdatasync(_));
                self.push(What::Fsync { ino, data_only });
            }
            Act::Sync => self.push(What::Sync),
            Act::WriteBack(name) => {
                let ino = self.file(name)?;
                self.plays.push(Play::WriteBack(ino));
            }
            Act::Commit if fs == Kind::Btrfs => self.plays.push(Play::Commit),
            Act::Commit | Act::Other => {
                let ino = self.find("o")?;
                let size = self.now.size(ino);
                self.write(ino, size, 512);
                self.push(What::Fsync {
                    ino,
                    data_only: false,
                });
            }
        }
        Some(())
    }
}

/// The tree before each sequence; durable.
pub(super) fn base() -> Disk {
    let mut scene = Scene {
        run: Run::default(),
        now: Disk::default(),
        plays: Vec::new(),
        next: ROOT + 1,
    };
    for (name, kind) in [
        ("a", FileKind::Regular),
        ("d", FileKind::Directory),
        ("o", FileKind::Regular),
    ] {
        let perm = if kind == FileKind::Regular {
            0o644
        } else {
            0o755
        };
        scene.make(name, kind, perm);
    }
    for (name, letter) in [("a", b'a'), ("o", b'o')] {
        if let Some(ino) = scene.find(name) {
            let (offset, bytes) = (0, bytes(letter, 5120));
            scene.push(What::Write { ino, offset, bytes });
        }
    }
    scene.now
}

impl Sequence {
    /// A sequence of acts, and what the kernel does after it.
    pub(super) fn new(acts: &[Act], tail: &[Act], fs: Kind) -> Option<Sequence> {
        let base = base();
        let mut scene = Scene {
            now: base.clone(),
            run: Run {
                base,
                steps: Vec::new(),
            },
            plays: Vec::new(),
            next: 100,
        };
        let mut text: Vec<String> = Vec::new();
        for act in acts {
            scene.act(*act, fs)?;
            text.push(act.to_string());
        }
        for act in tail {
            if scene.act(*act, fs).is_some() {
                text.push(act.to_string());
            }
        }
        Some(Sequence {
            text: text.join("; "),
            calls: acts.len(),
            run: scene.run,
            plays: scene.plays,
        })
    }

    /// The `i`th sequence of a calibration: all pairs of calls in an order by the seed, then sequences of three and
    /// four.
    pub(super) fn choose(count: usize, seed: u64, fs: Kind) -> Vec<Sequence> {
        let mut chance = Chance::new(seed);
        let mut pairs: Vec<(Act, Act)> = Vec::new();
        for a in Act::ALL {
            pairs.extend(Act::ALL.iter().map(|b| (*a, *b)));
        }
        for i in (1..pairs.len()).rev() {
            pairs.swap(i, chance.below(i + 1));
        }
        let mut all = Vec::new();
        let mut pairs = pairs.into_iter();
        // A bound: some acts cannot follow others.
        for _ in 0..count.saturating_mul(20).saturating_add(10_000) {
            if all.len() >= count {
                break;
            }
            let tail = tail(&mut chance);
            let acts: Vec<Act> = match pairs.next() {
                Some((a, b)) => vec![a, b],
                None => {
                    let len = 3 + chance.below(2);
                    let any = |_| Act::ALL[chance.below(Act::ALL.len())];
                    (0..len).map(any).collect()
                }
            };
            all.extend(Sequence::new(&acts, &tail, fs));
        }
        all
    }
}

/// Actions of the kernel by itself after the calls.
fn tail(chance: &mut Chance) -> Vec<Act> {
    let events = [
        Act::WriteBack("a"),
        Act::WriteBack("b"),
        Act::WriteBack("d/a"),
        Act::Other,
        Act::Commit,
    ];
    let n = chance.below(4);
    (0..n).map(|_| events[chance.below(events.len())]).collect()
}
