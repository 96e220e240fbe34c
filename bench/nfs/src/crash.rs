//! Clients that outlive their server. Each works in a directory of its own and keeps account of the operations acknowledged
//! as stable: every metadata operation, every FILE_SYNC write, every UNSTABLE write once a COMMIT with the same verifier is
//! answered. When the connection is lost, a client connects again as soon as a server is there, compares its whole directory
//! with the account, sends unanswered calls again, and goes on; a COMMIT with another verifier makes it write again.
//!
//! The account is also a file (`RECORD/client-N`, a line per acknowledged operation), so that the last server, too, can be
//! killed, and the one after it be checked.

mod model;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nfs3_types::nfs3::{
    COMMIT3args, CREATE3args, LOOKUP3args, Nfs3Option, REMOVE3args, RENAME3args, SETATTR3args,
    createhow3, createverf3, nfs_fh3, nfsstat3, sattr3, stable_how,
};

use crate::data::{self, Random};
use crate::uncommitted::{Piece, Uncommitted};
use model::{Event, Tree};
use steadfast_nfs_client::calls::{Call, decode, entry, mode, write_args};
use steadfast_nfs_client::client::{Client, Export, check_stable, succeeded};
use steadfast_nfs_client::rpc::{Reply, Target};
use steadfast_nfs_client::{Failure, wrong};

/// Time that a client waits for a server to come back.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const FILES_MAX: usize = 40;
const FILE_BYTES_MAX: u64 = 256 << 10;
const STABLE_BYTES_MAX: u64 = 16 << 10;
const UNSTABLE_BYTES_MAX: u64 = 16 << 10;
const UNSTABLE_PIECES_MAX: u64 = 8;
const READ_BYTES: u32 = 64 << 10;
/// Operations per file that is read back at once.
const READ_BACK_EVERY: u64 = 16;

#[derive(Default)]
pub(crate) struct Statistics {
    operations: u64,
    reconnections: u64,
    resent_calls: u64,
    /// Writes that another instance of the server had answered, and lost or not.
    rewritten_pieces: u64,
    compared_directories: u64,
    compared_files: u64,
}

impl Statistics {
    fn add(&mut self, other: &Statistics) {
        self.operations += other.operations;
        self.reconnections += other.reconnections;
        self.resent_calls += other.resent_calls;
        self.rewritten_pieces += other.rewritten_pieces;
        self.compared_directories += other.compared_directories;
        self.compared_files += other.compared_files;
    }

    pub(crate) fn lines(&self) -> String {
        format!(
            "operations {}\nreconnections {}\nresent-calls {}\nrewritten-pieces {}\ncompared-directories {}\ncompared-files {}\n",
            self.operations,
            self.reconnections,
            self.resent_calls,
            self.rewritten_pieces,
            self.compared_directories,
            self.compared_files
        )
    }
}

fn dir_name(client: u32) -> String {
    format!("crash-{client}")
}

/// Load of the clients.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) clients: u32,
    pub(crate) seed: u64,
    pub(crate) duration: Duration,
    /// Some files are created with EXCLUSIVE, which must succeed when it is sent again.
    pub(crate) exclusive: bool,
}

/// The clients work; then each compares its directory once more. The directories must be empty, or not there yet.
pub(crate) fn run(export: &Export, load: Load, record: &Path) -> Result<Statistics, Failure> {
    let local = |e: std::io::Error| Failure::Wrong(format!("{}: {e}", record.display()));
    fs::create_dir_all(record).map_err(local)?;
    let stop = AtomicBool::new(false);
    let deadline = Instant::now() + load.duration;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..load.clients)
            .map(|number| {
                let stop = &stop;
                scope.spawn(move || {
                    let outcome = File::create(record.join(format!("client-{number}")))
                        .map_err(local)
                        .and_then(|log| Worker::new(export, number, load, BufWriter::new(log)))
                        .and_then(|worker| worker.work(deadline, stop));
                    if outcome.is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    outcome
                })
            })
            .collect();
        let mut all = Statistics::default();
        let mut first_error = None;
        for (number, thread) in threads.into_iter().enumerate() {
            let outcome = thread
                .join()
                .unwrap_or_else(|_| wrong("a client panicked"))
                .map_err(|e| e.of_client(number));
            match outcome {
                Ok(statistics) => all.add(&statistics),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(all), Err)
    })
}

/// Compares every client's directory with its record.
pub(crate) fn verify(export: &Export, record: &Path) -> Result<Statistics, Failure> {
    let mut statistics = Statistics::default();
    let mut client = Client::connect(&export.target)?;
    for number in 0.. {
        let path = record.join(format!("client-{number}"));
        let local = |e: &dyn std::fmt::Display| Failure::Wrong(format!("{}: {e}", path.display()));
        if number > 0 && !path.exists() {
            break;
        }
        let mut expected = Tree::default();
        for line in BufReader::new(File::open(&path).map_err(|e| local(&e))?).lines() {
            let event = Event::parse(&line.map_err(|e| local(&e))?).map_err(|e| local(&e))?;
            expected.apply(&event);
            statistics.operations += 1;
        }
        let dir = client.lookup(&export.root, &dir_name(number))?;
        let found = observe(&mut client, &dir)?;
        statistics.compared_directories += 1;
        statistics.compared_files += found.0.len() as u64;
        expected
            .explains(&[], &found)
            .map_err(|why| Failure::Wrong(why).of_client(number as usize))?;
    }
    Ok(statistics)
}

/// Everything in a directory.
fn observe(client: &mut Client, dir: &nfs_fh3) -> Result<Tree, Failure> {
    let mut tree = Tree::default();
    for name in client.names(dir)? {
        let file = client.lookup(dir, &name)?;
        let bytes = whole_file(client, &file).map_err(|e| match e {
            Failure::Wrong(why) => Failure::Wrong(format!("{name}: {why}")),
            other => other,
        })?;
        if tree.0.insert(name.clone(), bytes).is_some() {
            return wrong(format!("READDIR lists {name} twice"));
        }
    }
    Ok(tree)
}

fn whole_file(client: &mut Client, file: &nfs_fh3) -> Result<Vec<u8>, Failure> {
    let size = client.attributes(file)?.size;
    if size > 2 * FILE_BYTES_MAX {
        return wrong(format!("{size} bytes, more than were ever written"));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    while (bytes.len() as u64) < size {
        bytes.extend(client.read(file, bytes.len() as u64, READ_BYTES, size)?);
    }
    Ok(bytes)
}

struct Worker {
    client: Client,
    target: Target,
    dir: nfs_fh3,
    number: u64,
    random: Random,
    exclusive: bool,
    /// Acknowledged state.
    tree: Tree,
    /// Events that are not acknowledged.
    pending: Vec<Event>,
    handles: BTreeMap<String, nfs_fh3>,
    log: BufWriter<File>,
    /// Names and tags made so far: none is used twice.
    made: u64,
    statistics: Statistics,
}

impl Worker {
    fn new(
        export: &Export,
        number: u32,
        load: Load,
        log: BufWriter<File>,
    ) -> Result<Worker, Failure> {
        // The server may die already now.
        let (client, dir, names) = patiently(|| {
            let mut client = Client::connect(&export.target)?;
            let dir = client.directory(&export.root, &dir_name(number))?;
            let names = client.names(&dir)?;
            Ok((client, dir, names))
        })?;
        if let Some(name) = names.first() {
            return wrong(format!("{} is not empty, it has {name}", dir_name(number)));
        }
        Ok(Worker {
            target: client.target().clone(),
            client,
            dir,
            number: u64::from(number),
            random: Random::new(data::tag(&[load.seed, u64::from(number)])),
            exclusive: load.exclusive,
            tree: Tree::default(),
            pending: Vec::new(),
            handles: BTreeMap::new(),
            log,
            made: 0,
            statistics: Statistics::default(),
        })
    }

    fn work(mut self, deadline: Instant, stop: &AtomicBool) -> Result<Statistics, Failure> {
        while Instant::now() < deadline && !stop.load(Ordering::Relaxed) {
            self.step()?;
            self.statistics.operations += 1;
        }
        self.log
            .flush()
            .map_err(|e| Failure::Wrong(format!("the record: {e}")))?;
        self.compare_patiently()?;
        Ok(self.statistics)
    }

    // ------------------------------------------------------------ operations

    fn step(&mut self) -> Result<(), Failure> {
        let files = self.tree.0.len();
        let name = if files == 0 {
            None
        } else {
            let at = self.random.below(files as u64) as usize;
            self.tree.0.keys().nth(at).cloned()
        };
        let choice = self.random.below(100);
        let Some(name) = name else {
            return self.create().map(drop);
        };
        match choice {
            _ if files >= FILES_MAX => self.remove(name),
            0..30 => {
                let name = self.create()?;
                self.write_stable(name)
            }
            30..50 => {
                let name = self.create()?;
                self.write_unstable(name)
            }
            50..62 => self.write_stable(name),
            62..78 => self.write_unstable(name),
            78..84 => self.set_size(name),
            84..90 => self.rename(name),
            _ => self.remove(name),
        }
    }

    fn create(&mut self) -> Result<String, Failure> {
        self.made += 1;
        let name = format!("file-{:07}", self.made);
        let verifier = createverf3(data::tag(&[self.number, self.made]).to_be_bytes());
        let how = match self.random.below(2 + u64::from(self.exclusive)) {
            0 => createhow3::UNCHECKED(mode(0o644)),
            1 => createhow3::GUARDED(mode(0o644)),
            _ => createhow3::EXCLUSIVE(verifier),
        };
        let mode = match how {
            createhow3::UNCHECKED(_) => "UNCHECKED",
            createhow3::GUARDED(_) => "GUARDED",
            createhow3::EXCLUSIVE(_) => "EXCLUSIVE",
        };
        self.pending = vec![Event::Create { name: name.clone() }];
        let args = CREATE3args {
            where_: entry(&self.dir, &name),
            how,
        };
        let handle = match self.call(&args)? {
            (Ok(made), _) => match made.obj {
                Nfs3Option::Some(handle) => Some(handle),
                Nfs3Option::None => None,
            },
            // The server that did it died before it could say so.
            (Err(nfsstat3::NFS3ERR_EXIST), true) if mode == "GUARDED" => None,
            (Err(status), resent) => {
                let again = if resent { ", sent again" } else { "" };
                return failed(format!("CREATE {name} ({mode}{again})"), status);
            }
        };
        let handle = match handle {
            Some(handle) => handle,
            None => self.lookup(&name)?,
        };
        self.handles.insert(name.clone(), handle);
        self.acknowledged()?;
        Ok(name)
    }

    fn write_stable(&mut self, name: String) -> Result<(), Failure> {
        let (offset, tag) = (self.place(&name), self.tag());
        let len = (1 + self.random.below(STABLE_BYTES_MAX)) as u32;
        let mut bytes = vec![0; len as usize];
        data::fill(tag, offset, &mut bytes);
        let handle = self.handle(&name)?;
        self.pending = vec![Event::Write {
            name: name.clone(),
            offset,
            len,
            tag,
        }];
        let args = write_args(&handle, offset, stable_how::FILE_SYNC, &bytes);
        let (done, _) = self.call(&args)?;
        check_stable(&succeeded(done, &format!("WRITE {name}"))?, bytes.len())?;
        self.acknowledged()?;
        self.sometimes_read_back(&name)
    }

    /// Several pieces, all outstanding at once, and a COMMIT; again, until one instance of the server has had all of it.
    fn write_unstable(&mut self, name: String) -> Result<(), Failure> {
        let (mut offset, tag) = (self.place(&name), self.tag());
        let mut todo = Vec::new();
        self.pending.clear();
        for _ in 0..=self.random.below(UNSTABLE_PIECES_MAX) {
            let len = (1 + self.random.below(UNSTABLE_BYTES_MAX)) as u32;
            self.pending.push(Event::Write {
                name: name.clone(),
                offset,
                len,
                tag,
            });
            todo.push(Piece { offset, len });
            offset += u64::from(len);
        }
        let file = self.handle(&name)?;
        let mut writes = Uncommitted::default();
        let mut again = false;
        while !todo.is_empty() {
            if again {
                self.statistics.rewritten_pieces += todo.len() as u64;
            }
            for piece in std::mem::take(&mut todo) {
                let mut bytes = vec![0; piece.len as usize];
                data::fill(tag, piece.offset, &mut bytes);
                let args = write_args(&file, piece.offset, stable_how::UNSTABLE, &bytes);
                writes.sent(self.client.submit(&args)?, piece);
            }
            while self.client.outstanding() > 0 {
                let reply = self.wait()?;
                writes.answered(&reply)?;
            }
            todo = writes.unwritten();
            if !todo.is_empty() {
                continue;
            }
            let args = COMMIT3args {
                file: file.clone(),
                offset: 0,
                count: 0,
            };
            let (done, _) = self.call(&args)?;
            todo = writes.committed(succeeded(done, &format!("COMMIT {name}"))?.verf);
            again = true;
        }
        self.acknowledged()?;
        self.sometimes_read_back(&name)
    }

    fn set_size(&mut self, name: String) -> Result<(), Failure> {
        let now = self.tree.0.get(&name).map_or(0, Vec::len) as u64;
        let size = self.random.below(now + 8192).min(FILE_BYTES_MAX);
        let args = SETATTR3args {
            object: self.handle(&name)?,
            new_attributes: sattr3 {
                size: Nfs3Option::Some(size),
                ..sattr3::default()
            },
            guard: Nfs3Option::None,
        };
        self.pending = vec![Event::Size {
            name: name.clone(),
            size,
        }];
        let (done, _) = self.call(&args)?;
        succeeded(done, &format!("SETATTR {name}"))?;
        self.acknowledged()?;
        self.sometimes_read_back(&name)
    }

    /// Renames a file to a new name, or over another file.
    fn rename(&mut self, from: String) -> Result<(), Failure> {
        let at = self.random.below(2 * self.tree.0.len() as u64) as usize;
        let to = match self.tree.0.keys().nth(at) {
            Some(other) if *other != from => other.clone(),
            _ => {
                self.made += 1;
                format!("file-{:07}", self.made)
            }
        };
        self.pending = vec![Event::Rename {
            from: from.clone(),
            to: to.clone(),
        }];
        let args = RENAME3args {
            from: entry(&self.dir, &from),
            to: entry(&self.dir, &to),
        };
        match self.call(&args)? {
            (Ok(_), _) | (Err(nfsstat3::NFS3ERR_NOENT), true) => {}
            (Err(status), _) => return failed(format!("RENAME {from} to {to}"), status),
        }
        if let Some(handle) = self.handles.remove(&from) {
            self.handles.insert(to, handle);
        }
        self.acknowledged()
    }

    fn remove(&mut self, name: String) -> Result<(), Failure> {
        self.pending = vec![Event::Remove { name: name.clone() }];
        let args = REMOVE3args {
            object: entry(&self.dir, &name),
        };
        match self.call(&args)? {
            (Ok(_), _) | (Err(nfsstat3::NFS3ERR_NOENT), true) => {}
            (Err(status), _) => return failed(format!("REMOVE {name}"), status),
        }
        self.handles.remove(&name);
        self.acknowledged()
    }

    /// Offset of a write: inside the file, or a little after its end.
    fn place(&mut self, name: &str) -> u64 {
        let now = self.tree.0.get(name).map_or(0, Vec::len) as u64;
        let room = FILE_BYTES_MAX - UNSTABLE_PIECES_MAX * UNSTABLE_BYTES_MAX;
        self.random.below(now + 4096).min(room)
    }

    fn tag(&mut self) -> u64 {
        self.made += 1;
        data::tag(&[self.number, self.made])
    }

    fn handle(&self, name: &str) -> Result<nfs_fh3, Failure> {
        match self.handles.get(name) {
            Some(handle) => Ok(handle.clone()),
            None => wrong(format!("no handle of {name}")),
        }
    }

    fn lookup(&mut self, name: &str) -> Result<nfs_fh3, Failure> {
        let dir = self.dir.clone();
        let (found, _) = self.call(&LOOKUP3args {
            what: entry(&dir, name),
        })?;
        Ok(succeeded(found, &format!("LOOKUP {name}"))?.object)
    }

    /// The pending events are stable: they go into the account.
    fn acknowledged(&mut self) -> Result<(), Failure> {
        for event in std::mem::take(&mut self.pending) {
            self.tree.apply(&event);
            writeln!(self.log, "{event}")
                .map_err(|e| Failure::Wrong(format!("the record: {e}")))?;
        }
        Ok(())
    }

    fn sometimes_read_back(&mut self, name: &str) -> Result<(), Failure> {
        if self.random.below(READ_BACK_EVERY) > 0 {
            return Ok(());
        }
        let file = self.handle(name)?;
        let found = match whole_file(&mut self.client, &file) {
            // It is compared when the next call brings the connection back. Its answer would be taken for one to
            // the next calls.
            Err(Failure::Lost(_)) => {
                self.client.abandon();
                return Ok(());
            }
            other => other?,
        };
        if self.tree.0.get(name) != Some(&found) {
            return wrong(format!("{name} is read back differently"));
        }
        Ok(())
    }

    // ------------------------------------------------------------ calls that outlive the server

    /// One call; also says whether it was sent more than once.
    fn call<C: Call>(&mut self, args: &C) -> Result<(Result<C::Ok, nfsstat3>, bool), Failure> {
        let begin = Instant::now();
        let mut resent = false;
        loop {
            let xid = self.client.submit(args)?;
            let reply = loop {
                let reply = self.wait()?;
                if reply.xid == xid {
                    break reply;
                }
            };
            resent |= reply.resent;
            match decode::<C>(&reply.body)? {
                // Not now.
                Err(nfsstat3::NFS3ERR_JUKEBOX) if begin.elapsed() < PATIENCE => {
                    thread::sleep(RETRY_PAUSE);
                }
                result => return Ok((result, resent)),
            }
        }
    }

    fn wait(&mut self) -> Result<Reply, Failure> {
        loop {
            match self.client.receive() {
                Err(Failure::Lost(_)) => {
                    self.statistics.resent_calls += self.client.outstanding() as u64;
                    self.statistics.reconnections += 1;
                    // State of the new server, before anything is sent to it again.
                    self.compare_patiently()?;
                    self.client.recover(PATIENCE)?;
                }
                other => return other,
            }
        }
    }

    /// Compares the directory over a connection of its own, with whichever server is there.
    fn compare_patiently(&mut self) -> Result<(), Failure> {
        let found = patiently(|| observe(&mut Client::connect(&self.target)?, &self.dir))?;
        self.statistics.compared_directories += 1;
        self.statistics.compared_files += found.0.len() as u64;
        self.tree
            .explains(&self.pending, &found)
            .map_err(Failure::Wrong)
    }
}

/// Tries again while the server is away, or has no time.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(
                Failure::Lost(_)
                | Failure::Status {
                    status: nfsstat3::NFS3ERR_JUKEBOX,
                    ..
                },
            ) if Instant::now() < deadline => thread::sleep(RETRY_PAUSE),
            outcome => return outcome,
        }
    }
}

fn failed<T>(what: String, status: nfsstat3) -> Result<T, Failure> {
    Err(Failure::Status { what, status })
}

#[cfg(test)]
mod tests;
