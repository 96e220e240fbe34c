//! A view of a volume in persistent memory, for `dump`: its words as they are stored, and the tree that a mount would
//! show.

use std::path::Path;

use steadfast_pm::Region;
use steadfast_pmfs::inspect::{Inspector, MapRun};
use steadfast_pmfs::{MountOptions, PmFs};
use steadfast_vfs::{Attr, Caller, FileSystem, Ino, InodeFlags};

use super::{Access, failure, options, region_failure};
use crate::failure::Failure;

/// The words of a volume, as `dump` shows them.
pub(crate) mod words {
    pub(crate) use steadfast_pmfs::inspect::{InodeDump, PageDump, PageUse, SlotDump};
    pub(crate) use steadfast_pmfs::layout::{
        Life, Page, PageKind, PageState, Place, ROOT, SLOTS_PER_PAGE,
    };
    pub(crate) use steadfast_pmfs::superblock::Superblock;
}

/// A volume under inspection. The process that has it holds the image's lock.
pub(crate) struct MemoryView {
    /// Its words.
    pub(crate) words: Inspector,
    tree: PmFs,
}

impl MemoryView {
    /// Opens a volume for a look.
    pub(crate) fn open(image: &Path) -> Result<MemoryView, Failure> {
        let open =
            || Region::open(image, &options(Access::Peek)).map_err(|e| region_failure(image, &e));
        let words = Inspector::open(open()?).map_err(|e| failure(image, &e))?;
        let mut wanted = MountOptions::default();
        wanted.read_only = true;
        let tree = PmFs::mount(open()?, &wanted, &mut |_, _| {}).map_err(|e| failure(image, &e))?;
        Ok(MemoryView { words, tree })
    }

    /// The inode at a path from the root directory on.
    pub(crate) fn resolve(&self, path: &[u8]) -> steadfast_vfs::Result<Ino> {
        let names = path.split(|byte| *byte == b'/');
        let mut names = names.filter(|name| !name.is_empty() && *name != b".");
        let look = |ino, name| self.tree.lookup(&Caller::root(), ino, name);
        names.try_fold(self.tree.root(), |ino, name| Ok(look(ino, name)?.ino))
    }

    /// What a mount shows of an inode that is alive.
    pub(crate) fn attr(&self, ino: Ino) -> steadfast_vfs::Result<Attr> {
        self.tree.getattr(&Caller::root(), ino)
    }

    /// Its flags, as chattr(1) sets them.
    pub(crate) fn flags(&self, ino: Ino) -> steadfast_vfs::Result<InodeFlags> {
        self.tree.flags(&Caller::root(), ino)
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&self, ino: Ino) -> steadfast_vfs::Result<Vec<u8>> {
        self.tree.readlink(&Caller::root(), ino)
    }

    /// Extended attributes: names and values.
    pub(crate) fn xattrs(&self, ino: Ino) -> steadfast_vfs::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let root = Caller::root();
        let names = self.tree.listxattr(&root, ino)?;
        let with_value = |name: Vec<u8>| {
            let value = self.tree.getxattr(&root, ino, &name)?;
            Ok((name, value))
        };
        names.into_iter().map(with_value).collect()
    }

    /// Calls `tell` with the use of all pages, in order, in runs.
    pub(crate) fn map(&self, image: &Path, tell: impl FnMut(MapRun)) -> Result<(), Failure> {
        let told = self.words.map(0, &mut |_, _| {}, tell);
        told.map_err(|e| failure(image, &e))
    }

    /// Its damage, in sentences, as far as a mount listed it.
    pub(crate) fn damage(&self) -> Vec<String> {
        let report = self.tree.report();
        let copies = report.superblock_damage.iter().flatten().cloned();
        copies
            .chain(report.damage.iter().map(ToString::to_string))
            .collect()
    }

    /// Whether the last mount was unmounted, and how many mounts there were.
    pub(crate) fn hints(&self) -> (bool, u64) {
        let report = self.tree.report();
        (report.clean, report.mounts)
    }
}
