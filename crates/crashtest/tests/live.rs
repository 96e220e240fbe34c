//! Live mounts: these tests need root and FUSE, and are skipped without them.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use steadfast_crashtest::live::faults::Rule;
use steadfast_crashtest::live::socket::{Listener, ask};
use steadfast_crashtest::live::{Answer, Request, Session};
use steadfast_crashtest::models::Model;

struct Live {
    session: Arc<Session>,
    listener: Option<Listener>,
    mnt: PathBuf,
    _place: tempfile::TempDir,
}

impl Live {
    fn new(model: &str) -> Option<Live> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            steadfast_testkit::skipped!("live mounts need root and FUSE");
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        let (dir, mnt) = (place.path().join("dir"), place.path().join("mnt"));
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&mnt).unwrap();
        fs::write(dir.join("seed"), "seed").unwrap();
        let model = Model::shipped(model).unwrap();
        let session = Arc::new(Session::mount(&dir, &mnt, model).unwrap());
        let listener = Listener::new(&mnt, &session).unwrap();
        Some(Live {
            session,
            listener: Some(listener),
            mnt,
            _place: place,
        })
    }

    fn ask(&self, request: &Request) -> Answer {
        let answer = ask(&self.mnt, request).unwrap();
        assert_eq!(answer.error, None, "{request:?}");
        answer
    }

    fn cut(&self, policy: &str) -> Answer {
        self.ask(&Request::Cut {
            policy: Some(policy.to_owned()),
            seed: Some(7),
        })
    }

    fn names(&self) -> Vec<String> {
        let all = fs::read_dir(&self.mnt).unwrap();
        let mut names: Vec<String> = all
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.session.answer(Request::Stop);
        let _ = self.session.wait(&AtomicBool::new(true));
    }
}

fn synced(path: &Path, text: &str) {
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_mount_may_follow_the_answer_to_a_stop() {
    let Some(mut live) = Live::new("ext4") else {
        return;
    };
    // Once, the socket stayed until the process had ended, and the next mount was refused.
    live.ask(&Request::Stop);
    let dir = live.mnt.with_file_name("dir");
    let model = Model::shipped("posix").unwrap();
    let next = Arc::new(Session::mount(&dir, &live.mnt, model).unwrap());
    let _listener = Listener::new(&live.mnt, &next).unwrap();
    // The end of the last one leaves the socket of the next one.
    live.listener = None;
    assert_eq!(live.ask(&Request::Status).model, "posix");
    live.ask(&Request::Stop);
}

#[test]
fn after_a_cut_every_call_fails_and_power_on_shows_what_survived() {
    let Some(live) = Live::new("ext4") else {
        return;
    };
    synced(&live.mnt.join("kept"), "kept");
    fs::write(live.mnt.join("lost"), "lost").unwrap();
    let held = File::open(live.mnt.join("kept")).unwrap();
    let status = live.ask(&Request::Status);
    let lost: Vec<&str> = status.not_durable.iter().map(|v| v.path.as_str()).collect();
    assert_eq!(lost, ["lost", "lost", "lost"], "{status:?}");
    let cut = live.cut("durable");
    assert!(
        !cut.on && cut.lost == cut.pending && cut.lost_bytes == 4,
        "{cut:?}"
    );
    assert!(fs::read(live.mnt.join("kept")).is_err());
    assert!(fs::read_dir(&live.mnt).is_err());
    assert!(fs::write(live.mnt.join("new"), "").is_err());
    assert!(held.sync_all().is_err());
    live.ask(&Request::PowerOn);
    assert_eq!(live.names(), ["kept", "seed"]);
    assert_eq!(fs::read(live.mnt.join("kept")).unwrap(), b"kept");
    // The worst that ext4 allows: name and size, and no data.
    fs::write(live.mnt.join("new"), "data").unwrap();
    live.cut("worst");
    live.ask(&Request::PowerOn);
    assert_eq!(fs::read(live.mnt.join("new")).unwrap(), [0; 4]);
}

#[test]
fn an_fsync_fails_once_and_its_data_is_gone_after_the_next_one_succeeded() {
    let Some(live) = Live::new("ext4") else {
        return;
    };
    fs::create_dir(live.mnt.join("wal")).unwrap();
    let path = live.mnt.join("wal/1");
    synced(&path, "one");
    live.ask(&Request::Fail(Rule {
        call: Some("fsync".to_owned()),
        path: Some("wal/*".to_owned()),
        errno: Some("EIO".to_owned()),
        nth: Some(1),
        then: Some("drop".to_owned()),
        ..Rule::default()
    }));
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"two").unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(5));
    file.sync_all().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"onetwo");
    live.cut("worst");
    live.ask(&Request::PowerOn);
    assert_eq!(fs::read(&path).unwrap(), b"one");
}

#[test]
fn disks_are_full_writes_are_short_and_syncs_are_ignored_when_asked() {
    let Some(live) = Live::new("posix") else {
        return;
    };
    let rule = |rule: Rule| {
        live.ask(&Request::Heal);
        live.ask(&Request::Fail(rule));
    };
    rule(Rule {
        errno: Some("ENOSPC".to_owned()),
        after: Some(10),
        ..Rule::default()
    });
    let mut file = File::create(live.mnt.join("a")).unwrap();
    assert_eq!(file.write(b"12345678").unwrap(), 8);
    assert_eq!(file.write(b"12345678").unwrap(), 2);
    assert_eq!(file.write(b"1").unwrap_err().raw_os_error(), Some(28));
    rule(Rule {
        how: Some("ignored".to_owned()),
        ..Rule::default()
    });
    synced(&live.mnt.join("b"), "b");
    File::open(&live.mnt).unwrap().sync_all().unwrap();
    live.cut("durable");
    live.ask(&Request::PowerOn);
    assert_eq!(live.names(), ["seed"]);
}

#[test]
fn wrong_requests_are_answered_with_what_is_wrong() {
    let Some(live) = Live::new("xfs") else {
        return;
    };
    for request in [
        Request::PowerOn,
        Request::Fail(Rule::default()),
        Request::Cut {
            policy: Some("odd".to_owned()),
            seed: None,
        },
    ] {
        let answer = ask(&live.mnt, &request).unwrap();
        assert!(
            answer.error.is_some() && answer.on,
            "{request:?}: {answer:?}"
        );
    }
    live.cut("durable");
    let again = Request::Cut {
        policy: None,
        seed: None,
    };
    let answer = ask(&live.mnt, &again).unwrap();
    assert!(answer.error.unwrap().contains("power is off"));
}

#[test]
fn direct_writes_and_stores_through_mmap_are_seen_by_each_other_and_by_a_cut() {
    let Some(live) = Live::new("ext4") else {
        return;
    };
    let script = "import mmap, os\n\
        f = os.open('f', os.O_CREAT | os.O_RDWR | os.O_DIRECT)\n\
        page = mmap.mmap(-1, 8192)\n\
        page.write(b'd' * 8192)\n\
        assert os.write(f, page) == 8192\n\
        m = mmap.mmap(f, 8192)\n\
        assert m[:4] == b'dddd'\n\
        m[0:4] = b'mmap'\n\
        m.flush()\n\
        assert os.pread(f, 6, 0) == b'mmapdd'\n\
        os.fsync(f)\n\
        m[4096:4100] = b'late'\n\
        m.flush()\n\
        page.seek(0)\n\
        assert os.pwrite(f, page, 8192) == 8192\n";
    let mut python = std::process::Command::new("python3");
    let status = python.args(["-c", script]).current_dir(&live.mnt).status();
    assert!(status.unwrap().success());
    let cut = live.cut("durable");
    assert!(cut.lost_bytes >= 8192, "{cut:?}");
    live.ask(&Request::PowerOn);
    let mut expected = b"mmap".to_vec();
    expected.resize(8192, b'd');
    // msync syncs the file.
    expected[4096..4100].copy_from_slice(b"late");
    assert!(fs::read(live.mnt.join("f")).unwrap() == expected);
}
