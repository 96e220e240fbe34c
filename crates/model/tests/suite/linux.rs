//! The tree against the kernel: random operations on the directory for temporary
//! files have the errors and the effects that the model says.
//!
//! Only operations that the standard library offers are compared, without changes of
//! identity; paths that lead through a symbolic link are left out, because the model does
//! not follow them.
#![allow(clippy::unwrap_used)]

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, symlink,
};
use std::path::PathBuf;
use std::{env, ffi::OsStr, io, process};
use steadfast_model::workload::{Shape, Workload};
use steadfast_model::{Op, Path, Snapshot, Target, Tree};
use steadfast_vfs::{Caller, FileKind, RenameMode, Time};

/// A directory that is removed with everything in it.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Scratch {
    fn path(&self, path: &Path) -> PathBuf {
        let mut out = self.0.as_os_str().as_bytes().to_vec();
        for name in &path.0 {
            out.push(b'/');
            out.extend(name);
        }
        PathBuf::from(OsStr::from_bytes(&out))
    }
}

fn kind(tree: &Tree, path: &[Vec<u8>]) -> Option<FileKind> {
    let caller = Caller::root();
    let ino = path
        .iter()
        .try_fold(1, |dir, name| tree.lookup(&caller, dir, name))
        .ok()?;
    Some(tree.getattr(ino).ok()?.kind)
}

/// Whether the kernel would follow a link, or leave the directory.
fn leads_away(tree: &Tree, path: &Path) -> bool {
    let mut depth = 0i32;
    for (i, name) in path.0.iter().enumerate() {
        depth += match &name[..] {
            b"." => 0,
            b".." => -1,
            _ => 1,
        };
        let inner = i + 1 < path.0.len();
        if depth < 0 || (inner && kind(tree, &path.0[..=i]) == Some(FileKind::Symlink)) {
            return true;
        }
    }
    path.0.is_empty()
}

/// Runs one operation with the standard library; `None` if it has no call for it.
fn run(dir: &Scratch, tree: &Tree, op: &Op) -> Option<io::Result<()>> {
    let stays = |p: &Path| !leads_away(tree, p);
    let file = |t: &Target| match t {
        Target::Path(p) if stays(p) && kind(tree, &p.0) == Some(FileKind::Regular) => {
            OpenOptions::new().write(true).open(dir.path(p)).ok()
        }
        _ => None,
    };
    Some(match op {
        Op::Mkdir { path, perm } if stays(path) => DirBuilder::new()
            .mode(u32::from(*perm))
            .create(dir.path(path)),
        Op::Mknod {
            path,
            kind: FileKind::Regular,
            ..
        } if stays(path) => {
            // open(2) has its own errors for a name that cannot be a file.
            if matches!(path.0.last().map(|n| &n[..]), Some(b"." | b"..")) {
                return None;
            }
            let mut options = OpenOptions::new();
            options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(dir.path(path))
                .map(|_| ())
        }
        Op::Symlink { path, target } if stays(path) => {
            symlink(OsStr::from_bytes(target), dir.path(path))
        }
        Op::Link {
            from: Target::Path(from),
            to,
        } if stays(from) && stays(to) => fs::hard_link(dir.path(from), dir.path(to)),
        Op::Unlink { path } if stays(path) => fs::remove_file(dir.path(path)),
        Op::Rmdir { path } if stays(path) => fs::remove_dir(dir.path(path)),
        Op::Rename {
            from,
            to,
            mode: RenameMode::Replace,
        } if stays(from) && stays(to) => fs::rename(dir.path(from), dir.path(to)),
        Op::Write {
            file: target,
            offset,
            data,
        } => file(target)?.write_all_at(&data.bytes(), *offset),
        Op::Append { file: target, data } => {
            let mut f = file(target)?;
            f.seek(SeekFrom::End(0))
                .and_then(|_| f.write_all(&data.bytes()))
        }
        Op::SetAttr { file: target, set } if set.size.is_some() => {
            file(target)?.set_len(set.size.unwrap())
        }
        _ => return None,
    })
}

/// Compares everything below the directory with the snapshot.
fn compare(dir: &Scratch, want: &Snapshot) {
    let mut found = 1;
    let mut todo = vec![dir.0.clone()];
    while let Some(path) = todo.pop() {
        for entry in fs::read_dir(&path).unwrap() {
            let path = entry.unwrap().path();
            found += 1;
            let name = &path.as_os_str().as_bytes()[dir.0.as_os_str().len()..];
            let e = want.entries.get(name);
            let e = e.unwrap_or_else(|| unreachable!("{} is not expected", path.display()));
            let meta = fs::symlink_metadata(&path).unwrap();
            let t = meta.file_type();
            let kind = match () {
                () if t.is_dir() => FileKind::Directory,
                () if t.is_symlink() => FileKind::Symlink,
                () if t.is_fifo() => FileKind::Fifo,
                () => FileKind::Regular,
            };
            assert_eq!(kind, e.kind, "{}", path.display());
            match kind {
                FileKind::Directory => todo.push(path),
                FileKind::Symlink => {
                    assert_eq!(
                        fs::read_link(&path).unwrap().as_os_str().as_bytes(),
                        &e.target[..]
                    );
                }
                _ => {
                    assert_eq!(meta.nlink(), u64::from(e.nlink), "{}", path.display());
                    let bytes = fs::read(&path).unwrap();
                    let mut model = vec![0; e.size as usize];
                    e.data.read(0, &mut model);
                    assert!(bytes == model, "content of {}", path.display());
                }
            }
        }
    }
    assert_eq!(found, want.entries.len());
}

/// One load in a directory of its own.
fn load(seed: u64, steps: usize) {
    let name = format!("steadfast-model-{}-{seed}", process::id());
    let dir = Scratch(env::temp_dir().join(name));
    if let Err(e) = fs::create_dir(&dir.0) {
        steadfast_testkit::skipped!("no directory for temporary files: {e}");
        return;
    }
    let shape = Shape {
        handles: false,
        odd_names: true,
        sync_every: 0,
        ..Shape::default()
    };
    let mut tree = Tree::new(Time::default());
    let (mut ran, mut failed) = (0, 0);
    for step in Workload::new(seed, shape).take(steps) {
        let mut op = step.op.clone();
        if let Op::Mkdir { perm, .. } = &mut op {
            *perm |= 0o700;
        }
        let Some(result) = run(&dir, &tree, &op) else {
            continue;
        };
        let want = tree.apply(&op, &step.caller, step.at);
        let errno = result.err().map(|e| e.raw_os_error().unwrap_or(0));
        assert_eq!(want.err().map(|e| e.code()), errno, "seed {seed}: {op}");
        ran += 1;
        failed += usize::from(errno.is_some());
    }
    assert!(
        ran > steps / 4 && failed > steps / 20 && ran - failed > steps / 20,
        "{ran} ran, {failed} failed"
    );
    compare(&dir, &tree.snapshot());
}

/// Several at once, so that a mounted file system has something to do: `TMPDIR` says where, and
/// `STEADFAST_LONG=1` that there shall be more.
#[test]
fn random_operations_have_the_errors_and_effects_that_the_kernel_gives_them() {
    let (threads, steps) = match env::var_os("STEADFAST_LONG") {
        Some(_) => (16, 50_000),
        None => (6, 4000),
    };
    std::thread::scope(|scope| {
        for seed in 0..threads {
            scope.spawn(move || load(seed, steps));
        }
    });
}
