//! Streams of unmodified programs, through a real mount: which stream each process, thread and request belongs to.
//!
//! The control interface returns the operations of a stream, from a volume that counts them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use common::Mount;
use common::streams::{OTHER, Waiting, all_in, as_other, clear, mount, operations, set};
use steadfast_stream::{Error, Place, Settings, Who};

fn looks(m: &Mount) -> u64 {
    let stats = steadfast_fuse::stats(&m.path()).unwrap();
    let found = stats.iter().find(|(name, _)| name == "stream_proc_looks");
    found.unwrap().1
}

#[test]
fn while_there_is_no_stream_no_process_is_looked_at() {
    let Some(m) = mount() else { return };
    fs::create_dir(m.join("d")).unwrap();
    fs::write(m.join("d/f"), "content").unwrap();
    File::open(m.join("d/f")).unwrap().sync_all().unwrap();
    Waiting::new(&m, ": > $D/g; mv $D/g $D/h; rm $D/h").run();
    assert_eq!(looks(&m), 0);
    all_in(&m, "", 5);
    assert_eq!(steadfast_stream::get(&m.path()).unwrap().number, 0);
    // And when the last stream has gone, it is so again.
    let waiting = Waiting::new(&m, ": > $D/i");
    waiting.set(&m, "short");
    waiting.run();
    m.fs.streams.as_ref().unwrap().commit();
    m.eventually("the stream goes", |_| {
        // Each call that sets a stream tidies up.
        set(&m, Who::Thread, "x");
        steadfast_stream::leave(&m.path(), Who::Thread).unwrap();
        m.fs.streams.as_ref().unwrap().commit();
        steadfast_stream::list(&m.path()).unwrap().is_empty()
    });
    let before = looks(&m);
    fs::write(m.join("j"), "content").unwrap();
    assert_eq!(looks(&m), before);
}

#[test]
fn ten_thousand_children_of_one_request_each_have_their_parents_stream() {
    let Some(m) = mount() else { return };
    let script = "i=0; while [ $i -lt 10000 ]; do ( : > $D/f$i ); i=$((i+1)); done";
    let waiting = Waiting::new(&m, script);
    waiting.set(&m, "short");
    waiting.run();
    all_in(&m, "short", 10_000);
}

#[test]
fn orphans_stay_below_a_subreaper_that_has_a_stream() {
    let Some(m) = mount() else { return };
    // This process has the stream, and stays until its tree has gone, as `steadfast stream run` does.
    let own = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(own)).unwrap();
    set(&m, Who::Process, "tree");
    for (at, prefix) in ["", "setsid", "nohup", "setsid nohup"].iter().enumerate() {
        clear(&m);
        let file = |name: &str| m.join(format!("{name}{at}"));
        let wait = format!(
            "while [ -d {} ] && [ ! -e {} ]; do sleep 0.02; done",
            m.path().display(),
            file("go").display()
        );
        let daemon = format!("{wait}; : > {}", file("done").display());
        let status = Command::new("/bin/sh")
            .args(["-c", &format!("( ( {prefix} sh -c '{daemon}' & ) )")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        // Its parents have ended by now.
        fs::write(file("go"), "").unwrap();
        m.eventually("the daemon writes", |_| file("done").exists());
        all_in(&m, "tree", 2);
    }
    steadfast_stream::leave(&m.path(), Who::Process).unwrap();
}

#[test]
fn a_daemon_that_is_decided_stays_when_all_its_ancestors_have_gone() {
    let Some(m) = mount() else { return };
    for (at, prefix) in ["", "setsid", "nohup"].iter().enumerate() {
        clear(&m);
        let file = |name: &str| m.join(format!("{name}{at}"));
        let daemon = format!(
            ": > $D/begun{at}; while [ -d $D ] && [ ! -e $D/go{at} ]; do sleep 0.02; done; : > $D/done{at}"
        );
        let script =
            format!("{prefix} sh -c '{daemon}' & while [ ! -e $D/begun{at} ]; do sleep 0.02; done");
        let waiting = Waiting::of(&m, &script, |command| {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        });
        waiting.set(&m, "daemon");
        waiting.run();
        all_in(&m, "daemon", 1);
        // This process is in the default stream, and makes one file.
        let before = operations(&m)["daemon"];
        fs::write(file("go"), "").unwrap();
        m.eventually("the daemon writes", |_| file("done").exists());
        let found = operations(&m);
        assert!(found["daemon"] > before && found.len() == 2, "{found:?}");
    }
}

#[test]
fn threads_belong_to_their_process_but_for_those_that_set_their_own() {
    let Some(m) = mount() else { return };
    let (tell, told) = mpsc::channel::<()>();
    let (done, wait) = mpsc::channel();
    let file = m.join("before");
    let before = thread::spawn(move || {
        fs::write(&file, "0").unwrap();
        done.send(()).unwrap();
        told.recv().unwrap();
        fs::write(&file, "1").unwrap();
    });
    wait.recv().unwrap();
    assert_eq!(operations(&m).len(), 1, "nothing is set yet");
    clear(&m);
    set(&m, Who::Process, "process");
    tell.send(()).unwrap();
    before.join().unwrap();
    let file = m.join("after");
    let after = thread::spawn(move || fs::write(file, "2").unwrap());
    after.join().unwrap();
    all_in(&m, "process", 3);
    let path = m.path();
    let own = thread::spawn(move || {
        let name = || steadfast_stream::get(&path).unwrap().name.unwrap().0;
        assert_eq!(name(), "process");
        let settings = Settings::default();
        steadfast_stream::set(&path, Who::Thread, "thread", &settings).unwrap();
        assert_eq!(name(), "thread");
        fs::write(path.join("own"), "3").unwrap();
    });
    own.join().unwrap();
    fs::write(m.join("main"), "4").unwrap();
    let found = operations(&m);
    let names: Vec<_> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["process", "thread"]);
    assert_eq!(found["thread"], 2);
    steadfast_stream::leave(&m.path(), Who::Process).unwrap();
    assert_eq!(steadfast_stream::get(&m.path()).unwrap().name, None);
}

#[test]
fn a_stream_outlives_exec_and_its_program_may_move_itself() {
    let Some(m) = mount() else { return };
    let waiting = Waiting::new(&m, "exec sh -c ': > $D/a; exec sh -c \": > $D/b\"'");
    waiting.set(&m, "exec");
    waiting.run();
    all_in(&m, "exec", 2);
}

#[test]
fn a_set_user_id_program_has_its_parents_stream_and_cannot_be_moved_by_its_user() {
    if !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("it takes root");
        return;
    }
    let Some(m) = mount() else { return };
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(m.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for program in ["touch", "sleep"] {
        let copy = dir.path().join(program);
        fs::copy(format!("/usr/bin/{program}"), &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
    }
    clear(&m);
    let waiting = Waiting::of(&m, "$P/touch $D/set-id; : > $D/own", |command| {
        command.env("P", dir.path()).uid(OTHER).gid(OTHER);
    });
    waiting.set(&m, "user's");
    waiting.run();
    all_in(&m, "user's", 2);
    assert_eq!(fs::metadata(m.join("set-id")).unwrap().uid_of(), 0);
    assert_eq!(steadfast_stream::list(&m.path()).unwrap()[0].user, OTHER);

    let start = |program: &str| {
        let mut command = Command::new(program);
        command.arg("1000").uid(OTHER).gid(OTHER).spawn().unwrap()
    };
    let (mut plain, mut set_id) = (
        start("sleep"),
        start(dir.path().join("sleep").to_str().unwrap()),
    );
    // Both run their programs by now: spawn returns after exec.
    let (path, settings) = (m.path(), Settings::default());
    let move_it = |pid| steadfast_stream::set(&path, Who::Pid(pid), "mine", &settings);
    let (own, others) = (plain.id(), set_id.id());
    let (moved, refused) = as_other(|| (move_it(own), move_it(others)));
    let roots = as_other(|| move_it(std::process::id()));
    for child in [&mut plain, &mut set_id] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    moved.unwrap();
    assert!(
        matches!(refused, Err(Error::NotPermitted { .. })),
        "{refused:?}"
    );
    assert!(
        matches!(roots, Err(Error::NotPermitted { .. })),
        "{roots:?}"
    );
}

/// A user that may call sudo(8) for any command, in a mount namespace of its own: nothing changes for the system.
#[test]
fn a_command_of_sudo_is_in_the_stream_of_the_user_who_called_it() {
    if !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("it takes root");
        return;
    }
    if !Path::new("/etc/sudoers").exists() || Command::new("sudo").arg("-V").output().is_err() {
        steadfast_testkit::skipped!("there is no sudo here");
        return;
    }
    let Some(m) = mount() else { return };
    fs::set_permissions(m.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("sudoers");
    // With a terminal of its own, the program runs two processes further down, in another session.
    for (at, terminal) in ["!use_pty", "use_pty"].iter().enumerate() {
        let text = format!("Defaults {terminal}\n#{OTHER} ALL=(ALL) NOPASSWD: ALL\n");
        fs::write(&rules, text).unwrap();
        fs::set_permissions(&rules, fs::Permissions::from_mode(0o440)).unwrap();
        let script = format!(
            "echo ready; read go; sudo -n touch $D/roots{at} || exit 1; \
             sudo -n sh -c \"setsid nohup sh -c ': > $D/deep{at}'; true\" || exit 2; : > $D/own{at}"
        );
        let user = format!(
            "mount --bind {} /etc/sudoers && exec setpriv --reuid={OTHER} --regid={OTHER} \
             --clear-groups sh -c \"$SCRIPT\"",
            rules.display()
        );
        let mut command = Command::new("unshare");
        command
            .args(["-m", "--propagation", "private", "sh", "-c", &user])
            .env("D", m.path())
            .env("SCRIPT", script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        if line != "ready\n" {
            child.wait().unwrap();
            steadfast_testkit::skipped!("no mount namespace can be made here");
            return;
        }
        let waiting = Waiting(child);
        waiting.set(&m, "user's");
        clear(&m);
        waiting.run();
        all_in(&m, "user's", 3);
        for name in ["roots", "deep"] {
            let made = fs::metadata(m.join(format!("{name}{at}"))).unwrap();
            assert_eq!(made.uid_of(), 0);
        }
        let listed = steadfast_stream::list(&m.path()).unwrap();
        assert_eq!((listed.len(), listed[0].user), (1, OTHER));
    }
}

trait UidOf {
    fn uid_of(&self) -> u32;
}

impl UidOf for fs::Metadata {
    fn uid_of(&self) -> u32 {
        std::os::unix::fs::MetadataExt::uid(self)
    }
}

#[test]
fn the_environment_names_a_stream_where_it_is_looked_at() {
    let change = |options: &mut steadfast_fuse::MountOptions| options.stream_environment = true;
    let Some(m) = Mount::with_streams(change) else {
        return;
    };
    let with = |name: &str, script: &str| {
        Waiting::of(&m, script, |command| {
            command.env("STEADFAST_STREAM", name);
        })
    };
    // A daemon, whose parents have gone, has it too.
    with("daemon", "( ( setsid sh -c ': > $D/a; : > $D/done' & ) )").run();
    m.eventually("the daemon writes", |_| m.join("done").exists());
    all_in(&m, "daemon", 2);
    clear(&m);
    // An invalid name is ignored; and a stream that was set comes first.
    with("a/b", ": > $D/b").run();
    all_in(&m, "", 1);
    clear(&m);
    let waiting = with("environment", ": > $D/c");
    waiting.set(&m, "set");
    waiting.run();
    all_in(&m, "set", 1);
}

#[test]
fn a_directory_moves_the_process_that_first_changes_something_below_it() {
    let Some(m) = mount() else { return };
    fs::create_dir_all(m.join("d/e/f")).unwrap();
    fs::write(m.join("d/e/f/old"), "content").unwrap();
    fs::create_dir(m.join("elsewhere")).unwrap();
    let below = m.join("d");
    let place = Place::Directory;
    let settings = Settings::default();
    steadfast_stream::add_rule(&below, &place, "below", &settings).unwrap();
    let rules = steadfast_stream::rules(&m.path()).unwrap();
    let [rule] = &rules[..] else {
        panic!("{rules:?}")
    };
    assert_eq!(rule.name, "below");
    assert_eq!(
        rule.directory.as_ref().unwrap().1.as_deref(),
        Some(Path::new("/d"))
    );

    clear(&m);
    Waiting::new(
        &m,
        ": > $D/elsewhere/a; cat $D/d/e/f/old > /dev/null; : > $D/elsewhere/b",
    )
    .run();
    all_in(&m, "", 2);
    let ways = [
        "echo x >> $D/d/e/f/old",
        ": > $D/d/e/f/new",
        ": > $D/x; mv $D/x $D/d/x; : > $D/y",
        "chmod 600 $D/d/e/f/old",
        "ln $D/elsewhere/a $D/d/e/link",
    ];
    for (at, way) in ways.iter().enumerate() {
        clear(&m);
        Waiting::new(&m, way).run();
        assert!(operations(&m)["below"] >= 1, "{at}: {:?}", operations(&m));
    }
    // Once moved, a process belongs there wherever it works, and its children begin there: that is its order.
    clear(&m);
    Waiting::new(&m, ": > $D/d/s; : > $D/elsewhere/c; ( : > $D/elsewhere/e )").run();
    all_in(&m, "below", 3);
    clear(&m);
    let work = "import os,sys; d=sys.argv[1]\n\
        for f in ['elsewhere/1','d/2','elsewhere/3','elsewhere/4']: os.close(os.open(d+'/'+f,65))";
    let done = Command::new("python3")
        .args(["-c", work])
        .arg(m.path())
        .status();
    assert!(done.unwrap().success());
    let found = operations(&m);
    assert_eq!((found[""], found["below"]), (1, 3));
    // The rule goes, the processes that it moved stay.
    let waiting = Waiting::new(&m, ": > $D/d/p; read go; : > $D/d/q");
    clear(&m);
    let mut waiting = waiting;
    let mut stdin = waiting.0.stdin.take().unwrap();
    writeln!(stdin, "go").unwrap();
    m.eventually("the first file", |_| m.join("d/p").exists());
    steadfast_stream::remove_rule(&below, &place).unwrap();
    assert!(steadfast_stream::rules(&m.path()).unwrap().is_empty());
    assert!(steadfast_stream::remove_rule(&below, &place).is_err());
    writeln!(stdin, "go").unwrap();
    assert!(waiting.0.wait().unwrap().success());
    all_in(&m, "below", 2);
    // Another directory that gets the number of a removed one has not its rule.
    fs::create_dir(m.join("gone")).unwrap();
    steadfast_stream::add_rule(&m.join("gone"), &place, "gone", &settings).unwrap();
    fs::remove_dir(m.join("gone")).unwrap();
    clear(&m);
    Waiting::new(&m, "mkdir $D/new; : > $D/new/f").run();
    all_in(&m, "", 2);
    let not_a_directory = steadfast_stream::add_rule(&m.join("d/p"), &place, "x", &settings);
    assert_eq!(not_a_directory.unwrap_err().errno(), 20);
}

#[test]
fn the_longest_cgroup_decides_when_no_stream_was_set() {
    let Some(m) = mount() else { return };
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(str::to_owned);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mounted = mounts.lines().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        (fields[2] == "cgroup2").then(|| fields[1].to_owned())
    });
    let (Some(own), Some(mounted)) = (own, mounted) else {
        steadfast_testkit::skipped!("there are no cgroups of version 2 here");
        return;
    };
    let name = format!("steadfast-test-{}", std::process::id());
    let above = format!("{}/{name}", own.trim_end_matches('/'));
    let dir = format!("{mounted}{above}");
    if fs::create_dir_all(format!("{dir}/deep/er")).is_err() {
        steadfast_testkit::skipped!("no cgroup can be made here");
        return;
    }
    let _gone = Cgroups(dir.clone());
    let settings = Settings::default();
    let add = |path: &str, name: &str| {
        let place = Place::Cgroup(path.to_owned());
        steadfast_stream::add_rule(&m.path(), &place, name, &settings)
    };
    add(&above, "above").unwrap();
    add(&format!("{above}/deep"), "deep").unwrap();
    for wrong in ["", "x", "/x/", "//", "/.."] {
        assert_eq!(add(wrong, "x").unwrap_err().errno(), 22, "{wrong}");
    }
    let work = |cgroup: &str, set: Option<&str>| {
        clear(&m);
        let waiting = Waiting::new(&m, ": > $D/f; ( : > $D/f )");
        fs::write(format!("{cgroup}/cgroup.procs"), waiting.0.id().to_string()).unwrap();
        if let Some(name) = set {
            waiting.set(&m, name);
        }
        waiting.run();
    };
    work(&dir, None);
    all_in(&m, "above", 1);
    work(&format!("{dir}/deep/er"), None);
    all_in(&m, "deep", 1);
    work(&format!("{dir}/deep"), Some("set"));
    all_in(&m, "set", 1);
    // Removing a rule takes no process out of its stream.
    let mut waiting = Waiting::new(&m, ": > $D/g; read go; : > $D/h");
    fs::write(format!("{dir}/cgroup.procs"), waiting.0.id().to_string()).unwrap();
    clear(&m);
    let mut stdin = waiting.0.stdin.take().unwrap();
    writeln!(stdin, "go").unwrap();
    m.eventually("the first file", |_| m.join("g").exists());
    let shown = steadfast_stream::show(&m.path(), waiting.0.id()).unwrap();
    assert_eq!(shown.because, format!("cgroup {above}"));
    steadfast_stream::remove_rule(&m.path(), &Place::Cgroup(above.clone())).unwrap();
    writeln!(stdin, "go").unwrap();
    assert!(waiting.0.wait().unwrap().success());
    all_in(&m, "above", 2);
}

/// Removes the cgroups of a test.
struct Cgroups(String);

impl Drop for Cgroups {
    fn drop(&mut self) {
        for below in ["/deep/er", "/deep", ""] {
            let _ = fs::remove_dir(format!("{}{below}", self.0));
        }
    }
}

#[test]
fn pages_written_back_join_the_inodes_last_stream() {
    let Some(m) = mount() else { return };
    let mapped = "import mmap,os,sys; sys.stdin.readline(); f=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\n\
        os.ftruncate(f,8192); m=mmap.mmap(f,8192); m[0]=65; m.flush(); print('one',flush=True)\n\
        sys.stdin.readline(); m[4096]=66; m.flush(); m.close()";
    let mut command = Command::new("python3");
    command.args(["-c", mapped]).arg(m.join("f"));
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    set(&m, Who::Pid(child.id()), "mapped");
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin).unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    // Nothing is uncommitted any more: the inode's last stream is still known.
    m.fs.streams.as_ref().unwrap().commit();
    writeln!(stdin).unwrap();
    assert!(child.wait().unwrap().success());
    all_in(&m, "mapped", 4);
}

#[test]
fn all_of_io_uring_belongs_to_the_process_that_made_the_ring() {
    let Some(m) = mount() else { return };
    let engines = [
        "io_uring",
        "io_uring --sqthread_poll=1",
        "libaio",
        "posixaio",
        "mmap",
    ];
    for (at, engine) in engines.iter().enumerate() {
        clear(&m);
        let script = format!(
            "exec fio --name=x --filename=$D/fio{at} --size=64k --bs=4k --rw=randwrite --fsync=4 \
             --iodepth=4 --output=/dev/null --thread --ioengine={engine}"
        );
        let mut waiting = Waiting::of(&m, &script, |command| {
            command.stderr(Stdio::null());
        });
        waiting.set(&m, "fio");
        waiting.go();
        if !waiting.0.wait().unwrap().success() {
            steadfast_testkit::skipped!("fio does not run with {engine} here");
            continue;
        }
        all_in(&m, "fio", 16);
    }
}

#[test]
fn a_loop_device_joins_the_stream_of_its_image() {
    let Some(m) = mount() else { return };
    let waiting = Waiting::new(&m, "truncate -s 1M $D/image");
    waiting.set(&m, "image");
    waiting.run();
    let made = Command::new("losetup")
        .args(["-f", "--show"])
        .arg(m.join("image"))
        .output();
    let device = match made {
        Ok(made) if made.status.success() => {
            String::from_utf8_lossy(&made.stdout).trim().to_owned()
        }
        _ => {
            steadfast_testkit::skipped!("no loop device can be made here");
            return;
        }
    };
    let written = Command::new("dd")
        .args(["if=/dev/zero", &format!("of={device}"), "bs=64k", "count=4"])
        .args(["oflag=direct", "conv=fsync"])
        .stderr(Stdio::null())
        .status();
    let gone = Command::new("losetup").args(["-d", &device]).status();
    assert!(written.unwrap().success() && gone.unwrap().success());
    all_in(&m, "image", 2);
}

#[test]
fn requests_through_overlayfs_belong_to_the_caller() {
    if !rustix::process::geteuid().is_root() {
        steadfast_testkit::skipped!("it takes root");
        return;
    }
    let change = |options: &mut steadfast_fuse::MountOptions| {
        (options.allow_other, options.upper_layer) = (true, true);
    };
    let Some(m) = Mount::with_streams(change) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (lower, merged) = (dir.path().join("lower"), dir.path().join("merged"));
    for made in [&m.join("upper"), &m.join("work"), &lower, &merged] {
        fs::create_dir(made).unwrap();
    }
    fs::write(lower.join("old"), "content").unwrap();
    let (upper, work) = (m.join("upper"), m.join("work"));
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let mounted = Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &layers])
        .arg(&merged)
        .stderr(Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        steadfast_testkit::skipped!("overlayfs cannot be mounted here");
        return;
    }
    let script = ": > $O/new; echo more >> $O/old; rm $O/new; mkdir $O/d";
    let waiting = Waiting::of(&m, script, |command| {
        command.env("O", &merged);
    });
    waiting.set(&m, "above");
    clear(&m);
    let mut child = waiting;
    child.go();
    let ended = child.0.wait();
    let found = operations(&m);
    let gone = Command::new("umount").arg(&merged).status();
    assert!(ended.unwrap().success() && gone.unwrap().success());
    let names: Vec<_> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["above"], "{found:?}");
}
