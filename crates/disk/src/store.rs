//! The disk of a volume on an object store, as servers offer it: with or without a cache device.
//!
//! Opened so, the disk flushes when an epoch is full: clients know of no epochs.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use steadfast_block::{BlockDevice, BlockNo, Geometry, Snapshot};
use steadfast_flash::FlashError;
use steadfast_ftl::{DiskError, FtlError};
use steadfast_store::{
    Access, CacheOptions, CachedDevice, Found, KeyFile, Location, OpenError, OpenOptions,
    StoreDevice,
};

use crate::medium::{Medium, Run};

/// Time limit for a store's answer while the disk is opened.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reason why the disk of a volume cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The volume, the store or the cache.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The key file.
    #[error(transparent)]
    Key(#[from] steadfast_store::KeyFileError),
}

/// Settings for opening a volume on an object store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSettings {
    /// An owner that has not released the volume is fenced.
    pub take_over: bool,
    /// Time without an answer of the store after which the volume fails; without it, an outage is waited out.
    pub timeout: Option<Duration>,
    /// The address of the server.
    pub endpoint: Option<String>,
    /// The key file of an encrypted volume.
    pub key_file: Option<PathBuf>,
    /// The cache device or file.
    pub cache: Option<PathBuf>,
    /// Flushes are durable on the cache. Without it the cache is one of reads alone.
    pub flush_cache: bool,
    /// Maximum lag of the store behind the cache.
    pub lag: Option<Duration>,
    /// Maximum lag of the store, in bytes.
    pub lag_bytes: Option<u64>,
    /// Bytes of a cache file that is made.
    pub cache_size: Option<u64>,
    /// Flushes that only the cache has are dropped, if another machine took over.
    pub discard_cache: bool,
}

/// Keys of [`StoreSettings::set`].
pub(crate) const KEYS: &str =
    "takeover, timeout, endpoint, keyfile, cache, flush, lag, lagsize, cachesize, discardcache";

fn flag(value: &str) -> Result<bool, String> {
    match value {
        "true" | "yes" | "1" => Ok(true),
        "false" | "no" | "0" => Ok(false),
        _ => Err("say 'true' or 'false'".to_owned()),
    }
}

fn number(value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| "no number".to_owned())
}

impl StoreSettings {
    /// Takes one; `None` if the key is not known.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<Result<(), String>> {
        let millis = |value: &str| number(value).map(Duration::from_millis);
        Some(match key {
            "takeover" => flag(value).map(|on| self.take_over = on),
            "timeout" => millis(value).map(|time| self.timeout = Some(time)),
            "endpoint" => {
                self.endpoint = Some(value.to_owned());
                Ok(())
            }
            "keyfile" => {
                self.key_file = Some(value.into());
                Ok(())
            }
            "cache" => {
                self.cache = Some(value.into());
                Ok(())
            }
            "flush" => match value {
                "store" | "cache" => {
                    self.flush_cache = value == "cache";
                    Ok(())
                }
                _ => Err("say 'store' or 'cache'".to_owned()),
            },
            "lag" => millis(value).map(|time| self.lag = Some(time)),
            "lagsize" => number(value).map(|bytes| self.lag_bytes = Some(bytes)),
            "cachesize" => number(value).map(|bytes| self.cache_size = Some(bytes)),
            "discardcache" => flag(value).map(|on| self.discard_cache = on),
            _ => return None,
        })
    }

    /// They, as [`set`](Self::set) takes them; times in milliseconds, sizes in bytes.
    pub(crate) fn words(&self, add: &mut dyn FnMut(&str, &std::ffi::OsStr)) {
        let mut text = |key: &str, value: String| add(key, value.as_ref());
        for (key, on) in [
            ("takeover", self.take_over),
            ("discardcache", self.discard_cache),
        ] {
            if on {
                text(key, "true".to_owned());
            }
        }
        if self.flush_cache {
            text("flush", "cache".to_owned());
        }
        for (key, time) in [("timeout", self.timeout), ("lag", self.lag)] {
            if let Some(time) = time {
                text(key, time.as_millis().to_string());
            }
        }
        for (key, bytes) in [("lagsize", self.lag_bytes), ("cachesize", self.cache_size)] {
            if let Some(bytes) = bytes {
                text(key, bytes.to_string());
            }
        }
        if let Some(endpoint) = &self.endpoint {
            text("endpoint", endpoint.clone());
        }
        for (key, path) in [("keyfile", &self.key_file), ("cache", &self.cache)] {
            if let Some(path) = path {
                add(key, path.as_os_str());
            }
        }
    }

    fn options(&self) -> Result<OpenOptions, StoreError> {
        let key = self.key_file.as_deref().map(KeyFile::read).transpose()?;
        Ok(OpenOptions {
            access: Access {
                endpoint: self.endpoint.clone(),
                key,
            },
            take_over: self.take_over,
            patience: PATIENCE,
            store_timeout: self.timeout,
            flush_when_full: true,
            release_on_drop: true,
            ..OpenOptions::default()
        })
    }

    /// Opens the disk of the volume at `url`, or of its snapshot `name` for `url@name`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(&self, url: &str, read_only: bool) -> Result<StoreDisk, StoreError> {
        let options = self.options()?;
        let (url, snapshot) = split(url);
        let location = Location::new(url, &options.access).map_err(OpenError::from)?;
        let found = Found::new(location, &options.access, PATIENCE)?;
        // A read-only open does not touch a cache that holds flushes.
        let cache = self
            .cache
            .as_ref()
            .filter(|_| !(self.flush_cache && read_only));
        if let Some(cache) = cache {
            let cache = CacheOptions::open(cache, self.cache_size)?;
            if self.flush_cache {
                let cache = CacheOptions {
                    lag: self.lag.unwrap_or(cache.lag),
                    lag_bytes: self.lag_bytes.unwrap_or(cache.lag_bytes),
                    discard: self.discard_cache,
                    ..cache
                };
                let device = found.open_cached(&options, &cache)?;
                return Ok(StoreDisk(Kind::Cached(device)));
            }
            found.keep_reads(&cache)?;
        }
        let device = match (snapshot, read_only) {
            (Some(name), _) => found.look_at(name, &options)?,
            (None, true) => found.look(&options)?,
            (None, false) => found.open(&options)?,
        };
        Ok(StoreDisk(Kind::Plain(device)))
    }
}

/// The URL of a volume, and the name of its snapshot.
fn split(url: &str) -> (&str, Option<&str>) {
    let last = url.rfind('/').unwrap_or(0);
    let (url, name) = match url[last..].rfind('@') {
        Some(at) => (&url[..last + at], Some(&url[last + at + 1..])),
        None => (url, None),
    };
    (url.trim_end_matches('/'), name)
}

#[derive(Debug)]
enum Kind {
    Plain(StoreDevice),
    Cached(CachedDevice),
}

/// The disk, as servers want it.
#[derive(Debug)]
pub struct StoreDisk(Kind);

impl StoreDisk {
    fn device(&self) -> &dyn BlockDevice {
        match &self.0 {
            Kind::Plain(device) => device,
            Kind::Cached(device) => device,
        }
    }

    fn epochs(&self) -> &dyn Snapshot {
        match &self.0 {
            Kind::Plain(device) => device,
            Kind::Cached(device) => device,
        }
    }

    /// Flushes that only the cache had when the disk was opened, and the bytes that they write.
    #[must_use]
    pub fn behind(&self) -> (u64, u64) {
        match &self.0 {
            Kind::Plain(_) => (0, 0),
            Kind::Cached(device) => {
                let lag = device.lag();
                (lag.flushes, lag.bytes)
            }
        }
    }
}

impl BlockDevice for StoreDisk {
    fn geometry(&self) -> Geometry {
        self.device().geometry()
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        self.device().read(at, buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        self.device().write(at, segments)
    }

    fn write_scattered(&self, writes: &[(BlockNo, &[&[u8]])]) -> steadfast_block::Result<()> {
        self.device().write_scattered(writes)
    }

    fn flush(&self) -> steadfast_block::Result<()> {
        self.device().flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        self.device().discard(at, count)
    }

    fn finish(&self) {
        self.device().finish();
    }

    fn statistics(&self) -> Vec<(&'static str, u64)> {
        self.device().statistics()
    }

    fn snapshot(&self) -> Option<&dyn Snapshot> {
        self.device().snapshot()
    }
}

impl Medium for StoreDisk {
    fn epoch_blocks(&self) -> u64 {
        self.epochs().epoch_blocks()
    }

    fn run(&self, range: Range<BlockNo>) -> steadfast_block::Result<Run> {
        let count = range.end.0.saturating_sub(range.start.0);
        let (blocks, mapped) = match &self.0 {
            Kind::Plain(device) => device.run(range.start, count)?,
            Kind::Cached(device) => device.run(range.start, count)?,
        };
        Ok(Run {
            blocks,
            hole: !mapped,
        })
    }

    fn roll_back(&self) -> Result<(), DiskError> {
        self.epochs().rollback().map_err(|error| {
            let error = std::io::Error::other(error.to_string());
            DiskError::Layer(FtlError::Flash(FlashError::Store(error)))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn settings_passed_on_as_words_stay_the_same() {
        let settings = StoreSettings {
            take_over: true,
            timeout: Some(Duration::from_secs(7)),
            endpoint: Some("http://127.0.0.1:1/x=y".to_owned()),
            key_file: Some("/a b/key".into()),
            cache: Some("/c=d".into()),
            flush_cache: true,
            lag: Some(Duration::from_millis(1500)),
            lag_bytes: Some(1 << 20),
            cache_size: Some(1 << 30),
            discard_cache: true,
        };
        let mut other = StoreSettings::default();
        settings.words(&mut |key, value| {
            other.set(key, value.to_str().unwrap()).unwrap().unwrap();
        });
        assert_eq!(settings, other);
        for (key, value) in [("flush", "disk"), ("lag", "5s"), ("takeover", "perhaps")] {
            assert!(other.set(key, value).unwrap().is_err(), "{key}={value}");
        }
        assert!(other.set("size", "1").is_none());
        assert_eq!(split("s3://b/p/@day"), ("s3://b/p", Some("day")));
        assert_eq!(split("s3://b@c/p"), ("s3://b@c/p", None));
    }

    #[test]
    fn a_disk_flushes_when_its_epoch_is_full_and_knows_its_holes() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}/v", dir.path().display());
        let place = Location::new(&url, &Access::default()).unwrap();
        let made = steadfast_store::CreateOptions {
            flush_cache: true,
            ..Default::default()
        };
        steadfast_store::create_with(place, 1 << 17, &made, PATIENCE).unwrap();
        let mut settings = StoreSettings::default();
        for cached in [false, true] {
            if cached {
                settings.cache = Some(dir.path().join("cache"));
                settings.cache_size = Some(64 << 20);
                settings.flush_cache = true;
            }
            let disk = settings.open(&url, false).unwrap();
            assert!(disk.snapshot().is_none());
            let most = Medium::epoch_blocks(&disk);
            let block = [7; steadfast_block::BLOCK_SIZE];
            let at = u64::from(cached) * 1000;
            disk.write(BlockNo(at + 5), &[&block]).unwrap();
            disk.discard(BlockNo(at + 9), 1).unwrap();
            let run = |at: u64| disk.run(BlockNo(at)..BlockNo(at + 100)).unwrap();
            assert_eq!((run(at).blocks, run(at).hole), (5, true));
            assert_eq!((run(at + 5).blocks, run(at + 5).hole), (1, false));
            assert!(run(at + 6).hole && run(at + 6).blocks >= 94);
            if cached {
                assert_eq!((run(4).blocks, run(5).hole), (1, false));
                for _ in 0..=most {
                    disk.write(BlockNo(2000), &[&block]).unwrap();
                }
                assert!(disk.behind().0 > 0 || most > 0);
            }
            disk.write(BlockNo(at + 6), &[&block]).unwrap();
            disk.roll_back().unwrap();
            assert!(run(at + 6).hole);
            disk.write(BlockNo(at + 5), &[&block]).unwrap();
            disk.flush().unwrap();
            disk.finish();
        }
        let disk = settings.open(&url, true).unwrap();
        let mut buf = [0; steadfast_block::BLOCK_SIZE];
        for at in [5, 1005] {
            disk.read(BlockNo(at), &mut buf).unwrap();
            assert_eq!(buf[0], 7, "{at}");
        }
        assert!(disk.geometry().read_only);
    }
}
