//! The fuzz target's body with bounded, seeded inputs: the same checks in every test run.
#![allow(clippy::unwrap_used, missing_docs)]

use steadfast_flash::Rng;

#[test]
fn a_damaged_image_is_opened_or_refused_and_shows_nothing_that_it_never_held() {
    let runs = if std::env::var_os("STEADFAST_LONG").is_some() {
        20_000
    } else {
        80
    };
    // Every flush of the image is the file's, too: memory is quicker.
    let memory = std::path::Path::new("/dev/shm");
    let dir = match memory.is_dir() {
        true => tempfile::tempdir_in(memory).unwrap(),
        false => tempfile::tempdir().unwrap(),
    };
    let mut rng = Rng::new(0x5eed);
    let mut opened = 0;
    for _ in 0..runs {
        let bytes: Vec<u8> = (0..400).map(|_| rng.number() as u8).collect();
        opened += u32::from(steadfast_disk::fuzz::open_and_use(dir.path(), &bytes));
    }
    assert!(opened > runs / 10 && opened < runs, "{opened} of {runs}");
}
