//! The results of the exploration of a replacement, and a check that it can fail.
#![allow(clippy::unwrap_used)]

use super::{Options, Report, Variant, explore, explore_weakest};
use crate::{Contract, Mutation};

fn options(variant: Variant, exists: bool) -> Options {
    Options {
        variant,
        exists,
        ..Options::default()
    }
}

fn texts(report: &Report) -> Vec<&str> {
    let mut texts: Vec<_> = report.trees.iter().map(|t| t.text.as_str()).collect();
    texts.sort_unstable();
    texts
}

#[test]
fn every_crash_state_of_a_replacement_has_the_old_file_or_the_new() {
    for exists in [false, true] {
        let report = explore(&options(Variant::Whole, exists)).unwrap();
        println!("{report:#?}");
        assert!(report.exhaustive);
        assert_eq!(report.violations, 0, "{:?}", report.examples);
        assert!(report.disks > 50, "{} disks", report.disks);
        let old = if exists { "old" } else { "absent" };
        let expected = [
            format!("file {old}, no temporary file"),
            format!("file {old}, temporary file is empty"),
            format!("file {old}, temporary file holds the first 4096 bytes"),
            format!("file {old}, temporary file holds the first 8192 bytes"),
            format!("file {old}, temporary file is new"),
            "file new, no temporary file".to_owned(),
        ];
        let mut found = texts(&report);
        // Before and after the temporary file has the mode of the old one.
        found.retain(|text| !text.ends_with(", other attributes"));
        let mut expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}

/// As in the paper, where three trees were found: nothing, the temporary file, the new file.
#[test]
fn by_itself_a_replacement_leaves_three_trees() {
    let report = explore(&Options {
        commits: false,
        ..Options::default()
    });
    let report = report.unwrap();
    assert!(report.exhaustive && report.violations == 0);
    let expected = [
        "file absent, no temporary file",
        "file absent, temporary file is new",
        "file new, no temporary file",
    ];
    assert_eq!(texts(&report), expected);
}

#[test]
fn torn_blocks_change_nothing() {
    let report = explore(&Options {
        bytes: 700,
        tears: true,
        ..options(Variant::Whole, true)
    });
    let report = report.unwrap();
    assert_eq!(report.violations, 0, "{:?}", report.examples);
}

#[test]
fn every_contract_keeps_the_old_file_or_the_new() {
    for contract in Contract::ALL {
        for exists in [false, true] {
            let report = explore(&Options {
                contract,
                ..options(Variant::Whole, exists)
            });
            let report = report.unwrap();
            assert!(report.exhaustive);
            assert_eq!(report.violations, 0, "{contract}: {:?}", report.examples);
        }
    }
}

/// The rename cannot overtake the data: `ordered` promises that; under `metadata-prefix` only overwrites go around the log,
/// and the data of a new file is covered. Under `relaxed` a close would do, but the file is still open when it is renamed.
#[test]
fn the_fsync_before_the_rename_is_needed_where_the_kernel_keeps_what_is_written() {
    for contract in Contract::ALL {
        let report = explore(&Options {
            contract,
            ..options(Variant::NoFileSync, true)
        });
        let report = report.unwrap();
        let needed = contract.allows_write_back();
        assert_eq!(
            report.violations > 0,
            needed,
            "{contract}: {:?}",
            report.examples
        );
    }
}

#[test]
fn a_step_that_is_missing_or_misplaced_is_found_under_every_contract_that_needs_it() {
    for contract in Contract::ALL {
        for variant in [
            Variant::NoDirectorySync,
            Variant::RenameFirst,
            Variant::InPlace,
        ] {
            // A call that returned is durable there, whether or not anything is synced.
            let needed = contract != Contract::Sync || variant != Variant::NoDirectorySync;
            for exists in [false, true] {
                let report = explore(&Options {
                    contract,
                    ..options(variant, exists)
                });
                let found = report.unwrap().violations > 0;
                assert_eq!(found, needed, "{contract}, {variant:?}, exists: {exists}");
                if found {
                    steadfast_testkit::caught_in("replace", &variant);
                }
            }
        }
    }
}

#[test]
fn a_file_system_that_does_not_flush_is_found() {
    for mutation in [Mutation::SkipFlush, Mutation::AcknowledgeEarly] {
        let report = explore(&Options {
            mutation: Some(mutation),
            ..options(Variant::Whole, true)
        });
        assert!(
            report.is_err() || report.unwrap().violations > 0,
            "{mutation:?}"
        );
        steadfast_testkit::caught_in("crash", &mutation);
    }
}

#[test]
fn on_the_weakest_file_system_the_protocol_holds_and_no_step_can_be_left_out() {
    for exists in [false, true] {
        let whole = explore_weakest(&options(Variant::Whole, exists)).unwrap();
        assert_eq!(whole.violations, 0, "{:?}", whole.examples);
        assert!(whole.disks >= 8, "{} trees", whole.disks);
        for variant in &Variant::ALL[1..] {
            let report = explore_weakest(&options(*variant, exists)).unwrap();
            assert!(report.violations > 0, "{variant:?}, exists: {exists}");
            steadfast_testkit::caught_in("replace", variant);
        }
    }
}
