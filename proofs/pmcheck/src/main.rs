//! Exhaustive checker of the order of stores in the persistent-memory file system. See README.md.
//!
//! ```text
//! pmcheck [--all] [--write] [plans|deep|pairs|short|abandon]…
//! ```

mod check;
mod mount;
mod ops;
mod plan;
mod pm;
mod search;
mod spec;
mod tables;
mod volume;

use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parts = ["plans", "deep", "pairs", "short", "abandon"];
    let all = arguments.iter().any(|a| a == "--all");
    let write = arguments.iter().any(|a| a == "--write");
    let chosen: Vec<&str> = arguments
        .iter()
        .map(|a| a.as_str())
        .filter(|a| parts.contains(a))
        .collect();
    if arguments
        .iter()
        .any(|a| a != "--all" && a != "--write" && !parts.contains(&a.as_str()))
    {
        eprintln!("pmcheck [--all] [--write] [{}]…", parts.join("|"));
        return ExitCode::from(2);
    }
    let wants = |part: &str| chosen.is_empty() || chosen.contains(&part);
    let started = Instant::now();
    let mut wrong = search::table(write);
    if write {
        return ExitCode::from(u8::from(wrong > 0));
    }
    if wants("plans") {
        wrong += search::plans(all);
    }
    if wants("deep") {
        wrong += search::deep(all);
    }
    if wants("pairs") {
        wrong += search::pairs();
    }
    if wants("abandon") {
        wrong += search::abandoned();
    }
    if wants("short") {
        wrong += search::tempting();
    }
    println!("{wrong} wrong, {:.1} s", started.elapsed().as_secs_f32());
    ExitCode::from(u8::from(wrong > 0))
}
