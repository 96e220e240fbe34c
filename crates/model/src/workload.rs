//! Operations to test with: endless random ones, and a small complete set for
//! exploring all pairs.
//!
//! Names are few, so that operations meet: the same name is a file, a directory, a
//! link, absent. The same seed gives the same workload for ever.

use crate::data::PAGE_BYTES;
use crate::hash::Hasher128;
use crate::op::{Data, Op, Path, Step, Target};
use std::sync::Arc;
use steadfast_vfs::acl::{Acl, Entry, Who, XATTR_ACCESS, XATTR_DEFAULT};
use steadfast_vfs::{
    AllocateMode, Caller, FileKind, RenameMode, SetAttr, SetTime, Stream, Time, XattrMode,
};

/// Shape of a random workload.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Streams, each with its operations in between those of the others.
    pub streams: u32,
    /// Names per directory.
    pub names: u32,
    /// Deepest path, in components.
    pub depth: u32,
    /// Largest offset and length of a write, in bytes.
    pub bytes_max: u64,
    /// One operation in this number is an fsync, fdatasync or sync; 0: none.
    pub sync_every: u64,
    /// Files are opened, used without a name, closed.
    pub handles: bool,
    /// Some callers are not the superuser.
    pub users: bool,
    /// `.`, `..`, names that are too long, and bytes that are no text.
    pub odd_names: bool,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            streams: 1,
            names: 3,
            depth: 3,
            bytes_max: 3 * PAGE_BYTES,
            sync_every: 12,
            handles: true,
            users: false,
            odd_names: false,
        }
    }
}

/// An endless iterator of [`Step`]s.
#[derive(Clone, Debug)]
pub struct Workload {
    seed: u64,
    draws: u64,
    steps: u64,
    shape: Shape,
    open: Vec<u32>,
}

impl Workload {
    /// The workload of this seed and shape.
    #[must_use]
    pub fn new(seed: u64, shape: Shape) -> Workload {
        Workload {
            seed,
            draws: 0,
            steps: 0,
            shape,
            open: Vec::new(),
        }
    }

    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.draws += 1;
        let word = Hasher128::new(self.seed).u64(self.draws).finish() as u64;
        word % n.max(1)
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        let i = self.below(all.len() as u64) as usize;
        all[i]
    }

    fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    fn name(&mut self) -> Vec<u8> {
        if self.shape.odd_names && self.one_in(20) {
            return match self.below(6) {
                0 => b".".to_vec(),
                1 => b"..".to_vec(),
                2 => vec![b'n'; 255],
                3 => vec![b'n'; 256],
                4 => vec![0xff, b' ', 1],
                _ => b"-".to_vec(),
            };
        }
        let n = self.below(u64::from(self.shape.names)) as u8;
        vec![b'a' + n % 26]
    }

    fn path(&mut self) -> Path {
        let depth = 1 + self.below(u64::from(self.shape.depth)).min(self.below(4));
        Path((0..depth).map(|_| self.name()).collect())
    }

    fn target(&mut self) -> Target {
        if self.shape.handles && !self.open.is_empty() && self.one_in(3) {
            let open = std::mem::take(&mut self.open);
            let handle = self.pick(&open);
            self.open = open;
            return Target::Handle(handle);
        }
        Target::Path(self.path())
    }

    fn data(&mut self) -> Data {
        if self.one_in(4) {
            return Data::Bytes(vec![b'x'; self.below(4) as usize]);
        }
        let max = if self.one_in(3) {
            self.shape.bytes_max
        } else {
            200
        };
        Data::Pattern {
            seed: self.below(1 << 20),
            len: self.below(max + 1),
        }
    }

    fn perm(&mut self) -> u16 {
        let usual = [0o644, 0o755, 0o700, 0o600, 0o777, 0o666];
        let odd = [0o000, 0o1777, 0o2775, 0o4755, 0o6777, 0o2644, 0o444, 0o111];
        if self.shape.users && self.one_in(2) {
            self.pick(&odd)
        } else {
            self.pick(&usual)
        }
    }

    fn set(&mut self) -> SetAttr {
        let mut set = SetAttr::default();
        match self.below(8) {
            0 => set.perm = Some(self.perm()),
            1 => set.uid = Some(self.below(3) as u32),
            2 => set.gid = Some(self.below(4) as u32),
            3 => {
                set.mtime = Some(SetTime::At(Time {
                    secs: self.below(100) as i64,
                    nanos: 7,
                }));
                set.atime = Some(SetTime::Now);
            }
            4 => set.mtime = Some(SetTime::Now),
            _ => set.size = Some(self.below(self.shape.bytes_max + 1)),
        }
        set
    }

    fn handle_op(&mut self) -> Op {
        if self.open.len() < 3 && self.one_in(2) {
            let handle = (0..).find(|h| !self.open.contains(h)).unwrap_or(0);
            self.open.push(handle);
            return Op::Open {
                path: self.path(),
                handle,
            };
        }
        match self.open.pop() {
            Some(handle) => Op::Close { handle },
            None => Op::Sync,
        }
    }

    fn op(&mut self) -> Op {
        if self.one_in(self.shape.sync_every) {
            return match self.below(4) {
                0 => Op::Sync,
                1 => Op::Fdatasync {
                    file: self.target(),
                },
                _ => Op::Fsync {
                    file: self.target(),
                },
            };
        }
        if self.shape.handles && self.one_in(10) {
            return self.handle_op();
        }
        let renames = [
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            RenameMode::Whiteout,
            RenameMode::WhiteoutNoReplace,
        ];
        let allocates = [
            AllocateMode::Allocate,
            AllocateMode::KeepSize,
            AllocateMode::PunchHole,
            AllocateMode::ZeroRange,
            AllocateMode::ZeroRangeKeepSize,
        ];
        match self.below(20) {
            0..3 => {
                let kinds = [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice];
                let kind = if self.one_in(6) {
                    self.pick(&kinds)
                } else {
                    FileKind::Regular
                };
                let (perm, rdev) = (self.perm(), self.below(300) as u32);
                Op::Mknod {
                    path: self.path(),
                    kind,
                    perm,
                    rdev,
                }
            }
            3..6 => Op::Mkdir {
                path: self.path(),
                perm: self.perm() | 0o500,
            },
            6 => Op::Symlink {
                path: self.path(),
                target: self.name(),
            },
            7 => Op::Link {
                from: self.target(),
                to: self.path(),
            },
            8 | 9 => Op::Unlink { path: self.path() },
            10 => Op::Rmdir { path: self.path() },
            11..14 => {
                let mode = if self.one_in(3) {
                    self.pick(&renames)
                } else {
                    RenameMode::Replace
                };
                Op::Rename {
                    from: self.path(),
                    to: self.path(),
                    mode,
                }
            }
            14 | 15 => {
                let offset = self.below(self.shape.bytes_max + 1);
                Op::Write {
                    file: self.target(),
                    offset,
                    data: self.data(),
                }
            }
            16 => Op::Append {
                file: self.target(),
                data: self.data(),
            },
            17 => Op::SetAttr {
                file: self.target(),
                set: self.set(),
            },
            18 => {
                let (offset, len) = (
                    self.below(self.shape.bytes_max + 1),
                    self.below(self.shape.bytes_max + 1),
                );
                Op::Fallocate {
                    file: self.target(),
                    mode: self.pick(&allocates),
                    offset,
                    len,
                }
            }
            _ => {
                let acl = self.one_in(4);
                let name = match (acl, self.one_in(2)) {
                    (true, true) => XATTR_ACCESS.to_vec(),
                    (true, false) => XATTR_DEFAULT.to_vec(),
                    (false, _) => format!("user.{}", self.below(3)).into_bytes(),
                };
                let file = self.target();
                let modes = [XattrMode::Any, XattrMode::Create, XattrMode::Replace];
                if self.one_in(4) {
                    Op::RemoveXattr { file, name }
                } else {
                    let value = self.data().bytes();
                    let value = match acl && !self.one_in(8) {
                        true => list_for(self.below(3) as u32, self.below(8) as u8),
                        false => value[..value.len().min(100)].to_vec(),
                    };
                    Op::SetXattr {
                        file,
                        name,
                        value,
                        mode: self.pick(&modes),
                    }
                }
            }
        }
    }
}

impl Iterator for Workload {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        self.steps += 1;
        let stream = Stream(self.below(u64::from(self.shape.streams)) as u32);
        let mut caller = Caller {
            stream,
            ..Caller::root()
        };
        if self.shape.users && self.one_in(2) {
            caller.uid = 1 + self.below(2) as u32;
            caller.gid = 1 + self.below(2) as u32;
            if self.one_in(2) {
                caller.groups = Arc::from([3]);
            }
            caller.checked = self.one_in(8);
        }
        let at = Time {
            secs: 1000 + self.steps as i64,
            nanos: (self.steps % 1000) as u32,
        };
        Some(Step {
            caller,
            at,
            op: self.op(),
        })
    }
}

/// An ACL as an attribute: mode 640, but a mask of `perm`, which user `uid` has.
fn list_for(uid: u32, perm: u8) -> Vec<u8> {
    let entry = |(who, perm)| Entry { who, perm };
    let entries = [
        (Who::Owner, 6),
        (Who::User(uid), perm),
        (Who::OwningGroup, 4),
        (Who::Mask, perm),
        (Who::Other, 0),
    ];
    let acl = Acl::new(entries.map(entry).to_vec());
    acl.map(|acl| acl.to_xattr()).unwrap_or_default()
}

/// A set-up, and operations that meet in it in every way: for exploring all pairs.
///
/// The set-up makes files `/a` (two blocks) and `/d/x`, a second name `/b` of `/a`,
/// directories `/d` and `/e` (empty), and a symbolic link `/l`. `/d` has an attribute that is too long
/// for an inode; the operations on attributes make short ones and long ones of each other.
#[must_use]
pub fn small_space() -> (Vec<Op>, Vec<Op>) {
    let many = |file: &str| format!("setxattr {file} user.k {} any", "m".repeat(60));
    let [many_a, many_d] = ["/a", "/d"].map(many);
    let setup = [
        "mknod /a file 644 0",
        "write /a 0 #1*6000",
        "link /a /b",
        "mkdir /d 755",
        "mknod /d/x file 644 0",
        "write /d/x 0 #2*100",
        "mkdir /e 755",
        "symlink /l a",
        &many_d,
    ];
    let ops = [
        "mknod /c file 600 0",
        "mknod /d/y file 644 0",
        "mkdir /f 755",
        "mkdir /d/g 700",
        "symlink /m d",
        "link /a /c",
        "link /d/x /e/x",
        "unlink /a",
        "unlink /b",
        "unlink /d/x",
        "unlink /l",
        "rmdir /e",
        "rmdir /d",
        "rename /a /c replace",
        "rename /a /d/x replace",
        "rename /d/x /a replace",
        "rename /d /e replace",
        "rename /d /e/d replace",
        "rename /e /d/e replace",
        "rename /d/x /e/x noreplace",
        "rename /a /d exchange",
        "rename /d /e exchange",
        "rename /d/x /e/x whiteout",
        "rename /e /w whiteout",
        "write /a 0 #3*4096",
        "write /a 100 #4*50",
        "write /a 3000 #5*9000",
        "write /d/x 9000 #6*10",
        "write /a 6500 #9*100",
        "append /a #7*300",
        "append /d/x #8*5000",
        "setattr /a size=0",
        "setattr /a size=4000",
        "setattr /a size=7000",
        "setattr /d/x size=20000",
        "setattr /a perm=600 uid=7",
        "setattr /d perm=1777",
        "setattr /a mtime=77.000000005",
        "fallocate /a punch 1000 4000",
        "fallocate /a allocate 4096 20000",
        "fallocate /d/x zero 50 9000",
        "setxattr /a user.k v1 any",
        "setxattr /d user.k v2 any",
        &many_a,
    ];
    let parse =
        |lines: &[&str]| -> Vec<Op> { lines.iter().filter_map(|l| l.parse().ok()).collect() };
    let set = |file: &str, name: &[u8]| Op::SetXattr {
        file: file.into(),
        name: name.to_vec(),
        value: list_for(7, 5),
        mode: XattrMode::Any,
    };
    // The one changes the mode, the other the inodes of `/d/y` and `/d/g`.
    let acls = [set("/a", XATTR_ACCESS), set("/d", XATTR_DEFAULT)];
    let ops = parse(&ops).into_iter().chain(acls).collect();
    (parse(&setup), ops)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    #[test]
    fn the_small_space_parses_and_every_operation_of_it_succeeds_after_the_set_up() {
        let (setup, ops) = small_space();
        assert_eq!((setup.len(), ops.len()), (9, 46));
        let mut tree = Tree::new(Time::default());
        for op in &setup {
            assert!(
                tree.apply(op, &Caller::root(), Time::default()).is_ok(),
                "{op}"
            );
        }
        for op in &ops {
            let result = tree.clone().apply(op, &Caller::root(), Time::default());
            let fails = ["rmdir /d"].contains(&op.to_string().as_str());
            assert_eq!(result.is_err(), fails, "{op}: {result:?}");
        }
    }

    #[test]
    fn a_random_workload_repeats_and_reaches_every_kind_of_operation_with_success() {
        let shape = Shape {
            users: true,
            odd_names: true,
            ..Shape::default()
        };
        let steps: Vec<Step> = Workload::new(9, shape).take(20_000).collect();
        let again = Workload::new(9, shape).take(20_000);
        assert!(
            steps
                .iter()
                .zip(again)
                .all(|(a, b)| a.to_string() == b.to_string())
        );
        let mut tree = Tree::new(Time::default());
        let mut done = std::collections::BTreeSet::new();
        for s in &steps {
            if tree.step(s).is_ok() {
                let text = s.op.to_string();
                done.insert(text.split(' ').next().unwrap_or("").to_string());
            }
        }
        assert_eq!(done.len(), 18, "{done:?}");
    }
}
