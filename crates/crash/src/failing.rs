//! Devices that fail: a workload on a device whose `n`th request fails, for every `n`, once or
//! from then on (corner 14).
//!
//! After a failed write or flush nothing may be changed any more and no sync may succeed, also
//! when the device has recovered; everything still can be read; unmounting returns. A mount of
//! the healthy device then finds a state that the contract allows after the operation that
//! failed: with or without it, and with all acknowledged ones. A failed read stops at most its
//! own call. The same for the device after a power cut at that moment.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::Contract;
use crate::check;
use crate::promise::Promise;
use crate::record::Template;
use crate::scenario::{Scenario, pair, pairs, random};
use std::sync::Arc;
use steadfast_block::DeviceOp;
use steadfast_fs::Fs;
use steadfast_model::{Handles, Op, Snapshot, Step, TestClock, ordered};
use steadfast_sim::{CrashImage, Fault, Limits, SimDevice};
use steadfast_vfs::{Caller, Errno, FileSystem, NewNode};

/// Counts of the exploration.
#[derive(Default, Debug)]
struct Counts {
    /// Runs with a failure.
    runs: u64,
    /// Those that stopped the volume.
    stopped: u64,
    /// Calls that failed and left it working.
    refused: u64,
    /// Images that were recovered.
    images: u64,
}

/// A failure to come.
#[derive(Clone, Copy, Debug)]
struct Failure {
    op: DeviceOp,
    nth: u64,
    sticky: bool,
}

/// After a failed write or flush, nothing may change.
fn must_stand_still(fs: &Fs, sim: &SimDevice, step: &Step) -> Result<(), String> {
    let root = &Caller::root();
    let node = NewNode {
        kind: steadfast_vfs::FileKind::Regular,
        perm: 0o600,
        rdev: 0,
    };
    // The device works again: no answer may change.
    for healed in [false, true] {
        if healed {
            sim.clear_faults();
        }
        let before = sim.counts();
        if !fs.is_read_only() {
            return Err("the volume can still be written".into());
        }
        let changes = [
            fs.mknod(root, fs.root(), b"after the failure", &node)
                .map(drop),
            fs.mkdir(root, fs.root(), b"also after", 0o755).map(drop),
            fs.fsync(root, fs.root(), false),
            fs.fsync(root, fs.root(), true),
            fs.sync(),
            fs.fsync(&step.caller, fs.root(), false),
        ];
        for (i, result) in changes.into_iter().enumerate() {
            match result {
                Err(e) if e == Errno::Io || e == Errno::RoFs => {}
                other => return Err(format!("call {i} after the failure: {other:?}")),
            }
        }
        Snapshot::of_fs(fs).map_err(|e| format!("reading after the failure: {e}"))?;
        fs.statfs().map_err(|e| format!("statfs: {e}"))?;
        if sim.counts().writes != before.writes {
            return Err("the volume is written after the failure".into());
        }
    }
    Ok(())
}

/// A mount of the healthy device finds an allowed state.
fn must_be_allowed(
    image: CrashImage,
    promise: &Promise,
    moment: ordered::Cut,
    counts: &mut Counts,
) -> Result<(), String> {
    counts.images += 1;
    let sim = Arc::new(SimDevice::from_image(image));
    check::clean(&sim, "after the failure")?;
    let fs = check::mount(&sim)?;
    promise.check(&check::observe(&fs)?, moment)?;
    fs.unmount().map_err(|e| format!("unmount: {e}"))?;
    check::clean(&sim, "after the next mount")
}

/// Runs a scenario on a device that fails. Whether the failure came.
fn run(
    template: &Template,
    scenario: &Scenario,
    failure: Failure,
    counts: &mut Counts,
) -> Result<bool, String> {
    let clock = Arc::new(TestClock::default());
    let (image, tree) = template.set_up(scenario)?;
    let sim = Arc::new(SimDevice::from_image(image));
    sim.set_seed(failure.nth);
    let fs = template.mount(sim.clone(), clock.clone(), scenario, None)?;
    let requests = || match failure.op {
        DeviceOp::Read => sim.counts().reads,
        DeviceOp::Write => sim.counts().writes,
        _ => sim.counts().flushes,
    };
    let before = requests();
    let fault = Fault::nth(failure.op, failure.nth);
    sim.inject(if failure.sticky {
        fault.sticky()
    } else {
        fault
    });
    let mut promise = Promise::new(template.contract(), tree);
    let mut handles = Handles::default();
    let mut failed = None;
    let mut struck = false;
    for step in &scenario.steps {
        clock.set(step.at);
        let expected = promise.expected(step);
        let result = step.op.run(&*fs, &step.caller, &mut handles);
        let device_failed = matches!(result, Err(Errno::Io | Errno::RoFs)) && result != expected;
        if !device_failed {
            promise.record(step, result)?;
            continue;
        }
        struck = true;
        if failure.op == DeviceOp::Read && !fs.is_read_only() {
            // Nothing was done; the same call works when the device does, if it is a change.
            counts.refused += 1;
            sim.clear_faults();
            if !matches!(step.op, Op::Close { .. }) {
                let again = step.op.run(&*fs, &step.caller, &mut handles);
                promise.record(step, again)?;
            }
            continue;
        }
        promise.in_flight(step)?;
        failed = Some((ordered::Cut::during(promise.len() - 1), step));
        break;
    }
    let Some((moment, step)) = failed else {
        // It never came, or in the unmount only.
        let unmounted = fs.unmount();
        struck |= requests() - before >= failure.nth;
        sim.clear_faults();
        if unmounted.is_err() {
            let moment = ordered::Cut::after(promise.len());
            counts.runs += 1;
            drop(fs);
            must_be_allowed(sim.image().into(), &promise, moment, counts)?;
            return Ok(true);
        }
        let found = check::mount(&sim).and_then(|fs| check::observe(&fs))?;
        let live = Snapshot::of_tree(promise.current());
        if found.digest().content != live.digest().content {
            let diff = live.diff(&found, Default::default());
            return Err(format!("a call that failed left a trace: {diff}"));
        }
        counts.runs += u64::from(struck);
        return Ok(struck);
    };
    counts.runs += 1;
    counts.stopped += 1;
    let cut_at = sim.trace_len();
    if failure.op == DeviceOp::Read {
        // A commit could not read a block that it must change. The device reads again; the volume stays stopped.
        sim.clear_faults();
    }
    must_stand_still(&fs, &sim, step)?;
    for ino in handles.into_values() {
        fs.release(ino);
    }
    if failure.op != DeviceOp::Read && fs.unmount().is_ok() {
        return Err("a volume that failed unmounts as if nothing had been".into());
    }
    drop(fs);
    must_be_allowed(sim.image().into(), &promise, moment, counts)?;
    let limits = Limits {
        exhaustive_writes: 2,
        sampled: 2,
        tears: true,
        seed: failure.nth,
    };
    let mut explorer = sim.explorer();
    for image in explorer.cut(cut_at).images(&limits) {
        must_be_allowed(image, &promise, moment, counts)?;
    }
    Ok(true)
}

fn fail_everywhere(template: &Template, scenario: &Scenario, step: u64, counts: &mut Counts) {
    for op in [DeviceOp::Write, DeviceOp::Flush, DeviceOp::Read] {
        for nth in (1..).step_by(step as usize) {
            let sticky = (nth / step).is_multiple_of(2);
            let failure = Failure { op, nth, sticky };
            match run(template, scenario, failure, counts) {
                Ok(true) => {}
                Ok(false) => break,
                Err(what) => panic!(
                    "{failure:?} under '{}': {what}\n{scenario}",
                    template.contract()
                ),
            }
        }
    }
}

#[test]
fn corner_14_a_device_may_fail_at_every_request_of_a_workload() {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    for contract in Contract::ALL {
        let template = Template::new(contract).unwrap();
        let mut counts = Counts::default();
        let (randoms, picked) = if long { (600, 2000) } else { (12, 24) };
        for index in 0..randoms {
            let step = if long { 1 } else { 2 };
            fail_everywhere(&template, &random(14, index), step, &mut counts);
        }
        for n in 0..picked {
            let scenario = pair(n * 7919 % pairs());
            fail_everywhere(&template, &scenario, 1, &mut counts);
        }
        println!("{contract}: {counts:?}");
        assert!(counts.stopped > 50 && counts.images > 200, "{counts:?}");
        assert!(counts.refused > 0, "{counts:?}");
    }
}
