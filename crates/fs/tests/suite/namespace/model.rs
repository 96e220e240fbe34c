//! Random operations, by several users in several streams, on the file system and on the
//! model's tree: the same results, and the same tree whenever one looks, also after remounts.

use super::common::*;
use proptest::prelude::*;
use std::sync::Arc;
use steadfast_block::{BlockDevice, MemDevice};
use steadfast_fs::{Contract, Fs, MkfsOptions, mkfs};
use steadfast_model::workload::{Shape, Workload};
use steadfast_model::{Handles, Observe, Snapshot, Step, TestClock, Tree};
use steadfast_vfs::{FileSystem, Time};

/// Properties of the volume beside the workload.
#[derive(Clone, Copy, Debug)]
struct Setting {
    contract: Contract,
    log_blocks: Option<u64>,
    /// Use as little memory and as few delayed pages as possible.
    tight: bool,
    background: bool,
}

const ROOMY: Setting = Setting {
    contract: Contract::Ordered,
    log_blocks: None,
    tight: false,
    background: false,
};

fn mount_with(device: &Arc<MemDevice>, clock: &TestClock, setting: Setting) -> Arc<Fs> {
    let mut options = options();
    options.background = setting.background;
    if setting.tight {
        options.cache_bytes = 0;
        options.uncommitted_bytes = 0;
        options.commit_interval = std::time::Duration::from_millis(1);
    }
    options.clock = Arc::new(clock.clone());
    let device: Arc<dyn BlockDevice> = Arc::clone(device) as Arc<dyn BlockDevice>;
    Fs::mount(device, &options).unwrap().0
}

fn compare(tree: &Tree, fs: &Fs) -> Result<(), TestCaseError> {
    let found = Snapshot::of_fs(fs).map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
    let diff = Snapshot::of_tree(tree).diff(&found, Observe::ALL);
    prop_assert!(found == Snapshot::of_tree(tree), "{diff}");
    Ok(())
}

fn run(seed: u64, shape: Shape, setting: Setting, steps: usize) -> Result<(), TestCaseError> {
    let start = Time {
        secs: 500,
        nanos: 0,
    };
    let clock = TestClock::new();
    clock.set(start);
    let device = Arc::new(MemDevice::new(32 * 256));
    let Setting {
        contract,
        log_blocks,
        ..
    } = setting;
    let made = MkfsOptions {
        seed: Some(seed),
        now: Some(start),
        log_blocks,
        contract,
        ..MkfsOptions::default()
    };
    mkfs(&*device, &made, &mut |_, _| {}).unwrap();
    let mut fs = mount_with(&device, &clock, setting);
    let mut tree = Tree::new(start);
    let mut handles = Handles::new();
    let workload: Vec<Step> = Workload::new(seed, shape).take(steps).collect();
    for (index, step) in workload.iter().enumerate() {
        clock.set(step.at);
        let found = step.op.run(&*fs, &step.caller, &mut handles);
        let expected = tree.step(step);
        prop_assert!(
            found == expected,
            "seed {seed}, step {index}: {} by {:?}: {found:?}, the model says {expected:?}",
            step.op,
            step.caller
        );
        if index % 25 == 24 {
            compare(&tree, &fs)?;
        }
        if index % 100 == 99 && handles.is_empty() {
            fs.unmount().unwrap();
            fs = mount_with(&device, &clock, setting);
            compare(&tree, &fs)?;
        }
    }
    compare(&tree, &fs)?;
    // A crash closes everything that is open.
    fs.sync().unwrap();
    let image = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
    must_be_clean(&image);
    fs = mount_with(&image, &clock, setting);
    compare(&tree, &fs)?;
    fs.unmount().unwrap();
    must_be_clean(&image);
    prop_assert_eq!(fs.take_warnings(), Vec::<String>::new());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_file_system_does_what_the_model_does(
        seed: u64, streams in 1u32..4, names in 2u32..6, depth in 1u32..5,
        handles: bool, users: bool, odd_names: bool, sync_every in 0u64..20,
        small_log: bool, tight: bool, background: bool, contract in 0usize..3,
    ) {
        let shape = Shape {
            streams, names, depth, sync_every, handles, users, odd_names, ..Shape::default()
        };
        let contract = Contract::ALL[contract];
        let setting = Setting { contract, log_blocks: small_log.then_some(64), tight, background };
        run(seed, shape, setting, 400)?;
    }
}

#[test]
fn the_file_system_does_what_the_model_does_for_long() {
    let shape = Shape {
        streams: 2,
        handles: true,
        users: true,
        ..Shape::default()
    };
    for seed in steadfast_testkit::seeds(6) {
        let contract = Contract::ALL[seed as usize % 3];
        run(seed, shape, Setting { contract, ..ROOMY }, 3000).unwrap();
    }
}
