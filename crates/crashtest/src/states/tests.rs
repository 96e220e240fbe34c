//! States are formed alike in all ways, and long runs have a bounded number of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::effects::{Effects, Run};
use crate::models::Model;
use crate::script::Script;

/// Files that are written, renamed, cut and removed, among others that stay: names come back, and some effects fall on one
/// file.
fn mixed(files: usize) -> Run {
    let mut script = Script::new()
        .mkdir("d")
        .make("log")
        .write("log", 0, &[b'l'; 9000]);
    script = script.durable();
    for i in 0..files {
        let (new, name) = (format!("d/new{i}"), format!("d/{}", i % 5));
        script = script
            .make(&new)
            .write(&new, 0, &vec![b'a' + i as u8 % 26; 5000]);
        script =
            script
                .chmod(&new, 0o600)
                .write("log", i as u64 * 700, &[b'0' + i as u8 % 10; 900]);
        script = match i % 4 {
            0 => script.fsync(&new).rename(&new, &name),
            1 => script.truncate(&new, 100).rename(&new, &name).fsync("d"),
            2 => script.rename(&new, &name).punch("log", 300, 5000),
            _ => script.rename(&new, &name).unlink(&name),
        };
    }
    script.ack("done").run()
}

#[test]
fn a_state_is_the_same_tree_whether_a_prefix_is_mended_or_all_is_applied() {
    let run = mixed(14);
    for name in ["ext4", "xfs", "btrfs", "posix", "metadata-prefix"] {
        let model = Model::shipped(name).unwrap();
        let effects = Effects::new(&run, &model);
        let former = Former::new(&effects);
        let limits = Limits {
            each_max: 2000,
            samples: 200,
            seed: 5,
        };
        let states = enumerate(&effects, model.sync_jumps, model.tear, limits);
        assert!(states.all.len() > 200, "{name}");
        for state in &states.all {
            let once = Former::once(&effects, &state.bits, state.tear);
            assert_eq!(once.digest(), state.digest, "{name}: {state:?}");
            // Inodes without a name, too.
            let formed = former.disk(&state.bits, state.tear);
            for ino in 1..40 {
                let words = |disk: &Disk| format!("{:?}", disk.node(ino));
                assert_eq!(words(&formed), words(&once), "{name}: {state:?}");
            }
        }
    }
}

#[test]
fn a_long_run_has_a_bounded_number_of_states_and_each_effect_is_lost_once() {
    const LONG: usize = 300;
    let mut script = Script::new();
    for i in 0..60 {
        let name = format!("f{i}");
        script = script.make(&name).write(&name, 0, &[i as u8; 4096]);
    }
    let run = script.run();
    let model = Model::shipped("ext4").unwrap();
    let effects = Effects::new(&run, &model);
    let n = effects.all.len();
    assert!(n * 3 > LONG && n < LONG, "{n}");
    let limits = Limits {
        each_max: 100,
        samples: 10,
        seed: 1,
    };
    let states = told(
        &effects,
        (model.sync_jumps, model.tear),
        limits,
        LONG,
        &|| false,
    );
    for (way, coverage) in &states.coverage {
        let most = match way {
            Way::Prefix => n + 1,
            Way::Pair => limits.each_max,
            Way::Sample => limits.samples,
            Way::Lost | Way::Early | Way::Torn => LONG,
        };
        assert!(coverage.formed <= most, "{way:?}: {coverage:?}");
        assert_eq!(coverage.whole, *way == Way::Prefix, "{way:?}");
    }
    let lost = states.coverage.iter().find(|(way, _)| *way == Way::Lost);
    assert!(lost.is_some_and(|(_, c)| c.formed * 10 > n * 9));
}

#[test]
fn an_enumeration_ends_with_its_time_and_says_in_which_way() {
    let run = mixed(6);
    let model = Model::shipped("ext4").unwrap();
    let effects = Effects::new(&run, &model);
    let limits = Limits::default();
    let asked = std::cell::Cell::new(0);
    let after = |most: usize| {
        asked.set(0);
        enumerate_until(&effects, model.sync_jumps, model.tear, limits, &|| {
            asked.set(asked.get() + 1);
            asked.get() > most
        })
    };
    let none = after(0);
    assert_eq!((none.all.len(), none.ended), (0, Some(Way::Prefix)));
    let few = after(2 * effects.all.len() + effects.steps() + 10);
    assert_eq!(few.ended, Some(Way::Lost));
    assert!(
        few.coverage
            .iter()
            .all(|(way, c)| c.whole == (*way == Way::Prefix))
    );
    let all = after(usize::MAX);
    assert_eq!(all.ended, None);
    assert!(few.all.len() < all.all.len());
}
