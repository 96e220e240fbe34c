//! Says whether an image holds what the record of a trial promises: `verdict RECORD IMAGE`.
//!
//! Prints one word (`flushed`, `flushing`, `later` or `wrong`) with a number; exits 0, 1 if it is wrong, or
//! 2 if there is no verdict. For `scripts/disk.sh`.

use std::path::Path;
use std::process::ExitCode;

use steadfast_disk::{Verdict, verify};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let [record, image] = words.as_slice() else {
        eprintln!("usage: verdict RECORD IMAGE");
        return 2.into();
    };
    let (word, number, code) = match verify(Path::new(record), Path::new(image)) {
        Ok(Verdict::LastFlush) => ("flushed", 0, 0),
        Ok(Verdict::FlushUnderWay) => ("flushing", 0, 0),
        Ok(Verdict::Later(requests)) => ("later", requests, 0),
        Ok(Verdict::Wrong(blocks)) => ("wrong", blocks, 1),
        Err(error) => {
            eprintln!("verdict: {error}");
            return 2.into();
        }
    };
    println!("{word} {number}");
    code.into()
}
