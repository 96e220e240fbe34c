//! Events that would end a server in the middle of its work, and the messages after such an end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Output;
use std::time::Duration;

use common::{PROGRAM, Place, said};
use rustix::process::{Pid, Signal, kill_process};

/// Runs a shell script here; $STEADFAST is the program.
fn script(place: &Place, text: &str) -> Output {
    place.command("sh", &["-ec", &format!("STEADFAST={PROGRAM}\n{text}")])
}

fn server(place: &Place) -> Pid {
    let pid = steadfast_fuse::server_pid(&place.mnt()).unwrap();
    Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

fn kill(place: &Place) {
    kill_process(server(place), Signal::KILL).unwrap();
    while fs::metadata(place.mnt()).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Once, the server died of SIGXFSZ at the first block beyond the limit, silently, and everything since the last
/// commit was lost.
#[test]
fn limits_of_the_starters_shell_do_not_end_the_server() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    let output = script(
        &place,
        "ulimit -Sf 16; ulimit -Sn 16; ulimit -St 3600
         $STEADFAST mount img mnt",
    );
    assert!(output.status.success(), "{}", said(&output));
    let pid = server(&place).as_raw_nonzero();
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    for name in ["Max file size", "Max cpu time"] {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        assert_eq!(line.matches("unlimited").count(), 2, "{line}");
    }
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let numbers: Vec<&str> = files.unwrap().split_whitespace().skip(3).collect();
    assert_eq!(numbers[0], numbers[1], "the soft limit is the hard one");
    fs::write(place.mnt().join("file"), vec![7; 20 << 20]).unwrap();
    place.must(&["sync", "mnt"]);
    assert_eq!(
        fs::read(place.mnt().join("file")).unwrap(),
        vec![7; 20 << 20]
    );
    place.end();
}

#[test]
fn a_limit_that_stays_is_no_surprise() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    let limited = |options: &str| {
        let text = format!(
            "setpriv --version >/dev/null || exit 77
             exec setpriv --bounding-set -sys_resource sh -c 'ulimit -f 16; ulimit -v 100000000; $0 mount {options} img mnt' \
             $STEADFAST"
        );
        script(&place, &text)
    };
    let output = limited("");
    if output.status.code() == Some(77) {
        return steadfast_testkit::skipped!("no setpriv here");
    }
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("(ulimit -f)"), "{}", said(&output));
    // A read-only mount writes nothing.
    let output = limited("-o ro");
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("(ulimit -v)"), "{}", said(&output));
    place.end();
}

#[test]
fn nothing_is_lost_with_the_server_of_a_read_only_mount() {
    let _alone = common::alone();
    let Some(place) = Place::mounted("ro") else {
        return;
    };
    kill(&place);
    let said = place.must(&["umount", "mnt"]);
    assert!(
        said.contains("server was dead") && said.contains("nothing is lost"),
        "{said}"
    );
}

#[test]
fn lazily_and_by_force() {
    let _alone = common::alone();
    let Some(place) = Place::mounted("rw") else {
        return;
    };
    let open = fs::File::create(place.mnt().join("file")).unwrap();
    place.refused(1, &["umount", "mnt"]);
    place.must(&["umount", "-l", "mnt"]);
    place.refused(1, &["umount", "mnt"]);
    drop(open);
    // A server that does not answer: no request returns, not even those of an unmount.
    place.must(&["mkfs", "--size", "64M", "other"]);
    place.must(&["mount", "other", "mnt"]);
    let pid = server(&place);
    kill_process(pid, Signal::STOP).unwrap();
    let go_on = std::thread::spawn(move || {
        // The server notices when it continues, and closes the image.
        std::thread::sleep(Duration::from_millis(500));
        kill_process(pid, Signal::CONT).unwrap();
    });
    place.must(&["umount", "--force", "mnt"]);
    go_on.join().unwrap();
    place.must(&["fsck", "other"]);
}

/// Once, messages of background servers went to /dev/null, and only the dead mount showed a server's death.
#[test]
fn the_systems_log_gets_messages_of_a_background_server_and_what_killed_it() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    fs::create_dir(place.path().join("dev")).unwrap();
    let log = UnixDatagram::bind(place.path().join("dev/log")).unwrap();
    log.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let text = "
        for device in null fuse urandom; do
            touch dev/$device
            mount --bind /dev/$device dev/$device || exit 77
        done
        mount --rbind dev /dev || exit 77
        mount -t tmpfs none /run || exit 77
        trap 'umount -l mnt 2>/dev/null || true' EXIT
        server() {
            for process in /proc/[0-9]*; do
                tr '\\0' ' ' <$process/cmdline 2>/dev/null | grep -q -e \"--served .*$PWD/mnt\" && echo ${process#/proc/}
            done
            true
        }
        $STEADFAST mount img mnt
        $STEADFAST shutdown --flush all mnt
        $STEADFAST umount mnt
        $STEADFAST mount -o log=$PWD/messages img mnt
        kill -KILL $(server)
        while ls mnt 2>/dev/null; do sleep 0.01; done
        if $STEADFAST umount mnt; then echo 'umount says nothing'; exit 1; fi
        $STEADFAST mount -o auto_unmount img mnt
        kill -KILL $(server)
        while grep -q \" $PWD/mnt \" /proc/self/mounts; do sleep 0.01; done
    ";
    let text = format!("STEADFAST={PROGRAM}\n{text}");
    let output = place.command("unshare", &["-m", "sh", "-ec", &text]);
    if output.status.code() == Some(77) {
        return steadfast_testkit::skipped!("no bind mounts here: {}", said(&output));
    }
    assert!(output.status.success(), "{}", said(&output));
    let mut heard = Vec::new();
    let mut buffer = [0; 4096];
    while heard
        .iter()
        .filter(|line: &&String| line.contains("was killed by"))
        .count()
        < 2
    {
        let len = log.recv(&mut buffer).unwrap();
        heard.push(String::from_utf8_lossy(&buffer[..len]).into_owned());
    }
    // A kernel without FUSE over io_uring is a line of its own.
    assert!(
        heard
            .iter()
            .any(|line| line.contains("steadfast[") && line.contains("shut down as asked for")),
        "{heard:?}"
    );
    let killed = heard
        .iter()
        .find(|line| line.contains("was killed by"))
        .unwrap();
    assert!(
        killed.starts_with("<27>") && killed.contains("signal 9 (SIGKILL)"),
        "{killed}"
    );
    let messages = fs::read_to_string(place.path().join("messages")).unwrap();
    assert!(messages.contains("was killed by signal 9"), "{messages}");
}

#[test]
fn a_sparse_image_that_outgrows_its_file_system_is_warned_of_at_mount() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    let text = "
        mkdir small
        mount -t tmpfs -o size=200M none small || exit 77
        trap 'umount -l mnt small 2>/dev/null || true' EXIT
        $STEADFAST mkfs --size 1G small/img
        $STEADFAST mount small/img mnt
        $STEADFAST umount mnt
        $STEADFAST mount img mnt
        $STEADFAST umount mnt
    ";
    let text = format!("STEADFAST={PROGRAM}\n{text}");
    let output = place.command("unshare", &["-m", "sh", "-ec", &text]);
    if output.status.code() == Some(77) {
        return steadfast_testkit::skipped!("no tmpfs here: {}", said(&output));
    }
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said.matches("small/img: the image is sparse and may still need")
            .count(),
        1,
        "{said}"
    );
}
