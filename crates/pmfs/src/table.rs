//! The inodes of a mounted volume: the state of each in memory, besides the words on the medium.
//!
//! Promise: a number has one place, and at most one inode lives there at a time. It does so from its birth, or from the mount,
//! until the inode is free again. Attributes are not kept here: the inode on the medium has them, one line away. Derived are:
//! link count, parent, names, and the places of the pages.
//!
//! Places are found by number, without a lock, and are never moved: chunks of them are made on demand and stay. A [`Node`] is a
//! place and the inode that lived there when it was looked up. The inode may go until the place is locked, and another one may
//! have come by then: after locking it, ask [`Node::is_there`].
//!
//! An empty place has the state that most inodes begin with, [`State::newborn`]: they settle without its lock.
//!
//! Lock order and the use of [`Node::read`] and [`Node::write`] are those of the operations.

use crate::index::dir::DirIndex;
use crate::index::file::FileIndex;
use crate::layout::{Geometry, InodeRef, birth_parts, birth_word};
use crate::state::{Orphan, SlotMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use steadfast_vfs::FileKind;

/// Place of an inode.
#[derive(Debug)]
struct Home {
    /// The birth word of the inode and [`DAMAGED`], or 0.
    life: AtomicU64,
    /// Times it is open.
    opens: AtomicU32,
    state: RwLock<State>,
}

impl Home {
    fn empty() -> Home {
        Home {
            life: AtomicU64::new(0),
            opens: AtomicU32::new(0),
            state: RwLock::new(State::newborn()),
        }
    }
}

/// An inode in use, or one that was so when it was looked up.
#[derive(Clone, Copy, Debug)]
pub struct Node<'t> {
    /// Number and generation.
    pub inode: InodeRef,
    /// Its kind. Counts where the medium has another one: a read-only mount leaves damage as it is.
    pub kind: FileKind,
    /// Its size or its target is damaged, so nothing can be read or changed. Only in a read-only mount.
    pub damaged: bool,
    /// First byte of the inode.
    pub at: u64,
    home: &'t Home,
}

/// Mutable state of a node.
#[derive(Debug, Default)]
pub struct State {
    /// Names of the inode; of a directory 2 and one for each directory in it.
    pub links: u32,
    /// Content of the inode.
    pub content: Content,
    /// The pages of its extended attributes, if they are in pages.
    pub attributes: Option<Box<FileIndex>>,
    /// It has no name and is open: the last release frees it with this.
    pub orphan: Option<Orphan>,
    /// It has never had a name, and may get one.
    pub linkable: bool,
}

/// Content of an inode.
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

/// In the word of a [`Home`], beside the birth word of its inode: it is damaged.
const DAMAGED: u64 = 1;

impl<'t> Node<'t> {
    fn word(&self) -> u64 {
        birth_word(self.inode.generation, self.kind) | (u64::from(self.damaged) * DAMAGED)
    }

    /// Whether it lives here still. The caller holds its lock.
    #[must_use]
    pub fn is_there(&self) -> bool {
        self.home.life.load(Ordering::Relaxed) == self.word()
    }

    /// Times it is open.
    #[must_use]
    pub fn opens(&self) -> &'t AtomicU32 {
        &self.home.opens
    }

    /// The inode lives here from now on, in the state that the place has: [`State::newborn`], or a state that was put
    /// there under its lock, which is held still.
    #[inline]
    pub fn settle(&self) {
        self.home.life.store(self.word(), Ordering::Release);
    }

    /// The inode is free. The next one finds the state that it begins with.
    pub fn leave(&self, state: &mut State) {
        self.home.life.store(0, Ordering::Release);
        *state = State::newborn();
    }

    /// Its state, to look at.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'t, State> {
        let state = self.home.state.read();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless another thread changes it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'t, State>> {
        match self.home.state.try_read() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Its state, to change, unless another thread has it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'t, State>> {
        match self.home.state.try_write() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Its state, to change.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'t, State> {
        let state = self.home.state.write();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same inode.
impl PartialEq for Node<'_> {
    fn eq(&self, other: &Node<'_>) -> bool {
        self.inode == other.inode
    }
}

impl Eq for Node<'_> {}

impl State {
    /// Of an inode with one name that is no directory and has no pages.
    #[must_use]
    pub fn newborn() -> State {
        State {
            links: 1,
            ..State::default()
        }
    }

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

/// Places that are made together.
const CHUNK: usize = 64;

type Chunk = OnceLock<Box<[Home; CHUNK]>>;

/// All nodes, by number.
pub struct Table {
    chunks: Box<[Chunk]>,
    geometry: Geometry,
}

impl Table {
    /// A table without nodes, for the inodes of a volume.
    #[must_use]
    pub fn new(geometry: Geometry) -> Table {
        let chunks = geometry.inodes() as usize / CHUNK + 1;
        Table {
            chunks: (0..chunks).map(|_| Chunk::new()).collect(),
            geometry,
        }
    }

    /// Number of nodes. Looks at all places.
    #[must_use]
    pub fn len(&self) -> u64 {
        let mut len = 0;
        self.for_each(|_| len += 1);
        len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The node of a number.
    #[must_use]
    #[inline]
    pub fn get(&self, number: u32) -> Option<Node<'_>> {
        let chunk = self.chunks.get(number as usize / CHUNK)?.get()?;
        self.node(&chunk[number as usize % CHUNK], number)
    }

    /// The place of an inode that is to be born, or that a mount has found, as a node that is not there yet. `None` if the
    /// number is too large.
    #[must_use]
    pub fn place(&self, inode: InodeRef, kind: FileKind, damaged: bool) -> Option<Node<'_>> {
        if !self.geometry.is_inode(inode.number) {
            return None;
        }
        let chunk = self.chunks.get(inode.number as usize / CHUNK)?;
        let chunk = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| Home::empty())));
        Some(Node {
            inode,
            kind,
            damaged,
            at: self.geometry.inode_at(inode.number),
            home: &chunk[inode.number as usize % CHUNK],
        })
    }

    /// Adds a node whose place is not locked.
    pub fn insert(&self, inode: InodeRef, kind: FileKind, damaged: bool, new: State) {
        if let Some(node) = self.place(inode, kind, damaged) {
            let mut state = node.write();
            *state = new;
            node.settle();
        }
    }

    /// Calls `look` with each node, by number.
    pub fn for_each(&self, mut look: impl FnMut(Node<'_>)) {
        for (index, chunk) in self.chunks.iter().enumerate() {
            for (home, number) in chunk
                .get()
                .into_iter()
                .flat_map(|chunk| chunk.iter())
                .zip(0..)
            {
                if let Some(node) = self.node(home, (index * CHUNK) as u32 + number) {
                    look(node);
                }
            }
        }
    }

    /// The inode in a place.
    #[inline]
    fn node<'t>(&self, home: &'t Home, number: u32) -> Option<Node<'t>> {
        let life = home.life.load(Ordering::Acquire);
        let (generation, kind) = birth_parts(life);
        Some(Node {
            inode: InodeRef { number, generation },
            kind: kind?,
            damaged: life & DAMAGED != 0,
            at: self.geometry.inode_at(number),
            home,
        })
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

    fn inode(number: u32, generation: u32) -> InodeRef {
        InodeRef { number, generation }
    }

    /// Of 32 inodes, or of 16,384.
    fn table(inodes: u32) -> Table {
        let bytes = u64::from(inodes) * 16384;
        Table::new(Geometry::new(bytes.max(1 << 20), 16384).unwrap())
    }

    #[test]
    fn a_node_costs_at_most_104_bytes() {
        assert!(size_of::<Home>() <= 104, "{}", size_of::<Home>());
    }

    #[test]
    fn a_node_is_found_by_its_number_until_it_leaves() {
        let table = table(16_384);
        let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Socket];
        let kind = |number: u32| kinds[number as usize % 3];
        for number in 1..=10_000 {
            let (damaged, state) = (number % 2 == 0, State::default());
            table.insert(inode(number, number + 1), kind(number), damaged, state);
        }
        for number in 1..=10_000 {
            let node = table.get(number).unwrap();
            assert_eq!(node.inode, inode(number, number + 1));
            assert_eq!((node.kind, node.damaged), (kind(number), number % 2 == 0));
        }
        let node = table.get(77).unwrap();
        node.leave(&mut node.write());
        assert!(table.get(77).is_none() && table.get(0).is_none());
        assert!(table.get(20_000).is_none() && !table.is_empty());
        assert_eq!(table.len(), 9_999);
    }

    #[test]
    fn a_node_is_not_there_once_another_inode_has_its_number() {
        let table = table(32);
        table.insert(inode(7, 1), FileKind::Regular, false, State::default());
        let old = table.get(7).unwrap();
        assert!(old.is_there());
        old.leave(&mut old.write());
        assert!(!old.is_there());
        table.insert(inode(7, 2), FileKind::Regular, false, State::default());
        let new = table.get(7).unwrap();
        assert!(!old.is_there() && new.is_there() && old != new);
    }

    #[test]
    fn a_number_that_no_inode_can_have_has_no_place() {
        let table = table(32);
        let place = |number| table.place(inode(number, 1), FileKind::Fifo, false);
        assert!(place(64).is_some_and(|node| !node.is_there()));
        assert!(place(0).is_none() && place(65).is_none() && place(1000).is_none());
    }
}
