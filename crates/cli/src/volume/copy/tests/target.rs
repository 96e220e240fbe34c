//! A target that sees each change which a copy makes.

use steadfast_vfs::{
    Attr, Caller, FileSystem, Ino, InodeFlags, NewNode, RenameMode, Result, SetAttr, XattrMode,
};

/// A change, as it was called.
#[derive(Clone, Debug)]
pub(super) enum Call {
    SetAttr(Ino, SetAttr),
    Mknod(Ino, Vec<u8>, NewNode),
    Mkdir(Ino, Vec<u8>, u16),
    Symlink(Ino, Vec<u8>, Vec<u8>),
    Link(Ino, Ino, Vec<u8>),
    Unlink(Ino, Vec<u8>),
    Write(Ino, u64, Vec<u8>),
    SetXattr(Ino, Vec<u8>, Vec<u8>),
    RemoveXattr(Ino, Vec<u8>),
    SetFlags(Ino, InodeFlags),
    Sync,
}

impl Call {
    /// Makes the call. Returns the inode that it makes.
    pub(super) fn make(&self, fs: &dyn FileSystem) -> Result<Option<Ino>> {
        let me = &Caller::root();
        let made = |attr: Attr| Some(attr.ino);
        match self {
            Call::SetAttr(ino, set) => fs.setattr(me, *ino, set).map(|_| None),
            Call::Mknod(dir, name, node) => fs.mknod(me, *dir, name, node).map(made),
            Call::Mkdir(dir, name, perm) => fs.mkdir(me, *dir, name, *perm).map(made),
            Call::Symlink(dir, name, target) => fs.symlink(me, *dir, name, target).map(made),
            Call::Link(ino, dir, name) => fs.link(me, *ino, *dir, name).map(|_| None),
            Call::Unlink(dir, name) => fs.unlink(me, *dir, name).map(|()| None),
            Call::Write(ino, at, data) => fs.write(me, *ino, *at, data).map(|_| None),
            Call::SetXattr(ino, name, value) => fs
                .setxattr(me, *ino, name, value, XattrMode::Any)
                .map(|()| None),
            Call::RemoveXattr(ino, name) => fs.removexattr(me, *ino, name).map(|()| None),
            Call::SetFlags(ino, flags) => fs.set_flags(me, *ino, *flags).map(|()| None),
            Call::Sync => fs.sync().map(|()| None),
        }
    }

    /// The same call of other inodes; none if one of them is unknown.
    pub(super) fn with(&self, known: &dyn Fn(Ino) -> Option<Ino>) -> Option<Call> {
        let mut call = self.clone();
        match &mut call {
            Call::Link(ino, dir, _) => {
                *ino = known(*ino)?;
                *dir = known(*dir)?;
            }
            Call::SetAttr(ino, _)
            | Call::Mknod(ino, ..)
            | Call::Mkdir(ino, ..)
            | Call::Symlink(ino, ..)
            | Call::Unlink(ino, _)
            | Call::Write(ino, ..)
            | Call::SetXattr(ino, ..)
            | Call::RemoveXattr(ino, _)
            | Call::SetFlags(ino, _) => *ino = known(*ino)?,
            Call::Sync => {}
        }
        Some(call)
    }
}

/// A file system, and what is called after each change of it that succeeds, with the inode that the change makes.
pub(super) struct Watched<'a> {
    pub(super) fs: &'a dyn FileSystem,
    pub(super) changed: &'a (dyn Fn(Call, Option<Ino>) + Sync),
}

impl FileSystem for Watched<'_> {
    steadfast_vfs::pass_through! { fs:
        all but setattr, mknod, mkdir, symlink, link, unlink, rename, write, setxattr, removexattr, set_flags, sync
    }

    fn setattr(&self, me: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let attr = self.fs.setattr(me, ino, set)?;
        (self.changed)(Call::SetAttr(ino, *set), None);
        Ok(attr)
    }

    fn mknod(&self, me: &Caller, dir: Ino, name: &[u8], node: &NewNode) -> Result<Attr> {
        let attr = self.fs.mknod(me, dir, name, node)?;
        (self.changed)(Call::Mknod(dir, name.to_vec(), *node), Some(attr.ino));
        Ok(attr)
    }

    fn mkdir(&self, me: &Caller, dir: Ino, name: &[u8], perm: u16) -> Result<Attr> {
        let attr = self.fs.mkdir(me, dir, name, perm)?;
        (self.changed)(Call::Mkdir(dir, name.to_vec(), perm), Some(attr.ino));
        Ok(attr)
    }

    fn symlink(&self, me: &Caller, dir: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        let attr = self.fs.symlink(me, dir, name, target)?;
        let call = Call::Symlink(dir, name.to_vec(), target.to_vec());
        (self.changed)(call, Some(attr.ino));
        Ok(attr)
    }

    fn link(&self, me: &Caller, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let attr = self.fs.link(me, ino, dir, name)?;
        (self.changed)(Call::Link(ino, dir, name.to_vec()), None);
        Ok(attr)
    }

    fn unlink(&self, me: &Caller, dir: Ino, name: &[u8]) -> Result<()> {
        self.fs.unlink(me, dir, name)?;
        (self.changed)(Call::Unlink(dir, name.to_vec()), None);
        Ok(())
    }

    fn rename(&self, _: &Caller, _: (Ino, &[u8]), _: (Ino, &[u8]), _: RenameMode) -> Result<()> {
        panic!("a copy renames nothing");
    }

    fn write(&self, me: &Caller, ino: Ino, at: u64, data: &[u8]) -> Result<usize> {
        let written = self.fs.write(me, ino, at, data)?;
        (self.changed)(Call::Write(ino, at, data[..written].to_vec()), None);
        Ok(written)
    }

    fn setxattr(
        &self,
        me: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.fs.setxattr(me, ino, name, value, mode)?;
        let call = Call::SetXattr(ino, name.to_vec(), value.to_vec());
        (self.changed)(call, None);
        Ok(())
    }

    fn removexattr(&self, me: &Caller, ino: Ino, name: &[u8]) -> Result<()> {
        self.fs.removexattr(me, ino, name)?;
        (self.changed)(Call::RemoveXattr(ino, name.to_vec()), None);
        Ok(())
    }

    fn set_flags(&self, me: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> {
        self.fs.set_flags(me, ino, flags)?;
        (self.changed)(Call::SetFlags(ino, flags), None);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync()?;
        (self.changed)(Call::Sync, None);
        Ok(())
    }
}
