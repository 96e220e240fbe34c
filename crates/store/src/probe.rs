//! Probes: tests of a store before it is trusted with a volume.
//!
//! The first part checks rules with one client: create-only and compare-and-swap PUTs refuse when they must, bodies come back
//! whole, ranges are right, ETags differ, deleted objects are gone. The second part runs races: many writers create the same
//! name, or swap the same version, at the same time. Exactly one may win, and the object must hold its bytes. Stores that check
//! the condition and write in two steps pass the first part and fail the second.

use crate::io::first_line;
use crate::local::DirStore;
use crate::place::{Location, PlaceError, random};
use crate::runtime::runtime;
use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Barrier;

/// Deadline of a request of the probe.
const DEADLINE: Duration = Duration::from_secs(20);
/// Difference between the store's and this machine's clock, in seconds, from which on it is reported.
const SKEW: u64 = 15 * 60;

/// Most writers in a race: each writes its own byte value for each kind of race.
const WRITERS_MOST: usize = 128;

/// Some races have fewer writers with larger bodies: a store that checks, then reads the body, has a wider gap there.
const LARGE_EVERY: usize = 5;
const LARGE_WRITERS: usize = 8;
const LARGE_BYTES: usize = 128 << 10;

/// Trials before failures without a clear answer (cut connections, time-outs, errors of the server) count, and the first pause
/// between two trials, which doubles.
const TRIALS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// The rules that a store must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The store answers, and permits writing, reading, listing and deleting.
    Answers,
    /// A create-only PUT fails if the name is taken.
    Create,
    /// A conditional PUT fails if the object has another version, or does not exist.
    Swap,
    /// An object holds the written bytes.
    Bodies,
    /// A range request returns exactly the range.
    Ranges,
    /// No two versions have the same ETag.
    Tags,
    /// A listing has all objects that were written before.
    Lists,
    /// A deleted object is gone.
    Deletes,
    /// If writers create the same name at once, exactly one wins, and the object holds its bytes.
    CreateRace,
    /// If writers swap the same version at once, exactly one wins, and the object holds its bytes.
    SwapRace,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::Answers => "answers",
            Rule::Create => "create",
            Rule::Swap => "swap",
            Rule::Bodies => "bodies",
            Rule::Ranges => "ranges",
            Rule::Tags => "etags",
            Rule::Lists => "lists",
            Rule::Deletes => "deletes",
            Rule::CreateRace => "create-race",
            Rule::SwapRace => "swap-race",
        })
    }
}

/// Options of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeOptions {
    /// Writers in each race.
    pub writers: usize,
    /// Races of each kind.
    pub rounds: usize,
}

impl Default for ProbeOptions {
    fn default() -> ProbeOptions {
        ProbeOptions {
            writers: 32,
            rounds: 50,
        }
    }
}

/// The result of a probe.
#[derive(Clone, Debug, Default)]
pub struct ProbeReport {
    /// Rules that the store breaks, with its behaviour.
    pub broken: Vec<(Rule, String)>,
    /// Warnings for the user.
    pub notes: Vec<String>,
    /// Races of each kind that were run.
    pub rounds: usize,
    /// Writers in each race that was run.
    pub writers: usize,
    /// Races with several winners: of creates, and of swaps.
    pub lost_races: (usize, usize),
    /// Median time of a create-only PUT of 8 KiB without a race.
    pub put_ms: f64,
    /// The store gave a wrong answer, not just none.
    certain: bool,
}

impl ProbeReport {
    /// Whether the store can be trusted with a volume.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.broken.is_empty()
    }

    /// Whether another trial may show that the store keeps the rules.
    fn is_unclear(&self) -> bool {
        !self.broken.is_empty() && !self.certain
    }

    /// The store's answer breaks a rule.
    fn break_rule(&mut self, rule: Rule, what: impl Into<String>) {
        self.certain = true;
        self.doubt(rule, what);
    }

    /// A request had no answer that says whether the store keeps a rule.
    fn doubt(&mut self, rule: Rule, what: impl Into<String>) {
        if self
            .broken
            .iter()
            .filter(|(other, _)| *other == rule)
            .count()
            < 3
        {
            self.broken.push((rule, what.into()));
        }
    }
}

enum Outcome {
    Done,
    Refused(String),
    Unknown(String),
}

/// State of one probe. It has a directory of its own, so that several probes can run at once.
struct Trial<'a> {
    /// One client for each endpoint of the store.
    places: &'a [Location],
    dir: String,
    /// Directories that the first PUT makes, if the store is a directory.
    made: Vec<std::path::PathBuf>,
    /// There is something to clean up.
    wrote: bool,
    report: ProbeReport,
}

async fn put(place: &Location, path: &Path, body: Bytes, mode: PutMode) -> Outcome {
    let request = place
        .store
        .put_opts(path, body.into(), PutOptions::from(mode));
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(_)) => Outcome::Done,
        Ok(Err(
            error @ (object_store::Error::AlreadyExists { .. }
            | object_store::Error::Precondition { .. }
            | object_store::Error::NotModified { .. }
            | object_store::Error::NotFound { .. }),
        )) => Outcome::Refused(first_line(&error)),
        Ok(Err(error)) => Outcome::Unknown(first_line(&error)),
        Err(_) => Outcome::Unknown(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}

async fn get(place: &Location, path: &Path) -> Result<Option<(Bytes, UpdateVersion)>, String> {
    let request = async {
        let found = place.store.get_opts(path, GetOptions::default()).await?;
        let version = UpdateVersion {
            e_tag: found.meta.e_tag.clone(),
            version: found.meta.version.clone(),
        };
        Ok::<_, object_store::Error>((found.bytes().await?, version))
    };
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(found)) => Ok(Some(found)),
        Ok(Err(object_store::Error::NotFound { .. })) => Ok(None),
        Ok(Err(error)) => Err(first_line(&error)),
        Err(_) => Err(format!("no answer within {} s", DEADLINE.as_secs())),
    }
}

/// The bytes of a writer, with its own length, so that a mixture shows. The bytes of a swap differ from those of a create: a
/// swap for the same bytes would not change the ETag, and a second swap would rightly succeed.
fn body_of(writer: usize, rule: Rule, bytes: usize) -> Bytes {
    let swap = usize::from(rule == Rule::SwapRace);
    let value = (writer + swap * WRITERS_MOST) as u8;
    Bytes::from(vec![value; bytes * (1 + swap) + writer])
}

/// Probes a store. `places` are the same prefix over each of its endpoints. The probe puts its objects below `probe-…/` and
/// deletes them at the end. `progress` gets the number of races done, and the total.
///
/// # Errors
/// This machine cannot send requests. Misbehaviour of the store is in the report instead.
pub fn probe(
    places: &[Location],
    options: ProbeOptions,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<ProbeReport, PlaceError> {
    let options = ProbeOptions {
        writers: options.writers.min(WRITERS_MOST),
        ..options
    };
    let mut last = 1;
    loop {
        let report = try_once(places, options, progress)?;
        if !report.is_unclear() || last == TRIALS {
            return Ok(report);
        }
        std::thread::sleep(PAUSE * (1 << (last - 1)));
        last += 1;
    }
}

fn try_once(
    places: &[Location],
    options: ProbeOptions,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<ProbeReport, PlaceError> {
    let mut trial = Trial {
        places,
        dir: format!("probe-{:032x}", random()?),
        made: (places.iter().find_map(|place| place.directory.as_ref()))
            .map_or_else(Vec::new, DirStore::absent),
        wrote: false,
        report: ProbeReport {
            writers: options.writers,
            ..ProbeReport::default()
        },
    };
    if places.is_empty() {
        return Ok(trial.report);
    }
    runtime()?.block_on(async {
        if trial.rules().await {
            trial.races(options, progress).await;
        }
        if trial.wrote {
            trial.clean_up().await;
        }
    });
    Ok(trial.report)
}

impl Trial<'_> {
    fn place(&self, number: usize) -> &Location {
        &self.places[number % self.places.len()]
    }

    fn path(&self, name: &str) -> Path {
        self.places[0].path(&format!("{}/{name}", self.dir))
    }

    /// Checks the rules with one client. False if it is useless to go on.
    async fn rules(&mut self) -> bool {
        let path = self.path("rules");
        let (first, second) = (Bytes::from(vec![1; 8192]), Bytes::from(vec![2; 8192]));
        let place = &self.places[0];
        match put(place, &path, first.clone(), PutMode::Create).await {
            Outcome::Done => self.wrote = true,
            Outcome::Refused(why) => {
                self.report
                    .break_rule(Rule::Answers, format!("creating an object: {why}"));
                return false;
            }
            Outcome::Unknown(why) => {
                // It may have taken effect.
                self.wrote = true;
                self.report
                    .doubt(Rule::Answers, format!("creating an object: {why}"));
                return false;
            }
        }
        match put(place, &path, second.clone(), PutMode::Create).await {
            Outcome::Refused(_) => {}
            Outcome::Done => self.report.break_rule(
                Rule::Create,
                "a PUT with 'If-None-Match: *' succeeded though the object was there",
            ),
            Outcome::Unknown(why) => self.report.doubt(
                Rule::Create,
                format!(
                    "a PUT with 'If-None-Match: *' of a name that is taken was answered: {why}"
                ),
            ),
        }
        let tag = match get(place, &path).await {
            Ok(Some((body, tag))) => {
                if body != first {
                    self.report
                        .break_rule(Rule::Bodies, "an object does not hold what was written");
                }
                tag
            }
            Ok(None) => {
                let what = "an object that was written is not there";
                self.report.break_rule(Rule::Bodies, what);
                return false;
            }
            Err(why) => {
                self.report
                    .doubt(Rule::Answers, format!("reading an object: {why}"));
                return false;
            }
        };
        if tag.e_tag.is_none() {
            self.report
                .break_rule(Rule::Tags, "an object has no ETag, so it cannot be swapped");
            return false;
        }
        self.swaps(&path, &tag, first, second).await;
        self.ranges_and_lists(&path).await;
        true
    }

    async fn swaps(&mut self, path: &Path, tag: &UpdateVersion, first: Bytes, second: Bytes) {
        let place = &self.places[0];
        let swap = PutMode::Update(tag.clone());
        match put(place, path, second.clone(), swap.clone()).await {
            Outcome::Done => {}
            Outcome::Refused(why) => {
                let what = format!("a PUT with 'If-Match' of the present version: {why}");
                self.report.break_rule(Rule::Swap, what);
                return;
            }
            Outcome::Unknown(why) => {
                let what = format!("a PUT with 'If-Match' of the present version: {why}");
                self.report.doubt(Rule::Swap, what);
                return;
            }
        }
        match put(place, path, first.clone(), swap).await {
            Outcome::Refused(_) => {}
            Outcome::Done => self.report.break_rule(
                Rule::Swap,
                "a PUT with 'If-Match' of an old version succeeded",
            ),
            Outcome::Unknown(why) => self.report.doubt(
                Rule::Swap,
                format!("a PUT with 'If-Match' of an old version was answered: {why}"),
            ),
        }
        match get(place, path).await {
            Ok(Some((body, now))) => {
                if body != second {
                    let what = "a refused PUT changed the object, or a swap did not";
                    self.report.break_rule(Rule::Bodies, what);
                }
                if now == *tag {
                    let what = "two versions of an object have the same ETag";
                    self.report.break_rule(Rule::Tags, what);
                }
            }
            Ok(None) => self
                .report
                .break_rule(Rule::Bodies, "an object is gone after a swap"),
            Err(why) => self
                .report
                .doubt(Rule::Answers, format!("reading an object: {why}")),
        }
        let absent = self.path("absent");
        let swap = PutMode::Update(tag.clone());
        if let Outcome::Done = put(place, &absent, first, swap).await {
            self.report.break_rule(
                Rule::Swap,
                "a PUT with 'If-Match' created an object that was not there",
            );
        }
    }

    async fn ranges_and_lists(&mut self, path: &Path) {
        let place = &self.places[0];
        let path_of_ranges = self.path("ranges");
        let pattern: Vec<u8> = (0..8192_u32).map(|i| (i % 251) as u8).collect();
        let body = Bytes::from(pattern);
        if let Outcome::Unknown(why) =
            put(place, &path_of_ranges, body.clone(), PutMode::Create).await
        {
            let what = format!("creating an object: {why}");
            return self.report.doubt(Rule::Answers, what);
        }
        match place.store.get_range(&path_of_ranges, 1000..3000).await {
            Ok(part) if part == body.slice(1000..3000) => {}
            Ok(part) => {
                let what = format!("2000 bytes from 1000 on came as {} others", part.len());
                self.report.break_rule(Rule::Ranges, what);
            }
            Err(error) => self.report.doubt(Rule::Ranges, first_line(&error)),
        }
        let dir = place.path(&self.dir);
        let listed = place.store.list(Some(&dir));
        match listed
            .map_ok(|meta| meta.location)
            .try_collect::<Vec<_>>()
            .await
        {
            Ok(names) if names.contains(path) && names.contains(&path_of_ranges) => {}
            Ok(_) => self
                .report
                .break_rule(Rule::Lists, "a list lacks objects that were written before"),
            Err(error) => self.report.doubt(Rule::Lists, first_line(&error)),
        }
        let now = std::time::SystemTime::now();
        if let Ok(meta) = place.store.head(path).await {
            let here = now
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| since.as_secs());
            let there = meta.last_modified.timestamp().max(0) as u64;
            if here.abs_diff(there) > SKEW {
                self.report.notes.push(format!(
                    "the clocks of the store and of this machine are {} s apart; some stores refuse signatures then",
                    here.abs_diff(there)
                ));
            }
        }
        if let Err(error) = place.store.delete(&path_of_ranges).await {
            let what = format!("deleting an object: {}", first_line(&error));
            return self.report.doubt(Rule::Deletes, what);
        }
        match get(place, &path_of_ranges).await {
            Ok(None) => {}
            Ok(Some(_)) => self
                .report
                .break_rule(Rule::Deletes, "a deleted object is still there"),
            Err(why) => self
                .report
                .doubt(Rule::Deletes, format!("reading a deleted object: {why}")),
        }
    }

    async fn races(&mut self, options: ProbeOptions, progress: &mut (dyn FnMut(u64, u64) + Send)) {
        let total = options.rounds as u64 * 2;
        let mut times = Vec::with_capacity(options.rounds);
        for round in 0..options.rounds {
            let calm = self.path(&format!("calm-{round}"));
            let begun = Instant::now();
            let body = Bytes::from(vec![3; 8192]);
            let _ = put(self.place(round), &calm, body, PutMode::Create).await;
            times.push(begun.elapsed());
            let path = self.path(&format!("create-{round}"));
            let size = match round % LARGE_EVERY {
                1 => (options.writers.min(LARGE_WRITERS), LARGE_BYTES),
                _ => (options.writers, 4096),
            };
            let lost = self
                .race(size, &path, PutMode::Create, Rule::CreateRace)
                .await;
            self.report.lost_races.0 += usize::from(lost);
            progress(round as u64 * 2 + 1, total);
            // All writers swap the present version.
            let tag = match get(self.place(round), &path).await {
                Ok(Some((_, tag))) => tag,
                _ => continue,
            };
            let swap = PutMode::Update(tag);
            let lost = self.race(size, &path, swap, Rule::SwapRace).await;
            self.report.lost_races.1 += usize::from(lost);
            self.report.rounds += 1;
            progress(round as u64 * 2 + 2, total);
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).copied().unwrap_or_default();
        self.report.put_ms = median.as_secs_f64() * 1000.0;
    }

    /// One race of writers with different bodies. True if the store let several win, or kept other bytes than the winner's.
    async fn race(
        &mut self,
        (writers, bytes): (usize, usize),
        path: &Path,
        mode: PutMode,
        rule: Rule,
    ) -> bool {
        let barrier = Arc::new(Barrier::new(writers));
        let mut tasks = Vec::with_capacity(writers);
        for writer in 0..writers {
            let (place, path, mode) = (self.place(writer).clone(), path.clone(), mode.clone());
            let barrier = Arc::clone(&barrier);
            tasks.push(tokio::spawn(async move {
                let body = body_of(writer, rule, bytes);
                barrier.wait().await;
                put(&place, &path, body, mode).await
            }));
        }
        let (mut winners, mut unknown) = (Vec::new(), Vec::new());
        for (writer, task) in tasks.into_iter().enumerate() {
            match task.await {
                Ok(Outcome::Done) => winners.push(writer),
                Ok(Outcome::Refused(_)) => {}
                Ok(Outcome::Unknown(_)) | Err(_) => unknown.push(writer),
            }
        }
        let found = get(self.place(0), path).await;
        let holds = match &found {
            Ok(Some((body, _))) => body
                .first()
                .map(|first| usize::from(*first))
                .map(|first| first % WRITERS_MOST)
                .filter(|writer| *body == body_of(*writer, rule, bytes)),
            _ => None,
        };
        let what = match (&winners[..], holds) {
            // A request may have been sent twice on its way: its second answer says that it is refused. Writers read the object
            // back then.
            ([], Some(_)) => return false,
            ([], _) if !unknown.is_empty() => {
                let what = format!(
                    "of {writers} writers at once none won, {} got no clear answer",
                    unknown.len()
                );
                self.report.doubt(rule, what);
                return true;
            }
            ([], _) => format!("of {writers} writers at once none won"),
            ([winner], Some(writer)) if writer == *winner => return false,
            ([winner], None) if found.is_err() => {
                let what = format!("the object of writer {winner} could not be read");
                self.report.doubt(rule, what);
                return true;
            }
            ([winner], _) => format!(
                "of {writers} writers at once one won (number {winner}), but its bytes are not there"
            ),
            (several, _) => format!(
                "of {writers} writers at once {} were told that they won",
                several.len()
            ),
        };
        self.report.break_rule(rule, what);
        true
    }

    async fn clean_up(&mut self) {
        let place = &self.places[0];
        let dir = place.path(&self.dir);
        let mut pause = PAUSE;
        for last in (1..=TRIALS).map(|trial| trial == TRIALS) {
            let names = place.store.list(Some(&dir)).map_ok(|meta| meta.location);
            let store = Arc::clone(&place.store);
            let deleted = names
                .try_for_each_concurrent(16, |name| {
                    let store = Arc::clone(&store);
                    async move {
                        match store.delete(&name).await {
                            Err(object_store::Error::NotFound { .. }) => Ok(()),
                            deleted => deleted,
                        }
                    }
                })
                .await;
            match deleted {
                Ok(()) => break,
                Err(error) if last => {
                    let what = format!("deleting the probe's objects: {}", first_line(&error));
                    return self.report.doubt(Rule::Deletes, what);
                }
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause *= 2;
        }
        if let Some(Err(error)) = (place.directory.as_ref())
            .map(|directory| directory.remove_empty(&self.dir, &self.made))
        {
            let what = format!("removing the probe's directory: {error}");
            self.report.break_rule(Rule::Deletes, what);
        }
    }
}
