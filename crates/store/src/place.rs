//! Locations of volumes: a URL, and the store that it names.
//!
//! The retries of the crate `object_store` are off: a conditional PUT must not be sent again before its outcome was read back.
//! [`Io`](crate::io::Io) and the protocol do that.

use crate::local::DirStore;
use crate::object::VolumeId;
use crate::traffic::{Time, Traffic, TrafficRules};
use object_store::{ObjectStore, memory::InMemory, path::Path};
use std::sync::{Arc, OnceLock};

/// Errors of a URL or its store.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The URL names no known store.
    #[error(
        "'{0}' names no store: write s3://BUCKET/PREFIX, az://CONTAINER/PREFIX, gs://BUCKET/PREFIX, or file:///DIRECTORY for a directory on this machine"
    )]
    Scheme(String),
    /// The URL is malformed.
    #[error("'{url}': {why}")]
    Malformed {
        /// The URL.
        url: String,
        /// Cause.
        why: String,
    },
    /// The store's client cannot be set up.
    #[error("{url}: {source}")]
    Client {
        /// The URL.
        url: String,
        /// Cause.
        source: Box<object_store::Error>,
    },
    /// Threads for requests cannot be started.
    #[error("starting threads for requests: {0}")]
    Threads(std::io::Error),
}

/// Access to a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Endpoint of a server for the scheme's protocol. Default: the one in the environment (`AWS_ENDPOINT_URL`,
    /// `AZURE_STORAGE_ENDPOINT`, `GOOGLE_BASE_URL`), or the provider's.
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
    pub(crate) traffic: Arc<Traffic>,
    /// The URL as given.
    pub url: String,
}

/// Whether a text is the URL of a volume on an object store, and not a file name.
#[must_use]
pub fn is_url(text: &str) -> bool {
    ["s3://", "az://", "gs://", "file://", "memory://"]
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
            _ => {
                let connect =
                    cloud::connector(scheme).ok_or_else(|| PlaceError::Scheme(url.to_owned()))?;
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                if bucket.is_empty() {
                    return Err(malformed(&format!(
                        "the bucket is missing: {scheme}://BUCKET/PREFIX"
                    )));
                }
                (connect(bucket, access).map_err(failed)?, prefix)
            }
        };
        let prefix = Path::parse(prefix.trim_matches('/'))
            .map_err(|source| failed(object_store::Error::InvalidPath { source }))?;
        Ok(Location {
            store,
            prefix,
            directory,
            traffic: Traffic::new(),
            url: url.trim_end_matches('/').to_owned(),
        })
    }

    /// A location below a prefix of the caller's own store.
    #[must_use]
    pub fn within(store: Arc<dyn ObjectStore>, prefix: &str, url: &str) -> Location {
        Location {
            store,
            prefix: Path::from(prefix),
            directory: None,
            traffic: Traffic::new(),
            url: url.to_owned(),
        }
    }

    /// The same location; its requests use the caller's clock and these traffic rules.
    #[must_use]
    pub fn in_time(self, time: Arc<dyn Time>, rules: TrafficRules) -> Location {
        Location {
            traffic: Traffic::within(time, rules),
            ..self
        }
    }

    /// The store, and the prefix in it: for direct requests.
    #[must_use]
    pub fn client(&self) -> (Arc<dyn ObjectStore>, Path) {
        (Arc::clone(&self.store), self.prefix.clone())
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

/// Stores over HTTP. The crate `object_store` finds the credentials: in the environment, in files, or from the instance.
#[cfg(feature = "cloud")]
mod cloud {
    use super::Access;
    use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
    use object_store::azure::MicrosoftAzureBuilder;
    use object_store::gcp::GoogleCloudStorageBuilder;
    use object_store::{ClientOptions, ObjectStore, Result, RetryConfig};
    use std::sync::Arc;
    use std::time::Duration;

    pub(super) type Connect = fn(&str, &Access) -> Result<Arc<dyn ObjectStore>>;

    /// The function that connects to a bucket, by the URL's scheme.
    pub(super) fn connector(scheme: &str) -> Option<Connect> {
        match scheme {
            "s3" => Some(s3),
            "az" => Some(azure),
            "gs" => Some(google),
            _ => None,
        }
    }

    /// Options without timeouts: [`Io`](crate::io::Io) sets the deadlines.
    fn client() -> ClientOptions {
        // Fails for the second caller: then it is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(Duration::from_secs(5))
            .with_pool_max_idle_per_host(64)
            .with_allow_http(true)
    }

    fn retry() -> RetryConfig {
        RetryConfig {
            max_retries: 0,
            retry_timeout: Duration::ZERO,
            ..RetryConfig::default()
        }
    }

    fn s3(bucket: &str, access: &Access) -> Result<Arc<dyn ObjectStore>> {
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(client())
            .with_retry(retry())
            .with_conditional_put(S3ConditionalPut::ETagMatch);
        if let Some(endpoint) = &access.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        Ok(Arc::new(builder.build()?))
    }

    fn azure(container: &str, access: &Access) -> Result<Arc<dyn ObjectStore>> {
        let mut builder = MicrosoftAzureBuilder::from_env()
            .with_container_name(container)
            .with_client_options(client())
            .with_retry(retry());
        if let Some(endpoint) = &access.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        Ok(Arc::new(builder.build()?))
    }

    fn google(bucket: &str, access: &Access) -> Result<Arc<dyn ObjectStore>> {
        let mut builder = GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(client())
            .with_retry(retry());
        if let Some(endpoint) = &access.endpoint {
            builder = builder.with_base_url(endpoint);
        }
        Ok(Arc::new(builder.build()?))
    }
}

#[cfg(not(feature = "cloud"))]
mod cloud {
    use super::Access;
    use object_store::{ObjectStore, Result};
    use std::sync::Arc;

    pub(super) type Connect = fn(&str, &Access) -> Result<Arc<dyn ObjectStore>>;

    pub(super) fn connector(_: &str) -> Option<Connect> {
        None
    }
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
