//! The explorer finds nothing in the stack, and finds every planted bug, under each contract.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::record::Template;
use crate::scenario::{
    OVERWRITE_BYTES_FEW, SMALL_BYTES_FEW, large_overwrites, pair, pairs, random, side_by_side,
};
use crate::{Contract, Medium, Mutation, Options, Scenario, explore};
use std::collections::BTreeMap;
use std::sync::Arc;
use steadfast_fs::Fs;
use steadfast_fs::layout::INLINE_XATTR_BYTES;
use steadfast_model::{Handles, Op, Step, Target};
use steadfast_sim::SimDevice;
use steadfast_vfs::acl::Acl;
use steadfast_vfs::{Caller, FileSystem, Ino};

fn story(report: &crate::Report) -> String {
    report
        .violations
        .iter()
        .map(|v| format!("{}\n{}", v.scenario, v.what))
        .collect::<Vec<_>>()
        .join("\n\n")
}

#[test]
fn a_cut_leaves_what_the_contract_allows_at_every_point() {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    // `crash self` has a hundred thousand in the same run of all tests, optimised.
    let (images, least) = if long { (1_500, 50) } else { (400, 10) };
    for contract in Contract::ALL {
        let options = Options {
            contract,
            seed: 5,
            images,
            ..Options::default()
        };
        let report = explore(&options, &|_| {}).unwrap();
        assert!(report.violations.is_empty(), "{}", story(&report));
        assert!(
            report.images >= images && report.recoveries > least && report.used > least,
            "{contract}: {report:?}"
        );
    }
}

/// Streams side by side, cut everywhere, and after each sync of one of them nothing of the others is durable.
#[test]
fn streams_leave_each_other_alone_at_every_cut() {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let images: u64 = if long { 50_000 } else { 1_500 };
    let options = Options {
        seed: 7,
        images: 300,
        ..Options::default()
    };
    let mut done = 0;
    let mut index = 0;
    while done < images {
        let scenario = side_by_side(options.seed, index);
        match explore::one(&options, &scenario) {
            Ok(images) => done += images,
            Err(what) => panic!("{scenario}\n{what}"),
        }
        index += 1;
    }
    println!("{done} images of {index} sequences");
}

/// Large overwrites, cut everywhere.
#[test]
fn large_overwrites_leave_a_prefix_at_every_cut() {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let images: u64 = if long { 75_000 } else { 1_000 };
    for contract in [Contract::Ordered, Contract::Sync] {
        let options = Options {
            contract,
            seed: 9,
            images: 200,
            ..Options::default()
        };
        let (mut done, mut index) = (0, 0);
        while done < images {
            let scenario = large_overwrites(options.seed, index);
            match explore::one(&options, &scenario) {
                Ok(images) => done += images,
                Err(what) => panic!("{scenario}\n{what}"),
            }
            index += 1;
        }
        println!("{contract}: {done} images of {index} sequences");
    }
}

/// The faults that concern them are found by sequences of large overwrites alone.
#[test]
fn faults_of_large_overwrites_are_found_in_them() {
    let mutations = [
        Mutation::MovedEarly,
        Mutation::DataUncovered,
        Mutation::DataAfterMetadata,
        Mutation::ReuseEarly,
    ];
    for mutation in mutations {
        let options = Options {
            seed: 9,
            images: 300,
            mutation: Some(mutation),
            ..Options::default()
        };
        let found = (0..60).find_map(|index| {
            let scenario = large_overwrites(options.seed, index);
            explore::one(&options, &scenario)
                .err()
                .map(|what| (index, what))
        });
        let Some((index, what)) = found else {
            panic!("{mutation:?} is missed");
        };
        println!("{mutation:?} in sequence {index}: {what}");
        steadfast_testkit::caught_in("crash", &mutation);
    }
}

/// On flash, without a log: the power goes or the client dies.
#[test]
fn corner_46_on_flash_each_end_leaves_what_the_contract_allows() {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let images = if long { 20_000 } else { 400 };
    for contract in Contract::ALL {
        let options = Options {
            medium: Medium::Flash,
            contract,
            seed: 5,
            images,
            ..Options::default()
        };
        let report = explore(&options, &|_| {}).unwrap();
        assert!(report.violations.is_empty(), "{}", story(&report));
        assert!(
            report.images >= images && report.recoveries > 20 && report.used > 20,
            "{contract}: {report:?}"
        );
    }
}

/// Under each contract that it breaks; in the short tier, under the first of them.
fn is_found(mutation: Mutation) {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let concerned = Contract::ALL.into_iter();
    let concerned = concerned.filter(|contract| mutation.concerns(*contract));
    for contract in concerned.take(if long { usize::MAX } else { 1 }) {
        for medium in [Medium::Block, Medium::Flash] {
            // Found on flash after some ten thousand images.
            let late = mutation == Mutation::ForgetOrphan && medium == Medium::Flash;
            if mutation.concerns_medium(medium) && (long || !late) {
                is_found_under(medium, contract, mutation);
            }
        }
    }
}

fn is_found_under(medium: Medium, contract: Contract, mutation: Mutation) {
    let options = Options {
        medium,
        contract,
        seed: 4,
        images: 60_000,
        mutation: Some(mutation),
        ..Options::default()
    };
    let report = explore(&options, &|_| {}).unwrap();
    assert!(
        !report.violations.is_empty(),
        "{mutation:?} is missed by {} images under '{contract}' on {medium:?}",
        report.images
    );
    println!(
        "{mutation:?} under '{contract}' on {medium:?} after {} images:\n{}",
        report.images,
        story(&report)
    );
    steadfast_testkit::caught_in("crash", &mutation);
}

#[test]
fn a_skipped_flush_is_found() {
    is_found(Mutation::SkipFlush);
}

#[test]
fn inode_slots_that_are_used_before_they_are_durably_free_are_found() {
    is_found(Mutation::SlotsEarly);
}

#[test]
fn room_in_a_directory_that_is_used_before_it_is_durably_free_is_found() {
    is_found(Mutation::GapsEarly);
}

#[test]
fn a_foreign_gap_that_is_used_without_relating_is_found() {
    is_found(Mutation::GapsUnrelated);
}

#[test]
fn a_last_close_in_the_wrong_stream_is_found() {
    is_found(Mutation::ReleaseElsewhere);
}

#[test]
fn streams_that_are_all_one_are_found() {
    is_found(Mutation::OneStream);
}

#[test]
fn a_commit_that_takes_every_stream_along_is_found() {
    is_found(Mutation::CommitAll);
}

#[test]
fn an_early_acknowledgement_is_found() {
    is_found(Mutation::AcknowledgeEarly);
}

#[test]
fn corner_04_data_after_metadata_is_found() {
    is_found(Mutation::DataAfterMetadata);
}

#[test]
fn data_that_no_record_covers_is_found() {
    is_found(Mutation::DataUncovered);
}

#[test]
fn extents_that_are_swapped_before_their_data_are_found() {
    is_found(Mutation::MovedEarly);
}

#[test]
fn corner_01_early_reuse_is_found() {
    is_found(Mutation::ReuseEarly);
}

#[test]
fn corner_26_a_size_before_its_data_is_found() {
    is_found(Mutation::SizeBeforeData);
}

#[test]
fn a_mode_before_its_acl_is_found() {
    is_found(Mutation::ModeBeforeAcl);
}

#[test]
fn corner_29_a_forgotten_orphan_is_found() {
    is_found(Mutation::ForgetOrphan);
}

#[test]
fn corner_03_an_overwrite_in_place_of_a_logged_block_is_found() {
    is_found(Mutation::InPlaceOverLogged);
}

#[test]
fn corner_05_an_overwrite_in_place_of_an_unproved_block_is_found() {
    is_found(Mutation::InPlaceUnproved);
}

#[test]
fn corner_26_an_overwrite_in_place_past_the_durable_end_is_found() {
    is_found_under(
        Medium::Block,
        Contract::MetadataPrefix,
        Mutation::InPlacePastEnd,
    );
    // On flash only a flush makes it durable, and only another file's without its size.
    let lines = [
        "setattr /a size=5000",
        "write /a 500 #3*100",
        "setattr /a size=6000",
        "write /b 0 #4*100",
        "fdatasync /b",
    ];
    let parse = |line: &&str| line.parse().unwrap();
    let steps = lines.iter().map(parse).map(|op| Step::new(0, op));
    let setup = [
        "mknod /a file 644 0",
        "write /a 0 #1*100",
        "mknod /b file 644 0",
        "write /b 0 #2*100",
    ];
    let scenario = Scenario {
        name: "another file is flushed".into(),
        setup: setup.iter().map(parse).collect(),
        steps: steps.collect(),
        small_bytes: SMALL_BYTES_FEW,
        overwrite_bytes: OVERWRITE_BYTES_FEW,
        trim_every: None,
        side_by_side: false,
    };
    let mut options = Options {
        medium: Medium::Flash,
        contract: Contract::MetadataPrefix,
        images: 500,
        ..Options::default()
    };
    assert!(explore::one(&options, &scenario).unwrap() > 10);
    options.mutation = Some(Mutation::InPlacePastEnd);
    let what = explore::one(&options, &scenario).unwrap_err();
    println!("{what}");
    steadfast_testkit::caught_in("crash", &Mutation::InPlacePastEnd);
}

/// Two streams change inodes that lie in one block, and one of them syncs: a commit that takes the
/// current image would bring half of the other one's change.
#[test]
fn others_bytes_in_a_commit_are_found() {
    let step = |stream, line: &str| Step::new(stream, line.parse().unwrap());
    let scenario = Scenario {
        name: "two streams in one block".into(),
        setup: ["mknod /a file 644 0", "mkdir /d 755"]
            .iter()
            .map(|line| line.parse().unwrap())
            .collect(),
        steps: vec![
            step(0, "setattr /a perm=600"),
            step(1, "mknod /d/x file 644 0"),
            step(0, "fsync /a"),
            step(0, "fsync /a"),
        ],
        small_bytes: SMALL_BYTES_FEW,
        overwrite_bytes: OVERWRITE_BYTES_FEW,
        trim_every: None,
        side_by_side: false,
    };
    for medium in [Medium::Block, Medium::Flash] {
        let mut options = Options {
            medium,
            images: 500,
            ..Options::default()
        };
        let images = explore::one(&options, &scenario).unwrap();
        assert!(images > 20, "{images}");
        options.mutation = Some(Mutation::LayCurrent);
        let what = explore::one(&options, &scenario).unwrap_err();
        println!("{medium:?}: {what}");
        steadfast_testkit::caught_in("crash", &Mutation::LayCurrent);
    }
}

#[test]
fn a_flush_in_the_middle_of_a_batch_is_found() {
    is_found(Mutation::FlushBetween);
}

#[test]
fn corner_49_a_trim_of_a_block_that_lives_again_is_found() {
    is_found(Mutation::TrimAgain);
}

#[test]
fn corner_49_a_trim_before_the_flush_that_frees_the_block_is_found() {
    is_found(Mutation::TrimBefore);
}

#[test]
fn corner_49_a_trim_of_blocks_free_in_memory_alone_is_found() {
    is_found(Mutation::TrimCurrent);
}

#[test]
fn an_epoch_of_a_dead_client_that_is_not_forgotten_is_found() {
    is_found(Mutation::ForgetRollback);
}

#[test]
fn corner_27_fdatasync_without_the_metadata_that_leads_to_the_data_is_found() {
    is_found(Mutation::UnstableFdatasync);
}

/// Story: an overwrite went in place and was not flushed. The file grew, so that the next overwrite was a
/// patch, of the middle of a sector. The record survived a cut, the write in place did not: replay made
/// a sector of old bytes and the newest ones, which it had never been.
#[test]
fn a_patch_over_bytes_written_in_place_holds_whole_sectors() {
    let parse = |line: &&str| line.parse().unwrap();
    let lines = [
        "write /a 502 #103*1107",
        "append /a #104*423",
        "write /a 1333 #106*1679",
    ];
    let steps = lines.iter().map(parse).map(|op| Step::new(0, op));
    let scenario = Scenario {
        name: "a patch over what was written in place".into(),
        setup: ["mknod /a file 644 0", "write /a 0 #1*20000"]
            .iter()
            .map(parse)
            .collect(),
        steps: steps.collect(),
        small_bytes: SMALL_BYTES_FEW,
        overwrite_bytes: OVERWRITE_BYTES_FEW,
        trim_every: None,
        side_by_side: false,
    };
    let mut options = Options {
        contract: Contract::MetadataPrefix,
        images: 5_000,
        ..Options::default()
    };
    let images = explore::one(&options, &scenario).unwrap();
    assert!(images > 20, "{images}");
    options.mutation = Some(Mutation::NarrowPatches);
    let what = explore::one(&options, &scenario).unwrap_err();
    assert!(what.contains("hold none of the values"), "{what}");
    steadfast_testkit::caught_in("crash", &Mutation::NarrowPatches);
}

/// Place of an inode's extended attributes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Form {
    Nowhere,
    Inode,
    Block,
}

/// The inode of a target, if there is one.
fn ino_of(fs: &Fs, handles: &Handles, file: &Target) -> Option<Ino> {
    match file {
        Target::Handle(handle) => handles.get(handle).copied(),
        Target::Path(path) => (path.0.iter()).try_fold(fs.root(), |dir, name| {
            fs.lookup(&Caller::root(), dir, name).ok().map(|a| a.ino)
        }),
    }
}

/// The form that an inode's attributes should have, by their bytes; and its blocks.
fn form(fs: &Fs, ino: Ino) -> (Form, u64) {
    let me = &Caller::root();
    let mut bytes = 0;
    for name in fs.listxattr(me, ino).unwrap() {
        let value = fs.getxattr(me, ino, &name).unwrap();
        bytes += 3 + match name.strip_prefix(b"user.") {
            Some(name) => name.len() + value.len(),
            None => stored_acl_bytes(&value),
        };
    }
    let form = match bytes {
        0 => Form::Nowhere,
        1..=INLINE_XATTR_BYTES => Form::Inode,
        _ => Form::Block,
    };
    (form, fs.getattr(me, ino).unwrap().blocks)
}

/// An access control list has its name in a code, and a number only where an entry names a user or group.
fn stored_acl_bytes(value: &[u8]) -> usize {
    let acl = Acl::from_xattr(value).unwrap().unwrap();
    let entries = acl.entries().iter();
    4 + entries
        .map(|entry| if entry.who.is_named() { 8 } else { 4 })
        .sum::<usize>()
}

/// Counts the ways of a scenario's attributes from form to form.
fn count_forms(template: &Template, scenario: &Scenario, ways: &mut BTreeMap<(Form, Form), u32>) {
    let (image, _) = template.set_up(scenario).unwrap();
    let sim = Arc::new(SimDevice::from_image(image));
    let fs = template.mount(sim, Arc::default(), scenario, None).unwrap();
    let mut handles = Handles::default();
    for step in &scenario.steps {
        let (Op::SetXattr { file, .. } | Op::RemoveXattr { file, .. }) = &step.op else {
            let _ = step.op.run(&*fs, &step.caller, &mut handles);
            continue;
        };
        let ino = ino_of(&fs, &handles, file);
        let before = ino.map(|ino| form(&fs, ino));
        let done = step.op.run(&*fs, &step.caller, &mut handles);
        let (Some(ino), Some((old, old_blocks)), Ok(_)) = (ino, before, done) else {
            continue;
        };
        let (new, new_blocks) = form(&fs, ino);
        let own = |form| u64::from(form == Form::Block) * 8;
        assert_eq!(new_blocks - own(new), old_blocks - own(old), "{}", step.op);
        *ways.entry((old, new)).or_default() += 1;
    }
    fs.unmount().unwrap();
}

#[test]
fn both_forms_of_attributes_and_all_ways_between_them_are_explored() {
    use Form::{Block, Inode, Nowhere};
    let template = Template::new(Contract::Ordered).unwrap();
    let mut of_pairs = BTreeMap::new();
    for scenario in (0..pairs()).map(pair) {
        let twice = scenario.name.matches("setxattr").count() == 2;
        if twice {
            count_forms(&template, &scenario, &mut of_pairs);
        }
    }
    for way in [
        (Nowhere, Inode),
        (Nowhere, Block),
        (Inode, Inode),
        (Inode, Block),
        (Block, Inode),
        (Block, Block),
    ] {
        assert!(of_pairs.contains_key(&way), "{way:?}: {of_pairs:?}");
    }
    let mut of_sequences = BTreeMap::new();
    for index in 0..80 {
        count_forms(&template, &random(1, index), &mut of_sequences);
    }
    for old in [Nowhere, Inode, Block] {
        for new in [Nowhere, Inode, Block] {
            let count = of_sequences.get(&(old, new)).copied().unwrap_or(0);
            let none = (old, new) == (Nowhere, Nowhere);
            assert_eq!(count < 3, none, "{old:?}, {new:?}: {of_sequences:?}");
        }
    }
}

/// A file is written under another name, closed, and renamed over the old one.
#[test]
fn a_close_that_sends_nothing_or_too_late_is_found() {
    let parse = |line: &&str| line.parse().unwrap();
    let lines = [
        "mknod /new file 644 0",
        "open /new @1",
        "write @1 0 #2*9000",
        "close @1",
        "fsync /",
        "rename /new /a replace",
        "fsync /",
        "sync",
    ];
    let steps = lines.iter().map(parse).map(|op| Step::new(0, op));
    let scenario = Scenario {
        name: "a file is replaced without a sync of it".into(),
        setup: ["mknod /a file 644 0", "write /a 0 #1*5000"]
            .iter()
            .map(parse)
            .collect(),
        steps: steps.collect(),
        small_bytes: SMALL_BYTES_FEW,
        overwrite_bytes: OVERWRITE_BYTES_FEW,
        trim_every: None,
        side_by_side: false,
    };
    for medium in [Medium::Block, Medium::Flash] {
        let mut options = Options {
            medium,
            contract: Contract::Relaxed,
            images: 1000,
            ..Options::default()
        };
        let images = explore::one(&options, &scenario).unwrap();
        assert!(images > 20, "{images}");
        for planted in [Mutation::CloseKeeps, Mutation::CloseLate] {
            options.mutation = Some(planted);
            let what = explore::one(&options, &scenario).unwrap_err();
            println!("{planted:?} on {medium:?}: {what}");
            steadfast_testkit::caught_in("crash", &planted);
        }
    }
}

#[test]
fn an_fsync_that_leaves_content_with_the_kernel_is_found() {
    is_found(Mutation::FsyncKeeps);
}

#[test]
fn an_fsync_that_commits_no_metadata_is_found() {
    is_found(Mutation::FsyncUncommitted);
}

#[test]
fn a_sync_that_leaves_content_with_the_kernel_is_found() {
    is_found(Mutation::SyncKeeps);
}

#[test]
fn a_size_that_is_sent_before_its_content_is_found() {
    is_found(Mutation::SizeAhead);
}

#[test]
fn content_that_comes_back_after_a_truncation_is_found() {
    is_found(Mutation::TruncateKeeps);
}

/// In a small log a write went out of place in two operations, and a cut between them left half of it.
#[test]
fn a_write_that_the_log_takes_is_not_cut_in_two_to_go_out_of_place() {
    let mut found = 0;
    for (seed, index) in [(1, 121), (4, 189)] {
        let scenario = large_overwrites(seed, index);
        let options = Options {
            seed,
            images: 3_000,
            ..Options::default()
        };
        let images = explore::one(&options, &scenario).unwrap();
        assert!(images > 100, "{images}");
        let options = Options {
            mutation: Some(Mutation::MovedCut),
            ..options
        };
        found += usize::from(explore::one(&options, &scenario).is_err());
    }
    assert!(found > 0, "the fault is missed");
    steadfast_testkit::caught_in("crash", &Mutation::MovedCut);
}
