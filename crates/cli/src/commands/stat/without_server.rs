//! The counters of a server over NFS in a program without the feature `nfs`.

use std::path::Path;

use serde_json::Value;

use crate::failure::Failure;
use crate::features::Feature;

/// The requests of a client. There are none.
pub(super) enum Client {}

/// The counters of a server by name, and its clients.
pub(super) type Counters = (Vec<(String, u64)>, Vec<Client>);

pub(super) fn counters(path: &Path) -> Result<Counters, Failure> {
    let what = format!("{}: a server over NFS", path.display());
    Err(Feature::Nfs.lacks(&what))
}

impl Client {
    pub(super) fn object(&self) -> Value {
        match *self {}
    }

    pub(super) fn line(&self) -> String {
        match *self {}
    }
}
