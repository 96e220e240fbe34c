//! Threads and processes, as `/proc` and process descriptors show them.
//!
//! A number of a thread or process is used again after its end. So a thread is remembered together with a [`Handle`], which
//! dies with it, and a process by an [`Id`], which no other process gets: the number of its inode in the kernel's file system
//! of processes (Linux 6.9), and before that the time of its start.
//!
//! Invariants: no content of a file makes this code panic, and every read is bounded. Each look is counted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FsWord, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// `PIDFD_THREAD`: a descriptor of a thread, not of its process.
const PIDFD_THREAD: u32 = 0o200;
/// `PROC_SUPER_MAGIC`.
const PROC_MAGIC: FsWord = 0x9fa0;
/// `PID_FS_MAGIC`.
const PIDFS_MAGIC: FsWord = 0x5049_4446;
/// `PF_KTHREAD`: a thread of the kernel.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Bytes of `stat`, `status` and `cgroup` that are read.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Bytes of an environment that are looked through.
const ENVIRONMENT_BYTES_MAX: usize = 4 << 20;

/// Identity of a process, among all that have its number before and after it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Id(u64);

/// A descriptor that shows whether a thread or process still lives.
#[derive(Debug)]
pub(crate) enum Handle {
    /// Becomes readable at the end.
    Pidfd(OwnedFd),
    /// A file of `/proc` that cannot be read after the end.
    File(OwnedFd),
}

impl Handle {
    /// Whether the thread has not ended. If so, the number is still its own.
    pub(crate) fn alive(&self) -> bool {
        match self {
            Handle::Pidfd(fd) => {
                let mut fds = [PollFd::new(fd, PollFlags::IN)];
                let now = Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                matches!(poll(&mut fds, Some(&now)), Ok(0))
            }
            Handle::File(fd) => rustix::io::pread(fd, &mut [0u8; 1], 0).is_ok_and(|n| n > 0),
        }
    }
}

/// A process, as long as its descriptor is held.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) number: u32,
    pub(crate) id: Id,
    /// Tells whether it has ended; `None` where the kernel has no descriptors with an identity.
    pub(crate) handle: Option<Arc<Handle>>,
}

impl Held {
    /// Whether the process has not ended.
    pub(crate) fn alive(&self, proc: &Proc) -> bool {
        match &self.handle {
            Some(handle) => handle.alive(),
            None => proc.is_alive(self.number, self.id),
        }
    }
}

/// `/proc/PID/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stat {
    /// The parent's number; 0 if it has none in this namespace.
    pub(crate) parent: u32,
    /// Start time, in clock ticks since the boot.
    pub(crate) start: u64,
    /// A thread of the kernel.
    pub(crate) kernel: bool,
}

/// `/proc/TID/status`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Status {
    /// The process of the thread.
    pub(crate) process: u32,
    /// The process's parent; 0 if it has none in this namespace.
    pub(crate) parent: u32,
    /// A thread of the kernel; `None` if this kernel does not say so here (before Linux 6.8).
    pub(crate) kernel: Option<bool>,
    /// Real, effective and saved user.
    pub(crate) users: [u32; 3],
    /// It is in the process namespace of the server, not in one below.
    pub(crate) same_namespace: bool,
}

impl Status {
    /// The user, if the process runs with its own user's rights alone.
    pub(crate) fn plain_user(&self) -> Option<u32> {
        let [real, effective, saved] = self.users;
        (real == effective && real == saved).then_some(real)
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Proc {
    dir: OwnedFd,
    /// Process descriptors are inodes of their own.
    unique: bool,
    /// There are descriptors of threads.
    threads: bool,
    looks: AtomicU64,
}

impl Proc {
    /// Opens `/proc` if it shows this process's namespace, and all of it.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub(crate) fn open() -> Result<Proc, String> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open("/proc", flags, Mode::empty())
            .map_err(|e| format!("/proc cannot be opened: {e}"))?;
        let kind = rustix::fs::fstatfs(&dir).map_err(|e| format!("/proc: {e}"))?;
        if kind.f_type != PROC_MAGIC {
            return Err("/proc is not the kernel's list of processes".to_owned());
        }
        let own = std::process::id();
        let told = rustix::fs::readlinkat(&dir, "self", Vec::new()).ok();
        if told.and_then(|name| name.to_str().ok()?.parse().ok()) != Some(own) {
            return Err("/proc is that of another process namespace than the server's".to_owned());
        }
        let mut proc = Proc {
            dir,
            unique: false,
            threads: false,
            looks: AtomicU64::new(0),
        };
        if proc.stat(1).is_none() {
            return Err(
                "/proc hides processes from the server ('hidepid'): mount as root, or with 'gid='"
                    .to_owned(),
            );
        }
        if let Some(fd) = descriptor(own, PIDFD_THREAD) {
            proc.threads = true;
            let kind = rustix::fs::fstatfs(&fd);
            proc.unique = kind.is_ok_and(|kind| kind.f_type == PIDFS_MAGIC);
        }
        Ok(proc)
    }

    /// Number of looks at processes.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    /// A handle of the thread; `None` if there is none of this number.
    pub(crate) fn thread(&self, tid: u32) -> Option<Handle> {
        self.look();
        if self.threads {
            return descriptor(tid, PIDFD_THREAD).map(Handle::Pidfd);
        }
        let path = format!("{tid}/comm");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.dir, path, flags, Mode::empty());
        fd.ok().map(Handle::File)
    }

    /// The identity of the process that has this number.
    pub(crate) fn process(&self, pid: u32) -> Option<Id> {
        self.look();
        if !self.unique {
            return self.stat(pid).map(|stat| Id(stat.start));
        }
        inode(&descriptor(pid, 0)?)
    }

    /// The process that has this number, with a descriptor of it if there are such.
    pub(crate) fn hold(&self, pid: u32) -> Option<Held> {
        if self.unique {
            return self.first_thread(pid);
        }
        self.process(pid).map(|id| Held {
            number: pid,
            id,
            handle: None,
        })
    }

    /// The process whose first thread this is. `None` also if processes have no descriptors with an identity.
    pub(crate) fn first_thread(&self, tid: u32) -> Option<Held> {
        if !self.unique {
            return None;
        }
        self.look();
        // Of another thread than the first, the kernel opens none.
        let fd = descriptor(tid, 0)?;
        Some(Held {
            number: tid,
            id: inode(&fd)?,
            handle: Some(Arc::new(Handle::Pidfd(fd))),
        })
    }

    /// Whether the process has not ended.
    pub(crate) fn is_alive(&self, pid: u32, id: Id) -> bool {
        self.look();
        if !self.unique {
            return self.process(pid) == Some(id);
        }
        // A process whose parent has not heard of its end has a number, but does nothing any more.
        let alive = |fd| inode(&fd) == Some(id) && Handle::Pidfd(fd).alive();
        descriptor(pid, 0).is_some_and(alive)
    }

    pub(crate) fn stat(&self, pid: u32) -> Option<Stat> {
        parse_stat(&self.read(pid, "stat", TEXT_BYTES_MAX)?)
    }

    pub(crate) fn status(&self, tid: u32) -> Option<Status> {
        parse_status(&self.read(tid, "status", TEXT_BYTES_MAX)?)
    }

    /// The user whose files in `/proc` these are: root's if the process must not be looked into, as a set-user-id program.
    pub(crate) fn owner(&self, pid: u32) -> Option<u32> {
        self.look();
        let stat = rustix::fs::statat(&self.dir, pid.to_string(), AtFlags::empty());
        stat.ok().map(|stat| stat.st_uid)
    }

    /// The path of its cgroup (version 2).
    pub(crate) fn cgroup(&self, pid: u32) -> Option<String> {
        parse_cgroup(&self.read(pid, "cgroup", TEXT_BYTES_MAX)?)
    }

    /// The value of a variable in the environment that its program was started with.
    pub(crate) fn variable(&self, pid: u32, name: &str) -> Option<Vec<u8>> {
        let environment = self.read(pid, "environ", ENVIRONMENT_BYTES_MAX)?;
        parse_variable(&environment, name)
    }

    fn read(&self, pid: u32, file: &str, bytes_max: usize) -> Option<Vec<u8>> {
        self.look();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let path = format!("{pid}/{file}");
        let fd = rustix::fs::openat(&self.dir, path, flags, Mode::empty()).ok()?;
        read_to(fd, bytes_max).ok()
    }
}

/// Bytes that most files of `/proc` fit into.
const USUAL_BYTES: usize = 4096;

fn inode(fd: &OwnedFd) -> Option<Id> {
    rustix::fs::fstat(fd).ok().map(|stat| Id(stat.st_ino))
}

fn descriptor(pid: u32, flags: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::from_bits_retain(flags)).ok()
}

/// Reads to the end, at most `bytes_max` bytes. A read of these files returns as much as fits, so a short read was the last one.
fn read_to(fd: impl AsFd, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; USUAL_BYTES.min(bytes_max)];
    let mut len = 0;
    loop {
        len += rustix::io::retry_on_intr(|| rustix::io::read(&fd, &mut bytes[len..]))?;
        if len < bytes.len() || len == bytes_max {
            bytes.truncate(len);
            return Ok(bytes);
        }
        bytes.resize((2 * len).min(bytes_max), 0);
    }
}

fn parse_stat(text: &[u8]) -> Option<Stat> {
    // The name of the program is in parentheses and may hold anything, parentheses too.
    let end = text.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(text.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    // The state comes first, as the third field of all.
    let parent = fields.nth(1)?.parse().ok()?;
    let flags: u64 = fields.nth(4)?.parse().ok()?;
    let start = fields.nth(12)?.parse().ok()?;
    Some(Stat {
        parent,
        start,
        kernel: flags & KERNEL_THREAD != 0,
    })
}

fn parse_status(text: &[u8]) -> Option<Status> {
    let field = |name: &str| {
        let mut lines = text.split(|b| *b == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
        std::str::from_utf8(value).ok()
    };
    let mut users = field("Uid:")?.split_ascii_whitespace();
    let mut user = || users.next()?.parse().ok();
    Some(Status {
        process: field("Tgid:")?.trim().parse().ok()?,
        parent: field("PPid:")?.trim().parse().ok()?,
        kernel: field("Kthread:").map(|value| value.trim() == "1"),
        users: [user()?, user()?, user()?],
        // One number for each namespace that it is in, from that of `/proc` on.
        same_namespace: field("NSpid:").is_none_or(|n| n.split_ascii_whitespace().count() == 1),
    })
}

fn parse_cgroup(text: &[u8]) -> Option<String> {
    let mut lines = text.split(|b| *b == b'\n');
    let path = lines.find_map(|line| line.strip_prefix(b"0::"))?;
    String::from_utf8(path.to_vec()).ok()
}

fn parse_variable(environment: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut variables = environment.split(|b| *b == 0);
    let value = |line: &[u8]| {
        let rest = line.strip_prefix(name.as_bytes())?;
        rest.strip_prefix(b"=").map(<[u8]>::to_vec)
    };
    variables.find_map(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_program_may_have_any_name() {
        let line = b"7 (a) R 1 (x)) S 5 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 4711 9 9\n";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.parent, stat.start, stat.kernel), (5, 4711, false));
        let kernel = b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0\n";
        assert!(parse_stat(kernel).unwrap().kernel);
        for wrong in [&b""[..], b")", b"1 (x) S", b"1 (x) S y 1", b"1 (x"] {
            assert_eq!(parse_stat(wrong), None);
        }
    }

    #[test]
    fn a_status_tells_process_users_and_namespace() {
        let text = b"Name:\tx\nTgid:\t12\nPid:\t13\nPPid:\t7\nUid:\t1000\t0\t0\t0\nNSpid:\t13\t4\n";
        let status = parse_status(text).unwrap();
        assert_eq!((status.process, status.parent), (12, 7));
        assert_eq!((status.users, status.kernel), ([1000, 0, 0], None));
        assert!(!status.same_namespace);
        assert_eq!(status.plain_user(), None);
        let no_number = b"Tgid:\tx\nPPid:\t1\nUid:\t1\t1\t1\n";
        for wrong in [&b""[..], b"Tgid:\t1\nPPid:\t1\n", no_number, b"\xff"] {
            assert_eq!(parse_status(wrong), None);
        }
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"XA=1\0AB=2\0A=x=y\0A=3\0";
        assert_eq!(parse_variable(environment, "A").unwrap(), b"x=y");
        assert_eq!(parse_variable(environment, "B"), None);
        assert_eq!(parse_cgroup(b"3:cpu:/x\n0::/a/b\n").unwrap(), "/a/b");
        assert_eq!(parse_cgroup(b"3:cpu:/x\n"), None);
    }

    #[test]
    fn a_file_is_read_to_its_end_however_long_it_is() {
        let mut file = tempfile::tempfile().unwrap();
        for len in [
            0,
            1,
            USUAL_BYTES - 1,
            USUAL_BYTES,
            USUAL_BYTES + 1,
            5 * USUAL_BYTES,
        ] {
            let content: Vec<u8> = (0..len).map(|at| at as u8).collect();
            io::Write::write_all(&mut file, &content).unwrap();
            io::Seek::rewind(&mut file).unwrap();
            assert_eq!(read_to(&file, 16 * USUAL_BYTES).unwrap(), content);
            io::Seek::rewind(&mut file).unwrap();
            let most = 3 * USUAL_BYTES;
            assert_eq!(read_to(&file, most).unwrap(), content[..len.min(most)]);
            io::Seek::rewind(&mut file).unwrap();
            file.set_len(0).unwrap();
        }
    }

    #[test]
    fn a_handle_dies_with_its_thread_and_an_identity_with_its_process() {
        let Ok(mut proc) = Proc::open() else { return };
        check(&proc);
        // As before Linux 6.9, which has no descriptors of threads.
        (proc.threads, proc.unique) = (false, false);
        check(&proc);
    }

    fn check(proc: &Proc) {
        let own = std::process::id();
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get())
                .unwrap();
            let _ = stopped.recv();
        });
        let tid = told.recv().unwrap() as u32;
        let handle = proc.thread(tid).unwrap();
        assert!(handle.alive());
        assert_eq!(proc.status(tid).unwrap().process, own);
        drop(stop);
        thread.join().unwrap();
        // The kernel removes the thread soon after it is joined.
        while handle.alive() {
            std::thread::yield_now();
        }
        let mut child = std::process::Command::new("/bin/cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let id = proc.process(child.id()).unwrap();
        assert_eq!(proc.process(child.id()), Some(id));
        assert!(proc.process(own).is_some());
        assert_eq!(proc.stat(child.id()).unwrap().parent, own);
        assert!(proc.is_alive(child.id(), id));
        assert!(!proc.unique || !proc.is_alive(own, id));
        let status = proc.status(child.id()).unwrap();
        assert_eq!((status.parent, status.process), (own, child.id()));
        let held = proc.hold(child.id()).unwrap();
        assert_eq!((held.number, held.id), (child.id(), id));
        assert!(held.alive(proc));
        // This is another thread than its process's first.
        let other = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(other == own || proc.first_thread(other).is_none());
        assert_eq!(proc.first_thread(own).is_some(), proc.unique);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!held.alive(proc));
        assert!(!proc.is_alive(child.id(), id));
        assert_ne!(proc.process(child.id()), Some(id));
        assert_eq!(proc.process(0), None);
        assert_eq!(proc.process(u32::MAX), None);
        assert!(proc.looks() > 0);
    }
}
