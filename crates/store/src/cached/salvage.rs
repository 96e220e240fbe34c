//! Salvage: a clone of the volume with the flushes of a cache, after another machine took over.

use super::CacheOptions;
use super::contents::Contents;
use super::log::{Log, OnDevice};
use crate::keys::KeyFile;
use crate::object::VolumeId;
use crate::opening::{OpenError, OpenOptions};
use crate::place::{Access, Location};
use crate::volume::{Found, kept_name};
use steadfast_block::{BLOCK_SIZE, BlockDevice};

/// The result of a salvage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Salvaged {
    /// Identity of the clone.
    pub id: VolumeId,
    /// Number of salvaged flushes.
    pub flushes: u64,
    /// Bytes that these flushes write together.
    pub bytes: u64,
    /// The snapshot that the flushes continue. The clone needs it.
    pub snapshot: String,
}

impl Found {
    /// Makes a clone of the volume with the state of the cache's last flush, and empties the cache. The volume itself does not
    /// change. `force`: of a damaged log, salvage the flushes before the damage.
    ///
    /// # Errors
    /// [`OpenError::Cache`], [`OpenError::NothingToSalvage`], [`OpenError::NotDeposed`], [`OpenError::NotKept`], and those of
    /// [`Found::clone_to`].
    pub fn salvage(
        &self,
        cache: &CacheOptions,
        to: &Location,
        key: Option<&KeyFile>,
        force: bool,
        options: &OpenOptions,
    ) -> Result<Salvaged, OpenError> {
        let name = cache.name.clone();
        let bad = |source| OpenError::Cache {
            name: cache.name.clone(),
            source: Box::new(source),
        };
        let (id, features) = (self.id(), self.object().features);
        let keys = self.sources.own().coding.keys.as_ref();
        let fault = options.device_fault();
        let read = Log::read(&cache.device, id, features, keys, fault, !force);
        let (mut log, flushes) = match read.map_err(bad)? {
            OnDevice::Log(log, flushes) if !flushes.is_empty() => (log, flushes),
            _ => return Err(OpenError::NothingToSalvage(name)),
        };
        let header = *log.header();
        let state = self.state()?;
        let terms = [header.term, header.before];
        let kept = terms.map(kept_name).into_iter().find(|kept| {
            let snapshots = state.roots.pins.iter();
            snapshots
                .clone()
                .any(|pin| pin.name == *kept && pin.base.through >= header.stored)
        });
        let Some(snapshot) = kept else {
            let url = self.url();
            let open = self.open_term()?;
            return Err(match open.is_some_and(|open| terms.contains(&open)) {
                true => OpenError::NotDeposed { url, cache: name },
                false => OpenError::NotKept { url, cache: name },
            });
        };
        self.clone_to(&snapshot, to.clone(), key, options.patience)?;
        let access = Access {
            key: key.cloned(),
            ..options.access.clone()
        };
        let all = self.sources.all().iter();
        let parents: Vec<Location> = all.map(|io| io.location.clone()).collect();
        let clone = Found::with_parents(to.clone(), &access, &parents, options.patience)?;
        let disk = clone.open(&OpenOptions {
            flush_when_full: true,
            ..options.clone()
        })?;
        let mut sum = Contents::default();
        for flush in &flushes {
            sum.append(&flush.contents);
        }
        let lost = |error| OpenError::Disk {
            url: to.url.clone(),
            source: error,
        };
        sum.write_to(&disk).map_err(lost)?;
        disk.flush().map_err(lost)?;
        disk.release()
            .map_err(|error| OpenError::Failed(error.failed()))?;
        log.clear().map_err(bad)?;
        Ok(Salvaged {
            id: clone.id(),
            flushes: flushes.len() as u64,
            bytes: sum.weight() * BLOCK_SIZE as u64,
            snapshot,
        })
    }
}
