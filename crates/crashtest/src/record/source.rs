//! The initial tree as a copy of a directory: names, kinds, content, modes, owners, times and hard links. Holes and
//! extended attributes are not kept.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use steadfast_model::tree::ROOT;
use steadfast_vfs::Ino;

use super::RecordError;
use super::calls::Calls;
use crate::trace::{Change, Kind, Op, Outcome, Span, Wall, When, Who, WriteHow};

const PIECE_BYTES: usize = 1 << 20;

/// Copies the content of `from` into the root.
pub(super) fn copy(from: &Path, calls: &Calls) -> Result<(), RecordError> {
    let mut copied = Copy {
        calls,
        links: HashMap::new(),
        at: from.to_owned(),
    };
    let done = copied.all(from);
    done.map_err(|source| RecordError::Source {
        path: copied.at,
        source,
    })
}

struct Copy<'a> {
    calls: &'a Calls,
    /// Inodes with several names, by device and number.
    links: HashMap<(u64, u64), Ino>,
    /// The path that is being copied, for messages.
    at: PathBuf,
}

impl Copy<'_> {
    fn call(&self, meta: &Metadata, op: Op, bytes: &[u8]) -> io::Result<Outcome> {
        let who = Who {
            uid: meta.uid(),
            gid: meta.gid(),
            ..Who::default()
        };
        let done = self.calls.perform(who.into(), self.calls.now(), op, bytes);
        done.map_err(|e| io::Error::from_raw_os_error(e.code()))
    }

    fn all(&mut self, from: &Path) -> io::Result<()> {
        let root = std::fs::metadata(from)?;
        if !root.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let mut left = vec![(from.to_owned(), ROOT)];
        let mut made = vec![(ROOT, root)];
        while let Some((dir, parent)) = left.pop() {
            self.at.clone_from(&dir);
            let mut names = std::fs::read_dir(&dir)?.collect::<io::Result<Vec<_>>>()?;
            names.sort_by_key(std::fs::DirEntry::file_name);
            for entry in names {
                self.at = entry.path();
                let meta = std::fs::symlink_metadata(&self.at)?;
                let ino = self.one(&meta, parent, entry.file_name().as_bytes())?;
                if meta.is_dir() {
                    left.push((self.at.clone(), ino));
                }
                made.push((ino, meta));
            }
        }
        // Last, because what is made in a directory changes its times.
        for (ino, meta) in made {
            self.attributes(ino, &meta)?;
        }
        Ok(())
    }

    fn one(&mut self, meta: &Metadata, parent: Ino, name: &[u8]) -> io::Result<Ino> {
        let name = name.to_vec();
        let key = (meta.dev(), meta.ino());
        let shared = !meta.is_dir() && meta.nlink() > 1;
        if let Some(&ino) = self.links.get(&key).filter(|_| shared) {
            self.call(meta, Op::Link { ino, parent, name }, &[])?;
            return Ok(ino);
        }
        let perm = (meta.mode() & 0o7777) as u16;
        let kind = meta.file_type();
        let mknod = |kind, rdev| Op::Mknod {
            parent,
            name: name.clone(),
            kind,
            perm,
            rdev,
        };
        // The kernel's form of device numbers, as FUSE has it.
        let rdev = {
            let dev = meta.rdev();
            let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
            (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
        };
        let op = if kind.is_dir() {
            Op::Mkdir { parent, name, perm }
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&self.at)?
                .as_os_str()
                .as_bytes()
                .to_vec();
            Op::Symlink {
                parent,
                name,
                target,
            }
        } else if kind.is_file() {
            mknod(Kind::Regular, 0)
        } else if kind.is_fifo() {
            mknod(Kind::Fifo, 0)
        } else if kind.is_socket() {
            mknod(Kind::Socket, 0)
        } else if kind.is_char_device() {
            mknod(Kind::CharDevice, rdev)
        } else {
            mknod(Kind::BlockDevice, rdev)
        };
        let made = self.call(meta, op, &[])?.made();
        let ino = made.ok_or(io::ErrorKind::InvalidData)?;
        if shared {
            self.links.insert(key, ino);
        }
        if kind.is_file() {
            self.content(meta, ino)?;
        }
        Ok(ino)
    }

    fn content(&self, meta: &Metadata, ino: Ino) -> io::Result<()> {
        let mut file = File::open(&self.at)?;
        let mut piece = vec![0; PIECE_BYTES];
        let mut offset = 0;
        loop {
            let n = file.read(&mut piece)?;
            if n == 0 {
                return Ok(());
            }
            let op = Op::Write {
                ino,
                offset,
                data: Span::default(),
                how: WriteHow::default(),
            };
            self.call(meta, op, piece.get(..n).unwrap_or_default())?;
            offset += n as u64;
        }
    }

    fn attributes(&self, ino: Ino, meta: &Metadata) -> io::Result<()> {
        let wall = |secs, nanos: i64| {
            When::At(Wall {
                secs,
                nanos: nanos as u32,
            })
        };
        let change = Change {
            perm: (!meta.is_symlink()).then_some((meta.mode() & 0o7777) as u16),
            uid: Some(meta.uid()),
            gid: Some(meta.gid()),
            size: None,
            atime: Some(wall(meta.atime(), meta.atime_nsec())),
            mtime: Some(wall(meta.mtime(), meta.mtime_nsec())),
        };
        self.call(meta, Op::SetAttr { ino, change }, &[])?;
        Ok(())
    }
}
