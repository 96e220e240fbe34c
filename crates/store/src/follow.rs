//! Followers: they read each acknowledged flush of a volume that another machine writes, some time later, without a claim.
//!
//! The follower holds the map of a checkpoint and of the slots after it, as a successor would replay them. It reads the next
//! slot; when the writer has published another checkpoint, it starts over from that one. Invariants:
//!
//! * a state is exactly one flush of the volume, and each is later than the one before;
//! * no object of a state is deleted while [`may_serve`](Follower::may_serve) is true: the writer keeps retired objects for the
//!   time `keep_deleted`, and no object of the last `head` was retired when the follower asked for that `head`. The follower's
//!   `keep_deleted` must not be longer than the writer's.
//!
//! A stand-by follows as well ([`Successor`]): it keeps what it reads in memory, and its take-over asks the store for the rest alone.

use crate::cached::LagClock;
use crate::device::{Cache, Core, StoreDevice, catch_up, read_head, read_history};
use crate::object::HeadObject;
use crate::opening::{OpenError, OpenOptions};
use crate::protocol::{Base, Lease, LocalTime, Slot};
use crate::volume::Found;
use std::sync::{Arc, Mutex};

/// See the module's header.
pub struct Follower {
    found: Found,
    options: OpenOptions,
    clock: LagClock,
    head: HeadObject,
    core: Core,
    /// Shared by all states: objects do not change.
    cache: Arc<Mutex<Cache>>,
    /// The checkpoint and the last slot of the served state.
    served: (Base, Slot),
    /// Start of the request for the `head` of the last state.
    asked: LocalTime,
    lease: Lease,
}

/// Bytes of each volume that a stand-by keeps: slots since the checkpoint, most of all. What does not fit is read at the take-over.
const KEPT_MOST: u64 = 256 << 20;

/// A volume that this machine will take over.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use steadfast_store::{Access, Follower, Found, LagClock, Location, OpenOptions, Successor};
/// # use std::time::Duration;
/// # let (access, patience) = (Access::default(), Duration::from_secs(30));
/// # let found = Found::new(Location::new("s3://bucket/volume", &access)?, &access, patience)?;
/// let options = OpenOptions { take_over: true, ..OpenOptions::default() };
/// let successor = Successor::new(found, &options);
/// let (mut follower, _) = Follower::to_succeed(&successor, options.clone(), LagClock::default())?;
/// follower.poll()?; // while the other machine serves
/// let disk = successor.take_over(&options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Successor {
    found: Found,
    cells: Arc<Mutex<Cache>>,
}

impl std::fmt::Debug for Successor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.found.fmt(f)
    }
}

impl Successor {
    /// Nothing is read yet: [`Follower::to_succeed`] does that.
    #[must_use]
    pub fn new(found: Found, options: &OpenOptions) -> Successor {
        Successor {
            cells: Cache::shared(options.cache_bytes),
            found,
        }
    }

    /// The volume.
    #[must_use]
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// Opens the volume as [`Found::open`] does. A follower that reads meanwhile need not end first.
    ///
    /// # Errors
    /// As of [`Found::open`].
    pub fn take_over(&self, options: &OpenOptions) -> Result<StoreDevice, OpenError> {
        let opened = self.found.open_with(options, Some(Arc::clone(&self.cells)));
        self.found.sources.keep_in_memory(None);
        opened
    }
}

impl Follower {
    /// Starts with the present state of the volume: its last acknowledged flush, or a later one.
    ///
    /// # Errors
    /// The store's; damage.
    pub fn new(
        found: Found,
        options: OpenOptions,
        clock: LagClock,
    ) -> Result<(Follower, StoreDevice), OpenError> {
        let cells = Cache::shared(options.cache_bytes);
        Follower::begin(found, options, clock, cells)
    }

    /// Follows a volume to take it over: what a take-over will read is kept in memory, up to 256 MiB, besides the cells that the
    /// states read.
    ///
    /// # Errors
    /// As of [`Follower::new`].
    pub fn to_succeed(
        successor: &Successor,
        options: OpenOptions,
        clock: LagClock,
    ) -> Result<(Follower, StoreDevice), OpenError> {
        let found = successor.found.clone();
        found.sources.keep_in_memory(Some(KEPT_MOST));
        #[cfg(feature = "faults")]
        found.sources.plant_in_kept(options.device_fault());
        Follower::begin(found, options, clock, Arc::clone(&successor.cells))
    }

    fn begin(
        found: Found,
        options: OpenOptions,
        clock: LagClock,
        cells: Arc<Mutex<Cache>>,
    ) -> Result<(Follower, StoreDevice), OpenError> {
        let sent = LocalTime(clock.now_ms());
        let keep = options.keep_deleted;
        let (head, core) = read_history(&found.sources, found.object.base, keep)?;
        let lease = Lease::new(keep.as_millis() as u64, options.protocol_faults());
        let mut follower = Follower {
            served: (head.head.base, core.last_slot()),
            asked: sent,
            cache: cells,
            found,
            options,
            clock,
            head,
            core,
            lease,
        };
        follower.renew();
        let state = follower.state()?;
        Ok((follower, state))
    }

    /// Asks the store for a newer state: two requests if there is none. A state is returned again until the caller serves it
    /// ([`serves`](Follower::serves)). After an error the served state is still valid while [`may_serve`](Follower::may_serve).
    ///
    /// # Errors
    /// The store's; damage. [`OpenError::Restless`]: a writer publishes checkpoints faster than this reads.
    pub fn poll(&mut self) -> Result<Option<StoreDevice>, OpenError> {
        let sent = LocalTime(self.clock.now_ms());
        let head = read_head(self.found.sources.own())?;
        if head.head.base == self.head.head.base {
            self.head = head;
            catch_up(&self.found.sources, &self.head.head, &mut self.core, 1)?;
        } else {
            let keep = self.options.keep_deleted;
            let sources = &self.found.sources;
            sources.forget_kept();
            let (head, core) = read_history(sources, self.found.object.base, keep)?;
            (self.head, self.core) = (head, core);
        }
        self.asked = sent;
        // Another checkpoint counts even with the same flush: the objects of the served state may soon be gone.
        if self.newest() != self.served {
            return self.state().map(Some);
        }
        self.renew();
        Ok(None)
    }

    /// The caller now serves the last state that [`poll`](Follower::poll) returned, and no other.
    pub fn serves(&mut self) {
        self.served = self.newest();
        self.renew();
    }

    fn newest(&self) -> (Base, Slot) {
        (self.head.head.base, self.core.last_slot())
    }

    /// Whether the store still has all objects of the served state.
    #[must_use]
    pub fn may_serve(&self) -> bool {
        self.lease.holds(LocalTime(self.clock.now_ms()))
    }

    fn renew(&mut self) {
        let now = LocalTime(self.clock.now_ms());
        self.lease.renewed(self.asked, now);
    }

    fn state(&self) -> Result<StoreDevice, OpenError> {
        StoreDevice::look(
            self.found.sources.clone(),
            self.found.blocks(self.head.blocks),
            self.core.state(),
            Arc::clone(&self.cache),
            &self.options,
        )
    }
}
