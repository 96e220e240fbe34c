//! A state as a directory. Its content is data: no name leads out of the directory, since names hold no slash and
//! links are made, never followed.

use crate::effects::{Body, Disk, Ino, Node, ROOT};
use rustix::fs::{AtFlags, CWD, Mode, chownat};
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use steadfast_model::data::FileData;
use steadfast_vfs::FileKind;

const PIECE: usize = 1 << 16;

/// Lays a state out at `dir`, which must not exist. Owners are set for the superuser only; devices and sockets are left out.
///
/// # Errors
/// If something cannot be made.
pub fn lay_out(disk: &Disk, dir: &Path) -> io::Result<()> {
    fs::create_dir(dir)?;
    let root = rustix::process::geteuid().is_root();
    let mut made: HashMap<Ino, PathBuf> = HashMap::new();
    let mut dirs = BTreeSet::from([ROOT]);
    let mut order = Vec::new();
    let mut todo = vec![(dir.to_owned(), ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let Some(node) = disk.node(ino) else {
            continue;
        };
        let Body::Dir(entries) = &node.body else {
            continue;
        };
        order.push((path.clone(), node));
        for (name, child) in entries.iter().rev() {
            let Some(below) = disk.node(*child) else {
                continue;
            };
            let at = path.join(OsStr::from_bytes(name));
            if below.kind == FileKind::Directory {
                if dirs.insert(*child) {
                    fs::create_dir(&at)?;
                    todo.push((at, *child));
                }
                continue;
            }
            match made.get(child) {
                Some(first) => fs::hard_link(first, &at)?,
                None => {
                    if leaf(below, &at)? {
                        attributes(below, &at, root)?;
                        made.insert(*child, at);
                    }
                }
            }
        }
    }
    // Last, and the deepest first: a directory may refuse writes.
    for (path, node) in order.iter().rev() {
        attributes(node, path, root)?;
    }
    Ok(())
}

fn leaf(node: &Node, at: &Path) -> io::Result<bool> {
    match &node.body {
        Body::File { size, data } => {
            let file = File::create_new(at)?;
            contents(&file, *size, data)?;
        }
        Body::Link(target) => symlink(OsStr::from_bytes(target), at)?,
        Body::Special if node.kind == FileKind::Fifo => {
            rustix::fs::mknodat(
                CWD,
                at,
                rustix::fs::FileType::Fifo,
                Mode::from_raw_mode(0o600),
                0,
            )?;
        }
        Body::Special | Body::Dir(_) => return Ok(false),
    }
    Ok(true)
}

fn contents(file: &File, size: u64, data: &FileData) -> io::Result<()> {
    let mut data = data.clone();
    data.resize(size);
    file.set_len(size)?;
    let mut buf = vec![0; PIECE];
    let mut at = 0;
    while let Some(from) = data.next_data(at) {
        let room = PIECE - (from % PIECE as u64) as usize;
        let n = data.read(from, &mut buf[..room]);
        if n == 0 {
            break;
        }
        file.write_all_at(&buf[..n], from)?;
        at = from + n as u64;
    }
    Ok(())
}

fn attributes(node: &Node, at: &Path, root: bool) -> io::Result<()> {
    if root && (node.uid, node.gid) != (0, 0) {
        let (uid, gid) = (
            rustix::fs::Uid::from_raw(node.uid),
            rustix::fs::Gid::from_raw(node.gid),
        );
        // An identity that this namespace does not map: the state is laid out without it.
        let _ = chownat(CWD, at, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
    }
    if node.kind == FileKind::Symlink {
        return Ok(());
    }
    for (name, value) in &node.xattrs {
        if name.starts_with(b"user.") {
            // Not every file system for temporary files has them.
            let _ =
                rustix::fs::lsetxattr(at, name.as_slice(), value, rustix::fs::XattrFlags::empty());
        }
    }
    fs::set_permissions(at, Permissions::from_mode(u32::from(node.perm) & 0o1777))
}

/// Makes a directory removable, whatever its permissions are.
pub(super) fn make_removable(dir: &Path) {
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        // A directory that cannot be changed or listed stays in the directory for temporary files.
        let _ = fs::set_permissions(&dir, Permissions::from_mode(0o700));
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        let all = entries.filter_map(Result::ok);
        todo.extend(
            all.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
                .map(|e| e.path()),
        );
    }
}
