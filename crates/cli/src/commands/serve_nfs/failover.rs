//! Fail-over: standing by for another server, and answering only while no other server can have taken over.
//!
//! The *store* decides which server owns a volume, the *lease* decides when a successor may answer, the *heartbeat*
//! decides only when it tries. So a stand-by that is wrong about its peer costs availability, never correctness.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use steadfast_nfs::Gate;
use steadfast_store::{Failed, ServingLease};

use super::Event;
use super::config::{Plan, Settings};
use super::heartbeat::{Heartbeat, Listening, Role};
use super::shadow::Shadows;
use super::volumes::Opened;
use crate::commands::serve::tell_service_manager;
use crate::failure::{Failure, notice};
use crate::volume::store::{self, Serving};

/// Default lease.
const LEASE: Duration = Duration::from_secs(5);
const GONE_AFTER: Duration = Duration::from_secs(2);
/// Interval at which a stand-by checks its peer, and a server its leases.
const LOOK: Duration = Duration::from_millis(50);
/// Longest pause after a failed take-over.
const PAUSE_MOST: Duration = Duration::from_secs(30);
/// Of two stand-bys, the one with the lower number waits this many times longer for the other.
const YIELDS: u32 = 5;
/// Time for the last message to reach the peer.
const LAST_WORD: Duration = Duration::from_millis(100);

/// Settings of the command line.
#[derive(Clone, Debug)]
pub(crate) struct Failover {
    standby: bool,
    take_over: bool,
    lease: Duration,
    gone_after: Duration,
    peer: Option<String>,
    heartbeat: Option<std::net::SocketAddr>,
    /// Identity of the served volumes, for the peer.
    identity: u64,
}

impl Failover {
    /// None if no option of fail-over is given.
    ///
    /// # Errors
    /// The options do not fit together.
    pub(crate) fn new(plan: &Plan) -> Result<Option<Failover>, Failure> {
        let Settings {
            standby,
            take_over,
            lease,
            gone_after,
            ref peer,
            heartbeat,
            ..
        } = plan.settings;
        if !standby && (peer.is_some() || gone_after.is_some()) {
            return Err(Failure::usage(
                "--peer and --gone-after are for a server that stands by: add --standby",
            ));
        }
        if standby && peer.is_none() {
            return Err(Failure::usage(
                "--standby needs --peer HOST:PORT, where the other server has its --heartbeat; a cluster manager that knows itself \
                 when the other is gone starts the server with --take-over instead",
            ));
        }
        if standby && take_over {
            return Err(Failure::usage(
                "--standby waits until the peer is gone, --take-over does not wait: choose one",
            ));
        }
        if !standby && !take_over && lease.is_none() && heartbeat.is_none() {
            return Ok(None);
        }
        for wanted in &plan.volumes {
            let image = &wanted.image;
            if store::url(image).is_none_or(|url| url.snapshot.is_some()) {
                let why = "cannot fail over: that needs a volume on an object store, which another machine reaches, too \
                           ('mkfs --on s3://BUCKET/PREFIX')";
                return Err(Failure::at(image, why));
            }
            if wanted.read_only {
                let why = "is exported for reading only, which needs no fail-over: serve it without --standby, --heartbeat, --lease and \
                           --take-over, on as many machines as you like";
                return Err(Failure::at(image, why));
            }
        }
        let lease = lease.map_or(LEASE, |lease| lease.0);
        let mut names: Vec<&str> = (plan.volumes.iter())
            .filter_map(|wanted| wanted.image.to_str())
            .collect();
        names.sort_unstable();
        Ok(Some(Failover {
            standby,
            take_over,
            lease,
            gone_after: gone_after.map_or(GONE_AFTER, |time| time.0),
            peer: peer.clone(),
            heartbeat,
            identity: identity(&names),
        }))
    }

    /// How to open the volumes. A stand-by knows nothing of the other machine.
    pub(crate) fn serving(&self) -> Serving {
        Serving {
            lease: self.lease,
            take_over: self.take_over || self.standby,
            wait_for_dead: self.standby,
        }
    }
}

/// A hash that is the same on both machines, in any build (FNV-1a).
fn identity(names: &[&str]) -> u64 {
    let bytes = names.iter().flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The leases of all volumes: an answer is sent only while all of them hold.
#[derive(Debug, Default)]
pub(crate) struct Leases(RwLock<Vec<(String, ServingLease)>>);

impl Leases {
    /// Adds the leases of volumes, by their names.
    pub(crate) fn add(&self, more: Vec<(String, ServingLease)>) {
        let mut leases = self.0.write().unwrap_or_else(PoisonError::into_inner);
        leases.extend(more);
    }

    /// Removes a volume that is not served any more, and about to be released.
    pub(crate) fn remove(&self, name: &str) {
        let mut leases = self.0.write().unwrap_or_else(PoisonError::into_inner);
        leases.retain(|(other, _)| other != name);
    }

    fn list(&self) -> Vec<ServingLease> {
        let leases = self.0.read().unwrap_or_else(PoisonError::into_inner);
        leases.iter().map(|(_, lease)| lease.clone()).collect()
    }

    /// Time for which all of them hold if nothing renews them.
    fn left(&self) -> Duration {
        let left = self.list().iter().map(ServingLease::left).min();
        left.unwrap_or_default()
    }

    /// Reports the first volume that is lost. Ends with it, or with the server.
    fn watch(self: &Arc<Self>, tell: Sender<Event>) -> Result<(), Failure> {
        let leases = Arc::clone(self);
        let spawned = thread::Builder::new()
            .name("leases".to_owned())
            .spawn(move || {
                loop {
                    // A closed volume is not lost: it was released.
                    let lost = (leases.list().iter())
                        .filter_map(|lease| lease.wait_for_end(Duration::ZERO))
                        .find(|why| !matches!(why, Failed::Closed));
                    if let Some(why) = lost {
                        return drop(tell.send(Event::Lost(why)));
                    }
                    if Arc::strong_count(&leases) == 1 {
                        return;
                    }
                    thread::sleep(LOOK);
                }
            });
        spawned
            .map(drop)
            .map_err(|e| Failure::new(format!("starting a thread: {e}")))
    }
}

impl Gate for Leases {
    fn may_answer(&self) -> bool {
        let leases = self.0.read().unwrap_or_else(PoisonError::into_inner);
        leases.iter().all(|(_, lease)| lease.may_answer())
    }

    fn gauges(&self) -> Vec<(&'static str, &'static str, u64)> {
        let leases = self.list();
        let term = leases.iter().map(|lease| lease.term().0).max();
        vec![
            (
                "lease_left_ms",
                "Milliseconds for which the server may answer if nothing renews its lease",
                self.left().as_millis() as u64,
            ),
            (
                "term",
                "The newest term that the server owns of its volumes: it grows with each take-over",
                term.unwrap_or_default(),
            ),
        ]
    }
}

/// Parts of a server with fail-over, beside its volumes.
pub(crate) struct Guard {
    pub(crate) leases: Arc<Leases>,
    heartbeat: Option<Heartbeat>,
}

impl Guard {
    /// Tells the peer that the volumes are released, and that it need not wait.
    pub(crate) fn has_released(&self) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.say(|| Role::Released);
            thread::sleep(LAST_WORD);
        }
    }
}

/// Opens the volumes, after standing by if that is asked for. None if a signal came first.
pub(crate) fn open(
    failover: &Failover,
    plan: &Plan,
    events: &Receiver<Event>,
    tell: &Sender<Event>,
) -> Result<Option<(Opened, Guard)>, Failure> {
    let number = std::collections::hash_map::RandomState::new();
    let number = std::hash::BuildHasher::hash_one(&number, std::process::id());
    let standing_by = Role::StandingBy(number);
    let heartbeat = (failover.heartbeat)
        .map(|at| Heartbeat::listen(at, failover.identity, standing_by))
        .transpose()?;
    let opened = match failover.peer.as_deref() {
        Some(peer) => {
            // Errors are found now, not at the take-over.
            let shadows = Shadows::start(plan)?;
            let listening = Listening::to(peer, failover.identity)?;
            let peer = (peer, number);
            let opened = stand_by(failover, plan, shadows, events, &listening, peer)?;
            let Some(opened) = opened else {
                return Ok(None);
            };
            opened
        }
        None => Opened::open(plan, Some(&failover.serving()))?,
    };
    let leases = Arc::new(Leases::default());
    leases.add(opened.leases());
    leases.watch(tell.clone())?;
    if let Some(heartbeat) = &heartbeat {
        let leases = Arc::clone(&leases);
        heartbeat.say(move || Role::Active(leases.left()));
    }
    Ok(Some((opened, Guard { leases, heartbeat })))
}

/// The reason for a stand-by to act now, if there is one.
fn is_due(
    failover: &Failover,
    listening: &Listening,
    since: Instant,
    number: u64,
) -> Option<&'static str> {
    let heard = listening.heard();
    let gone = failover.gone_after;
    let fresh = heard.last.filter(|(_, at)| at.elapsed() < gone);
    match fresh.map(|(role, _)| role) {
        Some(Role::Released) => Some("has released its volumes"),
        Some(Role::StandingBy(other)) if other < number => Some("stands by as well"),
        // The peer goes first.
        Some(Role::StandingBy(_)) => {
            let waited = heard
                .served
                .map_or(since, |served| served.max(since))
                .elapsed();
            (waited >= gone * YIELDS).then_some("stands by as well, and does nothing")
        }
        _ => {
            let alive = heard.served.map_or(since, |served| served.max(since));
            let why = match fresh {
                Some(_) => "has not reached the store for longer than its lease",
                None => "is gone",
            };
            (alive.elapsed() >= gone).then_some(why)
        }
    }
}

/// Waits until the peer is gone, and takes the volumes over. None if a signal came first.
fn stand_by(
    failover: &Failover,
    plan: &Plan,
    shadows: Shadows,
    events: &Receiver<Event>,
    listening: &Listening,
    (peer, number): (&str, u64),
) -> Result<Option<Opened>, Failure> {
    notice(&format!("standing by for {peer}"));
    tell_service_manager();
    let mut shadows = Some(shadows);
    let mut since = Instant::now();
    let mut pause = failover.gone_after;
    loop {
        match events.recv_timeout(LOOK) {
            Ok(Event::Stop) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
        let Some(why) = is_due(failover, listening, since, number) else {
            continue;
        };
        let begun = Instant::now();
        notice(&format!("{peer} {why}: taking over"));
        // After a failure a volume is looked for anew.
        let followed = shadows.take().map(Shadows::into_successors);
        let followed = followed.unwrap_or_default();
        match Opened::take_over(plan, &failover.serving(), &followed) {
            Ok(opened) => {
                let took = begun.elapsed().as_millis();
                notice(&format!("took over after {took} ms"));
                return Ok(Some(opened));
            }
            Err(failure) => {
                failure.report();
                notice(&format!("still standing by for {peer}"));
                thread::sleep(pause.min(PAUSE_MOST));
                pause = (pause * 2).min(PAUSE_MOST);
                since = Instant::now();
            }
        }
    }
}

/// The reason for the end of a server that lost a volume, and whether another machine has the volume.
pub(crate) fn lost(why: &Failed) -> (String, bool) {
    match why {
        Failed::Stopped(_) => (
            format!("another server took over ({why}); this one answers nothing any more"),
            true,
        ),
        _ => (
            format!(
                "a volume failed ({why}); this server answers nothing any more, and has not released its volumes"
            ),
            false,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_the_same_volumes_know_one_another() {
        assert_eq!(
            identity(&["s3://a/b", "s3://c"]),
            identity(&["s3://a/b", "s3://c"])
        );
        assert_ne!(
            identity(&["s3://a/b", "s3://c"]),
            identity(&["s3://a/bs3://c"])
        );
        assert_eq!(identity(&[]), 0xcbf2_9ce4_8422_2325);
    }
}
