//! Volumes on object stores.

#[cfg(feature = "nfs")]
mod serving;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use steadfast_store::Follower;
use steadfast_store::{
    Access as StoreAccess, CacheOptions, Found, KeyFile, LagClock, Location, OpenError,
    OpenOptions, PlaceError, ProbeOptions, StoreDevice,
};

pub(crate) use super::settings::StoreSettings;
use super::{Access, Device, Unopened};
use crate::failure::{Failure, Kind, notice};
use crate::features::Feature;
use crate::private;
use crate::size;
#[cfg(feature = "nfs")]
pub(crate) use serving::{
    Failed, Served, Serving, ServingLease, Successor, open_to_serve, successor,
};

/// Time limit for answers of a store while a command begins.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Trial of a store before a mount.
const SHORT_TRIAL: ProbeOptions = ProbeOptions {
    writers: 8,
    rounds: 1,
};

/// Refuses options without the options that they need.
pub(crate) fn check(settings: &StoreSettings) -> Result<(), Failure> {
    let needs_flush_cache =
        settings.discard_cache || settings.lag.is_some() || settings.lag_bytes.is_some();
    let why = match (&settings.cache, settings.flush_cache) {
        (None, true) => "the option 'flush=cache' needs a cache device or file: 'cache=FILE'",
        (_, false) if needs_flush_cache => {
            "the options 'lag', 'lag_size' and 'discard_cache' need 'cache=FILE,flush=cache'"
        }
        _ => return Ok(()),
    };
    Err(Failure::usage(why))
}

/// Variable that names the key file, if no option does.
const KEY_FILE_VARIABLE: &str = "STEADFAST_KEY_FILE";

/// A volume on an object store, as it is named: `URL` or `URL@SNAPSHOT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) url: String,
    pub(crate) snapshot: Option<String>,
}

/// The URL, if an image is one.
pub(crate) fn url(image: &Path) -> Option<Url> {
    let text = image
        .to_str()
        .filter(|text| steadfast_store::is_url(text))?;
    let last = text.rfind('/').unwrap_or(0);
    let (url, snapshot) = match text[last..].rfind('@') {
        Some(at) => (&text[..last + at], Some(text[last + at + 1..].to_owned())),
        None => (text, None),
    };
    let url = url.trim_end_matches('/').to_owned();
    Some(Url { url, snapshot })
}

/// A failure, with its kind.
pub(crate) fn failure(error: OpenError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        OpenError::InUse { .. } | OpenError::Elsewhere { .. } | OpenError::CacheLeft { .. } => {
            failure.of_kind(Kind::InUse)
        }
        OpenError::Absent(_) | OpenError::NoSnapshot { .. } => failure.of_kind(Kind::NotFound),
        OpenError::Exists(_) | OpenError::SnapshotExists { .. } => failure.of_kind(Kind::HoldsData),
        OpenError::Place(PlaceError::Scheme(_) | PlaceError::Malformed { .. }) => {
            Failure::usage(failure.message)
        }
        _ => failure,
    }
}

/// Refuses stores over HTTP in a program that cannot reach them.
pub(crate) fn check_reachable(url: &str) -> Result<(), Failure> {
    match url.split_once("://") {
        Some(("s3" | "az" | "gs", _)) => Feature::Cloud.require(url),
        _ => Ok(()),
    }
}

/// The location of a URL.
pub(crate) fn location(url: &str, endpoint: Option<&str>) -> Result<Location, Failure> {
    check_reachable(url)?;
    let access = StoreAccess {
        endpoint: endpoint.map(str::to_owned),
        key: None,
    };
    Location::new(url, &access).map_err(|e| failure(e.into()))
}

/// Reads a key file.
pub(crate) fn key_file(path: &Path) -> Result<KeyFile, Failure> {
    let key = KeyFile::read(path).map_err(|e| Failure::new(e.to_string()))?;
    if let Some(line) = private::warning(path, "the key of the volume") {
        notice(&line);
    }
    Ok(key)
}

/// The key file that the environment names.
pub(crate) fn key_file_variable() -> Option<PathBuf> {
    let name = std::env::var_os(KEY_FILE_VARIABLE).filter(|name| !name.is_empty());
    name.map(PathBuf::from)
}

/// The key file of an option, or of the environment.
pub(crate) fn key_file_of(option: Option<&Path>) -> Result<Option<KeyFile>, Failure> {
    let path = option.map(Path::to_owned).or_else(key_file_variable);
    path.map(|path| key_file(&path)).transpose()
}

/// The access to a store.
pub(crate) fn access(
    endpoint: Option<&str>,
    key_file: Option<&Path>,
) -> Result<StoreAccess, Failure> {
    Ok(StoreAccess {
        endpoint: endpoint.map(str::to_owned),
        key: key_file_of(key_file)?,
    })
}

/// Finds a volume.
pub(crate) fn find(url: &str, access: &StoreAccess) -> Result<Found, Failure> {
    let place = location(url, access.endpoint.as_deref())?;
    Found::new(place, access, PATIENCE).map_err(failure)
}

/// The options with which commands open volumes.
pub(crate) fn options(wishes: &StoreSettings) -> Result<OpenOptions, Failure> {
    Ok(OpenOptions {
        access: access(wishes.endpoint.as_deref(), wishes.key_file.as_deref())?,
        take_over: wishes.take_over,
        patience: PATIENCE,
        store_timeout: wishes.timeout,
        release_on_drop: true,
        ..OpenOptions::default()
    })
}

/// Opens the disk of a volume.
pub(crate) fn open_disk(
    url: &Url,
    access: Access,
    options: &OpenOptions,
) -> Result<StoreDevice, Failure> {
    open_found(&find(&url.url, &options.access)?, url, access, options)
}

fn open_found(
    found: &Found,
    url: &Url,
    access: Access,
    options: &OpenOptions,
) -> Result<StoreDevice, Failure> {
    let opened = match (&url.snapshot, access) {
        (Some(name), Access::Change) => {
            let why = format!(
                "{}@{name}: a snapshot can only be looked at ('-o ro'); 'steadfast store clone' makes a writable volume of it",
                url.url
            );
            return Err(Failure::new(why));
        }
        (Some(name), _) => found.look_at(name, options),
        (None, Access::Change) => found.open(options),
        (None, _) => found.look(options),
    };
    opened.map_err(failure)
}

/// The cache of the options. A missing file is made.
pub(crate) fn cache_options(path: &Path, wishes: &StoreSettings) -> Result<CacheOptions, Failure> {
    let mut options = CacheOptions::open(path, wishes.cache_size).map_err(failure)?;
    options.lag = wishes.lag.unwrap_or(options.lag);
    options.lag_bytes = wishes.lag_bytes.unwrap_or(options.lag_bytes);
    options.discard = wishes.discard_cache;
    Ok(options)
}

/// Opens a volume with its cache.
fn open_cached(url: &Url, path: &Path, wishes: &StoreSettings) -> Result<Device, Failure> {
    let options = options(wishes)?;
    let found = find(&url.url, &options.access)?;
    let cache = cache_options(path, wishes)?;
    let device = found.open_cached(&options, &cache).map_err(failure)?;
    let lag = device.lag();
    if lag.flushes > 0 {
        notice(&format!(
            "{}: the cache {} has {} flushes ({}) that the store lacks; they are sent now",
            url.url,
            path.display(),
            lag.flushes,
            size::show(lag.bytes)
        ));
    }
    Ok(Device::Block(Arc::new(device)))
}

/// Opens a volume whose cache keeps reads.
fn open_keeping_reads(
    url: &Url,
    access: Access,
    path: &Path,
    wishes: &StoreSettings,
) -> Result<Device, Failure> {
    let options = options(wishes)?;
    let found = find(&url.url, &options.access)?;
    found
        .keep_reads(&cache_options(path, wishes)?)
        .map_err(failure)?;
    let device = open_found(&found, url, access, &options)?;
    Ok(Device::Block(Arc::new(device)))
}

/// Opens a volume that another machine writes, to follow it.
pub(crate) fn follow(
    image: &Path,
    access: Access,
    wishes: &StoreSettings,
) -> Result<(Follower, Device), Failure> {
    let needs = |what: &str| {
        Failure::usage(format!(
            "the option 'follow' needs {what}: it shows what another machine writes to a volume on an object store"
        ))
    };
    let url = url(image).ok_or_else(|| needs("the URL of a volume"))?;
    if access == Access::Change {
        return Err(needs("'ro'"));
    }
    if url.snapshot.is_some() {
        return Err(needs("a volume, not a snapshot, which never changes"));
    }
    check(wishes)?;
    let options = options(wishes)?;
    let found = find(&url.url, &options.access)?;
    let (follower, device) = Follower::new(found, options, LagClock::default()).map_err(failure)?;
    Ok((follower, Device::Block(Arc::new(device))))
}

pub(super) fn open(url: &Url, access: Access, wishes: &StoreSettings) -> Result<Device, Unopened> {
    let writes = access == Access::Change && url.snapshot.is_none();
    let opened = match &wishes.cache {
        Some(cache) if wishes.flush_cache && writes => open_cached(url, cache, wishes),
        Some(cache) if !wishes.flush_cache => open_keeping_reads(url, access, cache, wishes),
        _ => options(wishes)
            .and_then(|options| open_disk(url, access, &options))
            .map(|device| Device::Block(Arc::new(device))),
    };
    match opened {
        Ok(device) => Ok(device),
        Err(failure) if failure.kind == Kind::InUse => Err(Unopened::InUse(failure)),
        Err(failure) => Err(Unopened::Failed(failure)),
    }
}

/// Opens a volume with the key file of an option, or of the environment.
pub(super) fn open_with_key(
    url: &Url,
    access: Access,
    key_file: Option<&Path>,
) -> Result<Device, Failure> {
    let wishes = StoreSettings {
        key_file: key_file.map(Path::to_owned),
        ..StoreSettings::default()
    };
    open(url, access, &wishes).map_err(Unopened::failure)
}

/// The disk of a volume that is not mounted, to make it larger.
pub(crate) struct GrowingDisk(Arc<StoreDevice>);

impl GrowingDisk {
    pub(crate) fn device(&self) -> Device {
        Device::Block(Arc::clone(&self.0) as _)
    }

    pub(crate) fn grow(&self, image: &Path, blocks: u64) -> Result<(), Failure> {
        self.0.grow(blocks).map_err(|e| Failure::at(image, e))
    }

    pub(crate) fn release(self, image: &Path) -> Result<(), Failure> {
        let released = self.0.release();
        released.map_err(|e| Failure::at(image, format!("grown; releasing the volume: {e}")))
    }
}

/// Opens the disk of a volume that is not mounted, to make it larger.
pub(crate) fn open_to_grow(url: &Url, key_file: Option<&Path>) -> Result<GrowingDisk, Failure> {
    let wishes = StoreSettings {
        key_file: key_file.map(Path::to_owned),
        ..StoreSettings::default()
    };
    let disk = open_disk(url, Access::Change, &options(&wishes)?)?;
    Ok(GrowingDisk(Arc::new(disk)))
}

/// A short trial: the endpoint may be another than the one that mkfs tried.
pub(crate) fn try_store(url: &Url, wishes: &StoreSettings) -> Result<(), Failure> {
    let place = location(&url.url, wishes.endpoint.as_deref())?;
    if !steadfast_store::exists(&place, PATIENCE).map_err(failure)? {
        return Err(failure(OpenError::Absent(url.url.clone())));
    }
    let report = steadfast_store::probe(&[place], SHORT_TRIAL, &mut |_, _| {});
    let report = report.map_err(|e| failure(e.into()))?;
    match report.is_good() {
        true => Ok(()),
        false => Err(crate::commands::store::refusal(&url.url, &report)),
    }
}

/// Opens a volume as the mount options say.
pub(crate) fn open_for_mount(
    url: &Url,
    access: Access,
    wishes: &StoreSettings,
) -> Result<Device, Failure> {
    check(wishes)?;
    if access == Access::Change && url.snapshot.is_none() {
        try_store(url, wishes)?;
    }
    open(url, access, wishes).map_err(Unopened::failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_may_name_a_snapshot_and_a_file_is_no_url() {
        let parts = |text: &str| url(Path::new(text)).map(|url| (url.url, url.snapshot));
        let some =
            |url: &str, snapshot: Option<&str>| Some((url.to_owned(), snapshot.map(str::to_owned)));
        assert_eq!(parts("s3://b/p"), some("s3://b/p", None));
        assert_eq!(parts("s3://b/p/@day"), some("s3://b/p", Some("day")));
        assert_eq!(parts("s3://b/a@b/p@1"), some("s3://b/a@b/p", Some("1")));
        assert_eq!(parts("file:///srv/v@x"), some("file:///srv/v", Some("x")));
        for file in ["image.img", "/srv/a@b", "file:x", "s3:/b/p", "https://x/y"] {
            assert_eq!(parts(file), None, "{file}");
        }
    }
}
