//! Obligations about the flash translation layer, on the source that ships.
//! Arguments and exit codes: `smt::run`.

extern crate alloc;

/// The layer's modules, as they ship; its header is `lib.rs`.
macro_rules! shipped {
    ($($name:ident = $path:literal;)*) => {
        $(#[allow(dead_code)]
        #[path = $path]
        mod $name;)*
    };
}

shipped! {
    anchors = "../../../../crates/ftl/src/anchors.rs";
    blocks = "../../../../crates/ftl/src/blocks.rs";
    check = "../../../../crates/ftl/src/check.rs";
    checkpoint = "../../../../crates/ftl/src/checkpoint.rs";
    collect = "../../../../crates/ftl/src/collect.rs";
    error = "../../../../crates/ftl/src/error.rs";
    flush = "../../../../crates/ftl/src/flush.rs";
    follow = "../../../../crates/ftl/src/follow.rs";
    ftl = "../../../../crates/ftl/src/ftl.rs";
    limits = "../../../../crates/ftl/src/limits.rs";
    map = "../../../../crates/ftl/src/map.rs";
    past = "../../../../crates/ftl/src/past.rs";
    platform = "../../../../crates/ftl/src/platform.rs";
    policy = "../../../../crates/ftl/src/policy.rs";
    recover = "../../../../crates/ftl/src/recover.rs";
    shape = "../../../../crates/ftl/src/shape.rs";
    stream = "../../../../crates/ftl/src/stream.rs";
    tag = "../../../../crates/ftl/src/tag.rs";
    word = "../../../../crates/ftl/src/word.rs";
    write = "../../../../crates/ftl/src/write.rs";
}

mod begin;
mod boot;
mod calls;
mod ends;
mod erases;
mod events;
mod failures;
mod log;
mod loops;
mod metadata;
mod mount;
mod pages;
mod recovery;
mod roots;
mod space;
mod state;
mod sym;
mod trims;
mod view;
mod writes;

use smt::explore;

/// One obligation; its paths begin with nothing known.
fn obligation(name: &str, must_reach: &[&str], mut body: impl FnMut()) {
    explore::obligation(name, must_reach, || {
        sym::reset();
        state::reset();
        calls::reset();
        body();
    });
}

fn main() {
    smt::run::main("ftl", || {
        pages::obligations();
        writes::obligations();
        trims::obligations();
        erases::obligations();
        failures::obligations();
        metadata::obligations();
        roots::obligations();
        calls::obligations();
        recovery::obligations();
        boot::obligations();
        ends::obligations();
        log::obligations();
        mount::obligations();
        space::obligations();
        begin::obligations();
    })
}
