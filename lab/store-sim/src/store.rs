//! The store: effects of requests, their times, and their answers.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use chrono::{DateTime, Utc};
use futures_channel::oneshot;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, UploadPart,
};

use crate::{Clock, Random};

/// Frequency of each kind of trouble, in cases of 1,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trouble {
    /// A request takes effect up to a minute late.
    pub late: u64,
    /// It never takes effect, and no answer comes.
    pub lost: u64,
    /// It takes effect, and no answer comes.
    pub unheard: u64,
    /// It takes effect once more, later.
    pub twice: u64,
    /// 5xx, and it has no effect.
    pub failed_before: u64,
    /// 5xx after it took effect; a client library that sends it again reports that the condition does not hold.
    pub failed_after: u64,
    /// 409: a condition is said not to hold, though it may.
    pub conflict: u64,
    /// Within these periods of 2 s, all requests get 503.
    pub throttled: u64,
    /// The answer's body ends too early.
    pub cut: u64,
    /// A list shows the store as it was up to 30 s ago.
    pub stale_list: u64,
    /// If no answer comes in time, the connection is reset: for callers whose deadlines are in real time.
    pub resets: bool,
    /// A GET takes some seconds, though the next one would not.
    pub slow: u64,
    /// Factor on the time of every request; 0 is 1.
    pub drag: u64,
    /// More requests at a time than this are answered by 503; 0: no bound.
    pub in_flight_most: u64,
    /// The store ignores conditions: no store for a volume.
    pub careless: bool,
}

impl Trouble {
    /// Trouble of every kind.
    #[must_use]
    pub fn plenty() -> Trouble {
        Trouble {
            late: 15,
            lost: 8,
            unheard: 10,
            twice: 30,
            failed_before: 15,
            failed_after: 15,
            conflict: 10,
            throttled: 20,
            cut: 10,
            stale_list: 500,
            resets: false,
            slow: 0,
            drag: 0,
            in_flight_most: 0,
            careless: false,
        }
    }
}

#[derive(Clone, Debug)]
struct Object {
    data: Bytes,
    e_tag: String,
    modified_us: u64,
}

impl Object {
    fn meta(&self, location: &Path) -> ObjectMeta {
        ObjectMeta {
            location: location.clone(),
            last_modified: time(self.modified_us),
            size: self.data.len() as u64,
            e_tag: Some(self.e_tag.clone()),
            version: None,
        }
    }
}

/// Virtual time as the store's clock shows it: in whole seconds, as `Last-Modified` does.
fn time(us: u64) -> DateTime<Utc> {
    DateTime::from_timestamp((us / 1_000_000) as i64, 0).unwrap_or_default()
}

#[derive(Debug)]
struct Inner {
    random: Random,
    objects: BTreeMap<Path, Object>,
    /// Every change: its time, its object, and the former content.
    journal: Vec<(u64, Path, Option<Object>)>,
    trouble: Trouble,
    /// Events in order: a hash of the log tells whether two runs are the same.
    log: blake3::Hasher,
    requests: u64,
    in_flight: u64,
    /// Requests that got 503.
    refused: u64,
}

/// An object store in virtual time. Clones are the same store.
#[derive(Clone, Debug)]
pub struct SimStore {
    clock: Clock,
    inner: Arc<Mutex<Inner>>,
}

impl fmt::Display for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimStore")
    }
}

/// A change that a request asks for.
#[derive(Clone, Debug)]
enum Change {
    Put(PutMode, Bytes),
    Delete,
}

/// Fate of a request.
#[derive(Clone, Copy, Debug)]
struct Fate {
    /// After this time it takes effect; never, if none.
    effect_us: Option<u64>,
    /// After this time it takes effect once more.
    again_us: Option<u64>,
    /// The answer comes this much later; never, if none.
    answer_us: Option<u64>,
    /// The answer is this status instead of the outcome.
    status: Option<&'static str>,
    /// A client library has sent it twice and reports the second outcome.
    repeated: bool,
    /// Instead of an answer, the connection is reset after a while.
    reset: bool,
}

const SECOND: u64 = 1_000_000;
/// Time after which a connection without an answer is reset.
const RESET_US: u64 = SECOND / 2;

impl SimStore {
    /// An empty store.
    #[must_use]
    pub fn new(clock: Clock, seed: u64, trouble: Trouble) -> SimStore {
        let inner = Inner {
            random: Random::new(seed),
            objects: BTreeMap::new(),
            journal: Vec::new(),
            trouble,
            log: blake3::Hasher::new(),
            requests: 0,
            in_flight: 0,
            refused: 0,
        };
        SimStore {
            clock,
            inner: Arc::new(Mutex::new(inner)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the trouble from now on.
    pub fn set_trouble(&self, trouble: Trouble) {
        self.lock().trouble = trouble;
    }

    /// Current content of an object, without a request.
    #[must_use]
    pub fn peek(&self, location: &Path) -> Option<Bytes> {
        self.lock()
            .objects
            .get(location)
            .map(|object| object.data.clone())
    }

    /// All objects' names now, without a request.
    #[must_use]
    pub fn names(&self) -> Vec<Path> {
        self.lock().objects.keys().cloned().collect()
    }

    /// Distinguishes this run's events so far from those of other runs.
    #[must_use]
    pub fn digest(&self) -> String {
        self.lock().log.finalize().to_hex().to_string()
    }

    /// Requests so far that were too many at a time.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.lock().refused
    }

    /// Requests so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.lock().requests
    }

    fn fate(&self, changes: bool) -> Fate {
        let now = self.clock.now_us();
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.requests += 1;
        let trouble = inner.trouble;
        let random = &mut inner.random;
        let mut fate = Fate {
            effect_us: Some(random.between(500, 40_000)),
            again_us: None,
            answer_us: Some(random.between(500, 20_000)),
            status: None,
            repeated: false,
            reset: false,
        };
        let drag = trouble.drag.max(1);
        fate.effect_us = fate.effect_us.map(|us| us * drag);
        fate.answer_us = fate.answer_us.map(|us| us * drag);
        if !changes && trouble.slow > 0 && random.permille(trouble.slow) {
            fate.answer_us = Some(random.between(2 * SECOND, 4 * SECOND));
        }
        let period = Random::new(now / (2 * SECOND)).permille(trouble.throttled);
        if period || random.permille(trouble.failed_before) {
            fate.effect_us = None;
            fate.status = Some(if period {
                "503 Slow Down"
            } else {
                "500 Internal Error"
            });
        } else if random.permille(trouble.lost) {
            fate.effect_us = None;
            fate.answer_us = None;
        } else if random.permille(trouble.unheard) {
            fate.answer_us = None;
        } else if random.permille(trouble.failed_after) {
            if changes && random.permille(500) {
                fate.repeated = true;
            } else {
                fate.status = Some("500 Internal Error");
            }
        } else if changes && random.permille(trouble.conflict) {
            fate.effect_us = None;
            fate.status = Some("409 Conflict");
        }
        if fate.effect_us.is_some() && random.permille(trouble.late) {
            fate.effect_us = Some(random.between(SECOND, 60 * SECOND));
            fate.answer_us = fate.answer_us.filter(|_| !trouble.resets);
        }
        if trouble.in_flight_most > 0 && inner.in_flight > trouble.in_flight_most {
            inner.refused += 1;
            fate.effect_us = None;
            fate.answer_us = Some(1_000);
            fate.status = Some("503 Slow Down");
        }
        fate.reset = trouble.resets && fate.answer_us.is_none();
        if changes && fate.effect_us.is_some() && random.permille(trouble.twice) {
            fate.again_us = Some(random.between(1_000, 60 * SECOND));
        }
        fate
    }

    /// Lets a change take effect.
    fn execute(&self, location: &Path, change: &Change) -> Result<PutResult> {
        let now = self.clock.now_us();
        let mut inner = self.lock();
        let before = inner.objects.get(location).cloned();
        let outcome = match change {
            Change::Delete => {
                inner.objects.remove(location);
                Ok(None)
            }
            Change::Put(mode, data) => {
                let refusal = match (mode, &before) {
                    _ if inner.trouble.careless => None,
                    (PutMode::Create, Some(_)) => Some(exists(location)),
                    (PutMode::Update(version), before)
                        if version.e_tag.as_ref()
                            != before.as_ref().map(|object| &object.e_tag) =>
                    {
                        Some(precondition(location, "the ETag is another"))
                    }
                    _ => None,
                };
                match refusal {
                    Some(error) => Err(error),
                    None => {
                        let e_tag = format!("\"{}\"", &blake3::hash(data).to_hex()[..32]);
                        let object = Object {
                            data: data.clone(),
                            e_tag: e_tag.clone(),
                            modified_us: now,
                        };
                        inner.objects.insert(location.clone(), object);
                        Ok(Some(e_tag))
                    }
                }
            }
        };
        let line = format!("{now} {location} {}\n", outcome.is_ok());
        inner.log.update(line.as_bytes());
        if outcome.is_ok() {
            inner.journal.push((now, location.clone(), before));
        }
        outcome.map(|e_tag| PutResult {
            e_tag,
            version: None,
            extensions: Default::default(),
        })
    }

    /// Sends a change. It goes its way also if the caller no longer waits.
    async fn send(&self, location: &Path, change: Change) -> Result<PutResult> {
        let _guest = Guest::new(self);
        let fate = self.fate(true);
        let (answer, heard) = oneshot::channel();
        let (store, path) = (self.clone(), location.clone());
        if fate.reset {
            let (store, path, change) = (self.clone(), location.clone(), change);
            self.clock.spawn(async move {
                if let Some(us) = fate.effect_us {
                    store.clock.sleep(us).await;
                    let _ = store.execute(&path, &change);
                }
            });
            self.clock.sleep(RESET_US).await;
            return Err(generic("the connection was reset"));
        }
        let swaps = matches!(change, Change::Put(PutMode::Update(_), _));
        self.clock.spawn(async move {
            let mut outcome = None;
            if let Some(us) = fate.effect_us {
                store.clock.sleep(us).await;
                outcome = Some(store.execute(&path, &change));
            }
            if fate.repeated {
                store.clock.sleep(2_000).await;
                outcome = Some(store.execute(&path, &change));
            }
            if let Some(us) = fate.again_us {
                let (store, path) = (store.clone(), path.clone());
                store.clock.clone().spawn(async move {
                    store.clock.sleep(us).await;
                    let _ = store.execute(&path, &change);
                });
            }
            let Some(us) = fate.answer_us else {
                // The channel stays open: no answer is not an error.
                store.clock.sleep(u64::MAX).await;
                drop(answer);
                return;
            };
            store.clock.sleep(us).await;
            let reported = match (fate.status, outcome) {
                (Some("409 Conflict"), _) => Err(if swaps {
                    precondition(&path, "409 Conflict")
                } else {
                    exists(&path)
                }),
                (Some(status), _) => Err(generic(status)),
                (None, Some(outcome)) => outcome,
                (None, None) => Err(generic("no outcome")),
            };
            let _ = answer.send(reported);
        });
        heard
            .await
            .unwrap_or_else(|_| Err(generic("the simulation ended")))
    }

    fn listed(&self, prefix: Option<&Path>) -> Vec<ObjectMeta> {
        let now = self.clock.now_us();
        let mut inner = self.lock();
        let stale = inner.trouble.stale_list;
        let mut shown = inner.objects.clone();
        if inner.random.permille(stale) {
            let since = now.saturating_sub(inner.random.below(30 * SECOND));
            for (when, path, before) in inner.journal.iter().rev() {
                if *when <= since {
                    break;
                }
                match before {
                    Some(object) => shown.insert(path.clone(), object.clone()),
                    None => shown.remove(path),
                };
            }
        }
        shown
            .iter()
            .filter(|(path, _)| prefix.is_none_or(|prefix| path.prefix_matches(prefix)))
            .map(|(path, object)| object.meta(path))
            .collect()
    }
}

/// A request that waits for its answer.
struct Guest<'a>(&'a SimStore);

impl<'a> Guest<'a> {
    fn new(store: &'a SimStore) -> Guest<'a> {
        store.lock().in_flight += 1;
        Guest(store)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
    }
}

fn generic(what: &'static str) -> Error {
    Error::Generic {
        store: "SimStore",
        source: what.into(),
    }
}

fn exists(location: &Path) -> Error {
    Error::AlreadyExists {
        path: location.to_string(),
        source: "412 Precondition Failed".into(),
    }
}

fn precondition(location: &Path, why: &'static str) -> Error {
    Error::Precondition {
        path: location.to_string(),
        source: why.into(),
    }
}

fn gather(payload: &PutPayload) -> Bytes {
    let mut data = BytesMut::with_capacity(payload.content_length());
    payload.iter().for_each(|part| data.extend_from_slice(part));
    data.freeze()
}

#[async_trait]
impl ObjectStore for SimStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.send(location, Change::Put(opts.mode, gather(&payload)))
            .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Upload {
            store: self.clone(),
            location: location.clone(),
            parts: Arc::default(),
            next: 0,
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let _guest = Guest::new(self);
        let fate = self.fate(false);
        if fate.reset {
            self.clock.sleep(RESET_US).await;
            return Err(generic("the connection was reset"));
        }
        self.clock.sleep(fate.effect_us.unwrap_or(1_000)).await;
        let (seen, cut) = {
            let mut inner = self.lock();
            let cut = inner.trouble.cut;
            (
                inner.objects.get(location).cloned(),
                inner.random.permille(cut),
            )
        };
        self.clock.sleep(fate.answer_us.unwrap_or(u64::MAX)).await;
        if let Some(status) = fate.status {
            return Err(generic(status));
        }
        let object = seen.ok_or_else(|| Error::NotFound {
            path: location.to_string(),
            source: "404".into(),
        })?;
        let meta = object.meta(location);
        options.check_preconditions(&meta)?;
        let size = meta.size;
        let range: Range<u64> = match &options.range {
            Some(range) => range.as_range(size).map_err(|error| Error::Generic {
                store: "SimStore",
                source: Box::new(error),
            })?,
            None => 0..size,
        };
        let whole = object.data.slice(range.start as usize..range.end as usize);
        let body: Vec<Result<Bytes>> = if options.head {
            Vec::new()
        } else if cut {
            vec![
                Ok(whole.slice(..whole.len() / 2)),
                Err(generic("the connection was cut")),
            ]
        } else {
            vec![Ok(whole)]
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::iter(body).boxed()),
            meta,
            range,
            attributes: Attributes::new(),
            extensions: Default::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .then(move |location| {
                let store = store.clone();
                async move {
                    let location = location?;
                    store.send(&location, Change::Delete).await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let found: Vec<Result<ObjectMeta>> = self.listed(prefix).into_iter().map(Ok).collect();
        let wait = self.clock.sleep(5_000);
        stream::once(async move {
            wait.await;
            stream::iter(found)
        })
        .flatten()
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.clock.sleep(5_000).await;
        let mut result = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
            extensions: Default::default(),
        };
        let root = Path::default();
        let prefix = prefix.unwrap_or(&root);
        for meta in self.listed(Some(prefix)) {
            let mut rest = match meta.location.prefix_match(prefix) {
                Some(rest) => rest,
                None => continue,
            };
            let (first, more) = (rest.next(), rest.next().is_some());
            match first {
                Some(part) if more => {
                    let common = prefix.clone().join(part.as_ref());
                    if result.common_prefixes.last() != Some(&common) {
                        result.common_prefixes.push(common);
                    }
                }
                Some(_) => result.objects.push(meta.clone()),
                None => {}
            }
        }
        Ok(result)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let data = self.peek(from).ok_or_else(|| Error::NotFound {
            path: from.to_string(),
            source: "404".into(),
        })?;
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        self.send(to, Change::Put(mode, data)).await.map(|_| ())
    }
}

/// An upload in parts. An incomplete upload is never seen.
#[derive(Debug)]
struct Upload {
    store: SimStore,
    location: Path,
    parts: Arc<Mutex<BTreeMap<usize, Bytes>>>,
    next: usize,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let number = self.next;
        self.next += 1;
        let (store, parts) = (self.store.clone(), self.parts.clone());
        Box::pin(async move {
            let fate = store.fate(false);
            store.clock.sleep(fate.effect_us.unwrap_or(1_000)).await;
            if fate.effect_us.is_some() {
                let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
                parts.insert(number, gather(&data));
            }
            store.clock.sleep(fate.answer_us.unwrap_or(u64::MAX)).await;
            fate.status.map_or(Ok(()), |status| Err(generic(status)))
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let parts: Vec<Bytes> = {
            let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
            if parts.len() != self.next {
                return Err(generic("400: a part is missing"));
            }
            parts.values().cloned().collect()
        };
        let data = Bytes::from(parts.concat());
        self.store
            .send(&self.location, Change::Put(PutMode::Overwrite, data))
            .await
    }

    async fn abort(&mut self) -> Result<()> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.clear();
        Ok(())
    }
}
