//! A volume on a real mount, made with the program under test.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs
)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

pub(crate) mod programs;
pub(crate) use programs::{PROGRAM, said};

/// Keeps the tests of one program apart if some make mount namespaces: such a namespace copies the mounts of all
/// neighbours, and their servers go on after an unmount.
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Whether volumes can be mounted here; prints if not.
pub(crate) fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        steadfast_testkit::skipped!("mounting needs /dev/fuse and root here");
    }
    can
}

/// A directory that everyone may search, with a volume `img` and a mount point `mnt`.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    /// None, with a message, if nothing can be mounted.
    pub(crate) fn new() -> Option<Place> {
        if !can_mount() {
            return None;
        }
        let place = Place::in_dir(tempfile::tempdir().unwrap());
        place.must(&["mkfs", "--size", "64M", "img"]);
        Some(place)
    }

    /// On tmpfs, where a file is persistent memory; without a volume. None, with a message, if there is no tmpfs.
    pub(crate) fn in_memory() -> Option<Place> {
        let tmpfs = "/dev/shm";
        let is_tmpfs = rustix::fs::statfs(tmpfs).is_ok_and(|fs| fs.f_type == 0x0102_1994);
        if !is_tmpfs {
            steadfast_testkit::skipped!("there is no tmpfs at {tmpfs}");
            return None;
        }
        Some(Place::in_dir(tempfile::tempdir_in(tmpfs).unwrap()))
    }

    fn in_dir(dir: tempfile::TempDir) -> Place {
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Place { dir }
    }

    /// With the volume mounted.
    pub(crate) fn mounted(options: &str) -> Option<Place> {
        let place = Place::new()?;
        place.must(&["mount", "-o", options, "img", "mnt"]);
        Some(place)
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Runs a command here, for a minute at most.
    pub(crate) fn command(&self, program: &str, args: &[&str]) -> Output {
        programs::run(self.path(), program, args)
    }

    /// Runs the program under test.
    pub(crate) fn steadfast(&self, args: &[&str]) -> Output {
        self.command(PROGRAM, args)
    }

    /// Runs it; it must succeed.
    pub(crate) fn must(&self, args: &[&str]) -> String {
        let output = programs::run_when_free(|| self.steadfast(args));
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        said(&output)
    }

    /// Runs it; it must fail with this exit code. Returns its output.
    pub(crate) fn refused(&self, code: i32, args: &[&str]) -> String {
        programs::refused(self.path(), code, args)
    }

    /// Unmounts and checks.
    pub(crate) fn end(self) {
        self.must(&["umount", "mnt"]);
        self.must(&["fsck", "img"]);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while steadfast_fuse::unmount(&self.mnt(), steadfast_fuse::Unmount::Detach).is_ok() {}
    }
}

/// A user without privileges.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: &'static [u32],
}

impl User {
    /// Runs something on a thread that has become this user, capabilities given up.
    pub(crate) fn run<T: Send>(self, act: impl FnOnce() -> T + Send) -> T {
        let body = || {
            let groups: Vec<Gid> = self.groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
            set_thread_groups(&groups).unwrap();
            set_thread_gid(Gid::from_raw(self.gid)).unwrap();
            set_thread_uid(Uid::from_raw(self.uid)).unwrap();
            act()
        };
        std::thread::scope(|scope| scope.spawn(body).join().unwrap())
    }
}
