//! Requests to the store: deadlines, retries of reads, and classes of errors.
//!
//! A read is sent again until it is answered, with growing pauses of random length. A PUT is sent once: if the answer is lost,
//! the protocol finds out the outcome. A request whose deadline passes is given up; it may take effect later. [`Traffic`]
//! limits concurrent requests, and decides which GETs are sent twice.

use crate::kept::Kept;
use crate::local::is_sync_failure;
use crate::memory::Memory;
use crate::object::{Bad, Coding};
use crate::place::Location;
use crate::protocol::ObjectName;
use crate::reads::Reads;
use crate::traffic::{Outcome, Traffic, is_throttling};
use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::future::{Either, select};
use object_store::{GetOptions, GetResult, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use std::ops::Range;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Deadline of a request; each MiB adds a second.
const DEADLINE: Duration = Duration::from_secs(10);
/// First and longest pause before a request is repeated.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MOST: Duration = Duration::from_secs(5);
/// Attempts to read a part of an object after which its length is read: the object may end before the part.
const SIZE_EVERY: u32 = 3;

/// Failures of requests to the store.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// An object is missing.
    #[error("{name} is missing in {url}: it was deleted, by hand or by a rule of the bucket")]
    Missing {
        /// URL of the volume.
        url: String,
        /// Name of the object.
        name: String,
    },
    /// An object fails its checks.
    #[error("{name} in {url} {why}")]
    Damaged {
        /// URL of the volume.
        url: String,
        /// Name of the object.
        name: String,
        /// Failed check.
        why: Bad,
    },
    /// The store did not answer, or refused, until the caller stopped waiting.
    #[error("{url}: {what} {name}: {why}")]
    Refused {
        /// URL of the volume.
        url: String,
        /// Operation that failed.
        what: &'static str,
        /// Name of the object.
        name: String,
        /// The store's answer.
        why: String,
    },
}

/// The answer to a GET: none if the object does not exist. An error has the store's words, and whether a retry is hopeless.
type Answer<T> = Result<Option<T>, (String, bool)>;

/// What is made of the body of an answer.
trait Body: Sync {
    type Made: Send;
    /// Reads the body. Returns its length, too.
    fn read(
        &self,
        found: GetResult,
    ) -> impl Future<Output = object_store::Result<(u64, Self::Made)>> + Send;
}

/// The whole body.
struct Whole;

impl Body for Whole {
    type Made = Got;

    async fn read(&self, found: GetResult) -> object_store::Result<(u64, Got)> {
        let version = UpdateVersion {
            e_tag: found.meta.e_tag.clone(),
            version: found.meta.version.clone(),
        };
        let bytes = found.bytes().await?;
        Ok((bytes.len() as u64, Got { bytes, version }))
    }
}

/// Parts of the body, each in memory of its own.
struct Parts<'a, E> {
    memory: &'a Memory,
    /// Offset and length of each, in order.
    parts: &'a [(u64, u32)],
    /// Gets the index and the bytes of a part as soon as they are there.
    each: E,
}

impl<T: Send, E: Fn(usize, Bytes) -> T + Sync> Body for Parts<'_, E> {
    type Made = Vec<T>;

    async fn read(&self, found: GetResult) -> object_store::Result<(u64, Vec<T>)> {
        let mut body = found.into_stream();
        let (mut seen, mut part) = (0, Vec::new());
        let mut made = Vec::with_capacity(self.parts.len());
        while let Some(piece) = body.try_next().await? {
            while let Some((at, length)) = self.parts.get(made.len()) {
                let length = *length as usize;
                let from = (at + part.len() as u64).saturating_sub(seen) as usize;
                let to = piece.len().min(from + length - part.len());
                let some = piece.get(from..to).unwrap_or_default();
                if some.is_empty() {
                    break;
                }
                if part.capacity() == 0 {
                    part = self.memory.take(length);
                }
                part.extend_from_slice(some);
                if part.len() == length {
                    let whole = self.memory.lend(std::mem::take(&mut part));
                    made.push((self.each)(made.len(), whole));
                }
            }
            seen += piece.len() as u64;
        }
        Ok((seen, made))
    }
}

/// Number of requests of a kind, and the bytes that they carried.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) requests: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Tally {
    fn count(&self, bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Counters of requests.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) gets: Tally,
    pub(crate) puts: Tally,
    pub(crate) deletes: Tally,
}

/// The bytes of an object, and its ETag.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) bytes: Bytes,
    pub(crate) version: UpdateVersion,
}

/// The outcome of a PUT.
#[derive(Clone, Debug)]
pub(crate) enum Put {
    /// The PUT took effect. The new ETag, if the store sends it.
    Done(UpdateVersion),
    /// The store says that the condition does not hold.
    Refused,
    /// The outcome is unknown.
    Unknown(String),
}

/// Sends the requests of one volume.
#[derive(Debug)]
pub(crate) struct Io {
    pub(crate) location: Location,
    pub(crate) coding: Coding,
    pub(crate) counters: Counters,
    /// The read cache, and the index of this volume in it.
    pub(crate) reads: OnceLock<(u16, Arc<Reads>)>,
    /// Of a stand-by: the objects that its take-over will read.
    kept: Mutex<Option<Kept>>,
    memory: Memory,
    /// Time without an answer after which the store has failed; `u64::MAX`: never.
    patience_ms: AtomicU64,
}

/// The pause before repetition `attempt`: random, between half and all of a bound that doubles each time.
pub(crate) fn pause(attempt: u32) -> Duration {
    let most = PAUSE_FIRST
        .saturating_mul(1 << attempt.min(10))
        .min(PAUSE_MOST);
    let share = crate::place::random().map_or(1.0, |random| f64::from(random as u8) / 255.0);
    most.mul_f64(0.5 + share / 2.0)
}

/// Bytes of a part of an object; of a whole one, about as many.
fn bytes_of(range: Option<&Range<u64>>) -> u64 {
    range.map_or(8 << 20, |range| range.end - range.start)
}

fn deadline(bytes: u64) -> Duration {
    DEADLINE + Duration::from_secs(bytes >> 20)
}

impl Io {
    pub(crate) fn new(location: Location, coding: Coding, patience: Option<Duration>) -> Arc<Io> {
        let io = Io {
            location,
            coding,
            counters: Counters::default(),
            reads: OnceLock::new(),
            kept: Mutex::new(None),
            memory: Memory::default(),
            patience_ms: AtomicU64::new(0),
        };
        io.set_patience(patience);
        Arc::new(io)
    }

    /// Sets the time after which a store that does not answer has failed.
    pub(crate) fn set_patience(&self, patience: Option<Duration>) {
        let ms = patience.map_or(u64::MAX, |patience| patience.as_millis() as u64);
        self.patience_ms.store(ms, Ordering::Relaxed);
    }

    /// Whether requests have a time limit: then a request without permission is not repeated.
    fn is_bounded(&self) -> bool {
        self.patience_ms.load(Ordering::Relaxed) != u64::MAX
    }

    fn kept<T>(&self, look: impl FnOnce(&mut Option<Kept>) -> T) -> T {
        look(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Keeps what is read and checked from now on, up to `most` bytes; or forgets it, and keeps nothing more.
    pub(crate) fn keep_in_memory(&self, most: Option<u64>) {
        self.kept(|kept| *kept = most.map(Kept::new));
    }

    /// Forgets what was kept; keeps what is read from now on.
    pub(crate) fn forget_kept(&self) {
        self.kept(|kept| kept.iter_mut().for_each(Kept::clear));
    }

    pub(crate) fn keeps(&self) -> bool {
        self.kept(|kept| kept.is_some())
    }

    /// Keeps a part of an object that passed its checks, if this is a stand-by.
    pub(crate) fn keep(&self, name: ObjectName, range: Option<Range<u64>>, bytes: &Bytes) {
        self.kept(|kept| {
            if let Some(kept) = kept {
                kept.put(name, range, bytes);
            }
        });
    }

    /// Leaves out a rule of what is kept.
    #[cfg(feature = "faults")]
    pub(crate) fn plant_in_kept(&self, fault: Option<crate::DeviceFault>) {
        self.kept(|kept| kept.iter_mut().for_each(|kept| kept.plant(fault)));
    }

    fn traffic(&self) -> &Arc<Traffic> {
        &self.location.traffic
    }

    fn now(&self) -> Duration {
        self.traffic().time.now()
    }

    async fn sleep(&self, time: Duration) {
        self.traffic().time.sleep(time).await;
    }

    /// Sends a request when [`Traffic`] admits it. None: it was not answered in time.
    async fn send<T>(
        &self,
        deadline: Duration,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Option<object_store::Result<T>> {
        let permit = self.traffic().enter().await;
        let timer = self.traffic().time.sleep(deadline);
        let answer = match select(pin!(request), timer).await {
            Either::Left((answer, _)) => Some(answer),
            Either::Right(_) => None,
        };
        permit.ended(match &answer {
            Some(Err(error)) if is_throttling(error) => Outcome::Throttled,
            Some(Ok(_) | Err(object_store::Error::NotFound { .. })) => Outcome::Answered,
            _ => Outcome::Other,
        });
        answer
    }

    fn is_patient(&self, begun: Duration) -> bool {
        (self.now().saturating_sub(begun).as_millis() as u64)
            < self.patience_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self, what: &'static str, name: &str, why: &str) -> StoreError {
        StoreError::Refused {
            url: self.location.url.clone(),
            what,
            name: name.to_owned(),
            why: why.to_owned(),
        }
    }

    pub(crate) fn missing(&self, name: ObjectName) -> StoreError {
        StoreError::Missing {
            url: self.location.url.clone(),
            name: name.to_string(),
        }
    }

    pub(crate) fn damaged(&self, name: ObjectName, why: Bad) -> StoreError {
        StoreError::Damaged {
            url: self.location.url.clone(),
            name: name.to_string(),
            why,
        }
    }

    /// Reads an object, or a part of it; none if it does not exist. Repeats until the store answers.
    pub(crate) async fn get(
        &self,
        name: ObjectName,
        range: Option<Range<u64>>,
    ) -> Result<Option<Got>, StoreError> {
        let kept = |kept: &mut Option<Kept>| kept.as_ref()?.get(name, range.as_ref());
        if let Some(bytes) = self.kept(kept) {
            #[cfg(feature = "faults")]
            if !self.kept(|kept| kept.as_mut().is_none_or(Kept::may_answer)) {
                let why = "a planted fault has answered too often";
                return Err(self.refused("reading", &name.to_string(), why));
            } else if bytes.is_empty() {
                return Ok(None);
            }
            let version = UpdateVersion {
                e_tag: None,
                version: None,
            };
            return Ok(Some(Got { bytes, version }));
        }
        let got = self.repeat(name, range.as_ref(), &Whole).await?;
        #[cfg(feature = "faults")]
        self.kept(|kept| {
            let bytes = got.as_ref().map(|got| &got.bytes);
            let planted = kept.iter_mut();
            planted.for_each(|kept| kept.put_planted(name, range.clone(), bytes));
        });
        Ok(got)
    }

    /// Reads `range` of an object with one request, and cuts `parts` out of it: offset in the range and length of each, in order.
    /// Each part has memory of its own. `each` gets the index and the bytes of a part as soon as they are there, and gets them
    /// again if the request is repeated. None if the object does not exist.
    pub(crate) async fn get_parts<T: Send>(
        &self,
        name: ObjectName,
        range: Range<u64>,
        parts: &[(u64, u32)],
        each: impl Fn(usize, Bytes) -> T + Sync,
    ) -> Result<Option<Vec<T>>, StoreError> {
        let parts = Parts {
            memory: &self.memory,
            parts,
            each,
        };
        self.repeat(name, Some(&range), &parts).await
    }

    /// Sends a GET until the store answers. An object that ends before the range is damaged.
    async fn repeat<B: Body>(
        &self,
        name: ObjectName,
        range: Option<&Range<u64>>,
        body: &B,
    ) -> Result<Option<B::Made>, StoreError> {
        let begun = self.now();
        for attempt in 0.. {
            let (why, hopeless) = match self.get_hedged(name, range, body).await {
                Ok(got) => return Ok(got),
                Err(why) => why,
            };
            if hopeless || !self.is_patient(begun) {
                return Err(self.refused("reading", &name.to_string(), &why));
            }
            if let Some(range) = range
                && attempt % SIZE_EVERY == SIZE_EVERY - 1
                && let Some(has) = self.size(name).await
                && has < range.end
            {
                let needs = range.end;
                return Err(self.damaged(name, Bad::Cut { has, needs }));
            }
            self.sleep(pause(attempt)).await;
        }
        Ok(None)
    }

    /// Reads an object, with one request, within this time.
    pub(crate) async fn get_within(
        &self,
        name: ObjectName,
        patience: Duration,
    ) -> Result<Option<Got>, StoreError> {
        let got = self.get_once(name, None, 0, patience, &Whole).await;
        got.map_err(|(why, _)| self.refused("reading", &name.to_string(), &why))
    }

    /// The length of an object, if the store answers.
    async fn size(&self, name: ObjectName) -> Option<u64> {
        let path = self.location.path(&name.to_string());
        let answer = self
            .send(deadline(0), self.location.store.head(&path))
            .await;
        self.counters.gets.count(0);
        Some(answer?.ok()?.size)
    }

    /// Sends a GET, and a second one if the answer is late. The first answer counts; an error counts only if both fail.
    async fn get_hedged<B: Body>(
        &self,
        name: ObjectName,
        range: Option<&Range<u64>>,
        body: &B,
    ) -> Answer<B::Made> {
        let bytes = bytes_of(range);
        let ask = || Box::pin(self.get_once(name, range, bytes, deadline(bytes), body));
        let Some(late) = self.traffic().late_after(bytes) else {
            return ask().await;
        };
        let first = match select(ask(), self.traffic().time.sleep(late)).await {
            Either::Left((answer, _)) => return answer,
            Either::Right((_, first)) => first,
        };
        if !self.traffic().may_hedge() {
            return first.await;
        }
        match select(first, ask()).await {
            Either::Left((Ok(got), _)) | Either::Right((Ok(got), _)) => Ok(got),
            Either::Left((Err(_), other)) | Either::Right((Err(_), other)) => other.await,
        }
    }

    /// Sends one GET for about `bytes` bytes.
    async fn get_once<B: Body>(
        &self,
        name: ObjectName,
        range: Option<&Range<u64>>,
        bytes: u64,
        deadline: Duration,
        body: &B,
    ) -> Answer<B::Made> {
        let path = self.location.path(&name.to_string());
        let options = GetOptions {
            range: range.cloned().map(Into::into),
            ..GetOptions::default()
        };
        let request = async {
            let _stopwatch = self.traffic().stopwatch(bytes);
            let found = self.location.store.get_opts(&path, options).await?;
            body.read(found).await
        };
        match self.send(deadline, request).await {
            Some(Ok((length, made))) => {
                self.counters.gets.count(length as usize);
                match range.is_none_or(|range| range.end - range.start == length) {
                    true => Ok(Some(made)),
                    false => Err((format!("{length} bytes came instead of a range"), false)),
                }
            }
            Some(Err(object_store::Error::NotFound { .. })) => {
                self.counters.gets.count(0);
                Ok(None)
            }
            Some(Err(error)) => {
                let refused = matches!(
                    error,
                    object_store::Error::PermissionDenied { .. }
                        | object_store::Error::Unauthenticated { .. }
                );
                let hopeless = refused && self.is_bounded() || is_sync_failure(&error);
                Err((first_line(&error), hopeless))
            }
            None => Err((format!("no answer within {} s", deadline.as_secs()), false)),
        }
    }

    /// Sends a PUT once.
    pub(crate) async fn put(&self, name: ObjectName, bytes: Bytes, mode: PutMode) -> Put {
        let path = self.location.path(&name.to_string());
        let length = bytes.len();
        let request = self
            .location
            .store
            .put_opts(&path, bytes.into(), PutOptions::from(mode));
        let answer = self.send(deadline(length as u64), request).await;
        self.counters.puts.count(length);
        match answer {
            Some(Ok(done)) => Put::Done(done.into()),
            Some(Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. }
                | object_store::Error::NotModified { .. },
            )) => Put::Refused,
            Some(Err(error)) => Put::Unknown(first_line(&error)),
            None => Put::Unknown("no answer in time".to_owned()),
        }
    }

    /// Creates an object under a name of this caller, and reads it back until the outcome is known. True if it holds these
    /// bytes; false if it holds others.
    pub(crate) async fn create(&self, name: ObjectName, bytes: Bytes) -> Result<bool, StoreError> {
        let begun = self.now();
        for attempt in 0.. {
            let why = match self.put(name, bytes.clone(), PutMode::Create).await {
                Put::Done(_) => return Ok(true),
                Put::Refused => "the name is taken".to_owned(),
                Put::Unknown(why) => why,
            };
            if let Some(found) = self.get(name, None).await? {
                return Ok(found.bytes == bytes);
            }
            if !self.is_patient(begun) {
                return Err(self.refused("writing", &name.to_string(), &why));
            }
            self.sleep(pause(attempt)).await;
        }
        Ok(false)
    }

    /// Deletes an object. It is no error if the object does not exist.
    pub(crate) async fn delete(&self, name: ObjectName) -> Result<(), StoreError> {
        let path = self.location.path(&name.to_string());
        let request = self.location.store.delete(&path);
        let answer = self.send(deadline(0), request).await;
        self.counters.deletes.count(0);
        match answer {
            Some(Ok(()) | Err(object_store::Error::NotFound { .. })) => Ok(()),
            Some(Err(error)) => {
                Err(self.refused("deleting", &name.to_string(), &first_line(&error)))
            }
            None => Err(self.refused("deleting", &name.to_string(), "no answer in time")),
        }
    }

    /// The store's time of the last write of an object, in milliseconds since 1970.
    pub(crate) async fn written_at(&self, name: ObjectName) -> Result<u64, StoreError> {
        let path = self.location.path(&name.to_string());
        let answer = self
            .send(deadline(0), self.location.store.head(&path))
            .await;
        self.counters.gets.count(0);
        match answer {
            Some(Ok(meta)) => Ok(meta.last_modified.timestamp_millis().max(0) as u64),
            Some(Err(error)) => {
                Err(self.refused("asking for", &name.to_string(), &first_line(&error)))
            }
            None => Err(self.refused("asking for", &name.to_string(), "no answer in time")),
        }
    }
}

/// Requests without a volume, for tests of this module.
#[cfg(feature = "faults")]
#[derive(Clone, Debug)]
pub struct Requests(Arc<Io>);

#[cfg(feature = "faults")]
impl Requests {
    /// Requests to a location.
    #[must_use]
    pub fn new(location: Location) -> Requests {
        let coding = Coding::plain(crate::object::VolumeId([0; 16]));
        Requests(Io::new(location, coding, None))
    }

    /// Reads a part of an object.
    ///
    /// # Errors
    /// The store's.
    pub async fn get(
        &self,
        name: ObjectName,
        range: Range<u64>,
    ) -> Result<Option<Bytes>, StoreError> {
        Ok(self.0.get(name, Some(range)).await?.map(|got| got.bytes))
    }

    /// Creates an object.
    ///
    /// # Errors
    /// The store's.
    pub async fn create(&self, name: ObjectName, bytes: Bytes) -> Result<bool, StoreError> {
        self.0.create(name, bytes).await
    }

    /// Hedged GETs, throttling answers, and the present limit of requests in flight.
    #[must_use]
    pub fn traffic(&self) -> (u64, u64, u64) {
        let traffic = self.0.traffic();
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        (
            load(&traffic.hedges),
            load(&traffic.throttled),
            traffic.limit(),
        )
    }
}

/// The store's answer in one line: the crate's errors quote whole bodies.
pub(crate) fn first_line(error: &object_store::Error) -> String {
    shortened(&error.to_string())
}

fn shortened(text: &str) -> String {
    let between = |begin: &str, end: &str| {
        let (_, rest) = text.split_once(begin)?;
        rest.split_once(end).map(|(found, _)| found)
    };
    if let Some(code) = between("<Code>", "</Code>") {
        let message = between("<Message>", "</Message>").unwrap_or_default();
        return format!("the store answers {code}: {message}");
    }
    let mut text = text.replace(['\n', '\r'], " ");
    if text.contains("http://169.254.169.254") {
        text.push_str(
            "; no credentials were found in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY), so the machine's role was asked for",
        );
    }
    if let Some((end, _)) = text.char_indices().nth(400) {
        text.truncate(end);
        text.push_str(" …");
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::object::VolumeId;

    #[test]
    fn an_answer_of_the_store_is_quoted_in_a_line() {
        let body = "Server returned 403: <?xml?>\n<Error><Code>AccessDenied</Code><Message>No.</Message></Error>";
        assert_eq!(shortened(body), "the store answers AccessDenied: No.");
        assert_eq!(shortened("two\nlines"), "two lines");
        assert!(shortened(&"x".repeat(1000)).len() < 410);
        assert!(shortened("GET http://169.254.169.254/x").contains("AWS_ACCESS_KEY_ID"));
    }

    /// A read was repeated for ever after another writer had replaced the object by a shorter one.
    #[test]
    fn a_part_beyond_the_end_of_an_object_is_an_error_even_without_a_time_limit() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let location = Location::within(store, "volume", "memory://volume");
        let io = Io::new(location, Coding::plain(VolumeId([1; 16])), None);
        let name = ObjectName::Volume;
        let runtime = crate::runtime::runtime().unwrap();
        let read = |range| {
            let limited = async {
                tokio::time::timeout(Duration::from_secs(600), io.get(name, Some(range))).await
            };
            runtime.block_on(limited).unwrap()
        };
        let put = io.put(name, Bytes::from_static(b"short"), PutMode::Create);
        assert!(matches!(runtime.block_on(put), Put::Done(_)));
        assert_eq!(read(0..5).unwrap().unwrap().bytes, "short");
        for range in [0..6, 100..200] {
            let needs = range.end;
            let wrong = read(range).unwrap_err();
            let why = Bad::Cut { has: 5, needs };
            assert!(matches!(wrong, StoreError::Damaged { why: found, .. } if found == why));
        }
    }

    /// A store that sends the object in pieces of any length.
    #[test]
    fn parts_are_cut_out_of_pieces() {
        let bytes: Bytes = (0..200_u8).collect::<Vec<u8>>().into();
        let parts = [(3, 10), (13, 1), (14, 50), (70, 100)];
        let runtime = crate::runtime::runtime().unwrap();
        for piece in [1, 2, 7, 13, 64, 500] {
            let store = Arc::new(object_store::memory::InMemory::new());
            let store = Arc::new(object_store::chunked::ChunkedStore::new(store, piece));
            let location = Location::within(store, "volume", "memory://volume");
            let io = Io::new(location, Coding::plain(VolumeId([1; 16])), None);
            let name = ObjectName::Volume;
            let put = io.put(name, bytes.clone(), PutMode::Create);
            assert!(matches!(runtime.block_on(put), Put::Done(_)));
            let each = |index: usize, part: Bytes| (index, part);
            let got = runtime.block_on(io.get_parts(name, 10..190, &parts, each));
            let expected = (parts.iter().enumerate()).map(|(index, (at, length))| {
                let begin = 10 + *at as usize;
                (index, bytes.slice(begin..begin + *length as usize))
            });
            let expected: Vec<_> = expected.collect();
            assert_eq!(got.unwrap().unwrap(), expected, "{piece}");
            let none = io.get_parts(ObjectName::Head, 0..5, &[(0, 5)], each);
            assert!(runtime.block_on(none).unwrap().is_none());
        }
    }

    #[test]
    fn pauses_grow_up_to_a_bound() {
        for attempt in 0..40 {
            let least = PAUSE_FIRST
                .saturating_mul(1 << attempt.min(10))
                .min(PAUSE_MOST)
                / 2;
            let pause = pause(attempt);
            assert!(
                pause >= least && pause <= PAUSE_MOST,
                "{attempt}: {pause:?}"
            );
        }
    }
}
