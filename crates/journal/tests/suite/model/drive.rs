//! Carries a history out on a journal and on the specification, and compares: reads while it runs,
//! and states after crashes, with recovery, read-only recovery and recovery cut again.

use super::disk::{META, REGION, STARTS, config, contents, fresh, kind, model, shows};
use super::history::{Act, History, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use steadfast_block::{BLOCK_SIZE, BlockNo};
use steadfast_journal::{
    Access, Client, Credits, Faults, Journal, Kind, META_BYTES, Object, Op, Result as Outcome,
    StreamId, Ticket,
};
use steadfast_model::log::{self, Change, Image, Log, Operation, Survivors};
use steadfast_sim::{CrashImage, Cut, Limits, SimDevice};
use steadfast_testkit::Random;

/// Events of the histories.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) cases: u64,
    pub(crate) operations: u64,
    pub(crate) images: u64,
    pub(crate) crashes: u64,
    /// Journals whose log wrapped.
    pub(crate) wraps: u64,
    pub(crate) merges: u64,
}

/// Cuts that are looked at for each journal that was opened, and images of each.
const CUTS: u64 = 8;
const IMAGES: usize = 3;
/// Places in a fixed metadata block, one for each kind of change.
const COUNTERS: usize = 132;
const LATEST: usize = 158;
const BITMAP: usize = 190;
const MARKERS: usize = 202;

pub(crate) struct Rng(Random);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(Random::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.number() >> 8
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub(crate) fn limits(&mut self) -> Limits {
        Limits {
            exhaustive_writes: 3,
            sampled: 6,
            tears: true,
            seed: self.next(),
        }
    }
}

/// Hears which blocks may be used again.
#[derive(Default)]
struct Released(Mutex<Vec<(BlockNo, u64)>>);

impl Client for Released {
    fn close(&self, op: Op<'_>, _: &[u64]) -> Outcome<Ticket> {
        Ok(op.commit())
    }
    fn released(&self, runs: &[(BlockNo, u64)]) {
        self.0.lock().unwrap().extend(runs);
    }
}

/// Settings of a journal's run and of its checks.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) faults: Faults,
    /// Bound of uncommitted data blocks.
    pub(crate) pages_max: u64,
    /// Blocks that are allocated and freed.
    pub(crate) pool: Range<u64>,
}

/// State recovered from a crash image.
pub(crate) struct Recovered {
    sim: Arc<SimDevice>,
    journal: Journal,
    survivors: Survivors,
    found: Image,
}

/// Recovers from an image in all ways and compares with the specification.
pub(crate) fn check(
    log: &Log,
    image: CrashImage,
    at: usize,
    setup: &Setup,
    rng: &mut Rng,
) -> Result<Recovered, String> {
    let name = image.to_string();
    let said = |what: &str, e: &dyn Display| format!("{name}: {what}: {e}");
    let sim = Arc::new(SimDevice::from_image(image));
    let open = |sim: &Arc<SimDevice>, read_only| {
        let opened = Journal::open(sim.clone(), config(setup.faults, read_only));
        opened.map(|(journal, _)| journal)
    };
    let peek = open(&sim, true).map_err(|e| said("read-only opening", &e))?;
    let found = contents(&peek, setup.pool.end)?;
    let survivors = log.check(&found, at).map_err(|e| said("violation", &e))?;
    let live: Image = log
        .live(&survivors)
        .into_iter()
        .map(|(at, len)| (at, found[&at][..len].into()))
        .collect();
    shows(&peek, &live).map_err(|e| said("read-only", &e))?;
    if sim.trace_len() > 0 {
        return Err(said("read-only opening", &"it wrote"));
    }
    let journal = open(&sim, false).map_err(|e| said("opening", &e))?;
    shows(&journal, &live).map_err(|e| said("recovered otherwise than read-only", &e))?;
    let mut explorer = sim.explorer();
    let cut = explorer.cut(rng.below(sim.trace_len() as u64 + 1) as usize);
    let again = choose(&cut, rng);
    let name = format!("{name}, and again: {again}");
    let again = Arc::new(SimDevice::from_image(again));
    let journal_again = open(&again, false).map_err(|e| format!("{name}: {e}"))?;
    shows(&journal_again, &live)
        .map_err(|e| format!("{name}: not what was recovered first: {e}"))?;
    Ok(Recovered {
        sim,
        journal,
        survivors,
        found,
    })
}

/// One image of a cut.
fn choose(cut: &Cut, rng: &mut Rng) -> CrashImage {
    let nth = rng.below(8) as usize;
    let mut images = cut.images(&rng.limits());
    let first = images.next().unwrap_or_else(|| cut.everything());
    (0..nth)
        .map_while(|_| images.next())
        .last()
        .unwrap_or(first)
}

/// Looks at some crashes of a trace from position `from` on.
pub(crate) fn explore(
    log: &Log,
    sim: &SimDevice,
    from: usize,
    cuts: u64,
    setup: &Setup,
    rng: &mut Rng,
) -> Result<u64, String> {
    let mut explorer = sim.explorer();
    let span = (explorer.len() - from) as u64 + 1;
    // Just before a flush most writes are open.
    let mut full = explorer.maximal_cuts();
    full.retain(|position| *position >= from);
    let mut positions: Vec<usize> = (0..cuts)
        .map(|_| match rng.below(2) {
            0 => full[rng.below(full.len() as u64) as usize],
            _ => from + rng.below(span) as usize,
        })
        .collect();
    positions.sort_unstable();
    let mut images = 0;
    for position in positions {
        let cut = explorer.cut(position);
        for image in cut
            .images(&rng.limits())
            .skip(rng.below(4) as usize)
            .take(IMAGES)
        {
            images += 1;
            check(log, image, position, setup, rng)?;
        }
    }
    Ok(images)
}

struct Driver<'a> {
    setup: Setup,
    sim: Arc<SimDevice>,
    journal: Journal,
    client: Arc<Released>,
    free: BTreeSet<u64>,
    log: Log,
    /// Position in the device's trace from which on the log is right.
    from: usize,
    head: u64,
    tickets: Vec<(Ticket, usize)>,
    tag: u32,
    rng: Rng,
    story: Vec<String>,
    tally: &'a mut Tally,
}

/// An operation while it is put together.
struct Draft<'a> {
    op: Op<'a>,
    changes: Vec<Change>,
    objects: Vec<(u64, log::Access)>,
    /// Blocks as the operation must see them.
    seen: BTreeMap<u64, Vec<u8>>,
    /// Blocks of the pool that it may not touch any more.
    closed: BTreeSet<u64>,
    taken: BTreeSet<u64>,
}

/// Carries a history out. The error describes the history.
pub(crate) fn drive(history: &History, faults: Faults, tally: &mut Tally) -> Result<(), String> {
    tally.cases += 1;
    let setup = Setup {
        faults,
        pages_max: history.pages_max,
        pool: history.pool.clone(),
    };
    let sim = fresh(history.start);
    let (journal, client) = open(&sim, &setup)?;
    let mut driver = Driver {
        setup,
        sim,
        head: journal.usage().1,
        journal,
        client,
        free: history.pool.clone().collect(),
        log: model(),
        from: 0,
        tickets: Vec::new(),
        tag: 0,
        rng: Rng::new(history.choice),
        story: Vec::new(),
        tally,
    };
    let all = || {
        history
            .steps
            .iter()
            .try_for_each(|step| driver.step(step))?;
        driver.look()
    };
    // A panic reports its history, too.
    let result = catch_unwind(AssertUnwindSafe(all)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("of an unknown kind")))
    });
    result.map_err(|e| {
        let (story, start) = (driver.story.join("\n"), STARTS[history.start]);
        let log = &driver.log;
        format!("{e}\nhistory (log from {start}):\n{story}\nspecification:\n{log}")
    })
}

fn open(sim: &Arc<SimDevice>, setup: &Setup) -> Result<(Journal, Arc<Released>), String> {
    let mut config = config(setup.faults, false);
    config.dirty_blocks = setup.pages_max;
    let (journal, _) = Journal::open(sim.clone(), config).map_err(|e| e.to_string())?;
    Ok(with_client(journal))
}

fn with_client(journal: Journal) -> (Journal, Arc<Released>) {
    let released = Arc::new(Released::default());
    let client: Arc<dyn Client> = released.clone();
    journal.set_client(Arc::downgrade(&client));
    (journal, released)
}

impl Driver<'_> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Op {
                stream,
                acts,
                objects,
                commit,
            } => self.operation(*stream, acts, objects, *commit)?,
            Step::Sync { stream, objects } => {
                let named: Vec<u64> = objects.iter().map(|o| u64::from(*o)).collect();
                let files: Vec<Object> = named.iter().map(|o| Object::File(*o)).collect();
                let promise = self.log.promise(*stream, &named);
                let call = self.journal.sync(StreamId(*stream), &files);
                self.acknowledged(
                    &format!("sync stream {stream} objects {named:?}"),
                    call,
                    &promise,
                )?;
            }
            Step::SyncAll => {
                let promise = self.log.promise_all();
                self.acknowledged("sync all", self.journal.sync_all(), &promise)?;
            }
            Step::Wait { back } => {
                if let Some((ticket, op)) =
                    self.tickets.iter().rev().nth(usize::from(*back)).copied()
                {
                    let promise = self.log.promise_of(op);
                    self.acknowledged(
                        &format!("wait for {op}"),
                        self.journal.wait(ticket),
                        &promise,
                    )?;
                }
            }
            Step::Checkpoint => {
                let call = self.journal.checkpoint();
                self.acknowledged("checkpoint", call, &log::Promise::default())?;
            }
            Step::Reclaim => {
                let promise = self.log.promise_all();
                let call = self.journal.reclaim().map(|_| ());
                self.acknowledged("reclaim", call, &promise)?;
                if let Some(block) = self.log.freed().next() {
                    return Err(format!("block {block} is still in quarantine"));
                }
            }
            Step::Reopen => self.reopen()?,
            Step::Crash { kill, choice } => self.crash(*kill, &mut Rng::new(*choice))?,
        }
        shows(&self.journal, self.log.current())
    }

    fn acknowledged(
        &mut self,
        what: &str,
        call: Outcome<()>,
        promise: &log::Promise,
    ) -> Result<(), String> {
        self.story.push(format!("    {what}"));
        call.map_err(|e| format!("{what}: {e}"))?;
        self.log.acknowledge(promise, self.sim.trace_len());
        self.hear()
    }

    /// Takes in the blocks that left the quarantine.
    fn hear(&mut self) -> Result<(), String> {
        let runs = std::mem::take(&mut *self.client.0.lock().unwrap());
        for block in runs.into_iter().flat_map(|(at, n)| at.0..at.0 + n) {
            let waited = self.log.release(block, self.sim.trace_len());
            if !waited && !self.setup.faults.reuse_early {
                return Err(format!("block {block} is released and was not freed"));
            }
            if self.log.read(block).is_none() {
                self.free.insert(block);
            }
        }
        Ok(())
    }

    fn operation(
        &mut self,
        stream: u32,
        acts: &[Act],
        objects: &[(u8, bool)],
        commit: bool,
    ) -> Result<(), String> {
        let journal = self.journal.clone();
        let credits = Credits {
            log_bytes: 100 + acts.iter().map(log_bytes).sum::<u64>(),
            data_blocks: acts.iter().map(data_blocks).sum(),
        };
        let op = journal
            .begin(StreamId(stream), credits)
            .map_err(|e| format!("begin: {e}"))?;
        self.hear()?;
        self.tag += 1;
        let mut draft = Draft {
            op,
            changes: Vec::new(),
            objects: Vec::new(),
            seen: BTreeMap::new(),
            closed: BTreeSet::new(),
            taken: BTreeSet::new(),
        };
        for (object, exclusive) in objects {
            draft.relate(u64::from(*object), *exclusive);
        }
        for (number, act) in acts.iter().enumerate() {
            let value = self.tag * 16 + number as u32 + 1;
            self.act(&mut draft, act, value)
                .map_err(|e| format!("{act:?}: {e}"))?;
        }
        if draft
            .changes
            .iter()
            .any(|c| matches!(c, Change::Begin { .. } | Change::Free { .. }))
        {
            // The state after a crash must tell whether the block lives.
            let marker = (
                MARKERS + 12 * stream as usize,
                &u64::from(self.tag).to_le_bytes(),
            );
            draft
                .bytes(&self.log, META.start, marker.0, marker.1)
                .map_err(|e| e.to_string())?;
        }
        for (at, expected) in &draft.seen {
            let block = draft
                .op
                .read(BlockNo(*at), kind(expected.len()))
                .map_err(|e| e.to_string())?;
            if block[..expected.len()] != expected[..] {
                return Err(format!(
                    "an operation does not see its own writes to block {at}"
                ));
            }
        }
        let operation = Operation {
            stream,
            changes: draft.changes,
            objects: draft.objects,
        };
        if !commit {
            self.story.push(format!("    dropped: {operation}"));
            drop(draft.op);
            return Ok(());
        }
        let at = self.sim.trace_len();
        self.story
            .push(format!("{:>3} {operation}", self.log.len()));
        let ticket = draft.op.commit();
        self.free.retain(|b| !draft.taken.contains(b));
        self.tally.operations += 1;
        if !operation.changes.is_empty() {
            let position = self.log.apply(operation, at).map_err(|e| e.to_string())?;
            self.tickets.push((ticket, position));
        }
        self.hear()
    }

    fn act(&self, draft: &mut Draft<'_>, act: &Act, value: u32) -> Outcome<()> {
        let meta = |block: &u8| META.start + u64::from(*block);
        let pattern =
            |len: usize| -> Vec<u8> { value.to_le_bytes().into_iter().cycle().take(len).collect() };
        match act {
            Act::Bytes { block, offset, len } => {
                draft.bytes(
                    &self.log,
                    meta(block),
                    usize::from(*offset),
                    &pattern(usize::from(*len)),
                )?;
            }
            Act::Latest { block, slot } => {
                let (block, offset) = (meta(block), LATEST + 10 * usize::from(*slot));
                draft.op.write_latest(BlockNo(block), offset, &pattern(8))?;
                let data = pattern(8).into();
                draft.note(
                    &self.log,
                    Change::Latest {
                        block,
                        offset,
                        data,
                    },
                );
            }
            Act::Add { block, slot, delta } => {
                let (block, offset) = (meta(block), COUNTERS + 8 * usize::from(*slot));
                let delta = i64::from(*delta);
                draft.op.add(BlockNo(block), offset, delta)?;
                draft.note(
                    &self.log,
                    Change::Add {
                        block,
                        offset,
                        delta,
                    },
                );
            }
            Act::Set { block, slot } => {
                draft.bytes(
                    &self.log,
                    meta(block),
                    COUNTERS + 8 * usize::from(*slot),
                    &pattern(8),
                )?;
            }
            Act::Bits {
                block,
                first,
                count,
                value,
            } => {
                let (block, first) = (meta(block), BITMAP * 8 + usize::from(*first));
                let (count, value) = (usize::from(*count), *value);
                draft.op.set_bits(BlockNo(block), first, count, value)?;
                draft.note(
                    &self.log,
                    Change::Bits {
                        block,
                        first,
                        count,
                        value,
                    },
                );
            }
            Act::Around { pick, count } => {
                let Some(first) = self.pick_free(draft, *pick) else {
                    return Ok(());
                };
                let run: Vec<u64> = (first..first + u64::from(*count))
                    .take_while(|b| self.free.contains(b) && !draft.taken.contains(b))
                    .collect();
                let mut data = Vec::new();
                for (i, block) in run.iter().enumerate() {
                    let mut contents = [0; BLOCK_SIZE];
                    contents.copy_from_slice(&pattern(BLOCK_SIZE));
                    contents[0] ^= i as u8;
                    draft.begin(*block, &contents, true);
                    data.push(Arc::new(contents));
                }
                draft.op.write_around(BlockNo(first), data)?;
            }
            Act::Zero { pick, meta, fill } => {
                let Some(block) = self.pick_free(draft, *pick) else {
                    return Ok(());
                };
                let len = if *meta { META_BYTES } else { BLOCK_SIZE };
                draft.op.zero(BlockNo(block), kind(len))?;
                draft.begin(block, &vec![0; len], false);
                if *fill {
                    draft.bytes(&self.log, block, 0, &pattern(len))?;
                }
            }
            Act::Patch { pick, offset, len } => {
                let Some((block, end)) = self.pick_live(draft, *pick) else {
                    return Ok(());
                };
                let offset = usize::from(*offset).min(end - 1);
                let len = usize::from(*len).min(end - offset);
                draft.bytes(&self.log, block, offset, &pattern(len))?;
            }
            Act::Free { pick } => {
                let Some((block, _)) = self.pick_live(draft, *pick) else {
                    return Ok(());
                };
                draft.op.free(BlockNo(block), 1)?;
                draft.closed.insert(block);
                draft.seen.remove(&block);
                draft.changes.push(Change::Free { block });
            }
        }
        Ok(())
    }

    fn pick_free(&self, draft: &Draft<'_>, pick: u8) -> Option<u64> {
        let free: Vec<u64> = self.free.difference(&draft.taken).copied().collect();
        free.get(usize::from(pick) % free.len().max(1)).copied()
    }

    /// A block of the pool that lives, and its length.
    fn pick_live(&self, draft: &Draft<'_>, pick: u8) -> Option<(u64, usize)> {
        let before = self
            .log
            .current()
            .range(self.setup.pool.clone())
            .map(|(b, c)| (*b, c.len()));
        let begun = draft
            .seen
            .range(self.setup.pool.clone())
            .map(|(b, c)| (*b, c.len()));
        let mut live: Vec<(u64, usize)> = before.chain(begun).collect();
        live.retain(|(b, _)| !draft.closed.contains(b));
        live.get(usize::from(pick) % live.len().max(1)).copied()
    }

    fn reopen(&mut self) -> Result<(), String> {
        let promise = self.log.promise_all();
        self.acknowledged("close", self.journal.close(), &promise)?;
        self.count();
        self.story.push("    open".into());
        (self.journal, self.client) = open(&self.sim, &self.setup)?;
        self.settle_pool();
        Ok(())
    }

    /// Nothing is in quarantine in a journal that was just opened.
    fn settle_pool(&mut self) {
        let freed: Vec<u64> = self.log.freed().collect();
        for block in freed {
            self.log.release(block, self.sim.trace_len());
        }
        self.free = self
            .setup
            .pool
            .clone()
            .filter(|b| self.log.read(*b).is_none())
            .collect();
        self.tickets.clear();
        self.head = self.journal.usage().1;
    }

    fn count(&mut self) {
        let log_blocks = REGION.log_blocks;
        self.tally.wraps += u64::from(self.journal.usage().1 / log_blocks > self.head / log_blocks);
        self.tally.merges += self.journal.stats().merges;
    }

    /// Looks at crashes since the journal was opened.
    fn look(&mut self) -> Result<(), String> {
        self.count();
        let (sim, from) = (&self.sim, self.from);
        self.tally.images += explore(&self.log, sim, from, CUTS, &self.setup, &mut self.rng)?;
        Ok(())
    }

    fn crash(&mut self, kill: bool, rng: &mut Rng) -> Result<(), String> {
        self.look()?;
        let end = self.sim.trace_len();
        let back = rng.below(2) * rng.below((end - self.from) as u64 + 1);
        let at = end - back as usize;
        let mut explorer = self.sim.explorer();
        let cut = explorer.cut(at);
        self.tally.crashes += 1;
        let recovered = if kill {
            self.story.push(format!("    killed at {at}"));
            self.killed(&cut, rng)?
        } else {
            let image = choose(&cut, rng);
            self.story.push(format!("    crash: {image}"));
            check(&self.log, image, at, &self.setup, rng)?
        };
        let Recovered {
            sim,
            journal,
            survivors,
            found,
        } = recovered;
        self.story
            .push(format!("    survived: {:?}", self.log.survived(&survivors)));
        self.log.crash(&survivors, &found);
        self.from = if kill { sim.trace_len() } else { 0 };
        self.sim = sim;
        (self.journal, self.client) = with_client(journal);
        self.settle_pool();
        Ok(())
    }

    /// The process is killed, the device's cache lives on: the next process may lose blocks
    /// that it read until it has recovered, and none afterwards.
    fn killed(&mut self, cut: &Cut, rng: &mut Rng) -> Result<Recovered, String> {
        let sim = Arc::new(cut.killed());
        let opened = Journal::open(sim.clone(), config(self.setup.faults, false));
        let (journal, _) = opened.map_err(|e| format!("after a kill: {e}"))?;
        let found = contents(&journal, self.setup.pool.end)?;
        let checked = self.log.check(&found, cut.position());
        let survivors = checked.map_err(|e| format!("after a kill: {e}"))?;
        let mut explorer = sim.explorer();
        for _ in 0..IMAGES {
            let early = explorer.cut(rng.below(explorer.len() as u64) as usize);
            let image = choose(&early, rng);
            check(&self.log, image, cut.position(), &self.setup, rng)
                .map_err(|e| format!("recovery after a kill cut: {e}"))?;
            self.tally.images += 1;
        }
        Ok(Recovered {
            sim,
            journal,
            survivors,
            found,
        })
    }
}

impl Draft<'_> {
    fn relate(&mut self, object: u64, exclusive: bool) {
        let access = if exclusive {
            Access::Exclusive
        } else {
            Access::Shared
        };
        self.op.relate(Object::File(object), access);
        self.objects.push((object, log_access(access)));
    }

    fn note(&mut self, log: &Log, change: Change) {
        let at = change.block();
        let seen = self
            .seen
            .entry(at)
            .or_insert_with(|| log.read(at).unwrap_or_default().to_vec());
        change.carry_out(seen);
        self.changes.push(change);
    }

    fn begin(&mut self, block: u64, contents: &[u8], around: bool) {
        self.taken.insert(block);
        if around {
            // Its data is not in the operation's view.
            self.closed.insert(block);
        } else {
            self.seen.insert(block, contents.to_vec());
        }
        let contents = contents.into();
        self.changes.push(Change::Begin { block, contents });
    }

    fn bytes(&mut self, log: &Log, block: u64, offset: usize, data: &[u8]) -> Outcome<()> {
        let len = self
            .seen
            .get(&block)
            .map(Vec::len)
            .or_else(|| log.read(block).map(<[u8]>::len));
        let kind = len.map_or(Kind::Meta, kind);
        self.op.write(BlockNo(block), kind, offset, data)?;
        let data = data.into();
        self.note(
            log,
            Change::Bytes {
                block,
                offset,
                data,
            },
        );
        Ok(())
    }
}

pub(crate) fn log_access(access: Access) -> log::Access {
    match access {
        Access::Shared => log::Access::Shared,
        Access::Exclusive => log::Access::Exclusive,
    }
}

fn log_bytes(act: &Act) -> u64 {
    64 + match act {
        Act::Bytes { len, .. } => u64::from(*len),
        Act::Patch { len, .. } => u64::from(*len),
        Act::Zero { fill: true, .. } => BLOCK_SIZE as u64,
        _ => 8,
    }
}

fn data_blocks(act: &Act) -> u64 {
    match act {
        Act::Around { count, .. } => u64::from(*count),
        _ => 0,
    }
}
