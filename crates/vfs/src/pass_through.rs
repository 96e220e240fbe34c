/// Passes calls of [`FileSystem`](crate::FileSystem) on to the file system in a field. For layers, which change some
/// calls only.
///
/// ```
/// use steadfast_vfs::{Caller, Errno, FileSystem, Ino, Result};
///
/// /// A file system whose names cannot be removed.
/// struct Kept<F>(F);
///
/// impl<F: FileSystem> FileSystem for Kept<F> {
///     steadfast_vfs::pass_through! { 0:
///         root, lookup, getattr, setattr, access, mknod, mkdir, symlink, readlink, link, rename, open, release, read,
///         write, append, fsync, fallocate, seek, readdir, getxattr, setxattr, listxattr, removexattr, statfs, sync
///     }
///     fn unlink(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
///         Err(Errno::Perm.into())
///     }
///     fn rmdir(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
///         Err(Errno::Perm.into())
///     }
/// }
/// ```
#[macro_export]
macro_rules! pass_through {
    ($to:tt: $($call:ident),* $(,)?) => {
        $($crate::pass_through! { @ $call $to })*
    };
    (@ root $to:tt) => { $crate::pass_through! { @@ $to root() -> $crate::Ino } };
    (@ lookup $to:tt) => {
        $crate::pass_through! { @@ $to lookup(c: &$crate::Caller, parent: $crate::Ino, name: &[u8]) -> $crate::Result<$crate::Attr> }
    };
    (@ getattr $to:tt) => {
        $crate::pass_through! { @@ $to getattr(c: &$crate::Caller, ino: $crate::Ino) -> $crate::Result<$crate::Attr> }
    };
    (@ setattr $to:tt) => {
        $crate::pass_through! { @@ $to setattr(c: &$crate::Caller, ino: $crate::Ino, set: &$crate::SetAttr) -> $crate::Result<$crate::Attr> }
    };
    (@ access $to:tt) => {
        $crate::pass_through! { @@ $to access(c: &$crate::Caller, ino: $crate::Ino, mask: u8) -> $crate::Result<()> }
    };
    (@ mknod $to:tt) => {
        $crate::pass_through! { @@ $to mknod(c: &$crate::Caller, parent: $crate::Ino, name: &[u8], node: &$crate::NewNode) -> $crate::Result<$crate::Attr> }
    };
    (@ mkdir $to:tt) => {
        $crate::pass_through! { @@ $to mkdir(c: &$crate::Caller, parent: $crate::Ino, name: &[u8], perm: u16) -> $crate::Result<$crate::Attr> }
    };
    (@ symlink $to:tt) => {
        $crate::pass_through! { @@ $to symlink(c: &$crate::Caller, parent: $crate::Ino, name: &[u8], target: &[u8]) -> $crate::Result<$crate::Attr> }
    };
    (@ readlink $to:tt) => {
        $crate::pass_through! { @@ $to readlink(c: &$crate::Caller, ino: $crate::Ino) -> $crate::Result<Vec<u8>> }
    };
    (@ link $to:tt) => {
        $crate::pass_through! { @@ $to link(c: &$crate::Caller, ino: $crate::Ino, parent: $crate::Ino, name: &[u8]) -> $crate::Result<$crate::Attr> }
    };
    (@ unlink $to:tt) => {
        $crate::pass_through! { @@ $to unlink(c: &$crate::Caller, parent: $crate::Ino, name: &[u8]) -> $crate::Result<()> }
    };
    (@ rmdir $to:tt) => {
        $crate::pass_through! { @@ $to rmdir(c: &$crate::Caller, parent: $crate::Ino, name: &[u8]) -> $crate::Result<()> }
    };
    (@ rename $to:tt) => {
        $crate::pass_through! { @@ $to rename(c: &$crate::Caller, from: ($crate::Ino, &[u8]), to: ($crate::Ino, &[u8]), mode: $crate::RenameMode) -> $crate::Result<()> }
    };
    (@ open $to:tt) => {
        $crate::pass_through! { @@ $to open(c: &$crate::Caller, ino: $crate::Ino) -> $crate::Result<()> }
    };
    (@ release $to:tt) => { $crate::pass_through! { @@ $to release(ino: $crate::Ino) -> () } };
    (@ read $to:tt) => {
        $crate::pass_through! { @@ $to read(c: &$crate::Caller, ino: $crate::Ino, offset: u64, buf: &mut [u8]) -> $crate::Result<usize> }
    };
    (@ write $to:tt) => {
        $crate::pass_through! { @@ $to write(c: &$crate::Caller, ino: $crate::Ino, offset: u64, data: &[u8]) -> $crate::Result<usize> }
    };
    (@ append $to:tt) => {
        $crate::pass_through! { @@ $to append(c: &$crate::Caller, ino: $crate::Ino, data: &[u8]) -> $crate::Result<(u64, usize)> }
    };
    (@ fsync $to:tt) => {
        $crate::pass_through! { @@ $to fsync(c: &$crate::Caller, ino: $crate::Ino, data_only: bool) -> $crate::Result<()> }
    };
    (@ fallocate $to:tt) => {
        $crate::pass_through! { @@ $to fallocate(c: &$crate::Caller, ino: $crate::Ino, mode: $crate::AllocateMode, offset: u64, len: u64) -> $crate::Result<()> }
    };
    (@ seek $to:tt) => {
        $crate::pass_through! { @@ $to seek(c: &$crate::Caller, ino: $crate::Ino, offset: u64, whence: $crate::Seek) -> $crate::Result<u64> }
    };
    (@ readdir $to:tt) => {
        $crate::pass_through! { @@ $to readdir(c: &$crate::Caller, dir: $crate::Ino, cookie: $crate::Cookie, sink: &mut dyn FnMut($crate::DirEntry<'_>) -> bool) -> $crate::Result<()> }
    };
    (@ getxattr $to:tt) => {
        $crate::pass_through! { @@ $to getxattr(c: &$crate::Caller, ino: $crate::Ino, name: &[u8]) -> $crate::Result<Vec<u8>> }
    };
    (@ setxattr $to:tt) => {
        $crate::pass_through! { @@ $to setxattr(c: &$crate::Caller, ino: $crate::Ino, name: &[u8], value: &[u8], mode: $crate::XattrMode) -> $crate::Result<()> }
    };
    (@ listxattr $to:tt) => {
        $crate::pass_through! { @@ $to listxattr(c: &$crate::Caller, ino: $crate::Ino) -> $crate::Result<Vec<Vec<u8>>> }
    };
    (@ removexattr $to:tt) => {
        $crate::pass_through! { @@ $to removexattr(c: &$crate::Caller, ino: $crate::Ino, name: &[u8]) -> $crate::Result<()> }
    };
    (@ statfs $to:tt) => { $crate::pass_through! { @@ $to statfs() -> $crate::Result<$crate::StatFs> } };
    (@ sync $to:tt) => { $crate::pass_through! { @@ $to sync() -> $crate::Result<()> } };
    (@@ $to:tt $call:ident($($arg:ident: $kind:ty),*) -> $out:ty) => {
        fn $call(&self, $($arg: $kind),*) -> $out {
            self.$to.$call($($arg),*)
        }
    };
}
