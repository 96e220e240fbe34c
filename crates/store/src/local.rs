//! A directory as a store, with what `LocalFileSystem` lacks: objects that are durable when a PUT returns, and
//! compare-and-swap.
//!
//! A PUT writes a file of another name, syncs it, gives it its name and syncs the directory. *Create* is a hard link, which
//! fails if the name is taken. *Update* holds a lock on the file `.lock`, compares the hash of the present contents with the
//! ETag, and renames; an ETag is the hash of the contents, so it names these contents and no others.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Objects up to this size are tagged by their contents when they are read: all that is ever swapped is smaller.
const TAGGED_BYTES: u64 = 1 << 20;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct DirStore {
    /// None before the directory is there: the first PUT makes it.
    inner: OnceLock<LocalFileSystem>,
    root: Arc<PathBuf>,
    /// Directories whose names this process has synced. That one is there is no proof: another PUT may have made it and not
    /// synced it yet, or have died before it did.
    named: Arc<Mutex<HashSet<PathBuf>>>,
}

fn random() -> Result<u128> {
    let failed = |e| generic(std::io::Error::other(format!("{e}")));
    crate::place::random().map_err(failed)
}

fn generic(error: std::io::Error) -> Error {
    Error::Generic {
        store: "directory",
        source: Box::new(error),
    }
}

fn tag(contents: &[u8]) -> String {
    format!("\"{}\"", &blake3::hash(contents).to_hex()[..32])
}

impl DirStore {
    /// The store in a directory, which need not be there yet.
    pub(crate) fn new(root: &std::path::Path) -> DirStore {
        DirStore {
            inner: OnceLock::new(),
            root: Arc::new(root.to_owned()),
            named: Arc::default(),
        }
    }

    /// What reads and lists, once there is a directory.
    fn inner(&self) -> Result<Option<&LocalFileSystem>> {
        if self.inner.get().is_none() && self.root.is_dir() {
            let inner = LocalFileSystem::new_with_prefix(self.root.as_path())?;
            // Another thread may have been faster: the two are alike.
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

/// Syncs a directory and those above it, up to the store's.
fn sync_dirs(root: &std::path::Path, mut dir: &std::path::Path) -> std::io::Result<()> {
    loop {
        File::open(dir)?.sync_all()?;
        if dir == root {
            return Ok(());
        }
        match dir.parent() {
            Some(parent) => dir = parent,
            None => return Ok(()),
        }
    }
}

fn put(
    root: &std::path::Path,
    named: &Mutex<HashSet<PathBuf>>,
    location: &Path,
    payload: &PutPayload,
    mode: &PutMode,
) -> Result<PutResult> {
    let target = root.join(location.as_ref());
    let dir = target.parent().unwrap_or(root);
    std::fs::create_dir_all(dir).map_err(generic)?;
    let temporary = root.join(format!(".new-{:032x}", random()?));
    let made = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)?;
        for part in payload.iter() {
            file.write_all(part)?;
        }
        file.sync_all()
    })();
    let placed = made.map_err(generic).and_then(|()| {
        let place = |e: std::io::Error| match e.kind() {
            ErrorKind::AlreadyExists => Error::AlreadyExists {
                path: location.to_string(),
                source: Box::new(e),
            },
            _ => generic(e),
        };
        match mode {
            PutMode::Create => std::fs::hard_link(&temporary, &target).map_err(place),
            PutMode::Overwrite => std::fs::rename(&temporary, &target).map_err(generic),
            PutMode::Update(version) => {
                let lock = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(root.join(".lock"))
                    .map_err(generic)?;
                rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
                    .map_err(|e| generic(e.into()))?;
                let now = match std::fs::read(&target) {
                    Ok(contents) => Some(tag(&contents)),
                    Err(e) if e.kind() == ErrorKind::NotFound => None,
                    Err(e) => return Err(generic(e)),
                };
                if now.is_none() || now != version.e_tag {
                    return Err(Error::Precondition {
                        path: location.to_string(),
                        source: format!("the contents are {now:?}, not {:?}", version.e_tag).into(),
                    });
                }
                // The lock ends with the file, after the rename.
                std::fs::rename(&temporary, &target).map_err(generic)
            }
        }
    });
    let _ = std::fs::remove_file(&temporary);
    placed?;
    let named = || named.lock().unwrap_or_else(PoisonError::into_inner);
    if named().contains(dir) {
        sync_dirs(dir, dir).map_err(generic)?;
    } else {
        sync_dirs(root, dir).map_err(generic)?;
        if let Some(above) = root.parent() {
            match sync_dirs(above, above) {
                // It was made by somebody else, who may write there.
                Err(e) if e.kind() == ErrorKind::PermissionDenied => {}
                done => done.map_err(generic)?,
            }
        }
        named().insert(dir.to_owned());
    }
    let contents: Bytes = payload.clone().into();
    Ok(PutResult {
        e_tag: Some(tag(&contents)),
        version: None,
        extensions: Default::default(),
    })
}

impl std::fmt::Display for DirStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "directory {}", self.root.display())
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
        let (root, named) = (Arc::clone(&self.root), Arc::clone(&self.named));
        let location = location.clone();
        let put = move || put(&root, &named, &location, &payload, &options.mode);
        tokio::task::spawn_blocking(put).await?
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
        let whole = options.range.is_none() && !options.head;
        let mut found = self.needed(location)?.get_opts(location, options).await?;
        if !whole || found.meta.size > TAGGED_BYTES {
            return Ok(found);
        }
        let (meta, range, attributes) = (
            found.meta.clone(),
            found.range.clone(),
            std::mem::take(&mut found.attributes),
        );
        let contents = found.bytes().await?;
        let meta = ObjectMeta {
            e_tag: Some(tag(&contents)),
            ..meta
        };
        let contents = stream::once(async move { Ok(contents) }).boxed();
        Ok(GetResult {
            payload: GetResultPayload::Stream(contents),
            meta,
            range,
            attributes,
            extensions: Default::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        match self.inner() {
            Ok(Some(inner)) => inner.delete_stream(locations),
            // What is not there is deleted.
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
