//! Calls of a file system as tests make them: by name, and a failure ends the test.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    reason = "a failure ends the test"
)]

use steadfast_vfs::{Attr, Caller, Errno, FileKind, FileSystem, Ino, NewNode, Result, Stream};

/// The superuser, in the default stream.
#[must_use]
pub fn root() -> Caller {
    Caller::root()
}

/// A user in a group of that number.
#[must_use]
pub fn user(uid: u32) -> Caller {
    Caller {
        uid,
        gid: uid,
        ..Caller::root()
    }
}

/// The superuser in a stream.
#[must_use]
pub fn stream(number: u32) -> Caller {
    Caller {
        stream: Stream(number),
        ..Caller::root()
    }
}

/// Frequent operations of tests, by name.
pub trait Handy: FileSystem {
    /// Makes an empty file.
    fn file(&self, dir: Ino, name: &str) -> Ino {
        self.file_by(&root(), dir, name).unwrap().ino
    }

    /// The same as a caller.
    fn file_by(&self, caller: &Caller, dir: Ino, name: &str) -> Result<Attr> {
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        self.mknod(caller, dir, name.as_bytes(), &node)
    }

    /// Makes a directory.
    fn dir(&self, dir: Ino, name: &str) -> Ino {
        self.mkdir(&root(), dir, name.as_bytes(), 0o755)
            .unwrap()
            .ino
    }

    /// Looks a name up.
    fn look(&self, dir: Ino, name: &str) -> Option<Attr> {
        match self.lookup(&root(), dir, name.as_bytes()) {
            Ok(attr) => Some(attr),
            Err(error) if error == Errno::NoEnt => None,
            Err(error) => panic!("lookup {name}: {error}"),
        }
    }

    /// Attributes of an inode.
    fn attr(&self, ino: Ino) -> Attr {
        self.getattr(&root(), ino).unwrap()
    }

    /// The names in a directory, sorted.
    fn names(&self, dir: Ino) -> Vec<String> {
        let mut names = Vec::new();
        self.readdir(&root(), dir, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .unwrap();
        assert_eq!(&names[..2], [".", ".."]);
        let mut names = names.split_off(2);
        names.sort();
        names
    }

    /// All bytes of a file.
    fn content(&self, ino: Ino) -> Vec<u8> {
        let mut bytes = vec![0; self.attr(ino).size as usize];
        let got = self.read(&root(), ino, 0, &mut bytes).unwrap();
        assert_eq!(got, bytes.len());
        bytes
    }
}

impl<T: FileSystem + ?Sized> Handy for T {}

/// The error number of a call that must fail.
#[track_caller]
pub fn fails<T: std::fmt::Debug>(result: Result<T>, errno: Errno) {
    match result {
        Err(error) if error == errno => {}
        other => panic!("expected {errno:?}, got {other:?}"),
    }
}
