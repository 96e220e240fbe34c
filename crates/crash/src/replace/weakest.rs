//! The same steps on the weakest file system that programs meet: the promises of POSIX, and no more.
//!
//! Names change in the order of the calls, and any number of changes since the directory was last
//! synced may be lost. All changes of a file since its last sync may be there or not, each write and
//! truncation by itself: names may be durable before the content that they name, and a later write
//! before an earlier one. All trees of all moments are listed.

use super::{Contents, FILE, Report, TEMPORARY, TreeFound, VIOLATIONS_MAX, tree_text};
use std::collections::{BTreeMap, BTreeSet};
use steadfast_model::{Op, Path, Target};

type Names = BTreeMap<Path, usize>;
type Tree = BTreeMap<Path, Vec<u8>>;

/// One file: its durable content, and the operations since.
#[derive(Clone, Default)]
struct File {
    durable: Vec<u8>,
    since: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Resize(u64),
}

impl File {
    /// Everything that it may hold after a crash.
    fn contents(&self) -> BTreeSet<Vec<u8>> {
        let subsets = 0..1_u64 << self.since.len();
        subsets
            .map(|subset| {
                let survives = |i: &usize| subset >> i & 1 == 1;
                self.apply((0..self.since.len()).filter(survives))
            })
            .collect()
    }

    fn apply(&self, changes: impl Iterator<Item = usize>) -> Vec<u8> {
        let mut content = self.durable.clone();
        for change in changes {
            match &self.since[change] {
                Change::Resize(size) => content.resize(*size as usize, 0),
                Change::Write(offset, data) => {
                    let end = *offset as usize + data.len();
                    content.resize(content.len().max(end), 0);
                    content[*offset as usize..end].copy_from_slice(data);
                }
            }
        }
        content
    }

    fn sync(&mut self) {
        self.durable = self.apply(0..self.since.len());
        self.since.clear();
    }
}

/// The file system: its files, and the names after each change that may not be durable.
struct Weakest {
    files: Vec<File>,
    names: Vec<Names>,
}

impl Weakest {
    fn new(old: Option<&[u8]>) -> Weakest {
        let file = old.map(|old| File {
            durable: old.to_vec(),
            since: Vec::new(),
        });
        let names = file.iter().map(|_| (Path::from(FILE), 0)).collect();
        Weakest {
            files: file.into_iter().collect(),
            names: vec![names],
        }
    }

    fn named(&self, target: &Target) -> Option<usize> {
        match target {
            Target::Path(path) => self.names.last()?.get(path).copied(),
            Target::Handle(_) => None,
        }
    }

    fn rename(&mut self, change: impl FnOnce(&mut Names)) {
        let mut names = self.names.last().cloned().unwrap_or_default();
        change(&mut names);
        self.names.push(names);
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Mknod { path, .. } => {
                self.files.push(File::default());
                let number = self.files.len() - 1;
                self.rename(|names| {
                    names.insert(path.clone(), number);
                });
            }
            Op::Rename { from, to, .. } => self.rename(|names| {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }),
            Op::Write { file, offset, data } => {
                if let Some(number) = self.named(file) {
                    let write = Change::Write(*offset, data.bytes());
                    self.files[number].since.push(write);
                }
            }
            Op::SetAttr { file, set } => {
                if let (Some(number), Some(size)) = (self.named(file), set.size) {
                    self.files[number].since.push(Change::Resize(size));
                }
            }
            Op::Fsync { file } if *file == Target::from("/") => {
                let last = self.names.len() - 1;
                self.names.drain(..last);
            }
            Op::Fsync { file } => {
                if let Some(number) = self.named(file) {
                    self.files[number].sync();
                }
            }
            _ => {}
        }
    }

    /// Every tree that a crash may leave now.
    fn trees(&self) -> BTreeSet<Tree> {
        let mut trees = BTreeSet::new();
        for names in &self.names {
            let mut partial = vec![Tree::new()];
            for (path, file) in names {
                let contents = self.files[*file].contents();
                partial = partial
                    .iter()
                    .flat_map(|tree| {
                        contents.iter().map(|content| {
                            let mut tree = tree.clone();
                            tree.insert(path.clone(), content.clone());
                            tree
                        })
                    })
                    .collect();
            }
            trees.extend(partial);
        }
        trees
    }
}

/// Lists and judges the trees of all moments. Here every tree counts as one disk.
pub(super) fn explore(ops: &[Op], contents: &Contents) -> Report {
    let mut fs = Weakest::new(contents.old.as_deref());
    let mut report = Report {
        exhaustive: true,
        runs: 1,
        ..Report::default()
    };
    let mut all = BTreeSet::new();
    for done in 0..=ops.len() {
        if let Some(op) = done.checked_sub(1).map(|last| &ops[last]) {
            fs.apply(op);
        }
        for tree in fs.trees() {
            let found = tree.get(&Path::from(FILE)).map(Vec::as_slice);
            if let Err(what) = contents.judge(found, done == ops.len()) {
                report.violations += 1;
                if report.examples.len() < VIOLATIONS_MAX {
                    let example = format!("after {done} of {} calls: {what}", ops.len());
                    report.examples.push(example);
                }
            }
            all.insert(tree);
        }
    }
    report.disks = all.len() as u64;
    let mut trees: BTreeMap<String, u64> = BTreeMap::new();
    for tree in &all {
        let read = |path: &str| tree.get(&Path::from(path)).cloned();
        debug_assert!(
            tree.keys()
                .all(|p| *p == Path::from(FILE) || *p == Path::from(TEMPORARY))
        );
        *trees.entry(tree_text(contents, read)).or_default() += 1;
    }
    let trees = trees.into_iter();
    report.trees = trees
        .map(|(text, disks)| TreeFound { text, disks })
        .collect();
    report
}
