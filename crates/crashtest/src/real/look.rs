//! A directory of a real file system as a tree.

use crate::effects::{Body, Change, Disk, Ino, Node, ROOT};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use steadfast_model::data::FileData;
use steadfast_vfs::FileKind;

/// The tree of a directory, with numbers of our own; two names of one inode have one number.
///
/// # Errors
/// With the path that cannot be read.
pub(super) fn look(root: &Path) -> Result<Disk, (PathBuf, io::Error)> {
    let mut disk = Disk::default();
    let mut next = ROOT + 1;
    let mut known: HashMap<u64, Ino> = HashMap::new();
    let mut todo = vec![(root.to_owned(), ROOT)];
    while let Some((dir, number)) = todo.pop() {
        let failed = |e| (dir.clone(), e);
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            let failed = |e| (path.clone(), e);
            let meta = fs::symlink_metadata(&path).map_err(failed)?;
            let ino = match known.get(&meta.ino()) {
                Some(ino) => *ino,
                None => {
                    let ino = next;
                    next += 1;
                    known.insert(meta.ino(), ino);
                    disk.add(ino, node(&path, &meta).map_err(failed)?);
                    if meta.is_dir() {
                        todo.push((path.clone(), ino));
                    }
                    ino
                }
            };
            disk.apply(&Change::Set {
                dir: number,
                name: Arc::from(entry.file_name().as_bytes()),
                ino,
            });
        }
    }
    let meta = fs::symlink_metadata(root).map_err(|e| (root.to_owned(), e))?;
    disk.apply(&Change::Attr {
        ino: ROOT,
        perm: Some((meta.mode() & 0o7777) as u16),
        uid: Some(meta.uid()),
        gid: Some(meta.gid()),
    });
    Ok(disk)
}

fn node(path: &Path, meta: &fs::Metadata) -> io::Result<Node> {
    let kind = meta.file_type();
    let kind = if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_symlink() {
        FileKind::Symlink
    } else if kind.is_fifo() {
        FileKind::Fifo
    } else if kind.is_socket() {
        FileKind::Socket
    } else {
        FileKind::Regular
    };
    let mut node = Node::new(kind, (meta.mode() & 0o7777) as u16);
    (node.uid, node.gid) = (meta.uid(), meta.gid());
    match &mut node.body {
        Body::File { size, data } => {
            *size = meta.len();
            *data = contents(path, meta.len())?;
        }
        Body::Link(target) => *target = Arc::from(fs::read_link(path)?.as_os_str().as_bytes()),
        Body::Dir(_) | Body::Special => {}
    }
    let mut names = vec![0; 4096];
    let n = rustix::fs::llistxattr(path, &mut names)?;
    for name in names[..n].split(|b| *b == 0) {
        if name.starts_with(b"user.") {
            let mut value = vec![0; 65536];
            let n = rustix::fs::lgetxattr(path, name, &mut value)?;
            value.truncate(n);
            node.xattrs.insert(name.to_vec(), value);
        }
    }
    Ok(node)
}

fn contents(path: &Path, size: u64) -> io::Result<FileData> {
    let mut data = FileData::new();
    let mut file = File::open(path)?;
    let mut piece = vec![0; (size as usize).clamp(1, 1 << 20)];
    let mut at = 0;
    loop {
        let n = file.read(&mut piece)?;
        if n == 0 {
            break;
        }
        data.write(at, &piece[..n]);
        at += n as u64;
    }
    data.resize(size);
    Ok(data)
}
