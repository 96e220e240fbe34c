//! A directory as a store. In contrast to `LocalFileSystem`, objects are durable when a PUT returns or a GET shows them, and
//! there is compare-and-swap.
//!
//! **A GET returns only durable objects.** A name is visible before it is durable, so each file shows whether it is *settled*:
//! a settled file has no write permission.
//!
//! A *PUT* (1) writes a file under a temporary name; (2) syncs it; (3) gives it its name: a create makes a hard link, which
//! fails if the name is taken; a swap renames, under a lock on the file `.lock`, if the hash of the present contents is the
//! ETag; (4) syncs the directory and, the first time, all directories above it; (5) marks the file as settled; (6) returns. A
//! swap holds its lock until (5) is done.
//!
//! A *GET* returns a settled file as it is. The PUT of an unsettled file is in progress, or has failed or died after (3). The
//! reader settles the file: it takes the lock, reads the file again, and does (1) to (5) with the same contents, as a swap
//! does.
//!
//! **A failed sync is never repeated**: the second one may succeed without the data. If (2) fails, the file never gets its
//! name, and a repeated PUT writes a new file. If (4) fails, the process neither writes nor settles anything in the store any
//! more ([`SyncFailed`]), and PUTs in progress fail, too. A later process finds unsettled files, and writes new ones. So each
//! file is synced once, by the process that wrote it.
//!
//! For the same reason, directories in the store are changed before they are synced for the first time; directories above the
//! store's parent are only synced.
//!
//! A reader without write permission syncs the file and its directory instead of settling the file.
//!
//! Deleting is not synced: an object is deleted after the `head` that no longer needs it is durable.

mod directory;
mod disk;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub(crate) use directory::SyncFailed;

use directory::{Directory, FileError, tag};
use disk::{Contents, RealDisk};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Objects up to this size get an ETag from their contents when they are read. All objects that are swapped are smaller.
const TAGGED_BYTES: u64 = 1 << 20;

/// See the module's header.
#[derive(Clone, Debug)]
pub(crate) struct DirStore {
    directory: Arc<Directory<RealDisk>>,
    /// Lists and deletes. Empty until the directory exists: the first PUT makes it.
    inner: Arc<OnceLock<LocalFileSystem>>,
}

fn generic(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic {
        store: "directory",
        source: Box::new(error),
    }
}

fn error_of(location: &Path, failed: FileError) -> Error {
    let path = location.to_string();
    match failed {
        FileError::Taken => Error::AlreadyExists {
            path,
            source: Box::new(failed),
        },
        FileError::Changed { .. } => Error::Precondition {
            path,
            source: Box::new(failed),
        },
        FileError::Io(e) if e.kind() == ErrorKind::NotFound => Error::NotFound {
            path,
            source: Box::new(e),
        },
        FileError::Io(e) if e.kind() == ErrorKind::PermissionDenied => Error::PermissionDenied {
            path,
            source: Box::new(e),
        },
        FileError::Io(e) => generic(e),
        FileError::Sync(failed) => generic(failed),
    }
}

/// Whether an error is the sticky [`SyncFailed`].
pub(crate) fn is_sync_failure(error: &Error) -> bool {
    matches!(error, Error::Generic { source, .. } if source.is::<SyncFailed>())
}

impl DirStore {
    /// The store in a directory, which need not exist yet.
    pub(crate) fn new(root: &std::path::Path) -> DirStore {
        DirStore {
            directory: Arc::new(Directory::new(root, RealDisk)),
            inner: Arc::default(),
        }
    }

    /// Those of the store's directory and its parents that do not exist.
    pub(crate) fn absent(&self) -> Vec<PathBuf> {
        self.directory.absent()
    }

    /// Removes an empty directory of the store, and the directories that were made for it.
    ///
    /// # Errors
    /// The file system's.
    pub(crate) fn remove_empty(&self, name: &str, made: &[PathBuf]) -> std::io::Result<()> {
        self.directory.remove_empty(name, made)
    }

    /// The store that lists and deletes, if the directory exists.
    fn inner(&self) -> Result<Option<&LocalFileSystem>> {
        let root = &self.directory.root;
        if self.inner.get().is_none() && root.is_dir() {
            let inner = LocalFileSystem::new_with_prefix(root)?;
            // Another thread may have set it first: both values are equal.
            let _ = self.inner.set(inner.with_automatic_cleanup(false));
        }
        Ok(self.inner.get())
    }

    fn needed(&self, location: &Path) -> Result<&LocalFileSystem> {
        self.inner()?.ok_or_else(|| Error::NotFound {
            path: location.to_string(),
            source: "there is no such directory".into(),
        })
    }
}

fn found(location: Path, contents: Contents) -> GetResult {
    let whole = contents.range == (0..contents.length);
    let tagged = whole && contents.length <= TAGGED_BYTES;
    let meta = ObjectMeta {
        location,
        last_modified: contents.modified.into(),
        size: contents.length,
        e_tag: tagged.then(|| tag(&contents.bytes)),
        version: None,
    };
    let bytes = Bytes::from(contents.bytes);
    GetResult {
        payload: GetResultPayload::Stream(stream::once(async move { Ok(bytes) }).boxed()),
        meta,
        range: contents.range,
        attributes: Default::default(),
        extensions: Default::default(),
    }
}

impl std::fmt::Display for DirStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "directory {}", self.directory.root.display())
    }
}

#[async_trait]
impl ObjectStore for DirStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let (directory, at) = (Arc::clone(&self.directory), location.clone());
        let put = move || {
            let parts: Vec<&[u8]> = payload.iter().map(|part| &part[..]).collect();
            directory.put(at.as_ref(), &parts, &options.mode)
        };
        let put = tokio::task::spawn_blocking(put).await?;
        let e_tag = put.map_err(|failed| error_of(location, failed))?;
        Ok(PutResult {
            e_tag: Some(e_tag),
            version: None,
            extensions: Default::default(),
        })
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.needed(location)?;
        inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            return self.needed(location)?.get_opts(location, options).await;
        }
        let (directory, at) = (Arc::clone(&self.directory), location.clone());
        let range = options.range.clone();
        let get = move || directory.get(at.as_ref(), range.as_ref());
        let get = tokio::task::spawn_blocking(get).await?;
        let contents = get.map_err(|failed| error_of(location, failed))?;
        let found = found(location.clone(), contents);
        options.check_preconditions(&found.meta)?;
        Ok(found)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        match self.inner() {
            Ok(Some(inner)) => inner.delete_stream(locations),
            // Objects that do not exist count as deleted.
            Ok(None) => locations,
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.inner() {
            Ok(Some(inner)) => inner.list(prefix),
            Ok(None) => stream::empty().boxed(),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.needed(&Path::default())?
            .list_with_delimiter(prefix)
            .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.needed(from)?.copy_opts(from, to, options).await
    }
}
