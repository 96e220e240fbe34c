//! Other exports while the server runs.
//!
//! The new table is made whole before it takes the place of the old one, so a failure leaves all as it was. Calls use the table
//! that they began with; handles of an export that is gone are stale from then on. A volume that stays keeps its
//! key, its write verifier and what waits for a commit: clients of it notice nothing.
//!
//! Invariant: when [`Retired::wait`] returns, no call uses the volume and none will: it can be closed.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use crate::dispatch::Service;
use crate::drc::Cache;
use crate::exports::{Export, Table};
use crate::handles::Lasting;
use crate::kept;
use crate::server::Error;
use crate::tls::Tls;
use crate::volume::{ExportedVolume, Volume};

/// A volume of the next table.
#[derive(Debug)]
pub enum Source {
    /// The one of this name that is served now.
    Kept(String),
    /// Another one.
    New(ExportedVolume),
}

/// Exchanges the exports of a running server.
#[derive(Clone, Debug)]
pub struct Reloader {
    pub(crate) service: Arc<Service>,
    pub(crate) tls: Option<Tls>,
}

/// A volume that no export names any more.
#[derive(Debug)]
pub struct Retired {
    name: String,
    used: mpsc::Receiver<std::convert::Infallible>,
}

impl Retired {
    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the calls that still use it, and their commits.
    pub fn wait(self) {
        // Nothing is ever sent: the channel ends with the last user.
        let _ = self.used.recv();
    }
}

/// What a reload has changed.
#[derive(Debug)]
pub struct Reloaded {
    /// Volumes that can be closed once they are not used.
    pub retired: Vec<Retired>,
    /// What the administrator should know.
    pub notes: Vec<String>,
}

/// Gets a volume ready. Adds what its user should know to `notes`.
pub(crate) fn open(
    mut served: ExportedVolume,
    drc: &Cache,
    notes: &mut Vec<String>,
) -> Result<Arc<Volume>, Error> {
    let name = served.name.clone();
    for note in std::mem::take(&mut served.replies) {
        if let Some((key, reply)) = kept::decode(&note) {
            drc.inherit(key, &reply, Instant::now());
        }
    }
    let (volume, lasting) = Volume::open(served).map_err(|source| Error::Key {
        name: name.clone(),
        source,
    })?;
    if lasting == Lasting::ThisServer {
        notes.push(format!(
            "{name}: was never served for writing, so that clients have to mount again when this server is started again"
        ));
    }
    Ok(Arc::new(volume))
}

impl Reloader {
    /// Serves these exports, and no others, from now on. [`Export::volume`] counts in `volumes`.
    ///
    /// # Errors
    /// The exports cannot be served: those of before go on.
    pub fn reload(&self, volumes: Vec<Source>, exports: Vec<Export>) -> Result<Reloaded, Error> {
        let mut notes = Vec::new();
        let old = self.service.table();
        let mut opened = Vec::new();
        for source in volumes {
            opened.push(match source {
                Source::New(served) => open(served, &self.service.drc, &mut notes)?,
                Source::Kept(name) => {
                    let mut known = old.volumes.iter();
                    let known = known.find(|volume| volume.name() == name);
                    Arc::clone(known.ok_or(crate::exports::ExportError::Volume(name))?)
                }
            });
        }
        let table = Table::new(opened, exports)?;
        table.check_security(self.tls.as_ref())?;
        let stays = |volume: &Arc<Volume>| table.volumes.iter().any(|new| Arc::ptr_eq(new, volume));
        let gone = old.volumes.iter().filter(|volume| !stays(volume));
        let retired = gone
            .filter_map(|volume| {
                Some(Retired {
                    name: volume.name().to_owned(),
                    used: volume.retire()?,
                })
            })
            .collect();
        self.service.exchange(table);
        Ok(Reloaded { retired, notes })
    }
}
