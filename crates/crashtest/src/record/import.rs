//! A log of `strace -f -y -xx -ttt -s 10000000 -o LOG` as a trace, for places without `/dev/fuse`.
//!
//! Calls are in the order in which they returned. The import counts what a log does not hold: stores through mmap,
//! and bytes that the kernel copied from file to file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use steadfast_model::Tree;
use steadfast_model::tree::ROOT;
use steadfast_vfs::{Caller, Ino};

use super::calls::{Calls, Counts, Requester};
use super::{RecordError, convert, source};
use crate::trace::{
    AckSource, Alloc, Change, Ended, Header, Op, Rename, Root, Span, TraceWriter, Who, WriteHow,
};

mod line;
#[cfg(test)]
mod tests;
use line::{Line, Lines};

/// Maximum number of bytes of an imported trace.
const TRACE_BYTES_MAX: u64 = 64 << 30;

/// Input and output of an import.
#[derive(Clone, Debug)]
pub struct Import {
    /// The log.
    pub log: PathBuf,
    /// The directory of the workload, as the log names it.
    pub root: PathBuf,
    /// A copy of its content before the workload.
    pub from: Option<PathBuf>,
    /// The trace to write.
    pub trace: PathBuf,
}

/// Result of an import.
#[derive(Clone, Copy, Debug, Default)]
pub struct Imported {
    /// The amounts.
    pub counts: Counts,
    /// Calls on files of the directory that the log does not show in full.
    pub unseen: u64,
}

/// An open file, shared by copies of its descriptor.
#[derive(Clone, Copy)]
struct Open {
    ino: Ino,
    at: u64,
    append: bool,
    dsync: bool,
    sync: bool,
    copies: u32,
}

#[derive(Clone)]
struct Process {
    files: HashMap<i64, usize>,
    dir: Vec<u8>,
}

struct Importer {
    calls: Calls,
    root: Vec<u8>,
    open: Vec<Open>,
    processes: HashMap<u32, Process>,
    /// Threads, by the process whose descriptors they share.
    threads: HashMap<u32, u32>,
    unseen: u64,
    ended: Ended,
}

/// Reads a log and writes a trace.
///
/// # Errors
/// If a file cannot be read or written, or the log is no log of strace with these options.
pub fn import(what: &Import) -> Result<Imported, RecordError> {
    let mut log = Log::open(&what.log)?;
    let births = births(&mut log)?;
    let root = what.root.as_os_str().as_bytes();
    let header = Header {
        command: vec![b"strace".to_vec(), what.log.as_os_str().as_bytes().to_vec()],
        setup: None,
        mount: root.to_vec(),
        started: convert::time(std::time::SystemTime::now()).into(),
        recorder: format!("steadfast {}, imported", env!("CARGO_PKG_VERSION")),
        kernel: String::new(),
        root: Root {
            perm: 0o755,
            uid: 0,
            gid: 0,
        },
    };
    let writer = TraceWriter::create(&what.trace, &header)?;
    let calls = Calls::new(writer, &header, TRACE_BYTES_MAX, None, None);
    if let Some(from) = &what.from {
        source::copy(from, &calls)?;
    }
    calls.begin(0)?;
    calls.watched();
    let mut importer = Importer {
        calls,
        root: root.to_vec(),
        open: Vec::new(),
        processes: HashMap::new(),
        threads: HashMap::new(),
        unseen: 0,
        ended: Ended::Interrupted,
    };
    log.each_line(|number, text, lines| {
        if let Some(birth) = births.get(&number) {
            importer.born(birth);
        }
        if let Some(line) = lines.next(number, text)? {
            importer.take(&line);
        }
        Ok(())
    })?;
    let (_, counts) = importer.calls.finish(importer.ended, 0)?;
    Ok(Imported {
        counts,
        unseen: importer.unseen,
    })
}

/// A process or thread that was made by a call whose end is on a later line.
struct Birth {
    parent: u32,
    child: u32,
    shares_descriptors: bool,
}

/// A log that can be read twice.
struct Log<'a> {
    path: &'a Path,
    file: File,
}

impl Log<'_> {
    /// A log that is no file, such as a pipe, is copied to one.
    fn open(path: &Path) -> Result<Log<'_>, RecordError> {
        let opened = || {
            let mut file = File::open(path)?;
            if !file.metadata()?.is_file() {
                let mut copy = tempfile::tempfile()?;
                std::io::copy(&mut file, &mut copy)?;
                file = copy;
            }
            Ok(file)
        };
        let file = opened().map_err(|source| RecordError::Source {
            path: path.to_owned(),
            source,
        })?;
        Ok(Log { path, file })
    }

    /// Calls `work` with each line, by number from 0.
    fn each_line(
        &mut self,
        mut work: impl FnMut(usize, &[u8], &mut Lines) -> Result<(), String>,
    ) -> Result<(), RecordError> {
        let wrong = |source| RecordError::Source {
            path: self.path.to_owned(),
            source,
        };
        self.file.rewind().map_err(wrong)?;
        let mut lines = Lines::default();
        for (number, text) in BufReader::new(&self.file).split(b'\n').enumerate() {
            let text = text.map_err(wrong)?;
            work(number, &text, &mut lines).map_err(|why| {
                RecordError::System(format!("{}:{}: {why}", self.path.display(), number + 1))
            })?;
        }
        Ok(())
    }
}

/// The processes whose first calls may be in the log before the end of the call that made them, by the number of the
/// line on which that call began.
fn births(log: &mut Log<'_>) -> Result<HashMap<usize, Birth>, RecordError> {
    let mut births = HashMap::new();
    log.each_line(|number, text, lines| {
        let may_concern = [&b"clone"[..], b"fork"];
        if !(may_concern.iter()).any(|word| text.windows(word.len()).any(|part| part == *word)) {
            return Ok(());
        }
        // Other lines are examined when the log is imported.
        if let Ok(Some(line)) = lines.next(number, text)
            && let Some(begun) = line.begun
            && line.makes_a_process()
            && line.result > 0
        {
            let birth = Birth {
                parent: line.thread,
                child: line.result as u32,
                shares_descriptors: line.shares_descriptors(),
            };
            births.insert(begun, birth);
        }
        Ok(())
    })?;
    Ok(births)
}

impl Importer {
    fn process(&mut self, thread: u32) -> &mut Process {
        let process = self.threads.get(&thread).copied().unwrap_or(thread);
        self.processes.entry(process).or_insert_with(|| Process {
            files: HashMap::new(),
            // Until a call names it.
            dir: self.root.clone(),
        })
    }

    fn opened(&mut self, thread: u32, fd: Option<i64>) -> Option<&mut Open> {
        let file = *self.process(thread).files.get(&fd?)?;
        self.open.get_mut(file)
    }

    fn ino(&mut self, thread: u32, fd: Option<i64>) -> Option<Ino> {
        self.opened(thread, fd).map(|o| o.ino)
    }

    /// The names from the root to a path; None if it is outside.
    fn inside(&mut self, thread: u32, dir: Option<&[u8]>, path: &[u8]) -> Option<Vec<Vec<u8>>> {
        let process = self.process(thread);
        let base = dir.map_or_else(|| process.dir.clone(), <[u8]>::to_vec);
        let whole = match path.starts_with(b"/") {
            true => path.to_vec(),
            false => [base.as_slice(), b"/", path].concat(),
        };
        let mut names: Vec<&[u8]> = Vec::new();
        for name in whole.split(|&b| b == b'/') {
            match name {
                b"" | b"." => {}
                b".." => drop(names.pop()),
                name => names.push(name),
            }
        }
        let root: Vec<&[u8]> = self
            .root
            .split(|&b| b == b'/')
            .filter(|n| !n.is_empty())
            .collect();
        let below = names.strip_prefix(root.as_slice())?;
        Some(below.iter().map(|n| n.to_vec()).collect())
    }

    /// The directory and the name of a path.
    fn place(
        &mut self,
        thread: u32,
        dir: Option<&[u8]>,
        path: Option<&[u8]>,
    ) -> Option<(Ino, Vec<u8>)> {
        let mut names = self.inside(thread, dir, path?)?;
        let name = names.pop()?;
        let tree = self.calls.tree();
        let root = Caller::root();
        let mut at = ROOT;
        for name in &names {
            at = tree.lookup(&root, at, name).ok()?;
        }
        Some((at, name))
    }

    fn named(tree: &Tree, at: &(Ino, Vec<u8>)) -> Option<Ino> {
        Calls::named(tree, at.0, &at.1)
    }

    fn perform(&mut self, thread: u32, op: Op, bytes: &[u8]) -> Option<Ino> {
        let who = Who {
            process: self.threads.get(&thread).copied().unwrap_or(thread),
            thread,
            uid: 0,
            gid: 0,
        };
        let begin = self.calls.now();
        let done = self.calls.perform(Requester::from(who), begin, op, bytes);
        match done {
            Ok(outcome) => outcome.made(),
            Err(_) => {
                self.unseen += 1;
                None
            }
        }
    }

    fn take(&mut self, line: &Line<'_>) {
        let t = line.thread;
        if let Line {
            call: "exit_group", ..
        } = line
        {
            let code = line.number(0).unwrap_or(0);
            self.ended = Ended::Exited(code as i32);
            return;
        }
        if line.result < 0 {
            return;
        }
        if let Some(dir) = line.working_directory() {
            self.process(t).dir = dir.to_vec();
        }
        self.descriptors(line);
        let (first, second) = (line.at(0), line.at(1));
        match line.call {
            "open" | "creat" => self.opens(line, None, 0),
            "openat" => self.opens(line, first.path(), 1),
            "write" | "pwrite64" | "writev" | "pwritev" => self.writes(line),
            "mkdir" | "mkdirat" => {
                let (dir, i) = line.dir_and_path("mkdirat");
                let place = self.place(t, dir, line.at(i).string());
                if let Some((parent, name)) = place {
                    let perm = line.octal(i + 1);
                    self.perform(t, Op::Mkdir { parent, name, perm }, &[]);
                }
            }
            "unlink" | "unlinkat" | "rmdir" => {
                let (dir, i) = line.dir_and_path("unlinkat");
                let is_dir = line.call == "rmdir" || line.at(2).has("AT_REMOVEDIR");
                if let Some(at) = self.place(t, dir, line.at(i).string()) {
                    let ino = Importer::named(&self.calls.tree(), &at);
                    let (parent, name) = at;
                    let op = match is_dir {
                        true => Op::Rmdir { parent, name, ino },
                        false => Op::Unlink { parent, name, ino },
                    };
                    self.perform(t, op, &[]);
                }
            }
            "rename" => self.renames(line, (None, first.string()), (None, second.string())),
            "renameat" | "renameat2" => self.renames(
                line,
                (first.path(), second.string()),
                (line.at(2).path(), line.at(3).string()),
            ),
            "link" => self.links(t, (None, first.string()), (None, second.string())),
            "linkat" => self.links(
                t,
                (first.path(), second.string()),
                (line.at(2).path(), line.at(3).string()),
            ),
            "symlink" | "symlinkat" => {
                let (dir, i) = match line.call {
                    "symlink" => (None, 1),
                    _ => (second.path(), 2),
                };
                let place = self.place(t, dir, line.at(i).string());
                if let (Some((parent, name)), Some(target)) = (place, first.string()) {
                    let target = target.to_vec();
                    let op = Op::Symlink {
                        parent,
                        name,
                        target,
                    };
                    self.perform(t, op, &[]);
                }
            }
            "ftruncate" => {
                if let (Some(ino), Some(size)) = (self.ino(t, first.fd()), line.number(1)) {
                    let size = size as u64;
                    self.perform(t, Op::Truncate { ino, size }, &[]);
                }
            }
            "truncate" => {
                let place = self.place(t, None, first.string());
                let ino = place.and_then(|at| Importer::named(&self.calls.tree(), &at));
                if let (Some(ino), Some(size)) = (ino, line.number(1)) {
                    let size = size as u64;
                    self.perform(t, Op::Truncate { ino, size }, &[]);
                }
            }
            "fallocate" => {
                let ino = self.ino(t, first.fd());
                let mode = match second.text() {
                    "0" => Some(Alloc::Allocate),
                    "FALLOC_FL_KEEP_SIZE" => Some(Alloc::KeepSize),
                    _ => None,
                };
                match (ino, mode, line.number(2), line.number(3)) {
                    (Some(ino), Some(mode), Some(offset), Some(len)) => {
                        let (offset, len) = (offset as u64, len as u64);
                        let op = Op::Fallocate {
                            ino,
                            mode,
                            offset,
                            len,
                        };
                        self.perform(t, op, &[]);
                    }
                    (Some(_), _, _, _) => self.unseen += 1,
                    _ => {}
                }
            }
            "fchmod" => {
                if let Some(ino) = self.ino(t, first.fd()) {
                    self.chmod(t, ino, line.octal(1));
                }
            }
            "chmod" | "fchmodat" => {
                let (dir, i) = line.dir_and_path("fchmodat");
                let place = self.place(t, dir, line.at(i).string());
                let ino = place.and_then(|at| Importer::named(&self.calls.tree(), &at));
                if let Some(ino) = ino {
                    self.chmod(t, ino, line.octal(i + 1));
                }
            }
            "fsync" | "fdatasync" => self.syncs(line),
            "sync" => drop(self.perform(t, Op::Sync, &[])),
            "syncfs" if self.ino(t, first.fd()).is_some() => drop(self.perform(t, Op::Syncfs, &[])),
            "copy_file_range" if self.copied(line) => {}
            "copy_file_range" | "sendfile" | "splice" => {
                let to = if line.call == "sendfile" { 0 } else { 2 };
                self.unseen += u64::from(self.ino(t, line.at(to).fd()).is_some());
            }
            "mmap" => {
                let shared = line.at(2).has("PROT_WRITE") && line.at(3).has("MAP_SHARED");
                let ours = self.ino(t, line.at(4).fd()).is_some();
                self.unseen += u64::from(shared && ours);
            }
            _ => {}
        }
    }

    fn born(&mut self, birth: &Birth) {
        let Birth { parent, child, .. } = *birth;
        if birth.shares_descriptors {
            let process = self.threads.get(&parent).copied().unwrap_or(parent);
            self.threads.insert(child, process);
            return;
        }
        let copy = self.process(parent).clone();
        for file in copy.files.values() {
            self.open[*file].copies += 1;
        }
        // The number may have been a thread's before.
        self.threads.remove(&child);
        self.processes.insert(child, copy);
    }

    /// Descriptors, positions, processes and working directories.
    fn descriptors(&mut self, line: &Line<'_>) {
        let t = line.thread;
        let fd = line.at(0).fd();
        match line.call {
            // Where it began on an earlier line, the child is known since then.
            _ if line.makes_a_process() && line.begun.is_none() => self.born(&Birth {
                parent: t,
                child: line.result as u32,
                shares_descriptors: line.shares_descriptors(),
            }),
            "chdir" => {
                if let Some(path) = line.at(0).string().map(<[u8]>::to_vec) {
                    let process = self.process(t);
                    process.dir = match path.starts_with(b"/") {
                        true => path,
                        false => [process.dir.as_slice(), b"/", &path].concat(),
                    };
                }
            }
            "fchdir" => {
                if let Some(path) = line.at(0).path().map(<[u8]>::to_vec) {
                    self.process(t).dir = path;
                }
            }
            "dup" | "dup2" | "dup3" => self.copies(t, fd, line.result),
            "fcntl" if line.at(1).has("F_DUPFD") => self.copies(t, fd, line.result),
            "lseek" => {
                let at = line.result as u64;
                if let Some(open) = self.opened(t, fd) {
                    open.at = at;
                }
            }
            "read" | "readv" => {
                let n = line.result as u64;
                if let Some(open) = self.opened(t, fd) {
                    open.at += n;
                }
            }
            "close" => self.closes(t, fd),
            _ => {}
        }
    }

    fn copies(&mut self, thread: u32, from: Option<i64>, to: i64) {
        if from == Some(to) {
            return;
        }
        self.closes(thread, Some(to));
        let process = self.process(thread);
        if let Some(file) = from.and_then(|fd| process.files.get(&fd).copied()) {
            process.files.insert(to, file);
            self.open[file].copies += 1;
        }
    }

    fn closes(&mut self, thread: u32, fd: Option<i64>) {
        let Some(file) = fd.and_then(|fd| self.process(thread).files.remove(&fd)) else {
            return;
        };
        let open = &mut self.open[file];
        open.copies -= 1;
        let (ino, last) = (open.ino, open.copies == 0);
        self.perform(thread, Op::Close { ino }, &[]);
        if last {
            self.perform(thread, Op::Release { ino }, &[]);
        }
    }

    fn opens(&mut self, line: &Line<'_>, dir: Option<&[u8]>, path: usize) {
        let t = line.thread;
        let flags = line.at(path + 1);
        let created = line.call == "creat";
        let truncates = created || flags.has("O_TRUNC");
        let Some(names) = line.at(path).string().and_then(|p| self.inside(t, dir, p)) else {
            return;
        };
        let (ino, op) = if names.is_empty() {
            (Some(ROOT), None)
        } else {
            let Some(at) = self.place(t, dir, line.at(path).string()) else {
                return;
            };
            match Importer::named(&self.calls.tree(), &at) {
                Some(ino) => (Some(ino), None),
                None => {
                    let (parent, name) = at;
                    let perm = line.octal(if created { 1 } else { path + 2 });
                    let op = Op::Create {
                        parent,
                        name,
                        perm,
                        flags: 0,
                    };
                    (None, Some(op))
                }
            }
        };
        let ino = match (ino, op) {
            (_, Some(op)) => self.perform(t, op, &[]),
            (Some(ino), None) => {
                let op = Op::Open {
                    ino,
                    flags: 0,
                    truncate: truncates,
                };
                self.perform(t, op, &[]);
                Some(ino)
            }
            (None, None) => None,
        };
        if let Some(ino) = ino {
            self.open.push(Open {
                ino,
                at: 0,
                append: flags.has("O_APPEND"),
                dsync: flags.has("O_DSYNC"),
                sync: flags.has("O_SYNC"),
                copies: 1,
            });
            let file = self.open.len() - 1;
            self.closes(t, Some(line.result));
            self.process(t).files.insert(line.result, file);
        }
    }

    fn writes(&mut self, line: &Line<'_>) {
        let t = line.thread;
        let mut bytes = line.bytes();
        bytes.truncate(line.result as usize);
        let whole = bytes.len() as i64 == line.result;
        let fd = line.at(0).fd();
        let Some(open) = self.opened(t, fd).map(|o| *o) else {
            if fd == Some(1) {
                let who = Who {
                    process: t,
                    thread: t,
                    ..Who::default()
                };
                let begin = self.calls.now();
                let _ = self
                    .calls
                    .output(who.into(), begin, AckSource::Stdout, &bytes);
            }
            return;
        };
        if !whole {
            self.unseen += 1;
            return;
        }
        let placed = line.call.starts_with('p');
        let offset = match (placed, open.append) {
            (true, _) => line.last_number().unwrap_or(0) as u64,
            (false, true) => self.calls.tree().getattr(open.ino).map_or(0, |a| a.size),
            (false, false) => open.at,
        };
        let op = Op::Write {
            ino: open.ino,
            offset,
            data: Span::default(),
            how: WriteHow {
                append: open.append,
                dsync: open.dsync || open.sync,
                sync: open.sync,
                ..WriteHow::default()
            },
        };
        self.perform(t, op, &bytes);
        if !placed && let Some(open) = self.opened(t, fd) {
            open.at = offset + bytes.len() as u64;
        }
    }

    /// A copy from file to file, both in the directory and at their positions: the bytes are known.
    fn copied(&mut self, line: &Line<'_>) -> bool {
        let t = line.thread;
        let (from, to) = (line.at(0).fd(), line.at(2).fd());
        if line.at(1).text() != "NULL" || line.at(3).text() != "NULL" {
            return false;
        }
        let (Some(source), Some(target)) = (
            self.opened(t, from).map(|o| *o),
            self.opened(t, to).map(|o| *o),
        ) else {
            return false;
        };
        let mut bytes = vec![0; line.result as usize];
        let read = self.calls.tree().read(source.ino, source.at, &mut bytes);
        if read != Ok(bytes.len()) {
            return false;
        }
        if bytes.is_empty() {
            return true;
        }
        let op = Op::Write {
            ino: target.ino,
            offset: target.at,
            data: Span::default(),
            how: WriteHow::default(),
        };
        self.perform(t, op, &bytes);
        for fd in [from, to] {
            if let Some(open) = self.opened(t, fd) {
                open.at += bytes.len() as u64;
            }
        }
        true
    }

    fn renames(
        &mut self,
        line: &Line<'_>,
        from: (Option<&[u8]>, Option<&[u8]>),
        to: (Option<&[u8]>, Option<&[u8]>),
    ) {
        let t = line.thread;
        let (from, to) = (self.place(t, from.0, from.1), self.place(t, to.0, to.1));
        let (Some(from), Some(to)) = (from, to) else {
            return;
        };
        let tree = self.calls.tree();
        let mode = match () {
            () if line.has("RENAME_EXCHANGE") => Rename::Exchange,
            () if line.has("RENAME_NOREPLACE") => Rename::NoReplace,
            () => Rename::Replace,
        };
        let op = Op::Rename {
            ino: Importer::named(&tree, &from),
            replaced: Importer::named(&tree, &to),
            parent: from.0,
            name: from.1,
            new_parent: to.0,
            new_name: to.1,
            mode,
        };
        self.perform(t, op, &[]);
    }

    fn links(
        &mut self,
        t: u32,
        from: (Option<&[u8]>, Option<&[u8]>),
        to: (Option<&[u8]>, Option<&[u8]>),
    ) {
        let (from, to) = (self.place(t, from.0, from.1), self.place(t, to.0, to.1));
        let ino = from.and_then(|at| Importer::named(&self.calls.tree(), &at));
        if let (Some(ino), Some((parent, name))) = (ino, to) {
            self.perform(t, Op::Link { ino, parent, name }, &[]);
        }
    }

    fn chmod(&mut self, t: u32, ino: Ino, perm: u16) {
        let change = Change {
            perm: Some(perm),
            ..Change::default()
        };
        self.perform(t, Op::SetAttr { ino, change }, &[]);
    }

    fn syncs(&mut self, line: &Line<'_>) {
        let Some(ino) = self.ino(line.thread, line.at(0).fd()) else {
            return;
        };
        let tree = self.calls.tree();
        let is_dir = tree
            .getattr(ino)
            .is_ok_and(|a| a.kind == steadfast_vfs::FileKind::Directory);
        let data_only = line.call == "fdatasync";
        let op = match (is_dir, data_only) {
            (true, data_only) => Op::FsyncDir { ino, data_only },
            (false, true) => Op::Fdatasync { ino },
            (false, false) => Op::Fsync { ino },
        };
        self.perform(line.thread, op, &[]);
    }
}
