//! A copy to the weakest file system that programs meet: only a sync makes anything durable, and a crash leaves any of the
//! changes since the last one, each by itself. A change that needs a lost one is lost as well.

use super::Fault;
use super::crashes::copy_with;
use super::source::{Source, empty, mount};
use super::target::{Call, Watched};
use super::tree::judge;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use steadfast_fs::{Contract, Fs};
use steadfast_sim::{Image, SimDevice};
use steadfast_testkit::Random;
use steadfast_vfs::{FileSystem, Ino};

/// A change, and the inode that it made.
type Change = (Call, Option<Ino>);

/// The volume after these changes.
fn replay<'a>(
    volume: &Image,
    changes: impl Iterator<Item = &'a Change>,
) -> Result<Arc<Fs>, String> {
    let device = Arc::new(SimDevice::from_image(volume.clone()));
    let fs = mount(&device, false)?;
    let inodes = RefCell::new(HashMap::from([(fs.root(), fs.root())]));
    for (call, made) in changes {
        let known = |ino| inodes.borrow().get(&ino).copied();
        // A change whose file is lost, or whose name is taken by another.
        let Some(Ok(new)) = call.with(&known).map(|call| call.make(&*fs)) else {
            continue;
        };
        if let (Some(made), Some(new)) = (*made, new) {
            inodes.borrow_mut().insert(made, new);
        }
    }
    Ok(fs)
}

/// Judges what crashes leave: before each sync and at the end, nothing of the changes since the last sync, each one alone, all
/// but one, and some sets. Returns their number.
pub(super) fn explore(source: &Source, fault: Option<Fault>, sets: u64) -> Result<u64, String> {
    let volume = empty(Contract::Ordered);
    let device = Arc::new(SimDevice::from_image(volume.clone()));
    let fs = mount(&device, false)?;
    let changes = Mutex::new(Vec::new());
    let target = Watched {
        fs: &*fs,
        changed: &|call, made| changes.lock().unwrap().push((call, made)),
    };
    copy_with(&*source.fs, &target, fault)?;
    let changes: Vec<Change> = changes.into_inner().unwrap();
    let mut random = Random::new(7);
    let (mut durable, mut judged) = (0, 0);
    for end in 0..=changes.len() {
        let done = end == changes.len();
        if !done && !matches!(changes[end].0, Call::Sync) {
            continue;
        }
        let since = durable..end;
        let mut judge_those = |survives: &dyn Fn(usize) -> bool| {
            let kept = |n: &usize| *n < durable || survives(*n);
            let kept = (0..end).filter(kept).map(|n| &changes[n]);
            let fs = replay(&volume, kept)?;
            judged += 1;
            judge(&*fs, &source.tree, done)
                .map_err(|what| format!("before change {end} of {}: {what}", changes.len()))
        };
        judge_those(&|_| false)?;
        for one in since.clone() {
            judge_those(&|n| n == one)?;
            judge_those(&|n| n != one)?;
        }
        for _ in 0..sets {
            let some: Vec<bool> = changes.iter().map(|_| random.below(2) == 0).collect();
            judge_those(&|n| some[n])?;
        }
        durable = end + 1;
    }
    Ok(judged)
}
