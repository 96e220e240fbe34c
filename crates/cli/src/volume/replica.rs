//! A volume that another machine writes, mounted here: a thread looks for new states and serves them.
//!
//! Invariants: a state is served only if it could be mounted; nothing is served once the store may have deleted what
//! the last state needs ([`Follower::may_serve`]).

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use steadfast_fs::{Fs, MountOptions};
use steadfast_store::Follower;
use steadfast_vfs::Replica;

use crate::failure::Failure;

/// See the module's header.
pub(crate) struct Following {
    pub(crate) replica: Arc<Replica>,
    /// The last state that is served.
    last: Arc<Mutex<Arc<Fs>>>,
    /// Dropping it ends the thread.
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Following {
    /// Serves `first`, and the states that follow it. `tell` receives errors, and their end.
    pub(crate) fn start(
        first: Arc<Fs>,
        mut follower: Follower,
        interval: Duration,
        options: MountOptions,
        tell: impl Fn(&str) + Send + 'static,
    ) -> Result<Following, Failure> {
        let replica = Arc::new(Replica::new(Arc::clone(&first) as _));
        let last = Arc::new(Mutex::new(first));
        let (stop, stopped) = channel();
        let (served, newest) = (Arc::clone(&replica), Arc::clone(&last));
        let follow = move || {
            let mut serves = true;
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let newer = follower.poll().map_err(|e| e.to_string());
                let newer = newer.and_then(|device| {
                    let mounted = device.map(|device| Fs::mount(Arc::new(device), &options));
                    mounted.transpose().map_err(|e| e.to_string())
                });
                match newer {
                    Ok(Some((fs, _))) => {
                        served.replace(Arc::clone(&fs) as _);
                        *newest.lock().unwrap_or_else(PoisonError::into_inner) = fs;
                        follower.serves();
                        serves = true;
                    }
                    Ok(None) if !serves => {
                        let fs = Arc::clone(&newest.lock().unwrap_or_else(PoisonError::into_inner));
                        served.replace(fs as _);
                        serves = true;
                        tell("the store answers again");
                    }
                    Ok(None) => {}
                    Err(why) => tell(&format!("the new state cannot be read: {why}")),
                }
                if serves && !follower.may_serve() {
                    served.stop();
                    serves = false;
                    tell(
                        "the store has not answered for so long that it may have deleted what is shown: every call fails until it answers",
                    );
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("follow".to_owned())
            .spawn(follow)
            .map_err(|e| Failure::new(format!("starting a thread: {e}")))?;
        Ok(Following {
            replica,
            last,
            stop,
            thread,
        })
    }

    /// The last state that is served.
    pub(crate) fn newest(&self) -> Arc<Fs> {
        Arc::clone(&self.last.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves nothing more.
    pub(crate) fn end(self) {
        drop(self.stop);
        let _ = self.thread.join();
        self.replica.stop();
        // The hook of replacements holds the replica.
        self.replica.on_replace(|| ());
    }
}
