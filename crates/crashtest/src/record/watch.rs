//! Calls that FUSE does not see: `sync`, `syncfs`, `sync_file_range`, `io_uring_setup`.
//!
//! Each waits until it is in the trace. `sync` and `syncfs` first write back what was stored through mmap, so that it is in the
//! trace before them; the program's own call then finds nothing left to do.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

use super::calls::Calls;
use super::filter::{self, Listener, Notice};
use crate::trace::Op;

/// A thread that answers until it is dropped.
pub(super) struct Watch {
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// Watches the calls of this thread, and of all that it starts from now on.
pub(super) fn watch(mount: &Path, calls: &Arc<Calls>) -> io::Result<Watch> {
    let (stopped, stop) = io::pipe()?;
    let (give, take) = channel();
    let mount = File::open(mount)?;
    let device = mount.metadata()?.st_dev();
    let watcher = Watcher {
        calls: Arc::clone(calls),
        mount,
        device,
    };
    // Started before the filter is set: its own calls do not wait for itself.
    let thread = std::thread::Builder::new()
        .name("crash-watch".to_owned())
        .spawn(move || watcher.run(&take, &stopped))?;
    let watch = Watch {
        stop: Some(stop),
        thread: Some(thread),
    };
    let listener = filter::listen(&[
        libc::SYS_sync,
        libc::SYS_syncfs,
        libc::SYS_sync_file_range,
        libc::SYS_io_uring_setup,
    ])?;
    // The other end waits for it.
    let _ = give.send(listener);
    calls.watched();
    Ok(watch)
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Watcher {
    calls: Arc<Calls>,
    mount: File,
    device: u64,
}

impl Watcher {
    fn run(self, listener: &Receiver<Listener>, stopped: &PipeReader) {
        let Ok(listener) = listener.recv() else {
            return;
        };
        loop {
            let mut ready = [
                PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            }
            if !ready[1].revents().is_empty() {
                return;
            }
            match listener.receive() {
                Ok(Some(notice)) => {
                    self.note(&notice);
                    listener.go_on(&notice);
                }
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }

    fn note(&self, notice: &Notice) {
        let begin = self.calls.now();
        let op = match notice.call {
            libc::SYS_io_uring_setup => {
                self.calls.io_uring();
                return;
            }
            libc::SYS_sync => Op::Sync,
            libc::SYS_syncfs if self.file(notice).is_some() => Op::Syncfs,
            libc::SYS_sync_file_range => match self.file(notice) {
                Some(ino) => Op::SyncFileRange {
                    ino,
                    offset: notice.args[1],
                    len: notice.args[2],
                    flags: notice.args[3] as u32,
                },
                None => return,
            },
            _ => return,
        };
        if matches!(op, Op::Sync | Op::Syncfs) {
            // Fails if the mount is going away; the program's own call then fails as well.
            let _ = rustix::fs::syncfs(&self.mount);
        }
        let meta = std::fs::metadata(format!("/proc/{}", notice.thread));
        let (uid, gid) = meta.map_or((0, 0), |m| (m.st_uid(), m.st_gid()));
        let from = self.calls.requester(notice.thread, uid, gid);
        // After the end nothing is recorded any more.
        let _ = self.calls.perform(from, begin, op, &[]);
    }

    /// The inode of the descriptor that is the call's first argument, if it is a file of the mount.
    fn file(&self, notice: &Notice) -> Option<u64> {
        let fd = notice.args[0] as i32;
        let path = format!("/proc/{}/fd/{fd}", notice.thread);
        let meta = std::fs::metadata(path).ok()?;
        (meta.st_dev() == self.device).then_some(meta.st_ino())
    }
}
