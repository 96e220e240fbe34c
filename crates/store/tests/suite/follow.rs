//! A follower sees exactly what flushes left, one after the other, while a writer goes on, checkpoints, collects, and is taken
//! over.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::support;

use object_store::memory::InMemory;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_store::protocol::{Fault, Faults};
use steadfast_store::{
    Access, DeviceFault, Follower, Found, LagClock, OpenOptions, StoreDevice, Successor, create,
};
use support::{Client, Hook, Random, options};

const BLOCKS: u64 = 1 << 12;
const KEEP_MS: u64 = 600_000;

fn following() -> OpenOptions {
    OpenOptions {
        keep_deleted: Duration::from_millis(KEEP_MS),
        ..options()
    }
}

/// The number of each block's write, or why the disk is none that a client ever saw.
fn seen(disk: &StoreDevice) -> Result<Vec<u8>, String> {
    let mut all = vec![0; BLOCKS as usize * BLOCK_SIZE];
    let read = disk.read(BlockNo(0), &mut all);
    read.map_err(|error| error.to_string())?;
    // All bytes of a block are the number of its write.
    let mut blocks = all.chunks_exact(BLOCK_SIZE);
    if !blocks.all(|block| block[1..] == block[..BLOCK_SIZE - 1]) {
        return Err("a mixture".to_owned());
    }
    Ok(all.iter().copied().step_by(BLOCK_SIZE).collect())
}

fn contents(disk: &StoreDevice) -> Vec<u8> {
    seen(disk).unwrap_or_else(|why| panic!("{why}"))
}

fn write(disk: &StoreDevice, model: &mut [u8], at: u64, count: u64, number: u8) {
    let bytes = vec![number; count as usize * BLOCK_SIZE];
    disk.write(BlockNo(at), &[&bytes]).unwrap();
    model[at as usize..(at + count) as usize].fill(number);
}

#[test]
fn each_state_is_a_flush_and_later_than_the_one_before() {
    for seed in steadfast_testkit::seeds(12) {
        let mut random = Random(seed + 1);
        let store = Arc::new(InMemory::new());
        let client = Client::of(&store);
        create(client.location("v"), BLOCKS, Duration::from_secs(5)).unwrap();
        let mut disk = client.volume().open(&options()).unwrap();
        let reader = Client::of(&store);
        let (mut follower, first) =
            Follower::new(reader.volume(), following(), LagClock::default()).unwrap();
        let mut model = vec![0; BLOCKS as usize];
        let mut flushed = vec![model.clone()];
        assert!(contents(&first) == model, "it begins empty");
        let (mut last, mut states) = (0, vec![(first, 0)]);
        for step in 0..200_u64 {
            let at = random.below(BLOCKS - 64);
            match random.below(12) {
                0..6 => {
                    let number = (step % 250 + 1) as u8;
                    write(&disk, &mut model, at, 1 + random.below(64), number);
                }
                6 | 7 => {
                    disk.flush().unwrap();
                    flushed.push(model.clone());
                }
                8 => disk.checkpoint().unwrap(),
                9 if random.below(4) == 0 => {
                    // Another machine takes over the flushed state.
                    let other = Client::of(&store);
                    disk = other.volume().open(&options()).unwrap();
                    model.clone_from(flushed.last().unwrap());
                }
                9 => drop(disk.collect(90).unwrap()),
                _ => {
                    let Some(state) = follower.poll().unwrap() else {
                        continue;
                    };
                    if random.below(4) == 0 {
                        // The caller could not serve the state: it is returned again, although there is nothing new.
                        let again = follower.poll().unwrap().map(|again| contents(&again));
                        assert!(again == Some(contents(&state)), "seed {seed}, step {step}");
                    }
                    follower.serves();
                    let found = contents(&state);
                    let which = flushed.iter().rposition(|flush| *flush == found);
                    let which =
                        which.unwrap_or_else(|| panic!("seed {seed}, step {step}: no flush"));
                    assert!(which >= last, "seed {seed}, step {step}: an earlier flush");
                    // The state has all flushes that were acknowledged before the poll.
                    let newest = *flushed.last().unwrap() == found;
                    assert!(newest, "seed {seed}, step {step}: not the last flush");
                    last = which;
                    states.push((state, which));
                }
            }
        }
        assert!(states.len() > 5, "seed {seed}: {} states", states.len());
    }
}

#[test]
fn earlier_states_stay_what_they_were() {
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    create(client.location("v"), BLOCKS, Duration::from_secs(5)).unwrap();
    let keeping = OpenOptions {
        keep_deleted: Duration::from_secs(3600),
        ..options()
    };
    let disk = client.volume().open(&keeping).unwrap();
    let (mut follower, first) =
        Follower::new(client.volume(), following(), LagClock::default()).unwrap();
    let mut model = vec![0; BLOCKS as usize];
    let mut states = vec![(first, model.clone())];
    for number in 1..20 {
        write(&disk, &mut model, u64::from(number) * 100, 300, number);
        disk.flush().unwrap();
        if number % 4 == 0 {
            disk.checkpoint().unwrap();
            disk.collect(100).unwrap();
        }
        if let Some(state) = follower.poll().unwrap() {
            states.push((state, model.clone()));
            follower.serves();
        }
        assert!(follower.poll().unwrap().is_none(), "nothing is new");
        for (state, was) in &states {
            assert!(contents(state) == *was, "after {number} flushes");
        }
    }
    assert_eq!(states.len(), 20);
}

/// Objects of the last state may be deleted when the store has not answered for the time `keep_deleted`, counted from the last
/// request that it answered.
#[test]
fn a_follower_knows_how_long_it_may_serve() {
    for (faults, ends_at) in [
        (Faults::default(), KEEP_MS),
        // Counted from the answer, it ends too late.
        (Faults::only(Fault::LeaseFromAnswer), KEEP_MS + 5_000),
    ] {
        let store = Arc::new(InMemory::new());
        let client = Client::of(&store);
        create(client.location("v"), BLOCKS, Duration::from_secs(5)).unwrap();
        let disk = client.volume().open(&options()).unwrap();
        disk.checkpoint().unwrap();
        let now = Arc::new(AtomicU64::new(1_000_000));
        // The answer takes five seconds.
        let slow = Arc::new(Client {
            store: Arc::clone(&store),
            on_get: std::sync::Mutex::new(Some({
                let now = Arc::clone(&now);
                Hook(Box::new(move || {
                    let _ = now.compare_exchange(1_000_000, 1_005_000, SeqCst, SeqCst);
                }))
            })),
            ..Client::default()
        });
        let asked = OpenOptions {
            faults: (None, faults),
            ..following()
        };
        // A store that does not answer fails a poll soon.
        let patience = Duration::from_millis(50);
        let found = Found::new(slow.location("v"), &Access::default(), patience).unwrap();
        now.store(1_000_000, SeqCst);
        let clock = LagClock::moved(Arc::clone(&now));
        let (mut follower, _) = Follower::new(found, asked, clock).unwrap();
        now.store(1_000_000 + ends_at - 1, SeqCst);
        assert!(follower.may_serve());
        now.store(1_000_000 + ends_at, SeqCst);
        assert!(!follower.may_serve());
        slow.dead.store(true, SeqCst);
        assert!(follower.poll().is_err());
        assert!(!follower.may_serve());
        slow.dead.store(false, SeqCst);
        assert!(follower.poll().unwrap().is_none());
        assert!(follower.may_serve(), "the store has answered");
    }
    steadfast_testkit::caught("protocol.lease_from_answer");
}

/// A new state that is not served does not renew the lease of the served one, whose checkpoint may be gone.
#[test]
fn only_the_served_state_is_renewed() {
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    create(client.location("v"), BLOCKS, Duration::from_secs(5)).unwrap();
    let disk = client.volume().open(&options()).unwrap();
    let now = Arc::new(AtomicU64::new(1_000_000));
    let clock = LagClock::moved(Arc::clone(&now));
    let (mut follower, _) = Follower::new(client.volume(), following(), clock).unwrap();
    write(&disk, &mut vec![0; BLOCKS as usize], 0, 10, 1);
    disk.flush().unwrap();
    disk.checkpoint().unwrap();
    now.store(1_000_000 + KEEP_MS - 1, SeqCst);
    assert!(follower.poll().unwrap().is_some() && follower.may_serve());
    now.store(1_000_000 + KEEP_MS, SeqCst);
    assert!(follower.poll().unwrap().is_some());
    assert!(!follower.may_serve(), "the first state is served yet");
    follower.serves();
    assert!(follower.may_serve());
}

/// A replica that polls costs two requests when nothing is new, not as many as a recovery reads ahead.
#[test]
fn a_look_that_finds_nothing_takes_two_requests() {
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    create(client.location("v"), BLOCKS, Duration::from_secs(5)).unwrap();
    let disk = client.volume().open(&options()).unwrap();
    let (mut follower, state) =
        Follower::new(client.volume(), following(), LagClock::default()).unwrap();
    let mut model = vec![0; BLOCKS as usize];
    for number in 1..=40 {
        let before = state.counters().gets.0;
        assert!(follower.poll().unwrap().is_none());
        assert_eq!(state.counters().gets.0 - before, 2);
        write(&disk, &mut model, u64::from(number), 1, number);
        disk.flush().unwrap();
        assert!(follower.poll().unwrap().is_some());
        follower.serves();
    }
}

/// The volume after a take-over by a stand-by that has followed it for a while, and for how many GETs.
#[test]
fn a_stand_by_reads_only_what_it_has_not_followed() {
    const FOLLOWED: u8 = 200;
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    create(client.location("v"), BLOCKS, Duration::from_secs(5)).unwrap();
    let disk = client.volume().open(&options()).unwrap();
    let mut model = vec![0; BLOCKS as usize];
    write(&disk, &mut model, 0, 500, 1);
    disk.checkpoint().unwrap();
    let machine = Client::of(&store);
    let successor = Successor::new(machine.volume(), &options());
    let (mut follower, state) =
        Follower::to_succeed(&successor, following(), LagClock::default()).unwrap();
    for number in 1..=FOLLOWED {
        write(&disk, &mut model, u64::from(number) * 20, 5, number);
        disk.flush().unwrap();
        if number % 10 == 0 {
            follower.poll().unwrap();
        }
    }
    // What it has not seen.
    for number in 1..=3 {
        write(&disk, &mut model, 2000, 5, number);
        disk.flush().unwrap();
    }
    let before = state.counters().gets.0;
    let taken = successor.take_over(&options()).unwrap();
    let gets = taken.counters().gets.0 - before;
    // The slots that it has not seen, as many beyond as a scan reads ahead, `head`.
    assert!(gets <= 3 + 64 + 8, "{gets} requests");
    assert_eq!(taken.counters().replayed, u64::from(FOLLOWED) + 3);
    assert!(contents(&taken) == model);
    drop(follower);
    // Without that, each slot is read.
    let other = Client::of(&store);
    drop(taken);
    let plain = other.volume().open(&options()).unwrap();
    assert!(contents(&plain) == model);
    write(&disk, &mut model, 0, 1, 7);
    assert!(disk.flush().is_err(), "the old one is fenced");
}

/// A volume is written, collected and taken from its writer while a stand-by follows it; some answers to the stand-by are
/// damaged on their way. Then the stand-by takes the volume over. An error says what is wrong: a state that is not the last
/// flush, a poll or a take-over that fails, also because a fault kept it from ending, or a flush that is lost.
fn succession(seed: u64, fault: Option<DeviceFault>) -> Result<(), String> {
    let mut random = Random(seed + 1000);
    let store = Arc::new(InMemory::new());
    let client = Client::of(&store);
    create(client.location("v"), BLOCKS, Duration::from_secs(5)).unwrap();
    let mut disk = client.volume().open(&options()).unwrap();
    let mut model = vec![0; BLOCKS as usize];
    let mut flushed = model.clone();
    let machine = Client::of(&store);
    let successor = Successor::new(machine.volume(), &options());
    let asked = OpenOptions {
        faults: (fault, Faults::default()),
        ..following()
    };
    let mut follower: Option<Follower> = None;
    let mut served = Vec::new();
    let steps = random.below(120);
    // A stand-by may be far behind: some stop to look.
    let looks_until = match seed % 3 {
        0 => steps / 3,
        _ => steps,
    };
    for step in 0..steps {
        match random.below(12) {
            10.. if step >= looks_until => {}
            0..5 => {
                let number = (step % 250 + 1) as u8;
                let at = random.below(BLOCKS - 64);
                write(&disk, &mut model, at, 1 + random.below(64), number);
            }
            5..8 => {
                disk.flush().unwrap();
                flushed.clone_from(&model);
            }
            8 => disk.checkpoint().unwrap(),
            9 if random.below(3) == 0 => {
                disk = Client::of(&store).volume().open(&options()).unwrap();
                model.clone_from(&flushed);
            }
            9 => {
                disk.collect(90).unwrap();
                let name = format!("s{step}");
                let _ = client.volume().make_snapshot(&name);
            }
            _ => {
                let damages = follower.is_some() && random.below(4) == 0;
                if damages {
                    let next = machine.gets.load(SeqCst) + 1;
                    machine.damage_at.store(next + random.below(3), SeqCst);
                }
                let mut look = || match &mut follower {
                    None => {
                        let begun =
                            Follower::to_succeed(&successor, asked.clone(), LagClock::default())?;
                        follower = Some(begun.0);
                        Ok(Some(begun.1))
                    }
                    Some(follower) => follower.poll(),
                };
                let mut looked = look();
                machine.damage_at.store(0, SeqCst);
                if damages && looked.is_err() {
                    // It tries again at once, or some time later.
                    if random.below(2) == 0 {
                        continue;
                    }
                    looked = look();
                }
                let looked = looked.map_err(|why| format!("step {step}: {why}"))?;
                if let Some(state) = looked {
                    // Reads through the cells that the take-over will have.
                    served = seen(&state).map_err(|why| format!("step {step}: {why}"))?;
                }
                follower.iter_mut().for_each(Follower::serves);
                if served != flushed {
                    return Err(format!("step {step}: it serves an earlier state"));
                }
            }
        }
    }
    let taken = successor.take_over(&options());
    let mut taken = taken.map_err(|why| format!("the take-over: {why}"))?;
    if seen(&taken)? != flushed {
        return Err("the take-over lost a flush".to_owned());
    }
    let mut model = flushed;
    for number in 1..20 {
        write(&taken, &mut model, random.below(BLOCKS - 64), 64, number);
        taken.flush().map_err(|why| why.to_string())?;
    }
    taken.checkpoint().map_err(|why| why.to_string())?;
    // A late look of the follower changes nothing.
    if let Some(follower) = &mut follower {
        let state = follower
            .poll()
            .map_err(|why| format!("a late look: {why}"))?;
        if seen(&state.ok_or("a late look: nothing is new")?)? != model {
            return Err("a late look: not the last flush".to_owned());
        }
    }
    taken = Client::of(&store).volume().open(&options()).unwrap();
    match seen(&taken)? == model {
        true => Ok(()),
        false => Err("the next opening lost a flush".to_owned()),
    }
}

/// Whatever happened to the volume while it was followed, and since: the take-over has the last flush.
#[test]
fn a_stand_by_takes_over_the_last_flush() {
    for seed in 0..40 {
        assert_eq!(succession(seed, None), Ok(()), "seed {seed}");
    }
}

/// A test that cannot fail proves nothing. Not to forget what was kept when the writer publishes a checkpoint is no fault that
/// states show: no name is used again, so only the memory is used up.
#[test]
fn a_stand_by_that_keeps_too_much_is_found() {
    for fault in [
        DeviceFault::HeadKept,
        DeviceFault::AbsentKept,
        DeviceFault::UncheckedKept,
    ] {
        // States show some of them before the take-over does.
        let mut seeds = 0..300;
        let fails = |seed| {
            let why = succession(seed, Some(fault)).err();
            why.filter(|why| why.starts_with("the take-over"))
        };
        let found = seeds.find_map(fails);
        println!("{fault:?}, seed {}: {found:?}", seeds.start - 1);
        assert!(found.is_some(), "{fault:?} is not found");
        steadfast_testkit::caught_in("store", &fault);
    }
}
