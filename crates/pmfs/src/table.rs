//! The inodes of a mounted volume: what is known of each beside what the medium says.
//!
//! Promise: a number has at most one [`Node`]. A node exists from its inode's birth, or from the mount, until the inode is free
//! again. Attributes are not kept here: the inode on the medium has them, one line away. What is derived is: link count,
//! parent, names, and where the pages are.
//!
//! Lock order and the use of [`Node::state`] are those of the operations. The table's own locks are innermost: they are held
//! for one access of a map.

use crate::index::dir::DirIndex;
use crate::index::file::FileIndex;
use crate::layout::InodeRef;
use crate::state::{Orphan, SlotMap};
use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use steadfast_vfs::FileKind;

/// An inode in use.
#[derive(Debug)]
pub struct Node {
    /// Number and generation.
    pub inode: InodeRef,
    /// What it is. Counts where the medium says something else: a read-only mount leaves damage as it is.
    pub kind: FileKind,
    /// Its size or its target is damaged, so nothing can be read or changed. Only in a read-only mount.
    pub damaged: bool,
    /// Times it is open.
    pub opens: AtomicU32,
    state: RwLock<State>,
}

/// What changes of a node.
#[derive(Debug, Default)]
pub struct State {
    /// Names of the inode; of a directory 2 and one for each directory in it.
    pub links: u32,
    /// What it holds.
    pub content: Content,
    /// The pages of its extended attributes, if they are in pages.
    pub attributes: Option<Box<FileIndex>>,
    /// It has no name and is open: the last release frees it with this.
    pub orphan: Option<Orphan>,
    /// It has never had a name, and may get one.
    pub linkable: bool,
}

/// What an inode holds.
#[derive(Debug)]
pub enum Content {
    /// The pages of a regular file or of a symlink; others have none.
    Pages(FileIndex),
    /// The names of a directory.
    Directory(Box<Directory>),
}

impl Default for Content {
    fn default() -> Content {
        Content::Pages(FileIndex::new())
    }
}

/// The volatile part of a directory.
#[derive(Debug)]
pub struct Directory {
    /// Number of the directory that names it; of the root its own.
    pub parent: u32,
    /// Its names.
    pub names: DirIndex,
    /// Its free slots; none in a read-only mount.
    pub slots: SlotMap,
}

impl Directory {
    /// A directory with these names and no free slot.
    #[must_use]
    pub fn new(parent: u32, names: DirIndex) -> Directory {
        Directory {
            parent,
            names,
            slots: SlotMap::new(),
        }
    }
}

impl Node {
    /// A node.
    #[must_use]
    pub fn new(inode: InodeRef, kind: FileKind, state: State) -> Node {
        Node {
            inode,
            kind,
            damaged: false,
            opens: AtomicU32::new(0),
            state: RwLock::new(state),
        }
    }

    /// The node of an inode that is damaged.
    pub(crate) fn damaged(inode: InodeRef, kind: FileKind, state: State) -> Node {
        Node {
            damaged: true,
            ..Node::new(inode, kind, state)
        }
    }

    /// Its state, to look at.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless somebody changes it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, State>> {
        match self.state.try_read() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Its state, to change, unless somebody has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, State>> {
        match self.state.try_write() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Its state, to change.
    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The pages, unless it is a directory.
    #[must_use]
    pub fn pages(&self) -> Option<&FileIndex> {
        match &self.content {
            Content::Pages(pages) => Some(pages),
            Content::Directory(_) => None,
        }
    }

    /// The pages, to change.
    pub fn pages_mut(&mut self) -> Option<&mut FileIndex> {
        match &mut self.content {
            Content::Pages(pages) => Some(pages),
            Content::Directory(_) => None,
        }
    }

    /// The directory, if it is one.
    #[must_use]
    pub fn directory(&self) -> Option<&Directory> {
        match &self.content {
            Content::Directory(directory) => Some(directory),
            Content::Pages(_) => None,
        }
    }

    /// The directory, to change.
    pub fn directory_mut(&mut self) -> Option<&mut Directory> {
        match &mut self.content {
            Content::Directory(directory) => Some(directory),
            Content::Pages(_) => None,
        }
    }

    /// Pages that the inode holds, those of its attributes included.
    #[must_use]
    pub fn pages_held(&self) -> u64 {
        let content = match &self.content {
            Content::Pages(pages) => pages.pages(),
            Content::Directory(directory) => directory.names.pages().len() as u64,
        };
        content + self.attributes.as_ref().map_or(0, |pages| pages.pages())
    }
}

type Shard = RwLock<HashTable<Arc<Node>>>;

/// All nodes, by number.
pub struct Table {
    shards: Box<[Shard]>,
    len: AtomicU64,
}

/// Shards of a table, a power of two.
const SHARDS: usize = 64;

fn hash(number: u32) -> u64 {
    FixedState::default().hash_one(number)
}

fn number_hash(node: &Arc<Node>) -> u64 {
    hash(node.inode.number)
}

impl Default for Table {
    fn default() -> Table {
        Table {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            len: AtomicU64::new(0),
        }
    }
}

impl Table {
    /// A table without nodes.
    #[must_use]
    pub fn new() -> Table {
        Table::default()
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    // The shards take the lowest bits of the number, so that inodes made one after the other are spread.
    fn shard(&self, number: u32) -> &Shard {
        &self.shards[number as usize % SHARDS]
    }

    /// The node of a number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<Arc<Node>> {
        let shard = self.shard(number).read();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard
            .find(hash(number), |node| node.inode.number == number)
            .cloned()
    }

    /// Adds a node. Its number has none.
    pub fn insert(&self, node: Node) -> Arc<Node> {
        let (number, node) = (node.inode.number, Arc::new(node));
        let shard = self.shard(number).write();
        let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
        debug_assert!(
            shard
                .find(hash(number), |node| node.inode.number == number)
                .is_none()
        );
        shard.insert_unique(hash(number), Arc::clone(&node), number_hash);
        self.len.fetch_add(1, Ordering::Relaxed);
        node
    }

    /// Makes room for so many nodes.
    pub(crate) fn reserve(&self, nodes: u64) {
        for shard in &self.shards {
            let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
            shard.reserve(nodes as usize / SHARDS, number_hash);
        }
    }

    /// Forgets the node of a number.
    pub fn remove(&self, number: u32) -> Option<Arc<Node>> {
        let shard = self.shard(number).write();
        let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
        let found = shard.find_entry(hash(number), |node| node.inode.number == number);
        let (node, _) = found.ok()?.remove();
        self.len.fetch_sub(1, Ordering::Relaxed);
        Some(node)
    }

    /// Calls `look` with each node, in no order.
    pub fn for_each(&self, mut look: impl FnMut(&Arc<Node>)) {
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.iter().for_each(&mut look);
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("nodes", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_node_costs_at_most_128_bytes() {
        // With the counts of its `Arc`, and two places of 9 bytes in the table: it may be half empty.
        assert!(size_of::<Node>() + 16 + 18 <= 128, "{}", size_of::<Node>());
    }

    #[test]
    fn a_node_is_found_by_its_number_until_it_is_removed() {
        let table = Table::new();
        table.reserve(10_000);
        for number in 1..=10_000 {
            let inode = InodeRef {
                number,
                generation: number + 1,
            };
            table.insert(Node::new(inode, FileKind::Regular, State::default()));
        }
        assert_eq!(table.get(9_999).unwrap().inode.generation, 10_000);
        assert!(table.remove(77).is_some() && table.remove(77).is_none());
        assert!(table.get(77).is_none() && table.get(0).is_none());
        let mut seen = 0;
        table.for_each(|_| seen += 1);
        assert_eq!((seen, table.len()), (9_999, 9_999));
    }
}
