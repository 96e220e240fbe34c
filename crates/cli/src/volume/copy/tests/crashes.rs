//! Power cuts of a copy to a volume on a simulated disk.

use super::super::Copy;
use super::Fault;
use super::source::{Source, empty, mount};
use super::target::{Call, Watched};
use super::tree::{State, judge};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use steadfast_fs::{Contract, FsckOptions, Outcome, fsck};
use steadfast_sim::{CrashImage, Limits, SimDevice};
use steadfast_testkit::Random;
use steadfast_vfs::{FileSystem, Ino};

/// One image in this number is checked by fsck.
const FSCK_EVERY: u64 = 16;
/// The volume commits after one change in this number, as the thread of a mount does between any two calls.
const COMMIT_EVERY: u64 = 4;

/// Numbers of crash images, by what they leave.
pub(super) type States = BTreeMap<String, u64>;

/// Copies with a fault, if there is one.
pub(super) fn copy_with(
    from: &dyn FileSystem,
    to: &dyn FileSystem,
    fault: Option<Fault>,
) -> Result<(), String> {
    let mut copy = Copy::new(from, to);
    copy.fault = fault;
    let copied = copy.all(&mut |_| {});
    copied.map(drop).map_err(|why| why.to_string())
}

/// A copy that has ended, and the trace of its disk. `seed` decides when the volume commits meanwhile.
fn run(
    source: &Source,
    contract: Contract,
    fault: Option<Fault>,
    seed: u64,
) -> Result<SimDevice, String> {
    let device = Arc::new(SimDevice::from_image(empty(contract)));
    let fs = mount(&device, false)?;
    let random = Mutex::new(Random::new(seed));
    let commits = |call: Call, _: Option<Ino>| {
        let now = random.lock().unwrap().below(COMMIT_EVERY) == 0;
        if now && !matches!(call, Call::Sync) {
            fs.sync().unwrap();
        }
    };
    let target = Watched {
        fs: &*fs,
        changed: &commits,
    };
    copy_with(&*source.fs, &target, fault)?;
    device.mark(1);
    judge(&*fs, &source.tree, true).map_err(|what| format!("after the copy: {what}"))?;
    fs.unmount().map_err(|why| why.to_string())?;
    drop(fs);
    Arc::into_inner(device).ok_or_else(|| "the device is in use".to_owned())
}

/// Recovers and judges the images that a power cut at any position of a trace may leave; a mark stands where the copy
/// returned.
pub(super) fn cuts(
    source: &Source,
    device: &SimDevice,
    limits: &Limits,
    states: &mut States,
) -> Result<(), String> {
    let mut explorer = device.explorer();
    let mut seen = HashSet::new();
    let mut images = 0;
    for position in 0..=explorer.len() {
        let cut = explorer.cut(position);
        let done = !cut.marks().is_empty();
        for image in cut.images(limits) {
            if !seen.insert((image.fingerprint(), done)) {
                continue;
            }
            let name = image.to_string();
            images += 1;
            let checks = images % FSCK_EVERY == 0;
            let state = recover(source, image, done, checks);
            let state = state.map_err(|what| format!("{name}: {what}"))?;
            let after = if done { "after the copy" } else { "meanwhile" };
            *states.entry(format!("{state:?} {after}")).or_default() += 1;
        }
    }
    Ok(())
}

fn recover(source: &Source, image: CrashImage, done: bool, checks: bool) -> Result<State, String> {
    let device = Arc::new(SimDevice::from_image(image));
    let fs = mount(&device, false)?;
    let state = judge(&*fs, &source.tree, done)?;
    if checks {
        fs.unmount().map_err(|why| why.to_string())?;
        drop(fs);
        let report = fsck(device, &FsckOptions::default()).map_err(|why| why.to_string())?;
        if report.outcome() != Outcome::Clean {
            return Err(format!("{:?}", report.findings));
        }
    }
    Ok(state)
}

/// Copies under a contract, and cuts the power everywhere.
pub(super) fn explore(
    source: &Source,
    contract: Contract,
    fault: Option<Fault>,
    seed: u64,
    limits: &Limits,
) -> Result<States, String> {
    let mut states = States::new();
    let device = run(source, contract, fault, seed)?;
    cuts(source, &device, limits, &mut states)?;
    Ok(states)
}
