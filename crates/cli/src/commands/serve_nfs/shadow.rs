//! A stand-by follows the log of each volume while it waits, so that a take-over has little left to read.
//!
//! A thread for each volume. What goes wrong there is said, and costs time at the take-over, nothing else: the take-over asks
//! the store for all that is not in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use steadfast_fs::Fs;
use steadfast_store::{Follower, LagClock, OpenError, OpenOptions, StoreDevice, Successor};

use super::config::Plan;
use crate::failure::{Failure, notice};
use crate::volume::store;

/// Pause between two looks: two requests if nothing is new, as many as an idle server with a lease of 5 s sends.
const PAUSE: Duration = Duration::from_secs(5);
/// Pause between two mounts of what was read, which bring the file system's own blocks into memory.
const MOUNT_PAUSE: Duration = Duration::from_secs(60);

/// The volumes of a stand-by, as far as they were read. Dropped: nothing more is read.
pub(crate) struct Shadows {
    successors: Vec<(PathBuf, Successor)>,
    _stop: Vec<Sender<()>>,
}

impl Shadows {
    /// Tries whether each volume could be served from here, and begins to follow it.
    pub(crate) fn start(plan: &Plan) -> Result<Shadows, Failure> {
        let mut shadows = Shadows {
            successors: Vec::new(),
            _stop: Vec::new(),
        };
        for wanted in &plan.volumes {
            let Some(url) = store::url(&wanted.image) else {
                continue;
            };
            let (successor, options) = store::successor(&url)?;
            shadows
                .successors
                .push((wanted.image.clone(), successor.clone()));
            let (stop, stopped) = channel();
            shadows._stop.push(stop);
            let image = wanted.image.clone();
            let follow = move || {
                let mut shadow = Shadow::new(&image, &successor, &options);
                loop {
                    shadow.look();
                    if stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                        return;
                    }
                }
            };
            thread::Builder::new()
                .name("shadow".to_owned())
                .spawn(follow)
                .map_err(|e| Failure::new(format!("starting a thread: {e}")))?;
        }
        Ok(shadows)
    }

    /// The volumes by their names, for a take-over.
    pub(crate) fn into_successors(self) -> Vec<(PathBuf, Successor)> {
        self.successors
    }
}

/// One volume.
struct Shadow<'a> {
    image: &'a Path,
    successor: &'a Successor,
    options: &'a OpenOptions,
    follower: Option<Follower>,
    mounted: Option<Instant>,
    /// The last failure that was said.
    said: Option<String>,
}

impl<'a> Shadow<'a> {
    fn new(image: &'a Path, successor: &'a Successor, options: &'a OpenOptions) -> Shadow<'a> {
        Shadow {
            image,
            successor,
            options,
            follower: None,
            mounted: None,
            said: None,
        }
    }

    /// Reads what is new.
    fn look(&mut self) {
        let begins = self.follower.is_none();
        let looked = self.read().map_err(|e| e.to_string());
        let looked = looked.and_then(|state| state.map_or(Ok(()), |state| self.mount(state)));
        match looked {
            Ok(()) if self.said.take().is_some() || begins => {
                notice(&format!("{}: following its log", self.image.display()));
            }
            Ok(()) => {}
            Err(why) => {
                if self.said.as_ref() != Some(&why) {
                    notice(&format!(
                        "{}: its log cannot be followed, so a take-over takes longer: {why}",
                        self.image.display()
                    ));
                }
                self.said = Some(why);
            }
        }
    }

    fn read(&mut self) -> Result<Option<StoreDevice>, OpenError> {
        match &mut self.follower {
            Some(follower) => {
                let state = follower.poll()?;
                follower.serves();
                Ok(state)
            }
            None => {
                let clock = LagClock::default();
                let (follower, state) =
                    Follower::to_succeed(self.successor, self.options.clone(), clock)?;
                self.follower = Some(follower);
                Ok(Some(state))
            }
        }
    }

    /// Mounts a state, now and then: a stand-by finds damage before it is needed.
    fn mount(&mut self, state: StoreDevice) -> Result<(), String> {
        if (self.mounted).is_some_and(|mounted| mounted.elapsed() < MOUNT_PAUSE) {
            return Ok(());
        }
        let mut options = steadfast_fs::MountOptions::default();
        options.read_only = true;
        Fs::mount(Arc::new(state), &options).map_err(|e| e.to_string())?;
        self.mounted = Some(Instant::now());
        Ok(())
    }
}
