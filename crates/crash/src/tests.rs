//! The explorer finds nothing in the stack, and finds every planted bug, under each contract.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::scenario::SMALL_BYTES_FEW;
use crate::{Contract, Mutation, Options, Scenario, explore};
use steadfast_model::Step;

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
    for contract in Contract::ALL {
        let options = Options {
            contract,
            seed: 5,
            images: 1_500,
            ..Options::default()
        };
        let report = explore(&options, &|_| {}).unwrap();
        assert!(report.violations.is_empty(), "{}", story(&report));
        assert!(
            report.images >= 1_500 && report.recoveries > 50 && report.used > 50,
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
        is_found_under(contract, mutation);
    }
}

fn is_found_under(contract: Contract, mutation: Mutation) {
    let options = Options {
        contract,
        seed: 4,
        images: 60_000,
        mutation: Some(mutation),
        ..Options::default()
    };
    let report = explore(&options, &|_| {}).unwrap();
    assert!(
        !report.violations.is_empty(),
        "{mutation:?} is missed by {} images under '{contract}'",
        report.images
    );
    println!(
        "{mutation:?} under '{contract}' after {} images:\n{}",
        report.images,
        story(&report)
    );
}

#[test]
fn a_skipped_flush_is_found() {
    is_found(Mutation::SkipFlush);
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
fn corner_01_early_reuse_is_found() {
    is_found(Mutation::ReuseEarly);
}

#[test]
fn corner_26_a_size_before_its_data_is_found() {
    is_found(Mutation::SizeBeforeData);
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
fn corner_26_an_overwrite_in_place_behind_the_durable_end_is_found() {
    is_found(Mutation::InPlacePastEnd);
}

#[test]
fn corner_27_fdatasync_without_the_metadata_that_leads_to_the_data_is_found() {
    is_found(Mutation::UnstableFdatasync);
}

/// Story: an overwrite went in place and was not flushed. The file grew, so that the next overwrite was a
/// patch, of the middle of a sector. The record survived a cut, the write in place did not: replay made
/// a sector of old bytes and the newest ones, which it had never been.
#[test]
fn a_patch_over_what_was_written_in_place_holds_whole_sectors() {
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
}
