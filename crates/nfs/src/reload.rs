//! Reload: replaces the exports while the server runs.
//!
//! The new table is complete before it replaces the old one, so a failure changes nothing. A call uses the table with which it
//! began; handles of a removed export are stale afterwards. A volume that stays keeps its
//! key, its write verifier and its waiting commits: its clients notice nothing.
//!
//! Invariant: when [`Retired::wait`] returns, no call uses the volume or will use it: it can be closed.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use crate::dispatch::Service;
use crate::drc::Cache;
use crate::exports::{Export, Table};
use crate::handle_key::HandleKey;
use crate::handles::Lasting;
use crate::kept;
use crate::server::Error;
use crate::tls::Tls;
use crate::volume::{ExportedVolume, Volume};

/// A volume of the new table.
#[derive(Debug)]
pub enum Source {
    /// Keep the served volume of this name.
    Kept(String),
    /// A new volume.
    New(ExportedVolume),
}

/// Replaces the exports of a running server.
#[derive(Clone, Debug)]
pub struct Reloader {
    pub(crate) service: Arc<Service>,
    pub(crate) tls: Option<Tls>,
    pub(crate) handle_key: Option<HandleKey>,
}

/// A volume that no export names any more.
#[derive(Debug)]
pub struct Retired {
    name: String,
    used: mpsc::Receiver<std::convert::Infallible>,
}

impl Retired {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the calls that still use the volume, and their commits.
    pub fn wait(self) {
        // Nothing is ever sent: the channel ends when the last user is dropped.
        let _ = self.used.recv();
    }
}

/// The result of a reload.
#[derive(Debug)]
pub struct Reloaded {
    /// Volumes that can be closed when they are no longer used.
    pub retired: Vec<Retired>,
    /// Warnings for the administrator.
    pub notes: Vec<String>,
}

/// Prepares a volume. Adds warnings to `notes`.
pub(crate) fn open(
    mut served: ExportedVolume,
    given: Option<&HandleKey>,
    drc: &Cache,
    notes: &mut Vec<String>,
) -> Result<Arc<Volume>, Error> {
    let name = served.name.clone();
    for note in std::mem::take(&mut served.replies) {
        if let Some((key, reply)) = kept::decode(&note) {
            drc.inherit(key, &reply, Instant::now());
        }
    }
    let (volume, lasting) = Volume::open(served, given).map_err(|source| Error::Key {
        name: name.clone(),
        source,
    })?;
    if lasting == Lasting::ThisServer {
        notes.push(format!(
            "{name}: holds no key for file handles, as it is read-only or has no extended attributes: clients have to mount \
             again when this server is started again, unless it is given a handle key"
        ));
    }
    Ok(Arc::new(volume))
}

impl Reloader {
    /// Replaces all exports. [`Export::volume`] is an index into `volumes`.
    ///
    /// # Errors
    /// The exports cannot be served: the old ones stay.
    pub fn reload(&self, volumes: Vec<Source>, exports: Vec<Export>) -> Result<Reloaded, Error> {
        let mut notes = Vec::new();
        let old = self.service.table();
        let mut opened = Vec::new();
        for source in volumes {
            opened.push(match source {
                Source::New(served) => {
                    let given = self.handle_key.as_ref();
                    open(served, given, &self.service.drc, &mut notes)?
                }
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
