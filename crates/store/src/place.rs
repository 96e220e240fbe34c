//! Where a volume is: a URL, and the store that answers for it.
//!
//! Retries of the crate `object_store` are off: a conditional PUT must not be sent again before its outcome was read back,
//! which [`Io`](crate::io::Io) and the protocol do.

use crate::local::DirStore;
use crate::object::VolumeId;
use object_store::{ObjectStore, memory::InMemory, path::Path};
use std::sync::{Arc, OnceLock};

/// Why a URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// It names no store that is known.
    #[error(
        "'{0}' names no store: write s3://BUCKET/PREFIX, or file:///DIRECTORY for a directory on this machine"
    )]
    Scheme(String),
    /// It is malformed.
    #[error("'{url}': {why}")]
    Malformed {
        /// The URL.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The store's client cannot be set up.
    #[error("{url}: {source}")]
    Client {
        /// The URL.
        url: String,
        /// Why.
        source: Box<object_store::Error>,
    },
    /// The system refuses threads for requests.
    #[error("starting threads for requests: {0}")]
    Threads(std::io::Error),
}

/// How a store is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The address of an S3-compatible server; without it, that of the environment (`AWS_ENDPOINT_URL`), or Amazon's.
    pub endpoint: Option<String>,
    /// The key file of an encrypted volume.
    pub key: Option<crate::KeyFile>,
}

/// A store, and the prefix of a volume in it.
#[derive(Clone, Debug)]
pub struct Location {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) prefix: Path,
    /// The store, if it is a directory.
    pub(crate) directory: Option<DirStore>,
    /// As it was given.
    pub url: String,
}

/// Whether a text is the URL of a volume on an object store, not the name of a file.
#[must_use]
pub fn is_url(text: &str) -> bool {
    ["s3://", "file://", "memory://"]
        .iter()
        .any(|scheme| text.starts_with(scheme))
}

impl Location {
    /// Finds the store that a URL names. Sends no request.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn new(url: &str, access: &Access) -> Result<Location, PlaceError> {
        let malformed = |why: &str| PlaceError::Malformed {
            url: url.to_owned(),
            why: why.to_owned(),
        };
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| PlaceError::Scheme(url.to_owned()))?;
        let failed = |source| PlaceError::Client {
            url: url.to_owned(),
            source: Box::new(source),
        };
        let mut directory = None;
        let (store, prefix): (Arc<dyn ObjectStore>, &str) = match scheme {
            "file" => {
                let path = std::path::Path::new(rest);
                if !path.is_absolute() {
                    return Err(malformed(
                        "the directory must be absolute: file:///DIRECTORY",
                    ));
                }
                let store = directory.insert(DirStore::new(path)).clone();
                (Arc::new(store), "")
            }
            "memory" => (memory(), rest),
            "s3" => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                if bucket.is_empty() {
                    return Err(malformed("the bucket is missing: s3://BUCKET/PREFIX"));
                }
                (s3(bucket, access, url)?, prefix)
            }
            _ => return Err(PlaceError::Scheme(url.to_owned())),
        };
        let prefix = Path::parse(prefix.trim_matches('/'))
            .map_err(|source| failed(object_store::Error::InvalidPath { source }))?;
        Ok(Location {
            store,
            prefix,
            directory,
            url: url.trim_end_matches('/').to_owned(),
        })
    }

    /// A volume below a prefix of a store that the caller has.
    #[must_use]
    pub fn within(store: Arc<dyn ObjectStore>, prefix: &str, url: &str) -> Location {
        Location {
            store,
            prefix: Path::from(prefix),
            directory: None,
            url: url.to_owned(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> Path {
        match self.prefix.as_ref() {
            "" => Path::from(name),
            prefix => Path::from(format!("{prefix}/{name}")),
        }
    }
}

/// The store in this process's memory.
fn memory() -> Arc<dyn ObjectStore> {
    static STORE: OnceLock<Arc<InMemory>> = OnceLock::new();
    Arc::clone(STORE.get_or_init(|| Arc::new(InMemory::new()))) as Arc<dyn ObjectStore>
}

#[cfg(feature = "aws")]
fn s3(bucket: &str, access: &Access, url: &str) -> Result<Arc<dyn ObjectStore>, PlaceError> {
    use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
    use object_store::{ClientOptions, RetryConfig};
    use std::time::Duration;
    // The second caller finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(Duration::from_secs(5))
        .with_pool_max_idle_per_host(64)
        .with_allow_http(true);
    let retry = RetryConfig {
        max_retries: 0,
        retry_timeout: Duration::ZERO,
        ..RetryConfig::default()
    };
    let mut builder = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .with_client_options(client)
        .with_retry(retry)
        .with_conditional_put(S3ConditionalPut::ETagMatch);
    if let Some(endpoint) = &access.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let store = builder.build().map_err(|source| PlaceError::Client {
        url: url.to_owned(),
        source: Box::new(source),
    })?;
    Ok(Arc::new(store))
}

#[cfg(not(feature = "aws"))]
fn s3(_: &str, _: &Access, url: &str) -> Result<Arc<dyn ObjectStore>, PlaceError> {
    Err(PlaceError::Scheme(url.to_owned()))
}

/// The threads that carry requests, for all volumes of the process.
pub(crate) fn runtime() -> Result<&'static tokio::runtime::Runtime, PlaceError> {
    static RUNTIME: OnceLock<Result<tokio::runtime::Runtime, std::io::Error>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("store")
            .enable_all()
            .build()
    });
    made.as_ref()
        .map_err(|e| PlaceError::Threads(std::io::Error::new(e.kind(), e.to_string())))
}

/// 128 random bits of the system.
pub(crate) fn random() -> Result<u128, PlaceError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| PlaceError::Threads(std::io::Error::other(e)))?;
    Ok(u128::from_le_bytes(bytes))
}

/// A new identity.
pub(crate) fn random_volume() -> Result<VolumeId, PlaceError> {
    let mut bytes = random()?.to_le_bytes();
    // Version 4, variant 1.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(VolumeId(bytes))
}
