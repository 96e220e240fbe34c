//! Fail-over in a program without the feature `store`: it needs volumes on object stores, so its options are refused.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use steadfast_nfs::Gate;

use super::Event;
use super::config::{Plan, Settings};
use super::volumes::Opened;
use crate::failure::Failure;
use crate::features::Feature;
use crate::volume::store::{Failed, Serving, ServingLease};

/// Settings of the command line. There are none.
#[derive(Clone, Debug)]
pub(crate) enum Failover {}

impl Failover {
    /// None if no option of fail-over is given.
    ///
    /// # Errors
    /// One is given.
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
        let plain = !standby && !take_over && lease.is_none() && gone_after.is_none();
        match plain && peer.is_none() && heartbeat.is_none() {
            true => Ok(None),
            false => Err(Feature::Store.lacks(
                "fail-over (--standby, --take-over, --lease, --gone-after, --peer, --heartbeat)",
            )),
        }
    }

    pub(crate) fn serving(&self) -> Serving {
        match *self {}
    }
}

/// The leases of all volumes. There are none.
#[derive(Debug)]
pub(crate) enum Leases {}

impl Leases {
    pub(crate) fn add(&self, _more: Vec<(String, ServingLease)>) {
        match *self {}
    }

    pub(crate) fn remove(&self, _name: &str) {
        match *self {}
    }
}

impl Gate for Leases {
    fn may_answer(&self) -> bool {
        match *self {}
    }
}

/// Parts of a server with fail-over.
pub(crate) struct Guard {
    pub(crate) leases: Arc<Leases>,
}

impl Guard {
    pub(crate) fn has_released(&self) {
        match *self.leases {}
    }
}

pub(crate) fn open(
    failover: &Failover,
    _plan: &Plan,
    _events: &Receiver<Event>,
    _tell: &Sender<Event>,
) -> Result<Option<(Opened, Guard)>, Failure> {
    match *failover {}
}

pub(crate) fn lost(why: &Failed) -> (String, bool) {
    match *why {}
}
