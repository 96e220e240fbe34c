//! The explorer finds nothing in the stack, and finds every planted bug.
#![allow(clippy::unwrap_used, clippy::panic)]

use crate::{Mutation, Options, explore};

fn story(report: &crate::Report) -> String {
    report
        .violations
        .iter()
        .map(|v| format!("{}\n{}", v.scenario, v.what))
        .collect::<Vec<_>>()
        .join("\n\n")
}

#[test]
fn a_cut_leaves_an_allowed_prefix_at_every_point() {
    let options = Options {
        seed: 5,
        images: 1_500,
        ..Options::default()
    };
    let report = explore(&options, &|_| {}).unwrap();
    assert!(report.violations.is_empty(), "{}", story(&report));
    assert!(
        report.images >= 1_500 && report.recoveries > 50 && report.used > 50,
        "{report:?}"
    );
}

fn is_found(mutation: Mutation) {
    let options = Options {
        seed: 4,
        images: 60_000,
        mutation: Some(mutation),
        ..Options::default()
    };
    let report = explore(&options, &|_| {}).unwrap();
    assert!(
        !report.violations.is_empty(),
        "{mutation:?} is missed by {} images",
        report.images
    );
    println!(
        "{mutation:?} after {} images:\n{}",
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
