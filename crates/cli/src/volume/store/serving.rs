//! Volumes that a server with fail-over opens.

use std::sync::Arc;
use std::time::Duration;

pub(crate) use steadfast_store::{Failed, ServingLease, Successor};
use steadfast_store::{OpenOptions, StoreDevice};

use super::{StoreSettings, Url, failure, find, options, try_store};
use crate::failure::{Failure, notice};
use crate::volume::Device;

/// Settings with which a server with fail-over opens its volumes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Serving {
    /// Time for which it answers after each proof that it owns the volume.
    pub(crate) lease: Duration,
    /// Whether to fence an owner that has not released the volume.
    pub(crate) take_over: bool,
    /// Whether to wait for the lease of an owner even if it was a process of this machine that has ended.
    pub(crate) wait_for_dead: bool,
}

/// A volume that is served with fail-over.
pub(crate) struct Served {
    device: Arc<StoreDevice>,
    /// The write verifier, made of the volume and the term.
    verifier: u64,
}

impl Served {
    pub(crate) fn device(&self) -> Device {
        Device::Block(Arc::clone(&self.device) as _)
    }

    pub(crate) fn verifier(&self) -> u64 {
        self.verifier
    }

    /// Notes that the last owner left.
    pub(crate) fn notes(&self) -> Vec<Vec<u8>> {
        self.device.notes()
    }

    pub(crate) fn lease(&self) -> Option<ServingLease> {
        self.device.lease()
    }
}

/// Opens a volume to be served with fail-over. `successor`: what a stand-by has read of it.
pub(crate) fn open_to_serve(
    url: &Url,
    serving: &Serving,
    successor: Option<&Successor>,
) -> Result<Served, Failure> {
    let options = OpenOptions {
        take_over: serving.take_over,
        lease: Some(serving.lease),
        wait_for_dead: serving.wait_for_dead,
        ..options(&StoreSettings::default())?
    };
    let successor = match successor {
        Some(successor) => successor.clone(),
        None => Successor::new(find(&url.url, &options.access)?, &options),
    };
    let found = successor.found();
    if found.object().features.flush_cache {
        notice(&format!(
            "{}: was made with '--flush cache', and is served without a cache: flushes wait for the store",
            url.url
        ));
    }
    let device = successor.take_over(&options).map_err(failure)?;
    let id = u128::from_be_bytes(found.id().0);
    let term = device.term().map_or(0, |term| term.0);
    Ok(Served {
        verifier: (id as u64).wrapping_add(term.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        device: Arc::new(device),
    })
}

/// Checks whether a volume could be served from here: the store, its rules, the key. Returns how to follow it.
pub(crate) fn successor(url: &Url) -> Result<(Successor, OpenOptions), Failure> {
    let wishes = StoreSettings::default();
    try_store(url, &wishes)?;
    let options = options(&wishes)?;
    let found = find(&url.url, &options.access)?;
    Ok((Successor::new(found, &options), options))
}
