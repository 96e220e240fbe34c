//! Obligations about the journal's codecs and the scan of recovery, on the source that ships.
//! `journal SOLVER [--record FILE] [--first] [PART…]` tries those whose names contain a part,
//! all if none is given; `--record` writes down what the solver is asked, and what it answers;
//! `--first` ends with the first one that is refused. Exits with 0 if all hold, with 1 if one is
//! refused, with 2 if it could not work.

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
use smt::solver::Solver;

/// One obligation; its paths begin with nothing known.
fn obligation(name: &str, must_reach: &[&str], mut body: impl FnMut()) {
    explore::obligation(name, must_reach, || {
        sym::reset();
        body();
    });
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (mut program, mut record, mut first, mut parts) = (None, None, false, Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--record" => record = args.next(),
            "--first" => first = true,
            _ if program.is_none() => program = Some(arg),
            _ => parts.push(arg),
        }
    }
    let Some(program) = program else {
        eprintln!("usage: journal SOLVER [--record FILE] [--first] [PART...]");
        std::process::exit(2)
    };
    let solver = Solver::start(&program, record.as_deref()).unwrap_or_else(|error| {
        eprintln!("journal: cannot start {program}: {error}");
        std::process::exit(2)
    });
    explore::begin(solver, parts, first);
    tail::obligations();
    record::obligations();
    parts::obligations();
    scan::obligations();
    std::process::exit(i32::from(!explore::end()));
}
