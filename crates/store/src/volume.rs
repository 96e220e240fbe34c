//! Volumes as a whole: making, opening and reading them.

use crate::device::{
    Cache, Core, EPOCH_BLOCKS, Opening, Sealed, Sources, StoreDevice, load_root, read_head,
    read_history, read_roots,
};
use crate::io::{Io, StoreError};
use crate::keys::{KeyFile, create_key, find_keys, new_keys, replace_key};
use crate::object::{
    Coding, Compression, Features, HeadObject, Keys, Parent, Pin, PinKind, Roots, VolumeId,
    VolumeObject, decode_volume, encode_head, encode_volume,
};
pub use crate::opening::{OpenError, OpenOptions};
use crate::owner::{Owner, OwnerState};
use crate::place::{Access, Location, PlaceError, random, random_volume};
use crate::protocol::{Head, Nonce, ObjectName, Slot, Term};
use crate::runtime::runtime;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use steadfast_block::BLOCK_SIZE;

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

fn block_on<T>(future: impl Future<Output = Result<T, StoreError>>) -> Result<T, OpenError> {
    Ok(runtime()?.block_on(future)?)
}

/// A volume that was found.
#[derive(Clone)]
pub struct Found {
    pub(crate) object: VolumeObject,
    pub(crate) sources: Sources,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.object.fmt(f)
    }
}

/// The name of the snapshot that a machine makes at a take-over: the volume as term `previous` left it. Flushes that only a
/// cache of that term has continue this state.
#[must_use]
pub fn kept_name(previous: Term) -> String {
    format!("after-term-{}", previous.0)
}

/// The state in which the last writer left a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    pub(crate) released: bool,
    /// The records of the cache continue the last term.
    pub(crate) continues: bool,
}

/// Settings and memory of the machine that opens a disk.
pub(crate) struct Own<'a> {
    /// Name of the cache that has this writer's last flushes.
    pub(crate) cache: Option<&'a str>,
    /// Most blocks of an epoch.
    pub(crate) epoch_blocks: u64,
    /// Cells that a stand-by has read.
    pub(crate) cells: Option<Arc<Mutex<Cache>>>,
}

impl Default for Own<'_> {
    fn default() -> Self {
        Own {
            cache: None,
            epoch_blocks: EPOCH_BLOCKS,
            cells: None,
        }
    }
}

/// The state of a volume according to `head`.
#[derive(Clone, Debug)]
pub struct State {
    /// The version of `head`.
    pub version: u64,
    /// The highest claimed term.
    pub term: Term,
    /// The last writer has released the volume: it serves no client any more.
    pub released: bool,
    /// The last writer, if it is known.
    pub owner: Option<Owner>,
    /// Present number of blocks.
    pub blocks: u64,
    /// The last slot in the published checkpoint.
    pub checkpoint: Slot,
    /// Snapshots and pins of clones.
    pub roots: Roots,
}

/// Space and objects that a volume uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Objects of this volume that hold blocks.
    pub objects: u64,
    /// Bytes of these objects.
    pub object_bytes: u64,
    /// Objects that hold the map.
    pub map_objects: u64,
    /// Bytes of these objects.
    pub map_bytes: u64,
    /// Bytes of blocks in use.
    pub live_bytes: u64,
    /// Bytes of blocks that the objects had when they were written, including objects of parents.
    pub held_bytes: u64,
    /// Bytes of blocks that a clone reads from its parents' objects.
    pub parents_bytes: u64,
    /// Slots after the checkpoint.
    pub slots: u64,
    /// Objects that are retired and not yet deleted.
    pub retired: u64,
}

/// Options of a new volume.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions {
    /// Compress its units.
    pub compression: Option<Compression>,
    /// Encrypt it, with a key that this file wraps.
    pub key: Option<KeyFile>,
    /// Blocks of a unit, in the range [`Features::UNITS`]. Default: 16.
    pub unit_blocks: Option<u16>,
    /// The contract `flush=cache`: a flush may be durable on a cache device first.
    pub flush_cache: bool,
}

/// Makes an empty volume of this size, neither compressed nor encrypted.
///
/// # Errors
/// [`OpenError::Exists`], or the store's.
pub fn create(location: Location, blocks: u64, patience: Duration) -> Result<VolumeId, OpenError> {
    create_with(location, blocks, &CreateOptions::default(), patience)
}

/// Makes an empty volume of this size.
///
/// # Errors
/// [`OpenError::Exists`], or the store's.
pub fn create_with(
    location: Location,
    blocks: u64,
    options: &CreateOptions,
    patience: Duration,
) -> Result<VolumeId, OpenError> {
    let features = Features {
        compression: options.compression,
        encrypted: options.key.is_some(),
        unit_blocks: options
            .unit_blocks
            .unwrap_or(Features::default().unit_blocks),
        flush_cache: options.flush_cache,
    };
    let object = VolumeObject {
        id: random_volume()?,
        blocks,
        made: now(),
        parents: Vec::new(),
        base: None,
        features,
    };
    let key = match &options.key {
        Some(file) => Some((new_keys()?, file)),
        None => None,
    };
    create_as(location, &object, key, patience)?;
    Ok(object.id)
}

fn create_as(
    location: Location,
    object: &VolumeObject,
    key: Option<(Keys, &KeyFile)>,
    patience: Duration,
) -> Result<(), OpenError> {
    let url = location.url.clone();
    let (keys, file) = key.unzip();
    let coding = Coding::new(object.id, object.features, keys);
    let io = Io::new(location, coding, Some(patience));
    if !block_on(io.create(ObjectName::Volume, encode_volume(object)))? {
        return Err(OpenError::Exists(url));
    }
    if let (Some(keys), Some(file)) = (&io.coding.keys, file) {
        create_key(&io.location, object, keys, file, patience)?;
    }
    let head = HeadObject {
        head: Head::new(Nonce(random()?)),
        owner: String::new(),
        blocks: 0,
        lease_ms: 0,
    };
    if !block_on(io.create(ObjectName::Head, encode_head(&io.coding, &head)))? {
        return Err(OpenError::Exists(url));
    }
    Ok(())
}

/// Whether there is a volume at a location.
///
/// # Errors
/// The store's.
pub fn exists(location: &Location, patience: Duration) -> Result<bool, OpenError> {
    let io = Io::new(
        location.clone(),
        Coding::plain(VolumeId([0; 16])),
        Some(patience),
    );
    let found = block_on(io.get(ObjectName::Volume, None))?;
    Ok(found.is_some())
}

impl Found {
    /// Finds a volume.
    ///
    /// # Errors
    /// [`OpenError::Absent`], or the store's.
    pub fn new(
        location: Location,
        access: &Access,
        patience: Duration,
    ) -> Result<Found, OpenError> {
        let (mut found, keys) = Found::read(&location, access, patience)?;
        let parents = found.object.parents.iter();
        let parents: Result<Vec<Location>, PlaceError> = parents
            .map(|parent| Location::new(&parent.url, access))
            .collect();
        let parents = parents?;
        found.sources = Sources::of(location, &found.object, keys, &parents, Some(patience));
        Ok(found)
    }

    fn read(
        location: &Location,
        access: &Access,
        patience: Duration,
    ) -> Result<(Found, Option<Keys>), OpenError> {
        let io = Io::new(
            location.clone(),
            Coding::plain(VolumeId([0; 16])),
            Some(patience),
        );
        let got = block_on(io.get(ObjectName::Volume, None))?;
        let got = got.ok_or_else(|| OpenError::Absent(location.url.clone()))?;
        let object = decode_volume(&got.bytes);
        let object = object.map_err(|why| io.damaged(ObjectName::Volume, why))?;
        let file = access.key.as_ref();
        let keys = find_keys(location, &object, &got.bytes, file, patience)?;
        let sources = Sources::of(location.clone(), &object, None, &[], Some(patience));
        Ok((Found { object, sources }, keys))
    }

    /// Finds a volume whose parents are at these locations instead of the URLs in its object `volume`.
    ///
    /// # Errors
    /// As of [`Found::new`].
    pub fn with_parents(
        location: Location,
        access: &Access,
        parents: &[Location],
        patience: Duration,
    ) -> Result<Found, OpenError> {
        let (mut found, keys) = Found::read(&location, access, patience)?;
        found.sources = Sources::of(location, &found.object, keys, parents, Some(patience));
        Ok(found)
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.object.id
    }

    /// The immutable properties.
    #[must_use]
    pub fn object(&self) -> &VolumeObject {
        &self.object
    }

    /// Size of the disk, if `head` has the size `grown`.
    pub(crate) fn blocks(&self, grown: u64) -> u64 {
        self.object.blocks.max(grown)
    }

    pub(crate) fn url(&self) -> String {
        self.sources.own().location.url.clone()
    }

    /// Reads the present state from `head`.
    ///
    /// # Errors
    /// The store's.
    pub fn state(&self) -> Result<State, OpenError> {
        let HeadObject {
            head,
            owner,
            blocks,
            ..
        } = read_head(self.sources.own())?;
        Ok(State {
            blocks: self.blocks(blocks),
            version: head.version.counter,
            term: head.claim.term,
            released: head.released,
            owner: owner.parse().ok(),
            checkpoint: head.base.through,
            roots: read_roots(self.sources.own(), head.roots)?,
        })
    }

    /// Takes the volume over and opens it for writing. A previous owner is fenced.
    ///
    /// # Errors
    /// [`OpenError::InUse`], [`OpenError::Elsewhere`] and [`OpenError::CacheLeft`] unless the options ask for a take-over; the
    /// store's; damage.
    pub fn open(&self, options: &OpenOptions) -> Result<StoreDevice, OpenError> {
        self.open_with(options, None)
    }

    /// The same, with cells that were read before.
    pub(crate) fn open_with(
        &self,
        options: &OpenOptions,
        cells: Option<Arc<Mutex<Cache>>>,
    ) -> Result<StoreDevice, OpenError> {
        let before = self.may_open(options, &|_| false)?;
        let mut last = Term(0);
        let mut sealed = |_, previous, _| {
            last = previous;
            Ok(())
        };
        let own = Own {
            cells,
            ..Own::default()
        };
        let disk = self.open_disk(options, before.released, own, &mut sealed)?;
        self.keep_what_was(&disk, before.released, last)?;
        Ok(disk)
    }

    /// Checks whether the volume may be opened. Returns the state in which its last writer left it. `continues`: whether the
    /// records of the cache continue a term.
    pub(crate) fn may_open(
        &self,
        options: &OpenOptions,
        continues: &dyn Fn(Term) -> bool,
    ) -> Result<Before, OpenError> {
        let HeadObject { head, owner, .. } = read_head(self.sources.own())?;
        let before = Before {
            released: head.released,
            continues: continues(head.open_term().unwrap_or_default()),
        };
        if head.released || options.take_over {
            return Ok(before);
        }
        let owner: Owner = owner.parse().unwrap_or_default();
        let (url, pid) = (self.url(), owner.pid);
        let host = match owner.host.is_empty() {
            true => "an unknown machine".to_owned(),
            false => owner.host.clone(),
        };
        match (owner.state(), owner.cache) {
            (OwnerState::Runs, _) => Err(OpenError::InUse { url, pid }),
            (_, Some(cache)) if !before.continues => Err(OpenError::CacheLeft { url, cache, host }),
            (OwnerState::Elsewhere, _) => Err(OpenError::Elsewhere { url, host, pid }),
            (OwnerState::Ended, _) => Ok(before),
        }
    }

    /// Claims the volume and opens its disk.
    pub(crate) fn open_disk(
        &self,
        options: &OpenOptions,
        released: bool,
        own: Own<'_>,
        sealed: &mut Sealed<'_>,
    ) -> Result<StoreDevice, OpenError> {
        self.sources.own().set_patience(Some(options.patience));
        let mut owner = Owner::current();
        owner.cache = own.cache.map(str::to_owned);
        let how = Opening {
            blocks: self.object.blocks,
            first_base: self.object.base,
            after_release: released,
            owner: owner.to_string(),
            epoch_blocks: own.epoch_blocks,
            cache: own.cells,
        };
        StoreDevice::open(self.sources.clone(), how, options, sealed)
    }

    /// After a take-over of a volume with the contract `flush=cache`: makes a snapshot of the state that term `last` left.
    /// Flushes that only a cache of that term has continue this state.
    pub(crate) fn keep_what_was(
        &self,
        disk: &StoreDevice,
        released: bool,
        last: Term,
    ) -> Result<(), OpenError> {
        if released || !self.object.features.flush_cache || last == Term(0) {
            return Ok(());
        }
        disk.checkpoint()
            .map_err(|error| OpenError::Failed(error.failed()))?;
        match self.make_snapshot(&kept_name(last)) {
            Ok(_) | Err(OpenError::SnapshotExists { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The open term, or the last one that was open.
    pub(crate) fn open_term(&self) -> Result<Option<Term>, OpenError> {
        Ok(read_head(self.sources.own())?.head.open_term())
    }

    /// Opens the present state of the volume for reading, without a claim: its last acknowledged flush, or a later one.
    ///
    /// # Errors
    /// The store's; damage.
    pub fn look(&self, options: &OpenOptions) -> Result<StoreDevice, OpenError> {
        let (head, core) = read_history(&self.sources, self.object.base, options.keep_deleted)?;
        let cache = Cache::shared(options.cache_bytes);
        StoreDevice::look(
            self.sources.clone(),
            self.blocks(head.blocks),
            core,
            cache,
            options,
        )
    }

    /// Opens a snapshot for reading.
    ///
    /// # Errors
    /// [`OpenError::NoSnapshot`]; the store's; damage.
    pub fn look_at(&self, name: &str, options: &OpenOptions) -> Result<StoreDevice, OpenError> {
        // A snapshot is never larger than the volume is now. Its file system does not use blocks that the volume gained later.
        let blocks = self.state()?.blocks;
        let pin = self.snapshot(name)?;
        let loaded = load_root(&self.sources, pin.base, None)?;
        let core = Core::of(loaded, pin.base, options.keep_deleted);
        let cache = Cache::shared(options.cache_bytes);
        StoreDevice::look(self.sources.clone(), blocks, core, cache, options)
    }

    pub(crate) fn snapshot(&self, name: &str) -> Result<Pin, OpenError> {
        let roots = self.state()?.roots;
        let is = |pin: &&Pin| pin.kind == PinKind::Snapshot && pin.name == name;
        let found = roots.pins.iter().find(is).cloned();
        found.ok_or_else(|| OpenError::NoSnapshot {
            url: self.url(),
            name: name.to_owned(),
        })
    }

    /// The space that the volume uses now.
    ///
    /// # Errors
    /// The store's; damage.
    pub fn usage(&self) -> Result<Usage, OpenError> {
        let keep = Duration::ZERO;
        let (head, core) = read_history(&self.sources, self.object.base, keep)?;
        Ok(core.usage(&head.head))
    }

    /// Makes a clone of a snapshot at another location: a writable volume that begins with the snapshot's contents. The
    /// snapshot's objects stay until the clone is removed from this volume's list. A clone of an encrypted volume has the same
    /// key; `key` is the key file that wraps it for the clone.
    ///
    /// # Errors
    /// [`OpenError::NoSnapshot`], [`OpenError::Exists`], the store's.
    pub fn clone_to(
        &self,
        snapshot: &str,
        location: Location,
        key: Option<&KeyFile>,
        patience: Duration,
    ) -> Result<VolumeId, OpenError> {
        let keys = self.sources.own().coding.keys.clone();
        let key = match (keys, key) {
            (Some(keys), Some(file)) => Some((keys, file)),
            (None, None) => None,
            (Some(_), None) => return Err(OpenError::KeyNeeded(location.url)),
            (None, Some(_)) => return Err(OpenError::NotEncrypted(self.url())),
        };
        let blocks = self.state()?.blocks;
        let pin = self.snapshot(snapshot)?;
        if exists(&location, patience)? {
            return Err(OpenError::Exists(location.url));
        }
        let id = random_volume()?;
        // The pin comes first: a clone without a pin could lose the objects that it reads.
        self.add_pin(Pin {
            kind: PinKind::Clone,
            name: location.url.clone(),
            made: now(),
            base: pin.base,
            id,
        })?;
        let mut parents = vec![Parent {
            url: self.url(),
            id: self.object.id,
        }];
        parents.extend(self.object.parents.iter().cloned());
        let object = VolumeObject {
            id,
            blocks,
            made: now(),
            parents,
            base: Some(pin.base),
            features: self.object.features,
        };
        create_as(location, &object, key, patience)?;
        Ok(id)
    }

    /// Wraps the volume's key by another key file. No data is encrypted again, so a copy of the earlier object `key` still
    /// opens the volume with the old file.
    ///
    /// # Errors
    /// [`OpenError::NotEncrypted`], the store's.
    pub fn rekey(&self, file: &KeyFile, patience: Duration) -> Result<(), OpenError> {
        let io = self.sources.own();
        let Some(keys) = &io.coding.keys else {
            return Err(OpenError::NotEncrypted(self.url()));
        };
        replace_key(&io.location, &self.object, keys, file, patience)
    }

    /// Makes a snapshot of the last published checkpoint.
    ///
    /// # Errors
    /// [`OpenError::SnapshotExists`], [`OpenError::NoCheckpoint`], the store's.
    pub fn make_snapshot(&self, name: &str) -> Result<Pin, OpenError> {
        let head = read_head(self.sources.own())?.head;
        if head.base.root.is_none() {
            return Err(OpenError::NoCheckpoint(self.url()));
        }
        self.add_pin(Pin {
            kind: PinKind::Snapshot,
            name: name.to_owned(),
            made: now(),
            base: head.base,
            id: random_volume()?,
        })
    }
}

impl Core {
    pub(crate) fn usage(&self, head: &Head) -> Usage {
        let mut usage = Usage {
            live_bytes: self.map.live_blocks * BLOCK_SIZE as u64,
            held_bytes: self.map.held_blocks * BLOCK_SIZE as u64,
            parents_bytes: self.parents_blocks() * BLOCK_SIZE as u64,
            slots: self.last_slot().0.saturating_sub(head.base.through.0),
            retired: self.retired() as u64,
            ..Usage::default()
        };
        for (_, entry) in self.map.objects().filter(|(_, entry)| entry.source == 0) {
            usage.objects += 1;
            usage.object_bytes += entry.bytes;
        }
        for map in self.maps.iter().filter(|map| map.source == 0) {
            usage.map_objects += 1;
            usage.map_bytes += map.bytes;
        }
        usage
    }
}
