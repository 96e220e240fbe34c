//! A state that is served looks like the same state in a directory, also what the kernel has cached of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::check::{Checker, Verdict};
use crate::effects::{Disk, Effects, Run};
use crate::models::Model;
use crate::script::Script;
use std::path::Path;

/// The tree after the run.
fn disk(run: &Run) -> Disk {
    let effects = Effects::new(run, &Model::shipped("sync").unwrap());
    effects.disk(&effects.prefix(effects.steps()))
}

fn output(verdict: Verdict) -> String {
    match verdict {
        Verdict::Broken { output, .. } => output,
        other => panic!("{other:?}"),
    }
}

/// Whether a state can be served to a checker here.
fn can_serve() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists()
}

/// The check's output in a state that is served, which is the one in the same state in a directory.
fn same(checker: &Checker, disk: &Disk) -> String {
    let laid_out = output(checker.judge(disk, &[], &[]).unwrap());
    let served = output(checker.judge_served(disk, &[], &[]).unwrap());
    assert_eq!(served, laid_out);
    served
}

#[test]
fn attributes_that_are_asked_for_again_and_again_follow_the_changes_of_the_check() {
    if !can_serve() {
        steadfast_testkit::skipped!("no state can be served here");
        return;
    }
    let run = Script::new()
        .make("f")
        .write("f", 0, &[b'x'; 9000])
        .mkdir("d")
        .make("d/a")
        .write("d/a", 0, b"a")
        .make("g")
        .run();
    // Each change is made when the attributes were asked for several times.
    let check = r#"
        show() {
            for again in 1 2 3; do
                stat -c '%n %F %a %u %g %h' . d
                find . -type f | sort | xargs stat -c '%n %F %s %a %u %g %h'
            done
        }
        show
        echo more >>f; show
        printf y | dd of=f bs=1 seek=20000 conv=notrunc 2>/dev/null; show
        truncate -s 5 f; show
        : >f; show
        ln f d/f; show
        mkdir e d/e; show
        mv d/a e/a; show
        mv d/e e/e; show
        mv g e/a; show
        rm d/f; show
        chmod 600 f; chmod 750 . d; show
        chown 1:2 f d; show
        rmdir e/e; rm -r d; show
        dd if=/dev/zero of=new bs=100 count=3 2>/dev/null; show
        python3 -c 'import mmap, os
file = os.open("new", os.O_RDWR)
os.posix_fallocate(file, 0, 5000)
with mmap.mmap(file, 5000) as pages: pages[4000:4003] = b"end"
'; show; cksum new
        exit 1"#;
    let checker = Checker::new(None, Some(check.to_owned())).unwrap();
    let said = same(&checker, &disk(&run));
    for line in [
        "./f regular file 9000 755 0 0 1",
        "./f regular file 20001 755 0 0 1",
        "./f regular empty file 0 600 1 2 1",
        ". directory 750 0 0 3",
        "./new regular file 5000 644 0 0 1",
    ] {
        assert!(said.lines().any(|l| l == line), "{line}: {said}");
    }
}

#[test]
fn nothing_cached_of_one_state_is_shown_in_the_next() {
    if !can_serve() {
        steadfast_testkit::skipped!("no state can be served here");
        return;
    }
    let script = || Script::new().make("f").write("f", 0, b"1");
    let states = [
        script().run(),
        script().mkdir("d").chmod(".", 0o711).run(),
        script().chmod("f", 0o600).chmod(".", 0o700).run(),
        script().mkdir("d").mkdir("e").write("f", 1, b"2").run(),
        Script::new().run(),
    ];
    let check = "for again in 1 2 3; do stat -c '%n %F %a %h' .; ls; stat -c '%n %s %a' f; cat f; done 2>&1; exit 1";
    let checker = Checker::new(None, Some(check.to_owned())).unwrap();
    // Twice, since a mount serves one after the other.
    let mut all: Vec<String> = Vec::new();
    for run in states.iter().chain(&states) {
        all.push(same(&checker, &disk(run)));
    }
    assert_eq!(all[..states.len()], all[states.len()..]);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), states.len(), "they differ");
}
