//! Volumes whose words a test stores itself, and the result of mounting them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Write;
use steadfast_pm::{Event, Exploration, Region};
use steadfast_pmfs::MountOptions;
use steadfast_pmfs::error::Error;
use steadfast_pmfs::layout::*;
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_pmfs::mount::{Mount, mount};
use steadfast_vfs::{FileKind, Time};

/// A volume in memory.
pub struct Volume {
    pub region: Region,
    pub geometry: Geometry,
    next_inode: u32,
    next_page: u64,
    next_tag: u64,
}

pub const ROOT_INODE: InodeRef = InodeRef {
    number: ROOT,
    generation: 1,
};

pub fn options() -> MkfsOptions {
    MkfsOptions {
        label: "test".into(),
        uuid: Some([7; 16]),
        bytes_per_inode: 8192,
        now: Some(Time { secs: 1, nanos: 0 }),
        ..MkfsOptions::default()
    }
}

impl Volume {
    /// An empty volume of `bytes` bytes.
    pub fn new(bytes: u64) -> Volume {
        let region = Region::anonymous(bytes);
        let made = mkfs(&region, &options(), &mut |_, _| {}).unwrap();
        Volume {
            region,
            geometry: made.geometry,
            next_inode: 2,
            next_page: 0,
            next_tag: 1,
        }
    }

    /// The same with the words that are there now.
    pub fn copy(&self) -> Volume {
        self.within(Region::with_content(&self.region.content()))
    }

    /// The same volume in another region.
    pub fn within(&self, region: Region) -> Volume {
        Volume { region, ..*self }
    }

    /// A page for data that was not given out before.
    pub fn page(&mut self) -> Page {
        let mut all = (0..self.geometry.chunks()).flat_map(|chunk| self.geometry.data_pages(chunk));
        self.next_page += 1;
        Page(all.nth(self.next_page as usize - 1).unwrap())
    }

    /// A number for an inode that was not given out before, in its first generation.
    pub fn number(&mut self) -> InodeRef {
        self.next_inode += 1;
        InodeRef {
            number: self.next_inode - 1,
            generation: 1,
        }
    }

    pub fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag - 1
    }

    pub fn word(&self, at: u64, word: u64) {
        self.region.store(at, word);
    }

    /// Stores an inode: sequence 4, permission bits 0o640.
    pub fn bear(&self, inode: InodeRef, kind: FileKind, size: u64) {
        let at = self.geometry.inode_at(inode.number);
        let commit = Commit {
            sequence: 4,
            perm: 0o640,
            attributes: AttributePlace::None,
        };
        for (word, value) in [
            (inode::COMMIT, commit.word()),
            (inode::SIZE[0], size),
            (inode::OWNER[0], 5 << 32 | 6),
            (inode::MTIME, 100),
            (inode::CTIME, 101),
            (inode::EXTRA, u64::from(inode.generation) << 32),
            (inode::BTIME, 102),
            (inode::ATIME, 103),
            (inode::BIRTH, birth_word(inode.generation, kind)),
        ] {
            self.word(at + word, value);
        }
    }

    /// A new inode.
    pub fn inode(&mut self, kind: FileKind, size: u64) -> InodeRef {
        let inode = self.number();
        self.bear(inode, kind, size);
        inode
    }

    /// The commit word of an inode, with another sequence or place of attributes.
    pub fn commit(&self, inode: InodeRef, sequence: u64, attributes: AttributePlace) {
        let commit = Commit {
            sequence,
            perm: 0o640,
            attributes,
        };
        let at = self.geometry.inode_at(inode.number) + inode::COMMIT;
        self.word(at, commit.word());
    }

    pub fn describe_page(
        &self,
        page: Page,
        owner: InodeRef,
        offset: u64,
        kind: PageKind,
        life: Life,
    ) {
        let at = self.geometry.desc_at(page);
        self.word(at + desc::OWNER, owner.word());
        self.word(at + desc::OFFSET, PageOffset { offset, kind }.word());
        self.word(at + desc::LIFE, life.word());
    }

    /// A written page of a file, full of `byte`.
    pub fn data(&mut self, owner: InodeRef, offset: u64, byte: u8) -> Page {
        let page = self.page();
        self.region
            .write_data(page.at(), &[byte; PAGE_BYTES as usize]);
        let life = Life::settled(PageState::Written);
        self.describe_page(page, owner, offset, PageKind::Data, life);
        page
    }

    /// A page of a directory.
    pub fn dir_page(&mut self, owner: InodeRef, offset: u64) -> Page {
        let page = self.page();
        self.region.zero_data(page.at(), PAGE_BYTES);
        let life = Life::settled(PageState::Written);
        self.describe_page(page, owner, offset, PageKind::Directory, life);
        page
    }

    /// Stores a slot without its commit word. Returns its tag.
    pub fn body(&mut self, place: Place, name: &[u8]) -> u64 {
        let tag = self.tag();
        let word = Tag {
            tag,
            len: name.len() as u8,
            hash: name_hash(name),
        };
        let (head, rest) = name.split_at(name.len().min(NAME_HEAD));
        let mut padded = [0; NAME_HEAD];
        padded[..head.len()].copy_from_slice(head);
        self.word(place.at() + slot::POINTER, 0);
        self.word(place.at() + slot::TAG, word.word());
        self.region.write_data(place.at() + slot::NAME, &padded);
        for (k, piece) in rest.chunks(NAME_CONT).enumerate() {
            let at = place.at() + (k as u64 + 1) * SLOT_BYTES + slot::CONT;
            self.region.write_data(at, piece);
        }
        tag
    }

    /// Stores a slot. Returns its tag.
    pub fn name(&mut self, place: Place, name: &[u8], inode: InodeRef) -> u64 {
        let tag = self.body(place, name);
        self.word(place.at(), inode.word());
        tag
    }

    /// Stores a rename pointer.
    pub fn point(&self, at: Place, from: Place, tag: u64, exchange: Option<u32>) {
        let (one, two) = Pointer {
            from,
            tag,
            exchange,
        }
        .words();
        self.word(at.at() + slot::POINTER, one);
        self.word(at.at() + slot::OTHER, two);
    }

    /// Mounts a copy for writing.
    pub fn mounted(&self) -> Result<Mount, Error> {
        mounted(self.copy().region, false, 1)
    }

    /// The tree that a mount for writing shows.
    pub fn tree(&self) -> Tree {
        tree(&self.mounted().unwrap())
    }
}

pub fn mounted(region: Region, read_only: bool, threads: usize) -> Result<Mount, Error> {
    let mut options = MountOptions::default();
    options.read_only = read_only;
    options.scan_threads = threads;
    mount(region, &options, &mut |_, _| {})
}

/// The files that a mount shows, by path. Of an inode with several names only the first path has the details.
pub type Tree = BTreeMap<String, String>;

/// The tree of a mount.
pub fn tree(mount: &Mount) -> Tree {
    numbered_tree(mount).0
}

/// The tree of a mount, and the first path of each inode.
pub fn numbered_tree(mount: &Mount) -> (Tree, BTreeMap<u32, String>) {
    let mut tree = Tree::new();
    let mut seen = BTreeMap::new();
    walk(mount, ROOT, "/", &mut seen, &mut tree);
    // Entries that need another name are left out of a read-only mount; their inodes are there.
    if mount.report.damage.is_empty() {
        let nodes = mount.table.len();
        assert_eq!(seen.len() as u64, nodes, "a node that cannot be reached");
    }
    (tree, seen)
}

fn walk(mount: &Mount, number: u32, path: &str, seen: &mut BTreeMap<u32, String>, tree: &mut Tree) {
    if let Some(first) = seen.get(&number) {
        tree.insert(path.into(), format!("= {first}"));
        return;
    }
    seen.insert(number, path.into());
    let node = mount.table.get(number).unwrap();
    let (state, m) = (node.read(), &mount.medium);
    let at = m.geometry().inode_at(number);
    let commit = Commit::from_word(m.load(at + inode::COMMIT));
    let size = m.load(at + inode::SIZE[commit.parity()]);
    let owner = m.load(at + inode::OWNER[commit.parity()]);
    let mut text = format!(
        "{:?} {:o} {owner:x}, {} links",
        node.kind, commit.perm, state.links
    );
    if let Some(pages) = state.pages() {
        let _ = write!(text, ", {size} bytes");
        for extent in pages.iter() {
            for k in 0..extent.len {
                let offset = extent.offset + k;
                let _ = write!(text, ", {offset}:");
                if extent.state == PageState::Unwritten {
                    text.push('-');
                    continue;
                }
                let mut bytes = [0; PAGE_BYTES as usize];
                m.read(Page(extent.page.0 + k).at(), &mut bytes);
                let len = size.saturating_sub(offset * PAGE_BYTES).min(PAGE_BYTES);
                let hash = xxhash_rust::xxh3::xxh3_64(&bytes[..len as usize]);
                let _ = write!(text, "{:x}", hash >> 48);
            }
        }
    }
    if node.kind == FileKind::Symlink && state.pages().unwrap().is_empty() {
        for k in 0..5 {
            let _ = write!(text, " {:x}", m.load(at + inode::INLINE + 8 * k));
        }
    }
    if let Some(attributes) = &state.attributes {
        let _ = write!(text, ", attributes in {} pages", attributes.pages());
    }
    tree.insert(path.into(), text);
    if let Some(directory) = state.directory() {
        let mut count = 0;
        for listed in directory.names.entries(m, 0) {
            count += 1;
            let name = listed.name(m).unwrap();
            let found = directory.names.find(m, name.bytes()).unwrap();
            assert_eq!((found.place, found.inode), (listed.place, listed.inode));
            let separator = if path == "/" { "" } else { "/" };
            let path = format!("{path}{separator}{}", name.bytes().escape_ascii());
            let child = mount.table.get(listed.inode.number).unwrap();
            assert_eq!(child.inode, listed.inode);
            if let Some(below) = child.read().directory() {
                assert_eq!(below.parent, number);
            }
            walk(mount, listed.inode.number, &path, seen, tree);
        }
        assert_eq!(count, directory.names.len());
        assert_eq!(directory.names.is_empty(), count == 0);
    }
}

/// Mounts a volume that a crash left, in every way there is, and returns the tree.
///
/// Recovery may be cut at any store: the next mount shows the same. Once it is through, the next mount has nothing to repair
/// and stores nothing but its hints. A read-only mount shows the same and stores nothing. Threads make no difference.
pub fn recovered(volume: &Volume) -> Tree {
    let mount = mounted(Region::recorded(volume.region.content()), false, 1).unwrap();
    let shown = tree(&mount);
    let trace = mount.medium.recorder().unwrap().trace();
    let fences = trace
        .events()
        .iter()
        .filter(|event| **event == Event::Fence);
    let repairs = u64::from(mount.report.recovered_words > 0);
    assert_eq!(
        fences.count() as u64,
        repairs + 1,
        "one fence for repairs, one for hints"
    );
    let explored = trace.explore(
        &Exploration::default(),
        |_| true,
        |image| {
            let again = mounted(image.region(), false, 1).unwrap();
            assert_eq!(tree(&again), shown, "{image}");
            let third = mounted(again.medium.into_region(), false, 1).unwrap();
            assert_eq!(third.report.recovered_words, 0, "{image}");
            Ok::<(), ()>(())
        },
    );
    assert!(explored.unwrap().images > repairs);

    let content = mount.medium.content();
    let clean = mounted(Region::with_content(&content), false, 1).unwrap();
    assert!(clean.report.recovered_words == 0 && clean.report.counts.is_empty());
    assert_eq!(tree(&clean), shown);
    assert_eq!(clean.report.free_pages, mount.report.free_pages);
    assert_eq!(clean.report.free_inodes, mount.report.free_inodes);

    let read_only = mounted(Region::recorded(volume.region.content()), true, 1).unwrap();
    assert_eq!(tree(&read_only), shown);
    assert!(read_only.free.is_none() && read_only.medium.recorder().unwrap().events().is_empty());
    for threads in [2, 3] {
        let again = mounted(volume.copy().region, false, threads).unwrap();
        assert_eq!(
            (tree(&again), &again.report),
            (shown.clone(), &mount.report)
        );
        assert!(again.medium.content() == content);
    }
    shown
}

/// A volume with something of everything.
pub fn populated() -> Volume {
    populated_in(1 << 20)
}

/// The same in a region of `bytes` bytes.
pub fn populated_in(bytes: u64) -> Volume {
    let mut v = Volume::new(bytes);
    let root = v.dir_page(ROOT_INODE, 0);
    let more = v.dir_page(ROOT_INODE, 1);
    let slot = |k| Place::new(root, k);

    let file = v.inode(FileKind::Regular, 3 * PAGE_BYTES - 100);
    v.name(slot(0), b"file", file);
    v.name(
        Place::new(more, 60),
        b"another name of the same file, and a long one",
        file,
    );
    v.data(file, 0, 1);
    v.data(file, 2, 2);
    let page = v.page();
    v.describe_page(
        page,
        file,
        5,
        PageKind::Data,
        Life::settled(PageState::Unwritten),
    );

    let dir = v.inode(FileKind::Directory, 0);
    v.name(slot(1), b"dir", dir);
    let page = v.dir_page(dir, 0);
    let empty = v.inode(FileKind::Directory, 0);
    v.name(Place::new(page, 0), b"empty", empty);
    let deep = v.inode(FileKind::Directory, 0);
    v.name(Place::new(page, 63), b"deep", deep);
    let page = v.dir_page(deep, 0);
    let last = v.inode(FileKind::Regular, 10);
    v.name(Place::new(page, 7), &[b'n'; 255], last);
    v.data(last, 0, 3);

    let short = v.inode(FileKind::Symlink, 6);
    let at = v.geometry.inode_at(short.number) + inode::INLINE;
    v.word(at, u64::from_le_bytes(*b"target\0\0"));
    v.name(slot(2), b"short", short);
    let long = v.inode(FileKind::Symlink, 500);
    v.name(slot(3), b"long", long);
    v.data(long, 0, b't');
    let device = v.inode(FileKind::CharDevice, 0x501);
    v.name(slot(4), b"device", device);
    let fifo = v.inode(FileKind::Fifo, 0);
    v.name(slot(5), b"fifo", fifo);

    let marked = v.inode(FileKind::Regular, 0);
    v.name(slot(6), b"marked", marked);
    v.commit(marked, 4, AttributePlace::Pages);
    let page = v.page();
    v.describe_page(
        page,
        marked,
        0,
        PageKind::Attributes,
        Life::settled(PageState::Written),
    );
    let marked = v.inode(FileKind::Regular, 0);
    v.name(slot(7), b"marked inline", marked);
    v.commit(marked, 4, AttributePlace::Inline);
    let at = v.geometry.inode_at(marked.number) + inode::EXTRA;
    v.word(at, 1 << 32 | 3);
    v
}
