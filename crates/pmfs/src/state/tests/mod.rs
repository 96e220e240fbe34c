//! Tests of the calls: a volume in recorded memory, and the cost of a call there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unused_must_use
)]

mod cost;
mod crash;
mod free;
mod stray;
mod words;

use steadfast_pm::{Region, thread_counts};
use steadfast_vfs::{FileKind, Time};

use super::*;
use crate::layout::{AttributePlace, Geometry, InodeRef, PageKind, PageState, ROOT};
use crate::mkfs::{MkfsOptions, mkfs};
use smallvec::smallvec;

/// A volume with a file system's state in memory: the free space, and the pages and free slots of one directory.
pub(super) struct Lab {
    pub(super) m: Medium,
    pub(super) space: FreeSpace,
}

/// A directory.
pub(super) struct Dir {
    pub(super) inode: InodeRef,
    pub(super) slots: SlotMap,
    pub(super) pages: Vec<PageRun>,
}

/// Cost of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cost {
    pub(super) fences: u64,
    pub(super) lines: u64,
}

pub(super) fn root() -> InodeRef {
    InodeRef {
        number: ROOT,
        generation: 1,
    }
}

pub(super) const NOW: u64 = 1_700_000_000_000_000_000;

impl Lab {
    pub(super) fn new(bytes: u64) -> Lab {
        Lab::on(bytes, |region| region)
    }

    pub(super) fn eadr(bytes: u64) -> Lab {
        Lab::on(bytes, Region::with_eadr)
    }

    fn on(bytes: u64, platform: impl Fn(Region) -> Region) -> Lab {
        let region = Region::anonymous(bytes);
        let options = MkfsOptions {
            now: Some(Time { secs: 1, nanos: 0 }),
            uuid: Some([7; 16]),
            ..MkfsOptions::default()
        };
        let geometry: Geometry = mkfs(&region, &options, &mut |_, _| {}).unwrap().geometry;
        let m = Medium::new(platform(Region::recorded(region.content())), geometry).unwrap();
        let survey = Survey {
            pages: (0..geometry.chunks())
                .map(|c| geometry.data_pages(c))
                .collect(),
            inodes: std::iter::once(2..geometry.inodes() + 1).collect(),
            next_tag: 1,
        };
        let space = FreeSpace::new(&m, recover(&m, &[], survey).unwrap());
        Lab { m, space }
    }

    /// Runs a call, and checks that no store, write-back or fence is missing or redundant.
    pub(super) fn cost<R>(&self, call: impl FnOnce() -> R) -> (R, Cost) {
        self.m.restart_recorder();
        let before = thread_counts();
        let result = call();
        let counts = thread_counts() - before;
        let report = self.m.recorder().unwrap().trace().report();
        assert_eq!(report.redundant_write_backs, [], "{report}");
        assert_eq!(report.never_fenced, [], "{report}");
        if self.m.durability() != steadfast_pm::Durability::Eadr {
            assert!(report.is_clean(), "{report}");
        }
        let cost = Cost {
            fences: counts.fences,
            lines: counts.lines,
        };
        (result, cost)
    }

    pub(super) fn birth(&self, kind: FileKind) -> Birth<'static, '_> {
        Birth {
            inode: self.space.inode(&self.m).unwrap(),
            kind,
            perm: 0o644,
            uid: 7,
            gid: 8,
            size_or_rdev: 0,
            now: NOW,
            attributes: None,
        }
    }

    pub(super) fn page(&self) -> FreePages<'_> {
        self.space.pages(1, None).unwrap().remove(0)
    }

    /// Room for a name, in a new page if there is none.
    pub(super) fn room<'a>(&self, dir: &mut Dir, name: &'a [u8]) -> NewName<'a, '_> {
        let count = Name::new(name).unwrap().slots();
        let room = match dir.slots.take(count) {
            Some(slots) => Room::Slots(slots),
            None => self.new_page(dir),
        };
        NewName {
            dir: dir.inode,
            name,
            room,
        }
    }

    pub(super) fn new_page(&self, dir: &mut Dir) -> Room<'_> {
        let page = self.page();
        dir.pages.push(PageRun {
            start: page.start(),
            len: 1,
        });
        Room::NewPage {
            page,
            offset: dir.pages.len() as u64 - 1,
        }
    }

    pub(super) fn make(&self, dir: &mut Dir, name: &[u8], kind: FileKind) -> (InodeRef, Place) {
        let room = self.room(dir, name);
        let created = create(&self.m, self.birth(kind), room, touch(dir)).unwrap();
        dir.placed(created.placed, created.inode)
    }

    /// A directory in the root, with a page of its own.
    pub(super) fn directory(&self, parent: &mut Dir, name: &[u8]) -> (Dir, Place) {
        let (inode, place) = self.make(parent, name, FileKind::Directory);
        let mut dir = Dir::new(inode);
        let (file, at) = self.make(&mut dir, b"first", FileKind::Regular);
        let gone = Remove {
            place: at,
            inode: file,
            ctime: NOW,
            kills: Vec::new(),
        };
        let removed = remove(&self.m, gone, touch(&dir)).unwrap();
        dir.slots.add(removed.slots);
        self.space
            .add(removed.unlinked.last().dissolve(&self.m, []));
        (dir, place)
    }

    /// A file with `pages` written pages in a row.
    pub(super) fn file(&self, dir: &mut Dir, name: &[u8], pages: u64) -> (InodeRef, PageRun) {
        let (inode, _) = self.make(dir, name, FileKind::Regular);
        let free = self.space.pages(pages, None).unwrap();
        let [free] = <[_; 1]>::try_from(free.into_vec()).ok().unwrap();
        let run = PageRun {
            start: free.start(),
            len: pages,
        };
        let content = vec![0xaa; (pages * 4096) as usize];
        let made = Change {
            pages: smallvec![adopt(free, 0, PageState::Written)],
            data: smallvec![DataStore {
                at: run.start.at(),
                bytes: Bytes::Data(&content),
            }],
            ..change_of(inode, pages * 4096)
        };
        assert_eq!(change(&self.m, made).unwrap().pages(), 0);
        (inode, run)
    }
}

impl Dir {
    pub(super) fn new(inode: InodeRef) -> Dir {
        Dir {
            inode,
            slots: SlotMap::new(),
            pages: Vec::new(),
        }
    }

    pub(super) fn placed(&mut self, placed: Placed, inode: InodeRef) -> (InodeRef, Place) {
        if let Some(rest) = placed.rest {
            self.slots.add(rest);
        }
        (inode, placed.place)
    }
}

pub(super) fn touch(dir: &Dir) -> Touch {
    Touch {
        dir: dir.inode,
        now: NOW,
    }
}

pub(super) fn adopt(pages: FreePages<'_>, offset: u64, state: PageState) -> PageChange<'_> {
    PageChange::Adopt {
        pages,
        offset,
        kind: PageKind::Data,
        state,
    }
}

/// A change of nothing but the size.
pub(super) fn change_of<'a, 'f>(inode: InodeRef, size: u64) -> Change<'a, 'f> {
    Change {
        inode,
        attributes: Attributes {
            perm: 0o644,
            uid: 7,
            gid: 8,
            size,
            place: AttributePlace::None,
        },
        times: Times {
            atime: None,
            mtime: Some(NOW),
            ctime: Some(NOW),
        },
        pages: smallvec![],
        data: smallvec![],
        inline: None,
    }
}
