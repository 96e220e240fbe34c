//! The common part of the programs: their arguments, and a run from beginning to end.

use crate::explore;
use crate::solver::Solver;
use std::sync::atomic::{AtomicBool, Ordering};

static LONG: AtomicBool = AtomicBool::new(false);

/// Whether obligations that take minutes are tried.
pub fn is_long() -> bool {
    LONG.load(Ordering::Relaxed)
}

/// Tries obligations. The program's arguments are `SOLVER [--record FILE] [--first] [--long] [PART…]`: it tries those whose
/// names contain a part, all if none is given; `--record` writes down the questions to the solver and its answers; `--first`
/// ends with the first one that is refused; `--long` tries the long ones, too. Exits with 0 if all hold, with 1 if one is
/// refused, with 2 if it could not work, with 4 if no name contains a part.
pub fn main(name: &str, obligations: impl FnOnce()) -> ! {
    let mut args = std::env::args().skip(1);
    let (mut program, mut record, mut first, mut parts) = (None, None, false, Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--record" => record = args.next(),
            "--first" => first = true,
            "--long" => LONG.store(true, Ordering::Relaxed),
            _ if program.is_none() => program = Some(arg),
            _ => parts.push(arg),
        }
    }
    let Some(program) = program else {
        eprintln!("usage: {name} SOLVER [--record FILE] [--first] [--long] [PART...]");
        std::process::exit(2)
    };
    let solver = Solver::start(&program, record.as_deref()).unwrap_or_else(|error| {
        eprintln!("{name}: cannot start {program}: {error}");
        std::process::exit(2)
    });
    explore::begin(solver, parts, first);
    obligations();
    std::process::exit(match explore::end() {
        Some(holds) => i32::from(!holds),
        None => 4,
    })
}
