//! Tree sequences: the trees that a crash chooses from, and for each file the values that its
//! sectors had since its last fdatasync.
//!
//! The newest value of a sector is in the tree; [`Member::older`] has the others. All of them
//! are zero past the end of the file.

use crate::op::Call;
use crate::snapshot::{Entry, Snapshot};
use crate::tree::{Body, Tree};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use steadfast_vfs::{AllocateMode, Caller, FileKind, Ino, Time};

/// Bytes that a crash writes whole or not at all.
pub const SECTOR_BYTES: u64 = 512;
const SECTOR: usize = SECTOR_BYTES as usize;

type Sector = [u8; SECTOR];
/// Sector number → its older values, each once.
type Values = BTreeMap<u64, Vec<Sector>>;

/// One tree of a sequence.
#[derive(Clone, Debug)]
struct Member {
    tree: Tree,
    older: BTreeMap<Ino, Arc<Values>>,
    snapshot: OnceLock<Arc<Snapshot>>,
}

/// The trees that a crash may leave, oldest first; never empty.
#[derive(Clone, Debug)]
pub struct TreeSequence {
    trees: Vec<Arc<Member>>,
    /// Number of trees that have left the sequence; also the number of the first.
    gone: u64,
    /// Number of the tree in which a file was made, or last changed in size or allocation.
    shaped: BTreeMap<Ino, u64>,
}

/// Numbers of the sectors that bytes lie in.
fn sectors(bytes: &Range<u64>) -> Range<u64> {
    if bytes.is_empty() {
        return 0..0;
    }
    bytes.start / SECTOR_BYTES..bytes.end.div_ceil(SECTOR_BYTES)
}

/// The part of `bytes` that falls into a sector, as offsets in it.
fn inside(sector: u64, bytes: &Range<u64>) -> Range<usize> {
    let base = sector * SECTOR_BYTES;
    let from = bytes.start.clamp(base, base + SECTOR_BYTES) - base;
    let to = bytes.end.clamp(base, base + SECTOR_BYTES) - base;
    from as usize..to as usize
}

/// The sector of a file, with zeros past its end.
fn read(data: &crate::data::FileData, sector: u64) -> Sector {
    let mut value = [0; SECTOR];
    data.read(sector * SECTOR_BYTES, &mut value);
    value
}

impl Member {
    fn new(tree: Tree, older: BTreeMap<Ino, Arc<Values>>) -> Arc<Member> {
        Arc::new(Member {
            tree,
            older,
            snapshot: OnceLock::new(),
        })
    }

    fn snapshot(&self) -> &Arc<Snapshot> {
        self.snapshot
            .get_or_init(|| Arc::new(Snapshot::of_tree(&self.tree)))
    }

    fn size(&self, ino: Ino) -> u64 {
        self.tree.getattr(ino).map_or(0, |attr| attr.size)
    }

    /// The values in `sectors` become history.
    fn remember(&mut self, ino: Ino, sectors: Range<u64>) {
        let Ok(node) = self.tree.node(ino) else {
            return;
        };
        let Body::File(data) = &node.body else { return };
        let older = Arc::make_mut(self.older.entry(ino).or_default());
        for sector in sectors {
            let value = read(data, sector);
            let values = older.entry(sector).or_default();
            if !values.contains(&value) {
                values.push(value);
            }
        }
    }

    /// Changes bytes of all older values: for appended, cut off or punched bytes, a crash
    /// leaves no other value in this tree.
    fn change_older(&mut self, ino: Ino, bytes: &Range<u64>, new: impl Fn(u64) -> u8) {
        let Some(older) = self.older.get_mut(&ino) else {
            return;
        };
        let touched = sectors(bytes);
        if older.range(touched.clone()).next().is_none() {
            return;
        }
        for (sector, values) in Arc::make_mut(older).range_mut(touched) {
            let at = inside(*sector, bytes);
            for value in values.iter_mut() {
                for i in at.clone() {
                    value[i] = new(sector * SECTOR_BYTES + i as u64);
                }
            }
            values.sort_unstable();
            values.dedup();
        }
    }

    /// Whether a crash may leave this tree as `found`.
    fn may_be(&self, found: &Snapshot) -> bool {
        let expected = self.snapshot();
        expected.entries.len() == found.entries.len()
            && expected
                .entries
                .iter()
                .zip(&found.entries)
                .all(|((path, entry), (at, found))| {
                    path == at
                        && entry.same_but_content(found)
                        && entry.size == found.size
                        && (entry.data == found.data || self.strange_sector(path, found).is_none())
                })
    }

    /// The first sector of a file that holds none of its values.
    fn strange_sector(&self, path: &[u8], found: &Entry) -> Option<u64> {
        let ino = self.tree.ino_at(path)?;
        let Body::File(data) = &self.tree.node(ino).ok()?.body else {
            return None;
        };
        let older = self.older.get(&ino);
        (0..found.size.div_ceil(SECTOR_BYTES)).find(|sector| {
            let value = read(&found.data, *sector);
            let older = older.and_then(|values| values.get(sector));
            value != read(data, *sector) && !older.is_some_and(|values| values.contains(&value))
        })
    }
}

impl TreeSequence {
    /// One durable tree.
    #[must_use]
    pub fn new(tree: Tree) -> TreeSequence {
        TreeSequence {
            trees: vec![Member::new(tree, BTreeMap::new())],
            gone: 0,
            shaped: BTreeMap::new(),
        }
    }

    /// Number of trees.
    #[must_use]
    pub fn len(&self) -> usize {
        self.trees.len()
    }

    /// Never: there is always the tree on the disk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// The tree that programs see.
    #[must_use]
    pub fn latest(&self) -> &Tree {
        &self.last().tree
    }

    fn last(&self) -> &Arc<Member> {
        &self.trees[self.trees.len() - 1]
    }

    fn change_last(&mut self, change: impl FnOnce(&mut Member)) {
        let last = self.trees.len() - 1;
        change_member(&mut self.trees[last], change);
    }

    /// The outcome was compared already.
    fn call_last(&mut self, call: &Call, caller: &Caller, at: Time) {
        self.change_last(|member| {
            let _ = member.tree.call(call, caller, at);
        });
    }

    fn change_all(&mut self, ino: Ino, change: impl Fn(&mut Member)) {
        for member in &mut self.trees {
            if member.tree.node(ino).is_ok() {
                change_member(member, &change);
            }
        }
    }

    /// Snapshot of each tree, with the newest value in each sector; oldest first.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = &Arc<Snapshot>> {
        self.trees.iter().map(|member| member.snapshot())
    }

    /// A call that succeeded.
    pub(super) fn call(&mut self, call: &Call, caller: &Caller, at: Time) {
        match call {
            Call::Open { ino, .. } => {
                let older = self.trees.len() - 1;
                for member in &mut self.trees[..older] {
                    // Where there is no such inode there is nothing to keep alive.
                    change_member(member, |m| m.tree.open(*ino).unwrap_or_default());
                }
                self.call_last(call, caller, at);
            }
            Call::Close { ino, .. } => {
                let older = self.trees.len() - 1;
                for member in &mut self.trees[..older] {
                    change_member(member, |m| m.tree.release(*ino));
                }
                self.call_last(call, caller, at);
            }
            Call::Fsync { ino, data_only } => self.fsync(*ino, *data_only),
            Call::Sync => {
                self.truncate();
                self.change_last(|m| m.older.clear());
            }
            Call::Write { ino, offset, data } => self.write(call, caller, at, *ino, *offset, data),
            Call::Append { ino, data } => {
                let offset = self.last().size(*ino);
                self.write(call, caller, at, *ino, offset, data);
            }
            _ => self.metadata(call, caller, at),
        }
    }

    /// Only the last tree is left: metadata is durable (figure 4).
    fn truncate(&mut self) {
        self.commit_upto(self.newest());
    }

    /// Number of the last tree.
    fn newest(&self) -> u64 {
        self.gone + self.trees.len() as u64 - 1
    }

    /// Metadata is durable at least as far as this tree.
    fn commit_upto(&mut self, number: u64) {
        let drop = number
            .saturating_sub(self.gone)
            .min(self.newest() - self.gone);
        self.trees.drain(..drop as usize);
        self.gone += drop;
        let gone = self.gone;
        self.shaped.retain(|_, number| *number > gone);
    }

    /// Figures 4 and 7.
    fn fsync(&mut self, ino: Ino, data_only: bool) {
        let attr = self.latest().getattr(ino);
        let is_file = attr.is_ok_and(|attr| attr.kind == FileKind::Regular);
        if !data_only || !is_file {
            self.truncate();
        } else if let Some(number) = self.shaped.get(&ino) {
            self.commit_upto(*number);
        }
        self.change_all(ino, |member| drop(member.older.remove(&ino)));
    }

    /// Figure 6, and a new tree if the file grows or changes in another way.
    fn write(
        &mut self,
        call: &Call,
        caller: &Caller,
        at: Time,
        ino: Ino,
        offset: u64,
        data: &[u8],
    ) {
        let end = offset + data.len() as u64;
        let size = self.last().size(ino);
        let before = self.latest().getattr(ino);
        self.change_all(ino, |member| {
            let end = end.min(member.size(ino));
            if offset < end {
                member.remember(ino, sectors(&(offset..end)));
                let bytes = &data[..(end - offset) as usize];
                if let Some(node) = member.tree.nodes.get_mut(ino)
                    && let Body::File(data) = &mut node.body
                {
                    data.write(offset, bytes);
                }
            }
        });
        let mut tree = self.latest().clone();
        // The outcome was compared already.
        let _ = tree.call(call, caller, at);
        let perm = |attr: Result<steadfast_vfs::Attr, _>| attr.map_or(0, |attr| attr.perm);
        if end <= size && perm(before) == perm(tree.getattr(ino)) {
            self.change_last(|member| member.tree = tree);
            return;
        }
        let mut member = (**self.last()).clone();
        member.tree = tree;
        let start = offset.max(size);
        if start < end {
            self.shaped.insert(ino, self.newest() + 1);
            member.change_older(ino, &(start..end), |at| data[(at - offset) as usize]);
        }
        self.push(member);
    }

    /// A change of metadata: figure 3.
    fn metadata(&mut self, call: &Call, caller: &Caller, at: Time) {
        let mut member = (**self.last()).clone();
        let born = member.tree.next_ino();
        let _ = member.tree.call(call, caller, at);
        let zeroed = match call {
            Call::SetAttr { ino, set } => set
                .size
                .map(|size| (*ino, size..self.last().size(*ino).max(size))),
            Call::Fallocate {
                ino,
                mode,
                offset,
                len,
            } => Some((
                *ino,
                match mode {
                    AllocateMode::Allocate | AllocateMode::KeepSize => 0..0,
                    _ => *offset..offset.saturating_add(*len).min(self.last().size(*ino)),
                },
            )),
            _ => None,
        };
        if let Some((ino, bytes)) = zeroed {
            self.shaped.insert(ino, self.newest() + 1);
            member.change_older(ino, &bytes, |_| 0);
        }
        let number = self.newest() + 1;
        for ino in born..member.tree.next_ino() {
            self.shaped.insert(ino, number);
        }
        self.push(member);
    }

    fn push(&mut self, mut member: Member) {
        member.snapshot = OnceLock::new();
        let nodes = &member.tree.nodes;
        member.older.retain(|ino, _| nodes.get(*ino).is_some());
        self.trees.push(Arc::new(member));
    }

    /// The newest tree that a crash may leave as `found`.
    pub(super) fn find(&self, found: &Snapshot) -> Option<usize> {
        self.trees.iter().rposition(|member| member.may_be(found))
    }

    /// Files of tree `index` in which `found` has a sector that never was so.
    pub(super) fn strange(&self, index: usize, found: &Snapshot) -> Vec<String> {
        let Some(member) = self.trees.get(index) else {
            return Vec::new();
        };
        let entries = &member.snapshot().entries;
        let strange = entries.iter().filter_map(|(path, entry)| {
            let found = found.entries.get(path)?;
            let alike = found.size == entry.size && found.data != entry.data;
            let sector = alike.then(|| member.strange_sector(path, found))??;
            Some(format!(
                "{}: bytes {}.. hold none of the values that they had since the last fdatasync",
                path.escape_ascii(),
                sector * SECTOR_BYTES
            ))
        });
        strange.collect()
    }

    /// One of the states that a crash may leave (figure 8).
    pub(super) fn pick(&self, choose: &mut dyn FnMut(usize) -> usize) -> Snapshot {
        let member = &self.trees[choose(self.trees.len()) % self.trees.len()];
        let mut tree = member.tree.clone();
        for (ino, older) in &member.older {
            for (sector, values) in older.iter() {
                let chosen = choose(values.len() + 1) % (values.len() + 1);
                let Some(value) = values.get(chosen) else {
                    continue;
                };
                let base = sector * SECTOR_BYTES;
                if let Some(node) = tree.nodes.get_mut(*ino)
                    && let Body::File(data) = &mut node.body
                {
                    let len = data.size().saturating_sub(base).min(SECTOR_BYTES);
                    data.write(base, &value[..len as usize]);
                }
            }
        }
        Snapshot::of_tree(&tree)
    }
}

fn change_member(member: &mut Arc<Member>, change: impl FnOnce(&mut Member)) {
    let member = Arc::make_mut(member);
    member.snapshot = OnceLock::new();
    change(member);
}
