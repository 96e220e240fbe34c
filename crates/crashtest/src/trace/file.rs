//! The trace file: frames, one after the other, each with its length and checksum.
//!
//! | bytes | |
//! |---|---|
//! | 0..8 | `SFTRACE\n` |
//! | 8..12 | [`VERSION`], little-endian |
//! | 12.. | frames |
//!
//! A frame is its kind (1 byte), the length of its content (4 bytes, little-endian), the XXH3 of kind, length and content
//! (8 bytes), and the content: raw bytes for data, else the value in postcard form. The header comes first, then data
//! before the call that refers to it, a mark between setup and run, and the end.
//!
//! A truncated file reads as its whole frames, and says where it was cut. A frame whose checksum is wrong is damage:
//! the file is refused. Enums of [`super::call`] grow at their end; anything else is a new version.

use super::call::{Call, Moment, Op, Outcome, Span, StackId, Wall, Who};
use super::replay;
use super::spool::Spool;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use steadfast_model::{Kept, Store, Tree};
use xxhash_rust::xxh3::Xxh3;

/// The version of the format.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"SFTRACE\n";
const PREFIX_BYTES: u64 = 12;
const FRAME_HEAD_BYTES: u64 = 13;
/// Maximum number of bytes of one frame's content: a write of the largest request and more.
const FRAME_BYTES_MAX: u64 = 64 << 20;

const HEADER: u8 = 1;
const DATA: u8 = 2;
const STACK: u8 = 3;
const CALL: u8 = 4;
const BEGIN: u8 = 5;
const END: u8 = 6;

/// The root directory before the first call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Root {
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
}

/// Subject, time and recorder of a recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// The command, word by word.
    pub command: Vec<Vec<u8>>,
    /// The command that made the initial tree.
    pub setup: Option<Vec<u8>>,
    /// Path at which the program saw the tree.
    pub mount: Vec<u8>,
    /// When the recording began.
    pub started: Wall,
    /// The recorder and its version.
    pub recorder: String,
    /// The kernel's release.
    pub kernel: String,
    /// The root directory.
    pub root: Root,
}

/// The mark between setup and run: all before it is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Begin {
    /// The moment.
    pub at: Moment,
}

/// Counts of what a recorder cannot see, or did not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BlindSpots {
    /// Whether `sync`, `syncfs` and `sync_file_range` were watched. If not, there may have been some.
    pub syncs_watched: bool,
    /// Writes by the kernel for stores through mmap: earlier stores to the same page are not seen.
    pub mapped_writes: u64,
    /// Bytes of those.
    pub mapped_bytes: u64,
    /// Calls of `io_uring_setup`, if they were watched.
    pub io_urings: u64,
    /// Calls that the recorder refused because it does not offer them.
    pub refused: u64,
    /// Bytes of the last line of standard output, which no newline ended.
    pub unfinished_line: u64,
}

/// End of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ended {
    /// It exited with this code.
    Exited(i32),
    /// This signal ended it.
    Signalled(i32),
    /// It was ended at its time limit.
    TimeLimit,
    /// The recording was interrupted.
    Interrupted,
}

/// The end of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct End {
    /// The moment.
    pub at: Moment,
    /// End of the program.
    pub how: Ended,
    /// Processes that were still there when the program had ended, and were killed.
    pub left_over: u32,
    /// The blind spots.
    pub blind: BlindSpots,
}

/// One frame of a stack.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// The program or library.
    pub object: Vec<u8>,
    /// Address in it, as its symbol table counts.
    pub address: u64,
    /// Function, if known.
    pub function: Option<String>,
    /// Source file and line, if known.
    pub line: Option<(String, u32)>,
}

/// Place in the program that a call came from: the innermost frame first.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default, Serialize, Deserialize)]
pub struct Stack {
    /// The frames.
    pub frames: Vec<Frame>,
}

/// Position at which a trace file stops before its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Bytes of the file that are whole.
    pub bytes: u64,
}

/// Error in writing or reading a trace.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TraceError {
    #[error("trace {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is no trace of 'steadfast crash record'", path.display())]
    NotATrace { path: PathBuf },
    #[error("trace {} has version {found}; this program reads version {VERSION}: use a newer one", path.display())]
    Newer { path: PathBuf, found: u32 },
    #[error("trace {}: the frame at byte {at} is damaged: {what}; record again", path.display())]
    Damaged {
        path: PathBuf,
        at: u64,
        what: String,
    },
    #[error("trace {}: call {number} does not replay: {what}", path.display())]
    Replay {
        path: PathBuf,
        number: u64,
        what: String,
    },
}

/// The file of a trace that was read, as a place of bytes.
#[derive(Debug)]
struct Source {
    file: File,
    /// Something could not be read.
    damaged: AtomicBool,
}

impl Store for Source {
    fn read(&self, offset: u64, buf: &mut [u8]) {
        if self.file.read_exact_at(buf, offset).is_err() {
            buf.fill(0);
            self.damaged.store(true, Ordering::Relaxed);
        }
    }
}

/// A recorded run, read. Bytes stay in the file.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    source: Arc<Source>,
    /// Description of the recording.
    pub header: Header,
    /// Calls that made the initial tree: all durable.
    pub setup: Vec<Call>,
    /// Calls of the program. Their numbers go on after those of the setup.
    pub calls: Vec<Call>,
    /// Stacks, by [`StackId`].
    pub stacks: Vec<Stack>,
    /// The end, if the recording came to it.
    pub end: Option<End>,
    /// Position at which the file stops, if it has no end.
    pub cut: Option<Cut>,
}

fn checksum(kind: u8, content: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&[kind]);
    hash.update(&(content.len() as u32).to_le_bytes());
    hash.update(content);
    hash.digest()
}

/// Writes a trace, frame by frame.
#[derive(Debug)]
pub struct TraceWriter {
    path: PathBuf,
    out: Arc<Spool>,
    at: u64,
    next: u64,
    stacks: u32,
    last: Moment,
}

impl TraceWriter {
    /// Makes the file anew.
    ///
    /// # Errors
    /// If it cannot be made or written.
    pub fn create(path: &Path, header: &Header) -> Result<TraceWriter, TraceError> {
        let wrong = |source| TraceError::Io {
            path: path.to_owned(),
            source,
        };
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let out = Spool::new(options.open(path).map_err(wrong)?);
        out.append(&MAGIC).map_err(wrong)?;
        out.append(&VERSION.to_le_bytes()).map_err(wrong)?;
        let mut writer = TraceWriter {
            path: path.to_owned(),
            out: Arc::new(out),
            at: PREFIX_BYTES,
            next: 0,
            stacks: 0,
            last: 0,
        };
        writer.value(HEADER, header)?;
        Ok(writer)
    }

    fn wrong(&self, source: io::Error) -> TraceError {
        TraceError::Io {
            path: self.path.clone(),
            source,
        }
    }

    /// Writes one frame; returns the position of its content.
    fn frame(&mut self, kind: u8, content: &[u8]) -> Result<u64, TraceError> {
        if content.len() as u64 > FRAME_BYTES_MAX {
            let what = format!("{} bytes in one call are too many", content.len());
            return Err(self.wrong(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        let mut head = [0; FRAME_HEAD_BYTES as usize];
        head[0] = kind;
        head[1..5].copy_from_slice(&(content.len() as u32).to_le_bytes());
        head[5..].copy_from_slice(&checksum(kind, content).to_le_bytes());
        let written = self.out.append(&head);
        let written = written.and_then(|()| self.out.append(content));
        written.map_err(|e| self.wrong(e))?;
        let at = self.at + FRAME_HEAD_BYTES;
        self.at = at + content.len() as u64;
        Ok(at)
    }

    fn value<T: Serialize>(&mut self, kind: u8, value: &T) -> Result<(), TraceError> {
        let content = postcard::to_stdvec(value)
            .map_err(|e| self.wrong(io::Error::new(io::ErrorKind::InvalidInput, e)))?;
        self.frame(kind, &content)?;
        Ok(())
    }

    /// Stores bytes, for a call to refer to.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn data(&mut self, bytes: &[u8]) -> Result<Span, TraceError> {
        let offset = self.frame(DATA, bytes)?;
        Ok(Span {
            offset,
            len: bytes.len() as u64,
        })
    }

    /// Stores a stack.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn stack(&mut self, stack: &Stack) -> Result<StackId, TraceError> {
        self.value(STACK, stack)?;
        self.stacks += 1;
        Ok(StackId(self.stacks - 1))
    }

    /// Appends a call and returns its number.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn call(
        &mut self,
        who: Who,
        (begin, end): (Moment, Moment),
        op: Op,
        outcome: Outcome,
        stack: Option<StackId>,
    ) -> Result<u64, TraceError> {
        let number = self.next;
        let end = end.max(self.last).max(begin);
        let call = Call {
            number,
            who,
            begin,
            end,
            op,
            outcome,
            stack,
        };
        self.value(CALL, &call)?;
        self.next += 1;
        self.last = end;
        Ok(number)
    }

    /// Marks the end of the setup.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin(&mut self, begin: Begin) -> Result<(), TraceError> {
        self.value(BEGIN, &begin)
    }

    /// Moment at which the last call took effect.
    #[must_use]
    pub fn last(&self) -> Moment {
        self.last
    }

    /// The error of a trace that has grown to its limit.
    pub(crate) fn full(&self, limit: u64) -> TraceError {
        let what =
            format!("it has reached its limit of {limit} bytes; --trace-limit sets another one");
        self.wrong(io::Error::new(io::ErrorKind::FileTooLarge, what))
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.at
    }

    /// Ends the trace and makes it durable.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(mut self, end: &End) -> Result<(), TraceError> {
        self.value(END, end)?;
        self.out.finish().map_err(|e| self.wrong(e))
    }

    /// The file, if it can be read while it is written.
    pub(crate) fn spool(&self) -> Option<Arc<Spool>> {
        self.out.is_readable().then(|| Arc::clone(&self.out))
    }

    /// Position at which [`TraceWriter::data`] would store bytes now.
    pub(crate) fn next_data(&self) -> u64 {
        self.at + FRAME_HEAD_BYTES
    }

    /// The error of a trace whose bytes cannot be read again.
    pub(crate) fn unreadable(&self) -> TraceError {
        let what = "bytes that were written to it cannot be read again";
        self.wrong(io::Error::other(what))
    }
}

/// Reads frames until the end, a cut or damage.
struct Frames<'a> {
    path: &'a Path,
    input: BufReader<&'a File>,
    at: u64,
    len: u64,
}

impl Frames<'_> {
    fn damaged(&self, what: impl Into<String>) -> TraceError {
        TraceError::Damaged {
            path: self.path.to_owned(),
            at: self.at,
            what: what.into(),
        }
    }

    /// The next frame: its kind, the position of its content, and the content. None if no whole one is left.
    fn next(&mut self) -> Result<Option<(u8, u64, Vec<u8>)>, TraceError> {
        let io = |source| TraceError::Io {
            path: self.path.to_owned(),
            source,
        };
        let left = self.len.saturating_sub(self.at);
        if left < FRAME_HEAD_BYTES {
            return Ok(None);
        }
        let mut head = [0; FRAME_HEAD_BYTES as usize];
        self.input.read_exact(&mut head).map_err(io)?;
        let [kind, a, b, c, d, sum @ ..] = head;
        let len = u64::from(u32::from_le_bytes([a, b, c, d]));
        if len > FRAME_BYTES_MAX {
            return Err(self.damaged("its length is impossible"));
        }
        if len > left - FRAME_HEAD_BYTES {
            return Ok(None);
        }
        let mut content = vec![0; len as usize];
        self.input.read_exact(&mut content).map_err(io)?;
        if checksum(kind, &content) != u64::from_le_bytes(sum) {
            return Err(self.damaged("its checksum is wrong"));
        }
        let at = self.at + FRAME_HEAD_BYTES;
        Ok(Some((kind, at, content)))
    }

    fn decode<T: DeserializeOwned>(&self, content: &[u8]) -> Result<T, TraceError> {
        match postcard::take_from_bytes(content) {
            Ok((value, [])) => Ok(value),
            Ok(_) => Err(self.damaged("it is too long")),
            Err(e) => Err(self.damaged(format!("it cannot be decoded ({e})"))),
        }
    }
}

impl Trace {
    /// Reads a trace. A file that was cut reads as far as it goes; see [`Trace::cut`].
    ///
    /// # Errors
    /// If the file cannot be read, is no trace, is damaged, or of a newer version.
    pub fn open(path: &Path) -> Result<Trace, TraceError> {
        let io = |source| TraceError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let not = || TraceError::NotATrace {
            path: path.to_owned(),
        };
        let mut input = BufReader::with_capacity(1 << 18, &file);
        let mut prefix = [0; PREFIX_BYTES as usize];
        match input.read_exact(&mut prefix) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(not()),
            other => other.map_err(io)?,
        }
        let (magic, version) = prefix.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(not());
        }
        let found = version.try_into().map_or(0, u32::from_le_bytes);
        if found != VERSION {
            return Err(TraceError::Newer {
                path: path.to_owned(),
                found,
            });
        }
        let frames = Frames {
            path,
            input,
            at: PREFIX_BYTES,
            len,
        };
        let read = read_frames(frames)?;
        let Some(header) = read.header else {
            return Err(not());
        };
        let mut calls = read.calls;
        let run = calls.split_off(read.setup.unwrap_or(0).min(calls.len()));
        Ok(Trace {
            path: path.to_owned(),
            header,
            setup: calls,
            calls: run,
            stacks: read.stacks,
            cut: read.end.is_none().then_some(Cut { bytes: read.whole }),
            end: read.end,
            source: Arc::new(Source {
                file,
                damaged: AtomicBool::new(false),
            }),
        })
    }

    /// Bytes that a call refers to.
    ///
    /// # Errors
    /// If the file cannot be read any more.
    pub fn bytes(&self, span: Span) -> Result<Vec<u8>, TraceError> {
        let mut bytes = vec![0; span.len as usize];
        let read = self.source.file.read_exact_at(&mut bytes, span.offset);
        read.map_err(|source| TraceError::Io {
            path: self.path.clone(),
            source,
        })?;
        Ok(bytes)
    }

    /// The same bytes where they are.
    pub(crate) fn kept(&self, span: Span) -> Kept {
        Kept {
            store: Arc::clone(&self.source) as _,
            offset: span.offset,
        }
    }

    /// Whether all bytes could be read that trees and steps of this run refer to.
    ///
    /// # Errors
    /// If some could not: nothing that was made of them is to be believed.
    pub fn check(&self) -> Result<(), TraceError> {
        match self.source.damaged.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(TraceError::Io {
                path: self.path.clone(),
                source: io::Error::other("it cannot be read any more"),
            }),
        }
    }

    /// The stack of a call.
    #[must_use]
    pub fn stack(&self, call: &Call) -> Option<&Stack> {
        self.stacks.get(call.stack?.0 as usize)
    }

    /// The tree before the first call of the program. Nothing in it is open.
    ///
    /// # Errors
    /// If a call of the setup does not replay.
    pub fn initial_tree(&self) -> Result<Tree, TraceError> {
        let Root { perm, uid, gid } = self.header.root;
        let mut tree = Tree::with_root(perm, uid, gid, self.header.started.into());
        for call in &self.setup {
            self.replay(&mut tree, call)?;
        }
        Ok(tree)
    }

    /// Applies a call to the tree of all calls before it.
    ///
    /// # Errors
    /// If the call has another outcome than when it was recorded.
    pub fn replay(&self, tree: &mut Tree, call: &Call) -> Result<(), TraceError> {
        if !call.outcome.is_done() {
            return Ok(());
        }
        let (bytes, kept) = match &call.op {
            Op::Write { data, .. } => (self.bytes(*data)?, Some(self.kept(*data))),
            _ => (Vec::new(), None),
        };
        let at = self.header.started.after(call.end);
        let wrong = |what: String| TraceError::Replay {
            path: self.path.clone(),
            number: call.number,
            what,
        };
        match replay::apply(tree, &call.who, at, &call.op, (&bytes, kept.as_ref())) {
            Ok(outcome) if outcome == call.outcome => Ok(()),
            Ok(outcome) => Err(wrong(format!("{outcome:?} instead of {:?}", call.outcome))),
            Err(e) => Err(wrong(format!("{} fails: {}", call.op.word(), e.text()))),
        }
    }
}

#[derive(Default)]
struct ReadFrames {
    header: Option<Header>,
    calls: Vec<Call>,
    stacks: Vec<Stack>,
    /// Calls before the mark.
    setup: Option<usize>,
    end: Option<End>,
    whole: u64,
}

fn read_frames(mut frames: Frames<'_>) -> Result<ReadFrames, TraceError> {
    let mut read = ReadFrames::default();
    let mut data: Vec<Span> = Vec::new();
    while let Some((kind, at, content)) = frames.next()? {
        let len = content.len() as u64;
        if (kind == HEADER) != read.header.is_none() || read.end.is_some() {
            return Err(frames.damaged("it is out of place"));
        }
        match kind {
            HEADER => read.header = Some(frames.decode(&content)?),
            DATA => data.push(Span { offset: at, len }),
            STACK => read.stacks.push(frames.decode(&content)?),
            BEGIN if read.setup.is_none() => {
                let _: Begin = frames.decode(&content)?;
                read.setup = Some(read.calls.len());
            }
            CALL => {
                let call: Call = frames.decode(&content)?;
                if let Some(what) = wrong_with(&call, &read, &data) {
                    return Err(frames.damaged(what));
                }
                read.calls.push(call);
            }
            END => read.end = Some(frames.decode(&content)?),
            _ => return Err(frames.damaged("it is of no known kind, or out of place")),
        }
        frames.at = at + len;
    }
    read.whole = frames.at;
    Ok(read)
}

/// A contradiction in a call, if there is one.
fn wrong_with(call: &Call, read: &ReadFrames, data: &[Span]) -> Option<&'static str> {
    if call.number != read.calls.len() as u64 {
        return Some("its number is out of order");
    }
    if read.calls.last().is_some_and(|c| c.end > call.end) || call.begin > call.end {
        return Some("its time is out of order");
    }
    if call
        .stack
        .is_some_and(|s| s.0 as usize >= read.stacks.len())
    {
        return Some("its stack is not there");
    }
    if let Op::Write { data: span, .. } = &call.op {
        let frame = data.partition_point(|d| d.offset <= span.offset);
        let inside = frame
            .checked_sub(1)
            .and_then(|i| data.get(i))
            .is_some_and(|d| {
                let start = span.offset - d.offset;
                d.len
                    .checked_sub(start)
                    .is_some_and(|left| span.len <= left)
            });
        if !inside && span.len > 0 {
            return Some("its bytes are not there");
        }
    }
    None
}
