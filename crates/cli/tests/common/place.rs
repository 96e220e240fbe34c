//! A directory of a test with stores and mount points.
#![allow(dead_code, reason = "only tests of stores use it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::programs;

/// The mount points.
const MOUNTS: [&str; 2] = ["mnt", "other"];

pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
}

impl Place {
    /// A place for tests that need no mount.
    pub(crate) fn anywhere() -> Place {
        Place::within(tempfile::tempdir().unwrap())
    }

    /// One where volumes can be mounted.
    pub(crate) fn new() -> Option<Place> {
        can_mount().then(Place::anywhere)
    }

    /// One in memory, where volumes can be mounted, also those in persistent memory.
    pub(crate) fn in_memory() -> Option<Place> {
        can_mount().then(|| Place::within(tempfile::tempdir_in("/dev/shm").unwrap()))
    }

    fn within(dir: tempfile::TempDir) -> Place {
        for mount in MOUNTS {
            fs::create_dir(dir.path().join(mount)).unwrap();
        }
        Place { dir }
    }

    /// A store in it.
    pub(crate) fn url(&self, name: &str) -> String {
        format!("file://{}/{name}", self.dir.path().display())
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn run(&self, args: &[&str]) -> Output {
        programs::run(self.dir.path(), programs::PROGRAM, args)
    }

    #[track_caller]
    pub(crate) fn must(&self, args: &[&str]) -> String {
        let output = programs::run_when_free(|| self.run(args));
        let said = programs::said(&output);
        assert!(output.status.success(), "{args:?}: {said}");
        said
    }

    /// A server that is this process's child, so that it can be killed.
    pub(crate) fn serve(&self, url: &str, mount: &str, options: &str) -> Child {
        let mut server = Command::new(programs::PROGRAM)
            .current_dir(self.dir.path())
            .args(["mount", "--foreground", "-o", options, url, mount])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(server.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("mounted at") {
            line.clear();
            let read = said.read_line(&mut line).unwrap();
            assert!(read > 0, "the server ended before the mount answered");
        }
        server
    }

    #[track_caller]
    pub(crate) fn must_refuse(&self, args: &[&str], words: &str) {
        let output = self.run(args);
        let said = programs::said(&output);
        assert!(
            !output.status.success() && said.contains(words),
            "{args:?}: {said}"
        );
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for mount in MOUNTS {
            let _ = steadfast_fuse::unmount(&self.at(mount), steadfast_fuse::Unmount::Detach);
        }
    }
}

fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        steadfast_testkit::skipped!("mounting needs /dev/fuse and root here");
    }
    can
}
