//! Models against real file systems: these tests need root, FUSE and loop devices, and are skipped without them.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use steadfast_crashtest::check::Checker;
use steadfast_crashtest::effects::{Change, Disk, Node, Run, Step, What};
use steadfast_crashtest::models::Model;
use steadfast_crashtest::real::calibrate::{Calibration, Options, calibrate};
use steadfast_crashtest::real::confirm::{self, Confirmation};
use steadfast_crashtest::real::{Kind, unable};
use steadfast_vfs::FileKind;

fn calibration(fs: Kind, mount: &str, model: &str, cuts: usize) -> Option<Calibration> {
    if let Some(why) = unable(fs) {
        steadfast_testkit::skipped!("{why}");
        return None;
    }
    let options = Options {
        fs,
        mount: mount.to_owned(),
        model: Model::shipped(model).unwrap(),
        cuts,
        seed: 1,
        jobs: 2,
    };
    Some(calibrate(&options, &AtomicBool::new(false), &|_| ()).unwrap())
}

#[test]
fn a_real_ext4_leaves_what_its_model_allows() {
    if let Some(found) = calibration(Kind::Ext4, "", "ext4", 200) {
        assert_eq!(found.violations, [], "{found:#?}");
        assert!(found.cuts >= 150, "{found:#?}");
        assert!(!found.seen.is_empty(), "{found:#?}");
    }
}

#[test]
fn a_model_that_promises_too_much_is_refuted() {
    if let Some(found) = calibration(Kind::Ext4, "", "ordered", 120) {
        assert!(found.forbidden > 0, "{found:#?}");
    }
}

/// The file `f` is replaced by a rename, with no fsync; or it is new.
fn replaced(over: bool) -> Run {
    let mut base = Disk::default();
    if over {
        base.add(2, Node::new(FileKind::Regular, 0o644));
        let name = Arc::from(b"f".as_slice());
        base.apply(&Change::Set {
            dir: 1,
            name,
            ino: 2,
        });
        base.apply(&Change::Data {
            ino: 2,
            offset: 0,
            bytes: vec![b'o'; 5000].into(),
            range: (0, 5000),
        });
        base.apply(&Change::Grow { ino: 2, size: 5000 });
    }
    let tmp = || (1, Arc::from(b"tmp".as_slice()));
    let whats = [
        What::Make {
            at: tmp(),
            ino: 3,
            node: Node::new(FileKind::Regular, 0o644),
        },
        What::Write {
            ino: 3,
            offset: 0,
            bytes: vec![b'n'; 9000].into(),
        },
        What::Close { ino: 3 },
        What::Rename {
            from: tmp(),
            to: (1, Arc::from(b"f".as_slice())),
            exchange: false,
        },
    ];
    let steps = whats.into_iter().zip(0..).map(|(what, number)| Step {
        number,
        what,
        text: String::new(),
        location: None,
        thread: 0,
        stack: 0,
    });
    Run {
        base,
        steps: steps.collect(),
    }
}

const CHECK: &str = "test -e f || exit 0
    n=$(tr -d '\\0' <f | wc -c); [ $n = 5000 ] || [ $n = 9000 ] || { echo empty; exit 1; }";

fn confirmed(fs: Kind, mount: &str, over: bool) -> Option<Confirmation> {
    if let Some(why) = unable(fs) {
        steadfast_testkit::skipped!("{why}");
        return None;
    }
    let checker = Checker::new(None, Some(CHECK.to_owned())).unwrap();
    let options = confirm::Options {
        fs,
        mount: mount.to_owned(),
        cuts: 200,
        seed: 1,
        jobs: 2,
        tree: None,
        checker: Some(&checker),
        line: Some("empty".to_owned()),
    };
    let run = replaced(over);
    Some(confirm::confirm(&run, &options, &AtomicBool::new(false), &|_| ()).unwrap())
}

#[test]
fn a_file_renamed_without_fsync_is_found_empty_on_a_real_ext4_and_xfs() {
    for (fs, mount, over) in [
        (Kind::Ext4, "", false),
        (Kind::Ext4, "noauto_da_alloc", true),
        (Kind::Xfs, "", true),
    ] {
        if let Some(found) = confirmed(fs, mount, over) {
            assert!(found.shown() > 0, "{found:#?}");
            assert_eq!(found.unreadable, 0, "{found:#?}");
            assert!(found.line().contains(": confirmed: "), "{}", found.line());
        }
    }
}
