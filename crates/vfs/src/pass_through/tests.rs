//! Every call of the trait reaches the file system below a layer, with its arguments and its answer.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{
    AllocateMode, Attr, Caller, Cookie, DirEntry, Errno, FileKind, FileSystem, Health, Ino,
    InodeFlags, NewNode, RenameMode, Replica, Result, ScrubCursor, ScrubPiece, Seek, SetAttr,
    Shutdown, StatFs, Stream, StreamMerge, StreamStats, Streams, Time, Wanted, XattrMode,
};

/// Names of the trait's calls, from its source.
fn calls_of_the_trait() -> BTreeSet<String> {
    let source = include_str!("../file_system.rs");
    let body = source.split("pub trait FileSystem").nth(1).unwrap();
    let declared = body.lines().filter_map(|line| line.strip_prefix("    fn "));
    let names = declared.map(|line| line.split(['(', '<']).next().unwrap().to_owned());
    names.collect()
}

/// A file system that answers everything, and keeps each call as a text.
#[derive(Default)]
struct Recorder {
    heard: Mutex<Vec<String>>,
}

impl Recorder {
    fn hear(&self, call: String) {
        self.heard.lock().unwrap().push(call);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

/// The name of a recorded call.
fn name(call: &str) -> String {
    call.split('(').next().unwrap().to_owned()
}

fn attr(ino: Ino) -> Attr {
    let [atime, mtime, ctime, btime] = [1, 2, 3, 4].map(|secs| Time { secs, nanos: 5 });
    let (generation, kind, perm) = (6, FileKind::Regular, 0o640);
    let (nlink, uid, gid, rdev, size, blocks) = (7, 8, 9, 10, 11, 12);
    Attr {
        ino,
        generation,
        kind,
        perm,
        nlink,
        uid,
        gid,
        rdev,
        size,
        blocks,
        atime,
        mtime,
        ctime,
        btime,
    }
}

/// Streams that say whose they are.
struct RecordersStreams;

impl Streams for RecordersStreams {
    fn sync(&self, _: Stream) -> Result<()> {
        Ok(())
    }
    fn of_inode(&self, _: Ino) -> Option<Stream> {
        Some(Stream(71))
    }
    fn set_commit_interval(&self, _: Stream, _: Option<Duration>) {}
    fn forget(&self, _: Stream) -> bool {
        false
    }
    fn stats(&self) -> Vec<StreamStats> {
        Vec::new()
    }
    fn merges(&self) -> Vec<StreamMerge> {
        Vec::new()
    }
}

/// Calls that keep their arguments, and answer.
macro_rules! recorded {
    ($($call:ident($($arg:ident: $kind:ty),*) -> $out:ty { $answer:expr })*) => {
        $(fn $call(&self, $($arg: $kind),*) -> $out {
            self.hear(format!(concat!(stringify!($call), "{:?}"), ($($arg,)*)));
            $answer
        })*
    };
}

#[deny(clippy::missing_trait_methods)]
impl FileSystem for Recorder {
    recorded! {
        root() -> Ino { 1 }
        lookup(caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> { Ok(attr(2)) }
        getattr(caller: &Caller, ino: Ino) -> Result<Attr> { Ok(attr(ino)) }
        setattr(caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr> { Ok(attr(3)) }
        access(caller: &Caller, ino: Ino, mask: u8) -> Result<()> { Err(Errno::Access.into()) }
        mknod(caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Attr> { Ok(attr(4)) }
        mkdir(caller: &Caller, parent: Ino, name: &[u8], perm: u16) -> Result<Attr> { Ok(attr(5)) }
        symlink(caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> { Ok(attr(6)) }
        readlink(caller: &Caller, ino: Ino) -> Result<Vec<u8>> { Ok(b"target".to_vec()) }
        link(caller: &Caller, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> { Ok(attr(7)) }
        unlink(caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> { Err(Errno::Perm.into()) }
        rmdir(caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> { Err(Errno::NotEmpty.into()) }
        rename(caller: &Caller, from: (Ino, &[u8]), to: (Ino, &[u8]), mode: RenameMode) -> Result<()> {
            Err(Errno::Exist.into())
        }
        open(caller: &Caller, ino: Ino) -> Result<()> { Ok(()) }
        open_generation(caller: &Caller, ino: Ino, generation: u64) -> Result<()> { Ok(()) }
        release(ino: Ino) -> () { () }
        write(caller: &Caller, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> { Ok(13) }
        append(caller: &Caller, ino: Ino, data: &[u8]) -> Result<(u64, usize)> { Ok((14, 15)) }
        fsync(caller: &Caller, ino: Ino, data_only: bool) -> Result<()> { Err(Errno::Io.into()) }
        fsync_together(wanted: &[Wanted]) -> Result<()> { Err(Errno::Io.into()) }
        fallocate(caller: &Caller, ino: Ino, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
            Err(Errno::FBig.into())
        }
        seek(caller: &Caller, ino: Ino, offset: u64, whence: Seek) -> Result<u64> { Ok(16) }
        getxattr(caller: &Caller, ino: Ino, name: &[u8]) -> Result<Vec<u8>> { Ok(b"value".to_vec()) }
        setxattr(caller: &Caller, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
            Err(Errno::NoSpc.into())
        }
        listxattr(caller: &Caller, ino: Ino) -> Result<Vec<Vec<u8>>> { Ok(vec![b"user.a".to_vec()]) }
        removexattr(caller: &Caller, ino: Ino, name: &[u8]) -> Result<()> { Err(Errno::NoData.into()) }
        flags(caller: &Caller, ino: Ino) -> Result<InodeFlags> { Ok(InodeFlags::IMMUTABLE) }
        set_flags(caller: &Caller, ino: Ino, flags: InodeFlags) -> Result<()> { Ok(()) }
        statfs() -> Result<StatFs> { Ok(StatFs { blocks: 17, ..StatFs::default() }) }
        sync() -> Result<()> { Err(Errno::Io.into()) }
        sync_store() -> Result<()> { Ok(()) }
        accessed(caller: &Caller, ino: Ino) -> Result<()> { Err(Errno::Stale.into()) }
        trim(bytes: Range<u64>, min_bytes: u64) -> Result<u64> { Ok(18) }
        freeze(limit: Duration) -> Result<()> { Ok(()) }
        thaw() -> bool { true }
        health() -> Health { Health { read_only: true, failed: None } }
        scrub(from: ScrubCursor, blocks: u64, data: bool) -> Result<ScrubPiece> { Err(Errno::Inval.into()) }
        counters() -> Vec<(&'static str, u64)> { vec![("recorded", 19)] }
        shutdown(how: Shutdown) -> Result<()> { Ok(()) }
    }

    fn read(&self, caller: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.hear(format!("read({caller:?}, {ino}, {offset}, {})", buf.len()));
        buf.fill(b'r');
        Ok(buf.len() - 1)
    }

    fn in_memory(&self, look: &mut dyn FnMut()) -> bool {
        self.hear("in_memory()".to_owned());
        look();
        false
    }

    fn readdir(
        &self,
        caller: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.hear(format!("readdir({caller:?}, {dir}, {cookie})"));
        let (ino, kind, next, name) = (20, FileKind::Fifo, 21, &b"entry"[..]);
        sink(DirEntry {
            ino,
            kind,
            next,
            name,
        });
        Ok(())
    }

    fn streams(&self) -> Option<&dyn Streams> {
        self.hear("streams()".to_owned());
        Some(&RecordersStreams)
    }
}

/// Makes every call once, no two arguments of one call alike; returns the answers.
fn ask_everything(fs: &dyn FileSystem) -> Vec<String> {
    let me = Caller {
        uid: 22,
        stream: Stream(23),
        ..Caller::root()
    };
    let mut buf = [0; 4];
    let (mut looked, mut listed) = (0, Vec::new());
    let node = NewNode {
        kind: FileKind::Socket,
        perm: 0o600,
        rdev: 24,
    };
    let set = SetAttr {
        gid: Some(25),
        ..SetAttr::default()
    };
    let wanted = [Wanted {
        stream: Stream(26),
        ino: 27,
        data_only: true,
    }];
    let mut answers = vec![
        format!("{:?}", fs.root()),
        format!("{:?}", fs.lookup(&me, 28, b"lookup")),
        format!("{:?}", fs.getattr(&me, 29)),
        format!("{:?}", fs.setattr(&me, 30, &set)),
        format!("{:?}", fs.access(&me, 31, 4)),
        format!("{:?}", fs.mknod(&me, 32, b"mknod", &node)),
        format!("{:?}", fs.mkdir(&me, 33, b"mkdir", 0o711)),
        format!("{:?}", fs.symlink(&me, 34, b"symlink", b"to")),
        format!("{:?}", fs.readlink(&me, 35)),
        format!("{:?}", fs.link(&me, 36, 37, b"link")),
        format!("{:?}", fs.unlink(&me, 38, b"unlink")),
        format!("{:?}", fs.rmdir(&me, 39, b"rmdir")),
        format!(
            "{:?}",
            fs.rename(&me, (40, b"from"), (41, b"to"), RenameMode::Exchange)
        ),
        format!("{:?}", fs.open(&me, 42)),
        // The generation that each inode has.
        format!("{:?}", fs.open_generation(&me, 43, 6)),
        format!("{:?}", fs.read(&me, 45, 46, &mut buf)),
        format!("{:?}", fs.in_memory(&mut || looked += 1)),
        format!("{:?}", fs.write(&me, 47, 48, b"write")),
        format!("{:?}", fs.append(&me, 49, b"append")),
        format!("{:?}", fs.fsync(&me, 50, true)),
        format!("{:?}", fs.fsync_together(&wanted)),
        format!(
            "{:?}",
            fs.fallocate(&me, 51, AllocateMode::PunchHole, 52, 53)
        ),
        format!("{:?}", fs.seek(&me, 54, 55, Seek::Hole)),
        format!("{:?}", {
            fs.readdir(&me, 56, 57, &mut |entry| {
                listed.push(format!("{entry:?}"));
                true
            })
        }),
        format!("{:?}", fs.getxattr(&me, 58, b"user.get")),
        format!(
            "{:?}",
            fs.setxattr(&me, 59, b"user.set", b"value", XattrMode::Create)
        ),
        format!("{:?}", fs.listxattr(&me, 60)),
        format!("{:?}", fs.removexattr(&me, 61, b"user.remove")),
        format!("{:?}", fs.flags(&me, 62)),
        format!("{:?}", fs.set_flags(&me, 63, InodeFlags::APPEND)),
        format!("{:?}", fs.statfs()),
        format!("{:?}", fs.sync()),
        format!("{:?}", fs.sync_store()),
        format!("{:?}", fs.streams().map(|streams| streams.of_inode(64))),
        format!("{:?}", fs.accessed(&me, 65)),
        format!("{:?}", fs.trim(66..67, 68)),
        format!("{:?}", fs.freeze(Duration::from_secs(69))),
        format!("{:?}", fs.thaw()),
        format!("{:?}", fs.health()),
        format!("{:?}", fs.scrub(ScrubCursor::default(), 70, true)),
        format!("{:?}", fs.counters()),
        format!("{:?}", fs.shutdown(Shutdown::Log)),
    ];
    fs.release(42);
    answers.push(format!("{buf:?} {looked} {listed:?}"));
    answers
}

/// The calls and answers of the recorder itself.
fn direct() -> (Vec<String>, Vec<String>) {
    let recorder = Recorder::default();
    let answers = ask_everything(&recorder);
    (recorder.take(), answers)
}

#[test]
fn the_recorder_is_asked_every_call_of_the_trait() {
    let heard: BTreeSet<String> = direct().0.iter().map(|call| name(call)).collect();
    let wanted = calls_of_the_trait();
    assert!(wanted.len() > 40, "{wanted:?}");
    assert_eq!(heard, wanted);
}

#[test]
fn a_layer_of_nothing_passes_on_every_call_with_its_arguments_and_its_answer() {
    struct Nothing(Recorder);

    // A call that the macro leaves out is an error of the lint here, and a missing one below.
    #[deny(clippy::missing_trait_methods)]
    impl FileSystem for Nothing {
        crate::pass_through! { 0: all }
    }

    let layer = Nothing(Recorder::default());
    let answers = ask_everything(&layer);
    assert_eq!((layer.0.take(), answers), direct());
}

#[test]
fn a_layer_gets_the_calls_that_it_lists_and_those_that_are_made_of_them() {
    struct Own {
        below: Recorder,
        own: Recorder,
    }

    impl FileSystem for Own {
        crate::pass_through! { below: all but unlink, open, fsync, sync, }

        fn unlink(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<()> {
            self.own.unlink(caller, parent, name)
        }
        fn open(&self, caller: &Caller, ino: Ino) -> Result<()> {
            self.own.open(caller, ino)
        }
        fn fsync(&self, caller: &Caller, ino: Ino, data_only: bool) -> Result<()> {
            self.own.fsync(caller, ino, data_only)
        }
        fn sync(&self) -> Result<()> {
            self.own.sync()
        }
    }

    let (below, own) = (Recorder::default(), Recorder::default());
    let layer = Own { below, own };
    ask_everything(&layer);
    let own: Vec<String> = layer.own.take().iter().map(|call| name(call)).collect();
    let wanted = ["unlink", "open", "open", "fsync", "fsync", "sync", "sync"];
    assert_eq!(own, wanted);
    let below: BTreeSet<String> = layer.below.take().iter().map(|call| name(call)).collect();
    let mut passed = calls_of_the_trait();
    for own in ["unlink", "open", "fsync", "sync"] {
        passed.remove(own);
    }
    for made_of_own in ["open_generation", "fsync_together", "sync_store"] {
        passed.remove(made_of_own);
    }
    assert_eq!(below, passed);
}

#[test]
fn a_replica_passes_on_all_that_it_does_not_answer_itself() {
    let state = Arc::new(Recorder::default());
    let replica = Replica::new(state.clone());
    ask_everything(&replica);
    let heard: BTreeSet<String> = state.take().iter().map(|call| name(call)).collect();
    let mut wanted = calls_of_the_trait();
    // It holds open inodes itself, has no streams, and syncs one inode after the other.
    for own in [
        "open",
        "open_generation",
        "release",
        "streams",
        "fsync_together",
    ] {
        wanted.remove(own);
    }
    assert_eq!(heard, wanted);
}
