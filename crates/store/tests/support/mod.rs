//! A store in memory for tests, with clients that die, lose answers and get errors, and a clock that the test moves.

#![allow(
    dead_code,
    clippy::panic,
    clippy::unwrap_used,
    reason = "each test uses its part"
)]

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use steadfast_store::{Access, Found, KeyFile, Location, OpenError, OpenOptions};

/// A client, and the faults of its requests.
#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) store: Arc<InMemory>,
    /// The machine dies at the PUT of this number. Its later requests have no effect.
    pub(crate) die_at: AtomicU64,
    /// The PUT at which it dies takes effect.
    pub(crate) die_after_effect: AtomicBool,
    pub(crate) dead: AtomicBool,
    /// Every n-th PUT takes effect, but its answer is lost.
    pub(crate) lose_every: AtomicU64,
    /// Every n-th PUT fails before it takes effect.
    pub(crate) fail_every: AtomicU64,
    pub(crate) puts: AtomicU64,
    pub(crate) put_bytes: AtomicU64,
    pub(crate) gets: AtomicU64,
    /// The answer to the GET of this number has a wrong byte.
    pub(crate) damage_at: AtomicU64,
    pub(crate) deletes: Arc<AtomicU64>,
    /// Seconds that the store's clock is ahead; each read of the clock advances it.
    pub(crate) clock: Arc<AtomicI64>,
    /// The store checks the condition in one step, and writes in another.
    pub(crate) racy: bool,
    /// The store ignores conditions.
    pub(crate) careless: bool,
    pub(crate) names: Mutex<Vec<String>>,
    /// The key file with which volumes are opened.
    pub(crate) key: Mutex<Option<KeyFile>>,
    /// Called with each GET.
    pub(crate) on_get: Mutex<Option<Hook>>,
}

/// A function of a test that runs in the middle of a request.
pub(crate) struct Hook(pub(crate) Box<dyn Fn() + Send>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a hook")
    }
}

/// A key file with these bytes.
pub(crate) fn key_file(byte: u8) -> KeyFile {
    match KeyFile::new(&[byte; 32]) {
        Ok(file) => file,
        Err(error) => panic!("{error}"),
    }
}

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store for tests")
    }
}

fn failed(why: &'static str) -> Error {
    Error::Generic {
        store: "test",
        source: why.into(),
    }
}

/// The same answer with a wrong byte in the middle.
async fn damaged(found: GetResult) -> Result<GetResult> {
    let (meta, range) = (found.meta.clone(), found.range.clone());
    let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
    let mut bytes = found.bytes().await?.to_vec();
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 1;
    }
    let whole = futures_util::stream::iter([Ok(bytes.into())]);
    Ok(GetResult {
        payload: GetResultPayload::Stream(whole.boxed()),
        meta,
        range,
        attributes,
        extensions,
    })
}

impl Client {
    /// A client of a store.
    pub(crate) fn of(store: &Arc<InMemory>) -> Arc<Client> {
        Arc::new(Client {
            store: Arc::clone(store),
            ..Client::default()
        })
    }

    pub(crate) fn location(self: &Arc<Self>, prefix: &str) -> Location {
        let url = format!("memory://{prefix}");
        Location::within(Arc::clone(self) as Arc<dyn ObjectStore>, prefix, &url)
    }

    /// The volume below the prefix `v`.
    pub(crate) fn volume(self: &Arc<Self>) -> Found {
        match self.find("v") {
            Ok(found) => found,
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn find(self: &Arc<Self>, prefix: &str) -> std::result::Result<Found, OpenError> {
        let key = self.key.lock().map_or(None, |key| key.clone());
        let access = Access {
            key,
            ..Access::default()
        };
        Found::new(self.location(prefix), &access, Duration::from_secs(5))
    }

    /// A client of a store with a coded volume: compressed and encrypted.
    pub(crate) fn with_key(store: &Arc<InMemory>, key: KeyFile) -> Arc<Client> {
        Arc::new(Client {
            store: Arc::clone(store),
            key: Mutex::new(Some(key)),
            ..Client::default()
        })
    }

    fn every(number: u64, every: &AtomicU64) -> bool {
        let every = every.load(Ordering::Relaxed);
        every > 0 && number.is_multiple_of(every)
    }

    fn check(&self) -> Result<()> {
        match self.dead.load(Ordering::SeqCst) {
            true => Err(failed("the machine is dead")),
            false => Ok(()),
        }
    }
}

/// Options for tests, without waiting times.
pub(crate) fn options() -> OpenOptions {
    OpenOptions {
        take_over: true,
        patience: Duration::from_secs(5),
        keep_deleted: Duration::ZERO,
        ..OpenOptions::default()
    }
}

#[async_trait]
impl ObjectStore for Client {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.check()?;
        let number = self.puts.fetch_add(1, Ordering::SeqCst) + 1;
        self.put_bytes
            .fetch_add(payload.content_length() as u64, Ordering::Relaxed);
        if let Ok(mut names) = self.names.lock() {
            names.push(location.to_string());
        }
        if self.die_at.load(Ordering::SeqCst) == number {
            self.dead.store(true, Ordering::SeqCst);
            if self.die_after_effect.load(Ordering::SeqCst) {
                let _ = self.store.put_opts(location, payload, options).await;
            }
            return Err(failed("the machine is dead"));
        }
        if Client::every(number, &self.fail_every) {
            return Err(failed("503"));
        }
        if self.racy || self.careless {
            let now = self.store.get_opts(location, GetOptions::default()).await;
            let now = now.ok().and_then(|found| found.meta.e_tag);
            let holds = match &options.mode {
                PutMode::Overwrite => true,
                PutMode::Create => now.is_none(),
                PutMode::Update(version) => now.is_some() && now == version.e_tag,
            };
            if !holds && !self.careless {
                return Err(Error::Precondition {
                    path: location.to_string(),
                    source: "412".into(),
                });
            }
            tokio::task::yield_now().await;
            return self
                .store
                .put_opts(location, payload, PutOptions::default())
                .await;
        }
        let done = self.store.put_opts(location, payload, options).await?;
        if Client::every(number, &self.lose_every) {
            return Err(failed("the answer was lost"));
        }
        Ok(done)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check()?;
        let number = self.gets.fetch_add(1, Ordering::Relaxed) + 1;
        if let Ok(hook) = self.on_get.lock()
            && let Some(Hook(hook)) = &*hook
        {
            hook();
        }
        let head = options.head;
        let mut found = self.store.get_opts(location, options).await?;
        if head {
            let ahead = self.clock.fetch_add(10, Ordering::Relaxed);
            found.meta.last_modified += Duration::from_secs(ahead.max(0) as u64);
        }
        if !head && self.damage_at.load(Ordering::Relaxed) == number {
            return damaged(found).await;
        }
        Ok(found)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        if let Err(error) = self.check() {
            return futures_util::stream::iter([Err(error)]).boxed();
        }
        let deletes = Arc::clone(&self.deletes);
        let counted = locations.inspect(move |_| {
            deletes.fetch_add(1, Ordering::Relaxed);
        });
        self.store.delete_stream(counted.boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

/// The names of all objects.
pub(crate) fn names(store: &Arc<InMemory>) -> Vec<String> {
    let list = store.list(None);
    let listed = list.collect::<Vec<_>>();
    let metas = wait(listed);
    let mut names: Vec<String> = metas
        .into_iter()
        .flatten()
        .map(|meta| meta.location.to_string())
        .collect();
    names.sort();
    names
}

pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(future)
}

/// The bytes of an object.
pub(crate) fn get(store: &InMemory, name: &str) -> Vec<u8> {
    let got = wait(async { store.get(&Path::from(name)).await?.bytes().await });
    got.unwrap().to_vec()
}

/// Writes an object over.
pub(crate) fn put(store: &InMemory, name: &str, bytes: &[u8]) {
    wait(store.put(&Path::from(name), bytes.to_vec().into())).unwrap();
}

/// A small generator: the same numbers for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        // Numbers after Vigna's splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most.max(1)
    }
}
