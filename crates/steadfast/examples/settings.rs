//! Saves a program's settings so that a crash leaves the old ones or the new ones.
//!
//! Run it with `cargo run -p steadfast --example settings`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use steadfast::{Replacement, atomic_replace, remove_leftovers};

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("settings");

    // In one piece. When this returns, the new content is durable.
    atomic_replace(&path, b"colour = blue\n")?;

    // Piece by piece. No reader sees the pieces before `commit`.
    let mut replacement = Replacement::begin(&path)?;
    replacement.write(b"colour = red\n")?;
    assert_eq!(std::fs::read(&path)?, b"colour = blue\n", "not yet");
    replacement.write(b"size = 3\n")?;
    replacement.commit()?;
    print!("{}", std::fs::read_to_string(&path)?);
    assert_eq!(std::fs::read(&path)?, b"colour = red\nsize = 3\n");

    // At the start of a program: files that a killed run has left beside the file.
    let begun = Replacement::begin(&path)?;
    drop(begun);
    assert_eq!(
        remove_leftovers(&path)?,
        0,
        "a replacement that is dropped leaves nothing"
    );
    Ok(())
}

#[test]
fn the_example_does_what_it_says() -> Result<(), Box<dyn Error>> {
    main()
}
