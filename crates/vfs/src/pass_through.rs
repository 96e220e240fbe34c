/// Passes calls of [`FileSystem`](crate::FileSystem) on to the file system in a field, all but those that are listed. For
/// layers, which change some calls only: a new call of the trait is passed on, too.
///
/// A layer implements the calls that it lists. Three calls are made of another one by default, and that default is right for
/// a layer that changes the other one. They are left out with it, and so they reach the layer's own call: `open_generation`
/// with `open`, `fsync_together` with `fsync`, `sync_store` with `sync`.
///
/// ```
/// use steadfast_vfs::{Caller, Errno, FileSystem, Ino, Result};
///
/// /// A file system whose names cannot be removed.
/// struct Kept<F>(F);
///
/// impl<F: FileSystem> FileSystem for Kept<F> {
///     steadfast_vfs::pass_through! { 0: all but unlink, rmdir }
///
///     fn unlink(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
///         Err(Errno::Perm.into())
///     }
///     fn rmdir(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
///         Err(Errno::Perm.into())
///     }
/// }
/// ```
///
/// A listed name that is no call of the trait is an error:
///
/// ```compile_fail
/// # struct Kept<F>(F);
/// impl<F: steadfast_vfs::FileSystem> steadfast_vfs::FileSystem for Kept<F> {
///     steadfast_vfs::pass_through! { 0: all but remove }
/// }
/// ```
#[macro_export]
macro_rules! pass_through {
    ($field:tt: all $(but $($own:ident),+ $(,)?)?) => {
        // Each listed name is one of the list below.
        $($($crate::pass_through! { @unless_own [$own] [$own] {
            ::std::compile_error!(::std::concat!("`", ::std::stringify!($own), "` is no call of `FileSystem`"));
        } })+)?
        // The calls of the trait, in its order; after `unless`, the call that the default is made of.
        $crate::pass_through! { @each $field [$($($own)+)?]
            root() -> $crate::Ino;
            lookup(caller: &$crate::Caller, parent: $crate::Ino, name: &[u8]) -> $crate::Result<$crate::Attr>;
            getattr(caller: &$crate::Caller, ino: $crate::Ino) -> $crate::Result<$crate::Attr>;
            setattr(
                caller: &$crate::Caller, ino: $crate::Ino, set: &$crate::SetAttr
            ) -> $crate::Result<$crate::Attr>;
            access(caller: &$crate::Caller, ino: $crate::Ino, mask: u8) -> $crate::Result<()>;
            mknod(
                caller: &$crate::Caller, parent: $crate::Ino, name: &[u8], node: &$crate::NewNode
            ) -> $crate::Result<$crate::Attr>;
            mkdir(
                caller: &$crate::Caller, parent: $crate::Ino, name: &[u8], perm: u16
            ) -> $crate::Result<$crate::Attr>;
            symlink(
                caller: &$crate::Caller, parent: $crate::Ino, name: &[u8], target: &[u8]
            ) -> $crate::Result<$crate::Attr>;
            readlink(caller: &$crate::Caller, ino: $crate::Ino) -> $crate::Result<Vec<u8>>;
            link(
                caller: &$crate::Caller, ino: $crate::Ino, parent: $crate::Ino, name: &[u8]
            ) -> $crate::Result<$crate::Attr>;
            unlink(caller: &$crate::Caller, parent: $crate::Ino, name: &[u8]) -> $crate::Result<()>;
            rmdir(caller: &$crate::Caller, parent: $crate::Ino, name: &[u8]) -> $crate::Result<()>;
            rename(
                caller: &$crate::Caller, from: ($crate::Ino, &[u8]), to: ($crate::Ino, &[u8]),
                mode: $crate::RenameMode
            ) -> $crate::Result<()>;
            open(caller: &$crate::Caller, ino: $crate::Ino) -> $crate::Result<()>;
            open_generation(
                caller: &$crate::Caller, ino: $crate::Ino, generation: u64
            ) -> $crate::Result<()>, unless open;
            release(ino: $crate::Ino) -> ();
            read(
                caller: &$crate::Caller, ino: $crate::Ino, offset: u64, buf: &mut [u8]
            ) -> $crate::Result<usize>;
            in_memory(look: &mut dyn FnMut()) -> bool;
            write(
                caller: &$crate::Caller, ino: $crate::Ino, offset: u64, data: &[u8]
            ) -> $crate::Result<usize>;
            append(caller: &$crate::Caller, ino: $crate::Ino, data: &[u8]) -> $crate::Result<(u64, usize)>;
            fsync(caller: &$crate::Caller, ino: $crate::Ino, data_only: bool) -> $crate::Result<()>;
            fsync_together(wanted: &[$crate::Wanted]) -> $crate::Result<()>, unless fsync;
            fallocate(
                caller: &$crate::Caller, ino: $crate::Ino, mode: $crate::AllocateMode, offset: u64, len: u64
            ) -> $crate::Result<()>;
            seek(
                caller: &$crate::Caller, ino: $crate::Ino, offset: u64, whence: $crate::Seek
            ) -> $crate::Result<u64>;
            readdir(
                caller: &$crate::Caller, dir: $crate::Ino, cookie: $crate::Cookie,
                sink: &mut dyn FnMut($crate::DirEntry<'_>) -> bool
            ) -> $crate::Result<()>;
            getxattr(caller: &$crate::Caller, ino: $crate::Ino, name: &[u8]) -> $crate::Result<Vec<u8>>;
            setxattr(
                caller: &$crate::Caller, ino: $crate::Ino, name: &[u8], value: &[u8], mode: $crate::XattrMode
            ) -> $crate::Result<()>;
            listxattr(caller: &$crate::Caller, ino: $crate::Ino) -> $crate::Result<Vec<Vec<u8>>>;
            removexattr(caller: &$crate::Caller, ino: $crate::Ino, name: &[u8]) -> $crate::Result<()>;
            flags(caller: &$crate::Caller, ino: $crate::Ino) -> $crate::Result<$crate::InodeFlags>;
            set_flags(
                caller: &$crate::Caller, ino: $crate::Ino, flags: $crate::InodeFlags
            ) -> $crate::Result<()>;
            statfs() -> $crate::Result<$crate::StatFs>;
            sync() -> $crate::Result<()>;
            sync_store() -> $crate::Result<()>, unless sync;
            streams() -> Option<&dyn $crate::Streams>;
            accessed(caller: &$crate::Caller, ino: $crate::Ino) -> $crate::Result<()>;
            trim(bytes: ::std::ops::Range<u64>, min_bytes: u64) -> $crate::Result<u64>;
            freeze(limit: ::std::time::Duration) -> $crate::Result<()>;
            thaw() -> bool;
            health() -> $crate::Health;
            scrub(from: $crate::ScrubCursor, blocks: u64, data: bool) -> $crate::Result<$crate::ScrubPiece>;
            counters() -> Vec<(&'static str, u64)>;
            shutdown(how: $crate::Shutdown) -> $crate::Result<()>;
        }
    };

    (@each $field:tt $own:tt) => {};
    (@each $field:tt $own:tt
        $call:ident($($arg:ident: $kind:ty),*) -> $out:ty $(, unless $base:ident)?;
        $($rest:tt)*
    ) => {
        $crate::pass_through! { @unless_own [$call $($base)?] $own {
            fn $call(&self, $($arg: $kind),*) -> $out {
                self.$field.$call($($arg),*)
            }
        } }
        $crate::pass_through! { @each $field $own $($rest)* }
    };

    // `@unless_own [CALL BASE] [OWN…] {ITEM}`: the item, if neither of the two calls is among the layer's own.
    (@unless_own $calls:tt [] { $($item:tt)* }) => { $($item)* };
    (@unless_own [root $($base:ident)?] [root $($own:ident)*] $item:tt) => {};
    (@unless_own [lookup $($base:ident)?] [lookup $($own:ident)*] $item:tt) => {};
    (@unless_own [getattr $($base:ident)?] [getattr $($own:ident)*] $item:tt) => {};
    (@unless_own [setattr $($base:ident)?] [setattr $($own:ident)*] $item:tt) => {};
    (@unless_own [access $($base:ident)?] [access $($own:ident)*] $item:tt) => {};
    (@unless_own [mknod $($base:ident)?] [mknod $($own:ident)*] $item:tt) => {};
    (@unless_own [mkdir $($base:ident)?] [mkdir $($own:ident)*] $item:tt) => {};
    (@unless_own [symlink $($base:ident)?] [symlink $($own:ident)*] $item:tt) => {};
    (@unless_own [readlink $($base:ident)?] [readlink $($own:ident)*] $item:tt) => {};
    (@unless_own [link $($base:ident)?] [link $($own:ident)*] $item:tt) => {};
    (@unless_own [unlink $($base:ident)?] [unlink $($own:ident)*] $item:tt) => {};
    (@unless_own [rmdir $($base:ident)?] [rmdir $($own:ident)*] $item:tt) => {};
    (@unless_own [rename $($base:ident)?] [rename $($own:ident)*] $item:tt) => {};
    (@unless_own [open $($base:ident)?] [open $($own:ident)*] $item:tt) => {};
    (@unless_own [open_generation $($base:ident)?] [open_generation $($own:ident)*] $item:tt) => {};
    (@unless_own [release $($base:ident)?] [release $($own:ident)*] $item:tt) => {};
    (@unless_own [read $($base:ident)?] [read $($own:ident)*] $item:tt) => {};
    (@unless_own [in_memory $($base:ident)?] [in_memory $($own:ident)*] $item:tt) => {};
    (@unless_own [write $($base:ident)?] [write $($own:ident)*] $item:tt) => {};
    (@unless_own [append $($base:ident)?] [append $($own:ident)*] $item:tt) => {};
    (@unless_own [fsync $($base:ident)?] [fsync $($own:ident)*] $item:tt) => {};
    (@unless_own [fsync_together $($base:ident)?] [fsync_together $($own:ident)*] $item:tt) => {};
    (@unless_own [fallocate $($base:ident)?] [fallocate $($own:ident)*] $item:tt) => {};
    (@unless_own [seek $($base:ident)?] [seek $($own:ident)*] $item:tt) => {};
    (@unless_own [readdir $($base:ident)?] [readdir $($own:ident)*] $item:tt) => {};
    (@unless_own [getxattr $($base:ident)?] [getxattr $($own:ident)*] $item:tt) => {};
    (@unless_own [setxattr $($base:ident)?] [setxattr $($own:ident)*] $item:tt) => {};
    (@unless_own [listxattr $($base:ident)?] [listxattr $($own:ident)*] $item:tt) => {};
    (@unless_own [removexattr $($base:ident)?] [removexattr $($own:ident)*] $item:tt) => {};
    (@unless_own [flags $($base:ident)?] [flags $($own:ident)*] $item:tt) => {};
    (@unless_own [set_flags $($base:ident)?] [set_flags $($own:ident)*] $item:tt) => {};
    (@unless_own [statfs $($base:ident)?] [statfs $($own:ident)*] $item:tt) => {};
    (@unless_own [sync $($base:ident)?] [sync $($own:ident)*] $item:tt) => {};
    (@unless_own [sync_store $($base:ident)?] [sync_store $($own:ident)*] $item:tt) => {};
    (@unless_own [streams $($base:ident)?] [streams $($own:ident)*] $item:tt) => {};
    (@unless_own [accessed $($base:ident)?] [accessed $($own:ident)*] $item:tt) => {};
    (@unless_own [trim $($base:ident)?] [trim $($own:ident)*] $item:tt) => {};
    (@unless_own [freeze $($base:ident)?] [freeze $($own:ident)*] $item:tt) => {};
    (@unless_own [thaw $($base:ident)?] [thaw $($own:ident)*] $item:tt) => {};
    (@unless_own [health $($base:ident)?] [health $($own:ident)*] $item:tt) => {};
    (@unless_own [scrub $($base:ident)?] [scrub $($own:ident)*] $item:tt) => {};
    (@unless_own [counters $($base:ident)?] [counters $($own:ident)*] $item:tt) => {};
    (@unless_own [shutdown $($base:ident)?] [shutdown $($own:ident)*] $item:tt) => {};
    (@unless_own [open_generation open] [open $($own:ident)*] $item:tt) => {};
    (@unless_own [fsync_together fsync] [fsync $($own:ident)*] $item:tt) => {};
    (@unless_own [sync_store sync] [sync $($own:ident)*] $item:tt) => {};
    (@unless_own $calls:tt [$other:ident $($own:ident)*] $item:tt) => {
        $crate::pass_through! { @unless_own $calls [$($own)*] $item }
    };
}

#[cfg(test)]
mod tests;
