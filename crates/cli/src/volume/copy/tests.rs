//! A copy keeps everything, and a crash at any point leaves an empty volume, one with the mark, or a complete copy. Each rule of
//! the copy is left out in turn, and the tests find it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod crashes;
mod source;
mod target;
mod tree;
mod weakest;

use super::{Copied, MARK, copy};
use crashes::{States, copy_with, cuts, explore};
use source::{Source, empty, mount};
use std::sync::Arc;
use steadfast_block::DeviceOp;
use steadfast_fs::Contract;
use steadfast_pm::Region;
use steadfast_pmfs::mkfs::{MkfsOptions, mkfs};
use steadfast_pmfs::{MountOptions, PmFs};
use steadfast_sim::{Limits, SimDevice};
use steadfast_testkit::calls::{Handy, root};
use steadfast_testkit::{first_seed, long};
use steadfast_vfs::acl::{self, Acl, Who, XATTR_DEFAULT};
use steadfast_vfs::{FileSystem, InodeFlags, SetAttr, XattrMode};
use tree::{difference, observe, without_flag};

/// A rule of the copy that a test leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The mark is made after the entries.
    MarkLate,
    /// The mark is not durable before the first entry.
    MarkUnsynced,
    /// The mark is removed before the flags of other inodes are set.
    FlagsUnmarked,
    /// The mark is removed before everything else is durable.
    ContentUnsynced,
    /// The copy returns before the removal of the mark is durable.
    EndUnsynced,
    /// The root keeps the times of the mark's removal.
    RootTimesLost,
    /// Another name of an inode becomes another inode.
    LinkCopied,
    /// A directory gets its attributes before its entries.
    DirectoryFirst,
    /// Permissions are set before the owner.
    PermBeforeOwner,
    /// Holes are written.
    HoleFilled,
    /// The last piece of a file is left out.
    PieceLost,
    /// Flags that a new inode inherits from its directory stay.
    InheritedFlagsKept,
    /// An incomplete copy is a source.
    IncompleteSourceTaken,
}

impl Fault {
    /// Faults that crash images of a volume, or the finished copy, show.
    const OF_VOLUMES: [Fault; 10] = [
        Fault::MarkLate,
        Fault::FlagsUnmarked,
        Fault::EndUnsynced,
        Fault::RootTimesLost,
        Fault::LinkCopied,
        Fault::DirectoryFirst,
        Fault::PermBeforeOwner,
        Fault::HoleFilled,
        Fault::PieceLost,
        Fault::InheritedFlagsKept,
    ];

    /// Faults that no contract shows: all calls of a copy are in one stream, and under each contract a crash leaves a prefix of
    /// a stream's calls, with the content of new files. Only a weaker file system needs these two syncs.
    const OF_WEAKEST: [Fault; 2] = [Fault::MarkUnsynced, Fault::ContentUnsynced];

    /// Whether crashes of a volume under this contract show it: under `sync` each call is durable when it returns.
    fn concerns(self, contract: Contract) -> bool {
        match self {
            Fault::EndUnsynced => contract != Contract::Sync,
            _ => !Fault::OF_WEAKEST.contains(&self),
        }
    }
}

/// Seeds of commits between the calls of a copy.
fn seeds() -> std::ops::Range<u64> {
    let first = first_seed(1);
    first..first + if long() { 40 } else { 5 }
}

fn limits(seed: u64) -> Limits {
    Limits {
        exhaustive_writes: 2,
        sampled: if long() { 24 } else { 6 },
        tears: true,
        seed,
    }
}

fn a_crash_leaves_nothing_a_mark_or_the_source(contract: Contract) {
    let source = Source::new();
    let mut all = States::new();
    for seed in seeds() {
        let explored = explore(&source, contract, None, seed, &limits(seed));
        let states = explored.unwrap_or_else(|what| panic!("{contract}, seed {seed}: {what}"));
        for (state, images) in states {
            *all.entry(state).or_default() += images;
        }
    }
    println!("{contract}: {all:?}");
    let found = |state: &str| all.get(state).copied().unwrap_or(0);
    for state in [
        "Empty meanwhile",
        "Marked meanwhile",
        "Complete meanwhile",
        "Complete after the copy",
    ] {
        assert!(found(state) > 0, "no image is '{state}': {all:?}");
    }
    assert!(found("Marked meanwhile") > 100, "{all:?}");
}

#[test]
fn under_ordered_a_crash_leaves_nothing_a_mark_or_the_source() {
    a_crash_leaves_nothing_a_mark_or_the_source(Contract::Ordered);
}

#[test]
fn under_metadata_prefix_a_crash_leaves_nothing_a_mark_or_the_source() {
    a_crash_leaves_nothing_a_mark_or_the_source(Contract::MetadataPrefix);
}

#[test]
fn under_sync_a_crash_leaves_nothing_a_mark_or_the_source() {
    a_crash_leaves_nothing_a_mark_or_the_source(Contract::Sync);
}

#[test]
fn under_relaxed_a_crash_leaves_nothing_a_mark_or_the_source() {
    a_crash_leaves_nothing_a_mark_or_the_source(Contract::Relaxed);
}

#[test]
fn a_rule_that_is_left_out_is_found_under_each_contract() {
    let source = Source::new();
    for contract in Contract::ALL {
        for fault in Fault::OF_VOLUMES {
            if !fault.concerns(contract) {
                continue;
            }
            // Not each run commits in the moment that matters.
            let mut runs = 1..40;
            let wrong = |seed| explore(&source, contract, Some(fault), seed, &limits(seed)).err();
            let found = runs.find_map(wrong);
            assert!(found.is_some(), "{fault:?} is not found under {contract}");
            steadfast_testkit::caught_in("copy", &fault);
            println!("{contract}, {fault:?}, run {}: {found:?}", runs.start - 1);
        }
    }
}

/// So the reasons for not searching for them hold.
#[test]
fn faults_that_a_contract_hides_are_not_found_under_it() {
    let source = Source::small();
    let all = Fault::OF_VOLUMES.iter().chain(&Fault::OF_WEAKEST);
    for fault in all {
        for contract in Contract::ALL {
            if fault.concerns(contract) {
                continue;
            }
            for seed in seeds().take(2) {
                let explored = explore(&source, contract, Some(*fault), seed, &limits(seed));
                let found = explored.err();
                assert_eq!(found, None, "{fault:?}, {contract}, seed {seed}");
            }
        }
    }
}

#[test]
fn on_the_weakest_file_system_a_crash_leaves_nothing_a_mark_or_the_source() {
    let source = Source::small();
    let sets = if long() { 200 } else { 4 };
    let judged = weakest::explore(&source, None, sets).unwrap_or_else(|what| panic!("{what}"));
    assert!(judged > 300, "{judged}");
    for fault in Fault::OF_WEAKEST {
        let found = weakest::explore(&source, Some(fault), sets).err();
        assert!(found.is_some(), "{fault:?} is not found");
        steadfast_testkit::caught_in("copy", &fault);
        println!("{fault:?}: {found:?}");
    }
}

/// The disk fails at a request, and from then on: the copy returns an error, or it is complete.
#[test]
fn when_the_disk_fails_the_copy_fails_and_the_mark_stays() {
    let source = Source::small();
    let (mut failed, mut nth) = (0, 1);
    loop {
        let device = Arc::new(SimDevice::from_image(empty(Contract::Ordered)));
        let fs = mount(&device, false).unwrap();
        for op in [DeviceOp::Write, DeviceOp::Flush] {
            device.inject(steadfast_sim::Fault::nth(op, nth).sticky());
        }
        let copied = copy_with(&*source.fs, &*fs, None);
        if copied.is_ok() {
            device.mark(1);
        }
        drop(fs);
        let mut states = States::new();
        let judged = cuts(&source, &device, &limits(nth), &mut states);
        judged.unwrap_or_else(|what| panic!("request {nth} fails: {what}"));
        if copied.is_ok() {
            break;
        }
        failed += 1;
        nth += 1;
        assert!(nth < 10_000, "it fails for ever");
    }
    assert!(failed > 3, "{failed}");
}

/// Without its mark, the copy of an incomplete copy would pass for a complete one.
#[test]
fn an_incomplete_copy_is_no_source() {
    let marked = |fault| {
        let half = Arc::new(SimDevice::from_image(empty(Contract::Ordered)));
        let half = mount(&half, false).unwrap();
        half.dir(half.root(), "some");
        half.file(half.root(), MARK);
        let new = Arc::new(SimDevice::from_image(empty(Contract::Ordered)));
        let new = mount(&new, false).unwrap();
        let copied = copy_with(&*half, &*new, fault);
        (copied, new.look(new.root(), MARK).is_some())
    };
    let (copied, is_marked) = marked(None);
    let why = copied.unwrap_err();
    assert!(why.contains(MARK) && is_marked, "{why}");
    let (copied, is_marked) = marked(Some(Fault::IncompleteSourceTaken));
    assert!(copied.is_ok() && !is_marked, "the fault is not found");
    steadfast_testkit::caught("copy.incomplete_source_taken");
}

/// The default ACL of a volume that was used before reached all entries of the copy, and attributes of its root stayed.
#[test]
fn nothing_of_an_earlier_use_reaches_the_copy() {
    let source = Source::small();
    for contract in Contract::ALL {
        let device = Arc::new(SimDevice::from_image(empty(contract)));
        let fs = mount(&device, false).unwrap();
        let me = root();
        let top = fs.root();
        let entries = [
            (Who::Owner, 7),
            (Who::User(77), 7),
            (Who::OwningGroup, 7),
            (Who::Mask, 7),
            (Who::Other, 7),
        ];
        let entries = entries.map(|(who, perm)| acl::Entry { who, perm });
        let list = Acl::new(entries.to_vec()).unwrap().to_xattr();
        for (name, value) in [(XATTR_DEFAULT, &list[..]), (b"user.old", b"old")] {
            fs.setxattr(&me, top, name, value, XattrMode::Any).unwrap();
        }
        let old = SetAttr {
            perm: Some(0o2777),
            gid: Some(99),
            ..SetAttr::default()
        };
        fs.setattr(&me, top, &old).unwrap();
        fs.set_flags(&me, top, InodeFlags::APPEND | InodeFlags::NODUMP)
            .unwrap();
        let copied = copy(&*source.fs, &*fs, &mut |_| {}).unwrap();
        let found = observe(&*fs).unwrap();
        assert_eq!(difference(&found, &source.tree, true), None);
        let bytes = copied.bytes;
        let names = source.tree.len() as u64 - 1;
        let expected = Copied {
            inodes: names,
            bytes,
            flags_left_out: 0,
        };
        assert_eq!(copied, expected);
    }
}

/// A file with a flag that persistent memory does not know, `chattr +C`, lost all its flags there.
#[test]
fn a_flag_that_a_volume_does_not_know_takes_no_other_with_it() {
    let source = Source::small();
    let region = Region::anonymous(16 << 20);
    mkfs(&region, &MkfsOptions::default(), &mut |_, _| {}).unwrap();
    let fs = PmFs::mount(region, &MountOptions::default(), &mut |_, _| {}).unwrap();
    let copied = copy(&*source.fs, &fs, &mut |_| {}).unwrap();
    let (wanted, lose_one) = without_flag(&source.tree, InodeFlags::NOCOW);
    assert_eq!(difference(&observe(&fs).unwrap(), &wanted, true), None);
    assert!(lose_one > 1);
    assert_eq!(copied.flags_left_out, lose_one);
}
