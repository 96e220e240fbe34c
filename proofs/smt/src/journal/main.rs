//! Obligations about the journal's codecs and the scan of recovery, on the source that ships.
//! Arguments and exit codes: `smt::run`.

#[allow(dead_code)]
#[path = "../../../../crates/journal/src/codec/mod.rs"]
mod codec;
mod parts;
mod record;
mod scan;
mod sym;
mod tail;
mod writers;

use smt::explore;

/// One obligation; its paths begin with nothing known.
fn obligation(name: &str, must_reach: &[&str], mut body: impl FnMut()) {
    explore::obligation(name, must_reach, || {
        sym::reset();
        body();
    });
}

fn main() {
    smt::run::main("journal", || {
        tail::obligations();
        record::obligations();
        parts::obligations();
        scan::obligations();
    })
}
