//! Every operation runs on a mounted volume and on an ext4 beside it: the results are the same, and so are the
//! changes of every file's attributes. Differences are listed with their reasons.
//!
//! Both directories are filled alike, with all times in 2001; each operation has a directory of its own, so that one pause
//! parts the filling from the operations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;
use crate::table;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::Place;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

/// All times before the operation.
const OLD: i64 = 1_000_000_000;
/// Longer than a tick of any clock that file systems stamp with.
const PAUSE: Duration = Duration::from_millis(30);

/// Differences from ext4: operation, result here, reason. (steadfast(7) lists them for users.)
const KNOWN: [(&str, &str, &str); 9] = [
    (
        "read behind the end",
        "0",
        "the kernel knows the size and does not ask",
    ),
    (
        "write to and read from a pipe",
        "7",
        "the kernel keeps the pipe to itself",
    ),
    (
        "set an access control list",
        "[file: c=now][hard: c=now]",
        "a list that says what the mode says is a change of attributes, too",
    ),
    (
        "open without a name",
        "Operation not supported (os error 95)",
        "O_TMPFILE is not offered",
    ),
    (
        "collapse a range",
        "Operation not supported (os error 95)",
        "not offered",
    ),
    (
        "insert a range",
        "Operation not supported (os error 95)",
        "not offered",
    ),
    (
        "chown to nobody in particular",
        "",
        "the request that comes of it asks for no change; POSIX wants none",
    ),
    (
        "chown by another to nobody in particular",
        "",
        "as before; ext4 refuses because it would clear set-id bits",
    ),
    (
        "setxattr to the same",
        "[other: c=now]",
        "ext4 alone takes it for no change; XFS and tmpfs do as here",
    ),
];

/// State of one file that an operation may change.
#[derive(PartialEq, Eq, Clone)]
struct State {
    mode: u32,
    nlink: u64,
    owner: (u32, u32),
    size: u64,
    rdev: u64,
    atime: (i64, i64),
    mtime: (i64, i64),
    ctime: (i64, i64),
}

fn state(path: &Path) -> Option<State> {
    let found = fs::symlink_metadata(path).ok()?;
    Some(State {
        mode: found.mode(),
        nlink: found.nlink(),
        owner: (found.uid(), found.gid()),
        // The size of a directory has no meaning.
        size: if found.is_dir() { 0 } else { found.size() },
        rdev: found.rdev(),
        atime: (found.atime(), found.atime_nsec()),
        mtime: (found.mtime(), found.mtime_nsec()),
        ctime: (found.ctime(), found.ctime_nsec()),
    })
}

type States = BTreeMap<PathBuf, State>;

/// Adds everything below `path` that is not known yet; each inode is examined before it is read.
fn collect(base: &Path, path: &Path, into: &mut States) {
    let Some(found) = state(path) else { return };
    let is_dir = found.mode & 0o170_000 == 0o040_000;
    let name = path.strip_prefix(base).unwrap().to_owned();
    into.entry(name).or_insert(found);
    if is_dir {
        for entry in fs::read_dir(path).unwrap() {
            collect(base, &entry.unwrap().path(), into);
        }
    }
}

/// The state now; what existed before is examined first, and no directory read for it.
fn look(base: &Path, known: &States) -> States {
    let again = |name: &PathBuf| Some((name.clone(), state(&base.join(name))?));
    let mut states: States = known.keys().filter_map(again).collect();
    collect(base, base, &mut states);
    states
}

/// The differences, in words that do not depend on the clock.
fn changes(before: &States, after: &States, atimes: bool, began: i64) -> String {
    let mut text = String::new();
    let time = |now: (i64, i64)| match now {
        // The clock of file times advances in ticks: it may lag behind, into the last second.
        (secs, _) if secs >= began - 1 && secs <= began + 60 => "now".to_owned(),
        (secs, nanos) => format!("{secs}.{nanos:09}"),
    };
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        let _ = write!(text, "[-{}]", name.display());
    }
    for (name, new) in after {
        let mut words = Vec::new();
        match before.get(name) {
            None => words.push(format!(
                "new {:o} {} {:?} {} {} a={} m={} c={}",
                new.mode,
                new.nlink,
                new.owner,
                new.size,
                new.rdev,
                time(new.atime),
                time(new.mtime),
                time(new.ctime)
            )),
            Some(old) => {
                if new.mode != old.mode {
                    words.push(format!("mode {:o}", new.mode));
                }
                if new.nlink != old.nlink {
                    words.push(format!("nlink {}", new.nlink));
                }
                if new.owner != old.owner {
                    words.push(format!("owner {:?}", new.owner));
                }
                if new.size != old.size {
                    words.push(format!("size {}", new.size));
                }
                if atimes && new.atime != old.atime {
                    words.push(format!("a={}", time(new.atime)));
                }
                if new.mtime != old.mtime {
                    words.push(format!("m={}", time(new.mtime)));
                }
                if new.ctime != old.ctime {
                    words.push(format!("c={}", time(new.ctime)));
                }
            }
        }
        if !words.is_empty() {
            let _ = write!(text, "[{}: {}]", name.display(), words.join(" "));
        }
    }
    text
}

/// Sets all times to 2001. Returns the state then.
fn age(base: &Path) -> States {
    let old = Timespec {
        tv_sec: OLD,
        tv_nsec: 5,
    };
    let times = Timestamps {
        last_access: old,
        last_modification: old,
    };
    let mut states = States::new();
    collect(base, base, &mut states);
    for name in states.keys().rev() {
        utimensat(CWD, base.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    // If a file has two names, the change by the second one also changed what was seen of the first.
    for (name, state) in &mut states {
        *state = self::state(&base.join(name)).unwrap();
    }
    states
}

fn now() -> i64 {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64
}

/// Results and changes of each operation in `base`.
fn run(base: &Path, atimes: bool) -> Vec<(&'static str, String)> {
    let rows = table::rows();
    let place = |index: usize| base.join(format!("{index:03}"));
    let mut before = Vec::new();
    for index in 0..rows.len() {
        table::fill(&place(index));
        before.push(age(&place(index)));
    }
    std::thread::sleep(PAUSE);
    let mut results = Vec::new();
    for (index, (name, act)) in rows.into_iter().enumerate() {
        let dir = place(index);
        let began = now();
        let said = match act(&dir) {
            Ok(said) => said,
            Err(e) => e.to_string(),
        };
        let after = look(&dir, &before[index]);
        let changed = changes(&before[index], &after, atimes, began);
        results.push((name, format!("{said} {changed}")));
    }
    results
}

/// An ext4 mounted at `ext4` in the place.
struct Reference(PathBuf);

impl Reference {
    fn new(place: &Place, options: &str) -> Option<Reference> {
        let dir = place.path().join("ext4");
        fs::create_dir(&dir).unwrap();
        let script = format!(
            "PATH=$PATH:/usr/sbin:/sbin; truncate -s 256M ext4.img && mkfs.ext4 -q -F -b 4096 -N 20000 ext4.img && mount -o loop,{options} ext4.img ext4"
        );
        let made = place.command("sh", &["-c", &script]);
        if !made.status.success() {
            steadfast_testkit::skipped!("no ext4 to compare with: {}", common::said(&made));
            return None;
        }
        Some(Reference(dir))
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn compare(contract: &str, options: &str, atimes: bool) {
    let Some(place) = Place::new() else { return };
    place.must(&["mkfs", "--force", "--contract", contract, "img"]);
    let all = format!("allow_other,dev,suid,{options}");
    place.must(&["mount", "-o", &all, "img", "mnt"]);
    let Some(reference) = Reference::new(&place, options) else {
        return;
    };
    let theirs = run(&reference.0, atimes);
    let ours = run(&place.mnt(), atimes);
    let mut wrong = String::new();
    let mut seen = 0;
    for ((name, theirs), (_, ours)) in theirs.iter().zip(&ours) {
        if ours == theirs {
            continue;
        }
        let expected = KNOWN.iter().find(|(row, ..)| row == name);
        if expected.is_some_and(|(_, expected, _)| ours.trim() == *expected) {
            seen += 1;
        } else {
            let _ = write!(wrong, "{name}\n  ext4: {theirs}\n  here: {ours}\n");
        }
    }
    if atimes {
        assert_eq!(seen, KNOWN.len(), "a difference has gone");
    }
    assert!(wrong.is_empty(), "{contract}, with {options}:\n{wrong}");
    drop(reference);
    if !atimes {
        // A new mount shows all of it as before.
        let mut before = States::new();
        collect(&place.mnt(), &place.mnt(), &mut before);
        place.must(&["umount", "mnt"]);
        place.must(&["mount", "-o", "allow_other,dev,suid", "img", "mnt"]);
        let mut after = States::new();
        collect(&place.mnt(), &place.mnt(), &mut after);
        for (name, state) in &before {
            assert!(
                after.get(name) == Some(state),
                "{} has changed by a new mount",
                name.display()
            );
        }
        assert_eq!(before.len(), after.len());
    }
    place.end();
}

#[test]
fn operations_give_and_change_the_same_as_on_ext4() {
    compare("metadata-prefix", "noatime", false);
    if std::env::var_os("STEADFAST_LONG").is_some() {
        compare("ordered", "noatime", false);
        compare("sync", "noatime", false);
        compare("sync", "relatime", true);
    }
}

#[test]
fn operations_give_and_change_the_same_as_on_ext4_with_access_times() {
    compare("ordered", "relatime", true);
}
