//! Volumes that are full, whose server is killed, or whose file is cut short.

use super::*;

/// Waits for a state that follows the RELEASE of the kernel to the server. No call waits for that request.
fn until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "it does not come"
        );
        std::thread::yield_now();
    }
}

#[test]
fn every_page_and_every_inode_can_be_used_and_comes_back() {
    let Some(place) = mounted("4M", "rw") else {
        return;
    };
    let counts = || {
        let of = rustix::fs::statvfs(place.mnt()).unwrap();
        (of.f_bfree, of.f_ffree)
    };
    let empty = counts();
    let mut file = File::create(place.mnt().join("big")).unwrap();
    let error = loop {
        if let Err(error) = file.write_all(&[7; 4096]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(counts().0, 0, "pages are left");
    // Files can still be read, renamed and removed.
    fs::rename(place.mnt().join("big"), place.mnt().join("new")).unwrap();
    let len = file.metadata().unwrap().len();
    assert_eq!(len, (empty.0 - 1) * 4096, "one page has the names");
    assert!(
        fs::read(place.mnt().join("new"))
            .unwrap()
            .iter()
            .all(|byte| *byte == 7)
    );
    drop(file);
    fs::remove_file(place.mnt().join("new")).unwrap();
    // The names keep their page.
    until(|| counts() == (empty.0 - 1, empty.1));
    for i in 0..empty.1 {
        File::create(place.mnt().join(format!("{i}"))).unwrap();
    }
    let more = File::create(place.mnt().join("more"));
    assert_eq!(more.unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(counts().1, 0, "inodes are left");
    place.must(&["umount", "mnt"]);
    place.must(&["fsck", "img"]);
    place.must(&["mount", "img", "mnt"]);
    assert_eq!(counts().1, 0);
    for i in 0..empty.1 {
        fs::remove_file(place.mnt().join(format!("{i}"))).unwrap();
    }
    until(|| counts().1 == empty.1);
    place.must(&["umount", "mnt"]);
    place.must(&["mount", "img", "mnt"]);
    // The root directory keeps its pages.
    let kept = fs::metadata(place.mnt()).unwrap().blocks() / 8;
    assert!(kept < 8, "{kept}");
    until(|| counts() == (empty.0 - kept, empty.1));
    place.end();
}

/// Kills the server, and waits until the kernel has noticed.
pub(super) fn kill(place: &Place) {
    kill_process(server(place), Signal::KILL).unwrap();
    while fs::metadata(place.mnt()).is_ok() {
        std::thread::yield_now();
    }
}

/// A call that has returned.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Done {
    Written(u32, u32),
    Renamed(u32, u32),
    Removed(u32, u32),
}

/// Writes, renames and removes files until a call fails. Reports each call that returned before the next one begins.
fn work(mnt: &Path, writer: u32, told: &mpsc::Sender<Done>) {
    let name = |i: u32, to: &str| mnt.join(format!("{writer}-{i}{to}"));
    let step = |i: u32| -> std::io::Result<()> {
        let content = vec![i as u8; 3000 + i as usize % 9000];
        let mut file = File::create(name(i, "")).and_then(|file| {
            file.write_all_at(&content, 0)?;
            Ok(file)
        })?;
        file.flush()?;
        let _ = told.send(Done::Written(writer, i));
        if !i.is_multiple_of(3) {
            fs::rename(name(i, ""), name(i, "-renamed"))?;
            let _ = told.send(Done::Renamed(writer, i));
        }
        if i % 3 == 2 {
            fs::remove_file(name(i, "-renamed"))?;
            let _ = told.send(Done::Removed(writer, i));
        }
        Ok(())
    };
    let _: Option<u32> = (0..).find(|i| step(*i).is_err());
}

/// The server is killed while three clients work: after a number of their calls, so at a different moment in each
/// round.
#[test]
fn every_call_that_returned_is_there_after_the_server_was_killed() {
    let Some(place) = mounted("64M", "rw") else {
        return;
    };
    let mut last = Vec::new();
    for round in 0..3 {
        let dir = place.mnt().join(format!("round-{round}"));
        fs::create_dir(&dir).unwrap();
        let (tell, told) = mpsc::channel();
        let mut done = Vec::new();
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let (dir, tell) = (&dir, tell.clone());
                scope.spawn(move || work(dir, writer, &tell));
            }
            drop(tell);
            done.extend(told.iter().take(200 + 37 * round));
            kill(&place);
            done.extend(told.iter());
        });
        refused(
            &place,
            1,
            &["umount", "mnt"],
            &[
                "its server was dead",
                "every call that had returned is durable",
                "the next mount recovers it",
            ],
        );
        assert_eq!(state(&place), "needs-recovery");
        place.must(&["fsck", "img"]);
        let said = place.must(&["mount", "img", "mnt"]);
        assert!(
            said.contains("not unmounted") || said.contains("recovered"),
            "{said}"
        );
        last.push((dir, done));
        // Those of earlier rounds, too.
        for (dir, done) in &last {
            look(dir, done);
        }
    }
    place.end();
}

/// Compares a directory with the reported calls. A call that had not returned may have happened.
fn look(dir: &Path, done: &[Done]) {
    for writer in 0..3 {
        let of_mine = |done: &&Done| match done {
            Done::Written(it, _) | Done::Renamed(it, _) | Done::Removed(it, _) => *it == writer,
        };
        let mine: Vec<&Done> = done.iter().filter(of_mine).collect();
        let path = |i: u32, to: &str| dir.join(format!("{writer}-{i}{to}"));
        let whole = |i: u32, to: &str| {
            let content = fs::read(path(i, to)).unwrap_or_else(|e| panic!("{writer}-{i}{to}: {e}"));
            assert!(
                content == vec![i as u8; 3000 + i as usize % 9000],
                "{writer}-{i}{to}"
            );
        };
        for (at, step) in mine.iter().enumerate() {
            let is_last = at + 1 == mine.len();
            match *step {
                Done::Written(_, i) if i % 3 == 0 => whole(*i, ""),
                Done::Written(_, i) if is_last => {
                    // The rename, and then the removal, were in progress.
                    let place = ["", "-renamed"]
                        .into_iter()
                        .find(|to| path(*i, to).exists());
                    whole(*i, place.expect("neither name is there"));
                }
                Done::Renamed(_, i) if i % 3 == 1 => whole(*i, "-renamed"),
                Done::Renamed(_, i) if is_last => {
                    assert!(!path(*i, "").exists());
                    if path(*i, "-renamed").exists() {
                        whole(*i, "-renamed");
                    }
                }
                Done::Written(..) | Done::Renamed(..) => {}
                Done::Removed(_, i) => {
                    assert!(!path(*i, "").exists() && !path(*i, "-renamed").exists());
                }
            }
        }
        assert!(!mine.is_empty(), "writer {writer} did nothing");
    }
}

/// The kernel sends SIGBUS for pages that are gone.
#[test]
fn a_file_that_is_cut_short_under_its_mount_fails_calls_and_not_the_server() {
    let Some(place) = mounted("64M", "rw") else {
        return;
    };
    fs::write(place.mnt().join("early"), vec![1; 100_000]).unwrap();
    fs::write(place.mnt().join("late"), vec![2; 60 << 20]).unwrap();
    place.must(&["umount", "mnt"]);
    let last_page = |path: &str| {
        let shown = json(&place, &["dump", "--json", "--inode", path, "img"]);
        let runs = shown["pages"].as_array().unwrap().iter();
        runs.map(|run| run["pages"][1].as_u64().unwrap() - 1)
            .max()
            .unwrap()
    };
    let cut = last_page("/late");
    assert!(cut > last_page("/early"), "the other file is cut, too");
    // Nothing of it is in the kernel's cache.
    place.must(&["mount", "img", "mnt"]);
    let pid = server(&place);
    image(&place).set_len(cut * 4096).unwrap();
    let late = fs::read(place.mnt().join("late"));
    assert_eq!(late.unwrap_err().raw_os_error(), Some(5), "EIO, not zeros");
    let write = fs::write(place.mnt().join("new"), "new");
    assert_eq!(write.unwrap_err().raw_os_error(), Some(5));
    // Any word may be zeros: only what is known to be true is shown.
    let early = fs::read(place.mnt().join("early"));
    assert_eq!(early.unwrap_err().raw_os_error(), Some(5));
    assert_eq!(server(&place), pid, "the server lives");
    let stat = json(&place, &["stat", "--json", "mnt"]);
    assert_eq!(
        (&stat["failed_now"], &stat["read_only_now"]),
        (&1.into(), &1.into())
    );
    let words = [
        "not closed cleanly",
        "the persistent memory failed",
        "cut short",
        "restore its full size",
    ];
    refused(&place, 1, &["umount", "mnt"], &words);
    image(&place).set_len(64 << 20).unwrap();
    assert_eq!(state(&place), "needs-recovery");
}

#[test]
fn a_dead_server_of_a_volume_in_memory_took_nothing_along() {
    let Some(place) = mounted("1M", "rw") else {
        return;
    };
    fs::write(place.mnt().join("file"), "never synced").unwrap();
    kill(&place);
    refused(
        &place,
        1,
        &["mount", "img", "mnt"],
        &["server is gone", "steadfast umount"],
    );
    let words = [
        "its server was dead",
        "every call that had returned is durable",
        "mmap",
    ];
    refused(&place, 1, &["umount", "mnt"], &words);
    place.must(&["mount", "img", "mnt"]);
    assert_eq!(
        fs::read_to_string(place.mnt().join("file")).unwrap(),
        "never synced"
    );
    assert_eq!(fs::metadata(place.mnt().join("file")).unwrap().nlink(), 1);
    place.end();
}
