//! The calls whose latency is measured: those of SquirrelFS §5.2, and replacing a file by a rename, chmod and link.

use crate::Result;
use std::ops::Range;
use steadfast_testkit::Random;
use steadfast_vfs::{Caller, FileKind, FileSystem, Ino, NewNode, RenameMode, SetAttr};

/// Bytes of a file that is unlinked.
const UNLINKED_BYTES: usize = 16 << 10;

/// A kind of call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Call {
    /// Appends this many bytes to a file.
    Append(usize),
    /// Reads this many bytes of a file that was appended to in such pieces.
    Read(usize),
    /// Makes a file.
    Create,
    /// Makes a directory.
    Mkdir,
    /// Renames a directory to a name that is free.
    Rename,
    /// Renames a file over another.
    Replace,
    /// Unlinks a file of 16 KiB.
    Unlink,
    /// Changes the permission bits of a file.
    Chmod,
    /// Gives a file another name.
    Link,
}

impl Call {
    pub(crate) const ALL: [Call; 11] = [
        Call::Append(1 << 10),
        Call::Append(16 << 10),
        Call::Read(1 << 10),
        Call::Read(16 << 10),
        Call::Create,
        Call::Mkdir,
        Call::Rename,
        Call::Replace,
        Call::Unlink,
        Call::Chmod,
        Call::Link,
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Call::Append(bytes) => format!("append-{}k", bytes >> 10),
            Call::Read(bytes) => format!("read-{}k", bytes >> 10),
            Call::Create => "create".to_owned(),
            Call::Mkdir => "mkdir".to_owned(),
            Call::Rename => "rename".to_owned(),
            Call::Replace => "replace".to_owned(),
            Call::Unlink => "unlink-16k".to_owned(),
            Call::Chmod => "chmod".to_owned(),
            Call::Link => "link".to_owned(),
        }
    }

    /// Bytes that one call moves.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Call::Append(bytes) | Call::Read(bytes) => bytes,
            _ => 0,
        }
    }

    /// The call whose record has this one's effect on the medium.
    pub(crate) fn recorded_as(self) -> Call {
        match self {
            Call::Read(bytes) => Call::Append(bytes),
            other => other,
        }
    }
}

/// Data that is neither zero nor repeats within a page.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut random = Random::new(0);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.number().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Some calls, prepared.
pub(crate) struct Work {
    call: Call,
    caller: Caller,
    dir: Ino,
    file: Ino,
    names: Vec<Vec<u8>>,
    others: Vec<Vec<u8>>,
    buffer: Vec<u8>,
}

const FILE: NewNode = NewNode {
    kind: FileKind::Regular,
    perm: 0o644,
    rdev: 0,
};

impl Work {
    /// Makes a directory `name` in the root, and in it the files for `count` calls.
    pub(crate) fn prepare(
        fs: &dyn FileSystem,
        call: Call,
        name: &str,
        count: usize,
    ) -> Result<Work> {
        let caller = Caller::root();
        let dir = fs.mkdir(&caller, fs.root(), name.as_bytes(), 0o755)?.ino;
        let names = |prefix: &str| -> Vec<Vec<u8>> {
            let each = (0..count).map(|i| format!("{prefix}-{i:06}").into_bytes());
            each.collect()
        };
        let mut work = Work {
            call,
            caller,
            dir,
            file: 0,
            names: names("name"),
            others: names("other"),
            buffer: pattern(call.bytes().max(UNLINKED_BYTES)),
        };
        work.stage(fs)?;
        Ok(work)
    }

    fn stage(&mut self, fs: &dyn FileSystem) -> Result<()> {
        let caller = self.caller.clone();
        let make = |name: &[u8]| fs.mknod(&caller, self.dir, name, &FILE);
        match self.call {
            Call::Append(_) | Call::Read(_) | Call::Chmod | Call::Link => {
                self.file = make(b"file")?.ino;
            }
            Call::Create | Call::Mkdir => {}
            Call::Rename => {
                for name in &self.names {
                    fs.mkdir(&caller, self.dir, name, 0o755)?;
                }
            }
            Call::Replace => {
                for name in self.names.iter().chain(&self.others) {
                    make(name)?;
                }
            }
            Call::Unlink => {
                for name in &self.names {
                    let file = make(name)?.ino;
                    fs.write(&caller, file, 0, &self.buffer[..UNLINKED_BYTES])?;
                }
            }
        }
        if let Call::Read(bytes) = self.call {
            for _ in 0..self.names.len() {
                fs.append(&caller, self.file, &self.buffer[..bytes])?;
            }
        }
        Ok(())
    }

    /// The caller's data, of one call.
    pub(crate) fn data(&self) -> &[u8] {
        &self.buffer[..self.call.bytes()]
    }

    /// Makes the calls of `range`; `before` receives the number of each call before it.
    pub(crate) fn run(
        &mut self,
        fs: &dyn FileSystem,
        range: Range<usize>,
        before: impl Fn(usize),
    ) -> Result<()> {
        let (caller, dir) = (&self.caller, self.dir);
        let bytes = self.call.bytes();
        for i in range {
            before(i);
            match self.call {
                Call::Append(_) => {
                    fs.append(caller, self.file, &self.buffer[..bytes])?;
                }
                Call::Read(_) => {
                    let at = (i * bytes) as u64;
                    let read = fs.read(caller, self.file, at, &mut self.buffer[..bytes])?;
                    if read != bytes {
                        return Err(format!("{read} of {bytes} bytes were read").into());
                    }
                }
                Call::Create => {
                    fs.mknod(caller, dir, &self.names[i], &FILE)?;
                }
                Call::Mkdir => {
                    fs.mkdir(caller, dir, &self.names[i], 0o755)?;
                }
                Call::Rename | Call::Replace => {
                    let (from, to) = (&self.names[i], &self.others[i]);
                    fs.rename(caller, (dir, from), (dir, to), RenameMode::Replace)?;
                }
                Call::Unlink => fs.unlink(caller, dir, &self.names[i])?,
                Call::Chmod => {
                    let set = SetAttr {
                        perm: Some([0o644, 0o600][i % 2]),
                        ..SetAttr::default()
                    };
                    fs.setattr(caller, self.file, &set)?;
                }
                Call::Link => {
                    fs.link(caller, self.file, dir, &self.names[i])?;
                }
            }
        }
        Ok(())
    }
}
