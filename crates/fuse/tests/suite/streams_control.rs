//! Requests about streams: their effects, and refusals with a reason.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::Mount;
use common::streams::{OTHER, Waiting, as_other, mount, set};
use steadfast_stream::wire::Interval;
use steadfast_stream::{Error, Place, Settings, Who};
use steadfast_vfs::Stream;

fn has_ended(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_stream_of_another_user_is_not_entered_synced_or_changed() {
    if !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("it takes root");
        return;
    }
    let Some(m) = mount() else { return };
    let path = m.path();
    set(&m, Who::Process, "mine");
    let of_root = Settings {
        user: Some(0),
        ignore_fsync: Some(true),
        ..Settings::default()
    };
    as_other(|| {
        let not_permitted = |result| assert!(matches!(result, Err(Error::NotPermitted { .. })));
        not_permitted(steadfast_stream::set(&path, Who::Thread, "mine", &of_root));
        not_permitted(steadfast_stream::alter(&path, "mine", &of_root));
        not_permitted(steadfast_stream::add_rule(
            &path,
            &Place::Cgroup("/x".to_owned()),
            "mine",
            &Settings::default(),
        ));
        not_permitted(steadfast_stream::merges(&path).map(drop));
        assert!(matches!(
            steadfast_stream::sync(&path, "mine", None),
            Err(Error::NoStream { .. })
        ));
        assert!(steadfast_stream::list(&path).unwrap().is_empty());
        let by_number = rustix::fs::getxattr(&path, "system.steadfast.stream.sync.1", &mut [0; 8]);
        assert_eq!(by_number, Err(rustix::io::Errno::PERM));
        // The same name is another stream.
        let settings = Settings::default();
        steadfast_stream::set(&path, Who::Thread, "mine", &settings).unwrap();
        let own = steadfast_stream::list(&path).unwrap();
        assert_eq!((own.len(), own[0].user), (1, OTHER));
    });
    let all = steadfast_stream::list(&path).unwrap();
    assert!(
        all.iter()
            .all(|one| one.name == "mine" && !one.ignore_fsync)
    );
    let user = |one: &steadfast_stream::Listed| one.user;
    assert_eq!(all.iter().map(user).collect::<Vec<_>>(), [0, OTHER]);
    steadfast_stream::sync(&path, "mine", Some(OTHER)).unwrap();
    steadfast_stream::sync(&path, "mine", None).unwrap();
    let synced = m.fs.streams.as_ref().unwrap().syncs.lock().unwrap().clone();
    assert_eq!(synced, [Stream(all[1].number), Stream(all[0].number)]);
    steadfast_stream::leave(&path, Who::Process).unwrap();
}

#[test]
fn bad_names_and_unknown_processes_are_refused_and_change_nothing() {
    let Some(m) = mount() else { return };
    let path = m.path();
    let set = |who, name: &str| steadfast_stream::set(&path, who, name, &Settings::default());
    for name in ["", "a/b", "a\nb", &"x".repeat(256)] {
        assert!(
            matches!(set(Who::Process, name), Err(Error::Name { .. })),
            "{name}"
        );
    }
    // The server refuses them as well.
    let raw = |bytes: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&path, "system.steadfast.stream", bytes, flags)
    };
    let message = steadfast_stream::wire::Message {
        name: "ok".to_owned(),
        ..Default::default()
    };
    let good = message.encode();
    for name in [&b""[..], b"a/b\0", b"\xff\0", &[b'x'; 256]] {
        let mut bytes = good;
        bytes[32..34].fill(0);
        bytes[32..32 + name.len()].copy_from_slice(name);
        assert_eq!(raw(&bytes), Err(rustix::io::Errno::INVAL), "{name:?}");
    }
    for bytes in [&good[..287], &[&good[..], b"x"].concat(), b"", &[0xff; 288]] {
        assert_eq!(raw(bytes), Err(rustix::io::Errno::INVAL));
    }
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    assert!(has_ended(child.id()));
    for dead in [0, child.id(), u32::MAX, 1 << 30] {
        let refused = set(Who::Pid(dead), "x");
        assert!(
            matches!(refused, Err(Error::Process { .. })),
            "{dead}: {refused:?}"
        );
        let refused = steadfast_stream::show(&path, dead);
        assert!(
            matches!(refused, Err(Error::Process { .. })),
            "{dead}: {refused:?}"
        );
    }
    if let Some(kernel) = kernel_thread() {
        let refused = set(Who::Pid(kernel), "x");
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("thread of the kernel"), "{text}");
    }
    for name in [
        "stream.show.x",
        "stream.list",
        "stream.list.",
        "stream.nothing",
        "stream.sync.x",
    ] {
        let asked = rustix::fs::getxattr(&path, format!("system.steadfast.{name}"), &mut [0; 64]);
        assert_eq!(asked, Err(rustix::io::Errno::OPNOTSUPP), "{name}");
    }
    assert!(matches!(
        steadfast_stream::sync(&path, "nobody's", None),
        Err(Error::NoStream { .. })
    ));
    assert!(matches!(
        steadfast_stream::alter(&path, "nobody's", &Settings::default()),
        Err(Error::NoStream { .. })
    ));
    assert!(steadfast_stream::list(&path).unwrap().is_empty());
    assert_eq!(steadfast_stream::get(&path).unwrap().number, 0);
}

/// `kthreadd`, where this namespace shows it.
fn kernel_thread() -> Option<u32> {
    let comm = fs::read_to_string("/proc/2/comm").ok()?;
    (comm.trim() == "kthreadd").then_some(2)
}

#[test]
fn at_the_limit_of_streams_a_process_stays_where_it_was() {
    let Some(m) = mount() else { return };
    let streams = m.fs.streams.as_ref().unwrap();
    streams.keep.store(true, SeqCst);
    let path = m.path();
    let set = |name: &str| steadfast_stream::set(&path, Who::Thread, name, &Settings::default());
    for i in 0..4096 {
        set(&i.to_string()).unwrap();
    }
    assert_eq!(steadfast_stream::list(&path).unwrap().len(), 4096);
    let refused = set("more");
    assert!(matches!(refused, Err(Error::TooMany { .. })), "{refused:?}");
    assert_eq!(refused.unwrap_err().errno(), 11);
    let name = || steadfast_stream::get(&path).unwrap().name.unwrap().0;
    assert_eq!(name(), "4095");
    streams.keep.store(false, SeqCst);
    set("more").unwrap();
    assert_eq!(name(), "more");
    m.eventually("idle streams go", |_| {
        set("again").unwrap();
        set("more").unwrap();
        steadfast_stream::list(&path).unwrap().len() < 20
    });
}

#[test]
fn a_volume_without_streams_says_why() {
    let Some(m) = Mount::new(|_| {}) else { return };
    let path = m.path();
    let refused = steadfast_stream::available(&path);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("one order for the whole volume"), "{text}");
    let refused = steadfast_stream::set(&path, Who::Process, "x", &Settings::default());
    assert!(
        matches!(refused, Err(Error::Unavailable { .. })),
        "{refused:?}"
    );
    assert!(matches!(
        steadfast_stream::list(&path),
        Err(Error::Unavailable { .. })
    ));
    let refused = steadfast_stream::available("/proc".as_ref());
    assert!(
        matches!(refused, Err(Error::NoServer { .. })),
        "{refused:?}"
    );
    let with = Mount::with_streams(|_| {}).unwrap();
    steadfast_stream::available(&with.path()).unwrap();
}

#[test]
fn a_stream_that_ignores_syncs_commits_for_others_when_asked_and_reports_failure() {
    if !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("it takes root");
        return;
    }
    let Some(m) = mount() else { return };
    let path = m.path();
    let file = File::create(m.join("f")).unwrap();
    let shared = m.join("shared");
    fs::write(&shared, "").unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o666)).unwrap();
    let settings = Settings {
        ignore_fsync: Some(true),
        interval: Interval::Every(Duration::from_millis(1500)),
        ..Settings::default()
    };
    steadfast_stream::set(&path, Who::Process, "fast", &settings).unwrap();
    let listed = &steadfast_stream::list(&path).unwrap()[0];
    assert!(listed.ignore_fsync);
    assert_eq!(listed.interval, settings.interval);
    let stream = Stream(listed.number);
    let recorded = m.fs.streams.as_ref().unwrap();
    let told = recorded.intervals.lock().unwrap().clone();
    assert_eq!(told, [(stream, Some(Duration::from_millis(1500)))]);

    let synchronous = |name: &str| {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = File::options();
        options.write(true).create(true).custom_flags(0o4010000);
        options.open(m.join(name)).unwrap()
    };
    let before = m.fs.fsyncs.load(SeqCst);
    file.write_at(b"x", 0).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    synchronous("new, written directly")
        .write_at(b"x", 0)
        .unwrap();
    synchronous("f").write_at(b"x", 0).unwrap();
    let mapped = "import mmap,os,sys; f=os.open(sys.argv[1],os.O_RDWR); \
        m=mmap.mmap(f,1); m[0]=65; m.flush(); m.close()";
    let child = Command::new("python3")
        .args(["-c", mapped])
        .arg(m.join("f"))
        .status();
    assert!(child.unwrap().success());
    assert_eq!(m.fs.fsyncs.load(SeqCst), before, "nothing was committed");

    // fsync by a user that does not own the stream still commits.
    as_other(|| {
        File::options()
            .write(true)
            .open(&shared)
            .unwrap()
            .sync_all()
            .unwrap();
    });
    assert_eq!(m.fs.fsyncs.load(SeqCst), before + 1);
    // So does a request to sync the stream.
    steadfast_stream::sync_own(&path).unwrap();
    steadfast_stream::sync(&path, "fast", None).unwrap();
    assert_eq!(*recorded.syncs.lock().unwrap(), [stream, stream]);
    steadfast_fuse::sync(&path).unwrap();
    assert_eq!(m.fs.syncs.load(SeqCst), 1);

    *m.fs.failed.lock().unwrap() = Some("the device is gone".to_owned());
    assert!(file.sync_all().is_err() && file.sync_data().is_err());
    *m.fs.failed.lock().unwrap() = None;

    let heard = Settings {
        ignore_fsync: Some(false),
        interval: Interval::Volume,
        user: None,
    };
    steadfast_stream::alter(&path, "fast", &heard).unwrap();
    file.sync_all().unwrap();
    assert_eq!(m.fs.fsyncs.load(SeqCst), before + 2);
    assert_eq!(
        recorded.intervals.lock().unwrap().last(),
        Some(&(stream, None))
    );
    steadfast_stream::leave(&path, Who::Process).unwrap();
}

#[test]
fn under_the_mount_option_sync_a_stream_that_ignores_syncs_is_durable_all_the_same() {
    let Some(m) = Mount::with_streams(|options| options.sync = true) else {
        return;
    };
    let settings = Settings {
        ignore_fsync: Some(true),
        ..Settings::default()
    };
    steadfast_stream::set(&m.path(), Who::Thread, "fast", &settings).unwrap();
    let file = File::create(m.join("f")).unwrap();
    let before = m.fs.fsyncs.load(SeqCst);
    file.write_at(b"x", 0).unwrap();
    assert!(m.fs.fsyncs.load(SeqCst) > before);
}

#[test]
fn a_stream_is_shown_as_it_is_known() {
    let Some(m) = mount() else { return };
    let path = m.path();
    let mut waiting = Waiting::new(&m, "( : > $D/f; : )");
    waiting.set(&m, "shown");
    let shown = steadfast_stream::show(&path, waiting.0.id()).unwrap();
    assert_eq!(shown.because, "process");
    assert_eq!(shown.name.unwrap().0, "shown");
    let own = steadfast_stream::show(&path, std::process::id()).unwrap();
    assert_eq!(
        (own.number, own.because.as_str(), own.name),
        (0, "default", None)
    );
    let merges = steadfast_stream::merges(&path).unwrap();
    assert_eq!(merges.len(), steadfast_vfs::MERGES_KEPT);
    assert_eq!(merges[0].cause, "index block");
    assert_eq!(merges[0].inode, Some(12));
    let at: &[u8] =
        std::os::unix::ffi::OsStrExt::as_bytes(merges[0].path.as_ref().unwrap().as_os_str());
    assert_eq!(at, b"/a\tb/\xff");
    fs::create_dir(m.join("dir")).unwrap();
    fs::write(m.join("dir/file"), "content").unwrap();
    let recorded = m.fs.streams.as_ref().unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(m.join("dir/file")).unwrap());
    *recorded.merged.lock().unwrap() = Some(inode);
    let last = steadfast_stream::merges(&path).unwrap().pop().unwrap();
    assert_eq!(last.path.as_deref(), Some(Path::new("/dir/file")));
    assert_eq!(merges[0].streams[0].name.as_ref().unwrap().0, "shown");
    waiting.go();
    waiting.0.wait().unwrap();
    let listed = steadfast_stream::list(&path).unwrap();
    assert_eq!((listed[0].name.as_str(), listed[0].members), ("shown", 0));
    let names = steadfast_fuse::stats(&path).unwrap();
    assert!(
        names
            .iter()
            .any(|(name, value)| name == "stream_streams_now" && *value == 1)
    );
}
