//! The other commands of `steadfast stream` through a real mount: moving processes, rules, statistics, and refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use common::{PROGRAM, Place, said};
use serde_json::Value;

const NOBODY: u32 = 65534;

/// A mount on which nothing is durable before a sync: the counters of a stream stay.
fn mounted() -> Option<Place> {
    Place::mounted("allow_other,commit=3600")
}

fn json(place: &Place, args: &[&str]) -> Value {
    serde_json::from_str(&place.must(args)).unwrap()
}

/// A counter of a stream; a stream without a name is the default stream.
fn of_stream(place: &Place, name: &str, field: &str) -> u64 {
    let stats = json(place, &["stream", "stats", "--json", "mnt"]);
    let mut streams = stats["streams"].as_array().unwrap().iter();
    let found = streams.find(|stream| stream["name"].as_str().unwrap_or_default() == name);
    found.map_or(0, |stream| stream[field].as_u64().unwrap())
}

fn counter(place: &Place, name: &str) -> u64 {
    json(place, &["stat", "--json", "mnt"])[name]
        .as_u64()
        .unwrap()
}

/// A shell that runs given commands on the mount, as a user.
struct Shell {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Shell {
    fn new(place: &Place, user: u32) -> Shell {
        let user = format!("--reuid={user}");
        let mut command = Command::new("setpriv");
        command.args([&user, "--clear-groups", "sh"]);
        command.current_dir(place.mnt());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut shell = Shell {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        // It is a shell from here on.
        shell.run(":");
        shell
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Returns when that is done.
    fn run(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}; echo done").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        assert_eq!(answer, "done\n", "{line}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn a_process_is_moved_shown_and_moved_back() {
    let _alone = common::alone();
    let Some(place) = mounted() else { return };
    let mut shell = Shell::new(&place, 0);
    shell.run("echo 1 >before");
    let pid = shell.pid();
    let show = || place.must(&["stream", "show", &pid, "--mount", "mnt"]);
    assert!(show().contains("is in the default stream"), "{}", show());
    place.must(&["stream", "set", "mail", &pid, "--mount", "mnt"]);
    shell.run("echo 2 >after; mkdir d");
    assert_eq!(of_stream(&place, "mail", "operations"), 3);
    assert!(show().contains("is in stream mail of user 0"), "{}", show());
    let shown = json(
        &place,
        &["stream", "show", &pid, "--json", "--mount", "mnt"],
    );
    assert_eq!(
        (&shown["name"], &shown["because"], &shown["user"]),
        (&"mail".into(), &"process".into(), &0.into())
    );
    let list = json(&place, &["stream", "list", "--json", "--mount", "mnt"]);
    let stream = &list["streams"][0];
    assert_eq!(
        (&stream["name"], &stream["ignore_fsync"]),
        (&"mail".into(), &false.into())
    );
    assert_eq!(stream["commit_interval_ms"], Value::Null);
    let options = [
        "--commit-interval",
        "0.5",
        "--ignore-fsync",
        "--mount",
        "mnt",
    ];
    place.must(&[&["stream", "alter", "mail"], &options[..]].concat());
    let shown = place.must(&["stream", "list", "mnt"]);
    assert!(
        shown.contains("ignored") && shown.contains("0.5 s"),
        "{shown}"
    );
    place.must(&[
        "stream",
        "alter",
        "mail",
        "--honour-fsync",
        "--commit-interval",
        "volume",
        "--mount",
        "mnt",
    ]);
    let list = json(&place, &["stream", "list", "--json", "mnt"]);
    let stream = &list["streams"][0];
    assert_eq!(
        (&stream["ignore_fsync"], &stream["commit_interval_ms"]),
        (&false.into(), &Value::Null)
    );
    place.must(&["stream", "leave", &pid, "--mount", "mnt"]);
    let before = of_stream(&place, "mail", "operations");
    shell.run("echo 3 >last");
    assert_eq!(of_stream(&place, "mail", "operations"), before);
    drop(shell);
    place.end();
}

#[test]
fn a_stream_that_ignores_fsync_commits_when_it_is_asked_by_its_name() {
    let _alone = common::alone();
    let Some(place) = mounted() else { return };
    place.must(&["sync", "mnt"]);
    let before = counter(&place, "commits");
    let write = [
        "--",
        "sh",
        "-c",
        "cd mnt; for i in 1 2 3; do echo $i >$i; sync $i; done",
    ];
    let run = ["stream", "run", "lazy", "--ignore-fsync", "--mount", "mnt"];
    place.must(&[&run[..], &write[..]].concat());
    assert_eq!(counter(&place, "commits"), before);
    let uncommitted = || of_stream(&place, "lazy", "uncommitted_now");
    assert!(uncommitted() >= 6, "{}", uncommitted());
    assert_eq!(counter(&place, "stream_ignored_syncs"), 3);
    place.must(&["stream", "sync", "lazy", "--mount", "mnt"]);
    assert_eq!(uncommitted(), 0);
    assert!(counter(&place, "commits") > before);
    let said = place.refused(1, &["stream", "sync", "other", "--mount", "mnt"]);
    assert!(said.contains("there is no stream \"other\""), "{said}");
    place.end();
}

#[test]
fn a_merge_is_shown_with_both_streams_and_its_cause() {
    let _alone = common::alone();
    let Some(place) = mounted() else { return };
    let run = |name: &str, script: &str| {
        place.must(&[
            "stream", "run", name, "--mount", "mnt", "--", "sh", "-c", script,
        ]);
    };
    run("a", "mkdir mnt/a; echo 1 >mnt/a/shared");
    let before = json(&place, &["stream", "stats", "--json", "mnt"]);
    let before = before["merges_total"].as_u64().unwrap();
    run("b", "echo 2 >>mnt/a/shared");
    let stats = json(&place, &["stream", "stats", "--json", "mnt"]);
    assert_eq!(stats["merges_total"], before + 1);
    let merge = stats["merges"].as_array().unwrap().last().unwrap();
    assert_eq!(merge["cause"], "file", "{merge}");
    assert_eq!(merge["path"], "/a/shared", "{merge}");
    let names: Vec<&Value> = merge["streams"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["name"])
        .collect();
    assert_eq!(names, ["b", "a"]);
    let shown = place.must(&["stream", "stats", "--merges", "mnt"]);
    assert!(shown.contains("CAUSE") && shown.contains("file"), "{shown}");
    let shown = place.must(&["stream", "stats", "mnt"]);
    assert!(
        shown.contains("FOR OTHERS") && shown.contains("merge"),
        "{shown}"
    );
    // Another user sees neither paths nor the streams of others.
    let as_nobody = |args: &[&str]| as_nobody(&place, args);
    let output = as_nobody(&["stream", "stats", "--merges", "mnt"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let output = as_nobody(&["stream", "stats", "--json", "mnt"]);
    let stats: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(stats["merges"], Value::Null);
    let names = stats["streams"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| &s["name"]);
    assert_eq!(names.filter(|name| !name.is_null()).count(), 0);
    place.end();
}

fn as_nobody(place: &Place, args: &[&str]) -> Output {
    let user = format!("--reuid={NOBODY}");
    let args = [&[&*user, "--clear-groups", PROGRAM], args].concat();
    place.command("setpriv", &args)
}

#[test]
fn a_rule_moves_processes_without_a_stream_of_their_own() {
    let _alone = common::alone();
    let Some(place) = mounted() else { return };
    fs::create_dir(place.mnt().join("mail")).unwrap();
    place.must(&[
        "stream",
        "rules",
        "add",
        "letters",
        "--directory",
        "mnt/mail",
    ]);
    place.must(&[
        "stream",
        "rules",
        "add",
        "service",
        "--cgroup",
        "/no/such/service",
        "--mount",
        "mnt",
    ]);
    place.must(&["stream", "rules", "add", "--environment", "--mount", "mnt"]);
    let list = json(&place, &["stream", "rules", "list", "--json", "mnt"]);
    let rules = list["rules"].as_array().unwrap();
    let kinds: Vec<&Value> = rules.iter().map(|rule| &rule["kind"]).collect();
    assert_eq!(kinds, ["cgroup", "directory", "environment"]);
    assert_eq!(
        (&rules[1]["name"], &rules[1]["path"]),
        (&"letters".into(), &"/mail".into())
    );
    let shown = place.must(&["stream", "rules", "list", "mnt"]);
    assert!(
        shown.contains("/no/such/service") && shown.contains("/mail"),
        "{shown}"
    );

    let at = |word| shown.find(word).unwrap();
    assert!(at("/no/such/service") < at("/mail") && at("/mail") < at("STEADFAST_STREAM"));

    let mut shell = Shell::new(&place, 0);
    shell.run("echo 1 >mail/1; echo 2 >elsewhere");
    assert_eq!(of_stream(&place, "letters", "operations"), 4);
    let output = place.command("env", &["STEADFAST_STREAM=named", "touch", "mnt/by-name"]);
    assert!(output.status.success());
    assert!(of_stream(&place, "named", "operations") > 0);

    place.must(&["stream", "rules", "remove", "--directory", "mnt/mail"]);
    place.must(&[
        "stream",
        "rules",
        "remove",
        "--cgroup",
        "/no/such/service",
        "--mount",
        "mnt",
    ]);
    shell.run("echo 3 >still");
    assert_eq!(
        of_stream(&place, "letters", "operations"),
        6,
        "what it moved stays"
    );
    for (rule, word) in [
        (["--cgroup", "relative"], "is no path of a cgroup"),
        (
            ["--cgroup", "/no/such/service"],
            "rule for cgroup \"/no/such/service\"",
        ),
        (["--directory", "mnt/elsewhere"], "is not a directory"),
        (["--directory", "mnt/nowhere"], "nowhere: "),
    ] {
        let at = match rule[0] {
            "--cgroup" => &["--mount", "mnt"][..],
            _ => &[],
        };
        let said = place.refused(1, &[&["stream", "rules", "remove"], &rule[..], at].concat());
        assert!(
            said.contains(word) && said.trim_end().lines().count() == 1,
            "{said}"
        );
    }
    drop(shell);
    place.end();
}

#[test]
fn a_rule_makes_its_stream_with_the_settings_and_for_the_user_that_it_names() {
    let _alone = common::alone();
    let Some(place) = mounted() else { return };
    let user = NOBODY.to_string();
    let rule = ["stream", "rules", "add", "slow", "--cgroup", "/none"];
    let settings = ["--ignore-fsync", "--commit-interval", "30", "--user", &user];
    place.must(&[&rule[..], &settings, &["--mount", "mnt"]].concat());
    let rules = json(&place, &["stream", "rules", "list", "--json", "mnt"]);
    let rule = &rules["rules"][0];
    assert_eq!(
        (&rule["name"], &rule["user"]),
        (&"slow".into(), &NOBODY.into())
    );
    let list = json(&place, &["stream", "list", "--json", "mnt"]);
    let stream = &list["streams"][0];
    assert_eq!(
        (&stream["user"], &stream["ignore_fsync"]),
        (&NOBODY.into(), &true.into())
    );
    assert_eq!(stream["commit_interval_ms"], 30_000);
    place.end();
}

#[test]
fn forbidden_and_impossible_moves_are_refused_in_one_line() {
    let _alone = common::alone();
    let Some(place) = mounted() else { return };
    let mut ended = Command::new("true").spawn().unwrap();
    let dead = ended.id().to_string();
    ended.wait().unwrap();
    let long = "x".repeat(256);
    let mut cases = vec![
        (vec!["set", "x", "0"], "0 is not the number of a process"),
        (vec!["leave", "0"], "0 is not the number of a process"),
        (vec!["show", "0"], "0 is not the number of a process"),
        (vec!["set", "x", &dead], "there is no such process"),
        (vec!["show", &dead], "there is no such process"),
        (vec!["set", "x", "4294967295"], "there is no such process"),
        (vec!["set", "", "1"], "1 to 255 bytes of UTF-8"),
        (vec!["set", "a/b", "1"], "1 to 255 bytes of UTF-8"),
        (vec!["set", &long, "1"], "1 to 255 bytes of UTF-8"),
        (vec!["sync", "none"], "there is no stream \"none\""),
        (
            vec!["alter", "none", "--ignore-fsync"],
            "there is no stream \"none\"",
        ),
    ];
    let kernel = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd");
    if kernel {
        cases.push((vec!["set", "x", "2"], "a thread of the kernel"));
        cases.push((vec!["show", "2"], "a thread of the kernel"));
    }
    for (args, word) in cases {
        let args = [&["stream"], &args[..], &["--mount", "mnt"]].concat();
        let said = place.refused(1, &args);
        assert!(said.contains(word), "{args:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{args:?}: {said}");
    }
    assert!(
        place
            .must(&["stream", "list", "mnt"])
            .contains("only the default stream")
    );
    place.refused(2, &["stream", "set", "x", "-1", "--mount", "mnt"]);
    place.refused(2, &["stream", "alter", "x", "--mount", "mnt"]);

    // Root's process, and root's stream, for another user; its own process and its own stream.
    let mut roots = Shell::new(&place, 0);
    let mut own = Shell::new(&place, NOBODY);
    fs::set_permissions(
        place.mnt(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    place.must(&["stream", "set", "work", &roots.pid(), "--mount", "mnt"]);
    for (args, word) in [
        (vec!["set", "work", &roots.pid()], "not permitted"),
        (vec!["leave", &roots.pid()], "not permitted"),
        (vec!["show", &roots.pid()], "not permitted"),
        (
            vec!["set", "work", &own.pid(), "--user", "0"],
            "not permitted",
        ),
        (vec!["sync", "work"], "there is no stream \"work\""),
        (vec!["rules", "add", "x", "--cgroup", "/"], "not permitted"),
    ] {
        let args = [&["stream"], &args[..], &["--mount", "mnt"]].concat();
        let output = as_nobody(&place, &args);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(
            said.contains(word) && said.trim_end().lines().count() == 1,
            "{args:?}: {said}"
        );
    }
    let pid = own.pid();
    let output = as_nobody(&place, &["stream", "set", "work", &pid, "--mount", "mnt"]);
    assert!(output.status.success(), "{}", said(&output));
    own.run(": >own");
    roots.run(": >roots");
    // Two users have a stream of one name; root names the user, unless root has one, too.
    let list = json(&place, &["stream", "list", "--json", "mnt"]);
    let users = list["streams"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["user"].as_u64().unwrap());
    assert_eq!(users.collect::<Vec<_>>(), [0, u64::from(NOBODY)]);
    let user = NOBODY.to_string();
    let uncommitted = |user: u32| {
        let stats = json(&place, &["stream", "stats", "--json", "mnt"]);
        let mut streams = stats["streams"].as_array().unwrap().iter();
        let found = streams.find(|s| s["name"] == "work" && s["user"] == user);
        found.unwrap()["uncommitted_now"].as_u64().unwrap()
    };
    assert!(uncommitted(NOBODY) > 0 && uncommitted(0) > 0);
    place.must(&["stream", "sync", "work", "--user", &user, "--mount", "mnt"]);
    assert_eq!(uncommitted(NOBODY), 0);
    // A stream that only root has is not another user's.
    place.must(&["stream", "set", "roots", &roots.pid(), "--mount", "mnt"]);
    place.must(&["stream", "sync", "roots", "--mount", "mnt"]);
    let of_other = ["stream", "sync", "roots", "--user", &user, "--mount", "mnt"];
    let said = place.refused(1, &of_other);
    assert!(said.contains("there is no stream \"roots\""), "{said}");
    let alter = ["stream", "alter", "work", "--ignore-fsync"];
    place.must(&[&alter[..], &["--user", &user, "--mount", "mnt"]].concat());
    let list = json(&place, &["stream", "list", "--json", "mnt"]);
    let streams = list["streams"].as_array().unwrap().iter();
    let ignoring: Vec<_> = streams.filter(|s| s["ignore_fsync"] == true).collect();
    assert_eq!(ignoring.len(), 1, "{list}");
    assert_eq!(
        (&ignoring[0]["name"], &ignoring[0]["user"]),
        (&"work".into(), &NOBODY.into())
    );
    drop((roots, own));
    place.end();
}

/// Every field that these commands write is in the reference.
#[test]
fn the_reference_describes_every_field() {
    let _alone = common::alone();
    let Some(place) = mounted() else { return };
    let reference = include_str!("../../../../docs/reference/json.md");
    let run = |name: &str| {
        let write = ["--mount", "mnt", "--", "sh", "-c", "echo >>mnt/file"];
        place.must(&[&["stream", "run", name], &write[..]].concat());
    };
    run("a");
    run("b");
    place.must(&["stream", "rules", "add", "a", "--directory", "mnt"]);
    let own = std::process::id().to_string();
    // And each object has all of its fields.
    let fields = |value: &Value| {
        let names = value.as_object().unwrap().keys().map(String::as_str);
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names.join(" ")
    };
    let list = json(&place, &["stream", "list", "--json", "mnt"]);
    assert_eq!(
        fields(&list["streams"][0]),
        "commit_interval_ms ignore_fsync members_now name number user"
    );
    let stats = json(&place, &["stream", "stats", "--json", "mnt"]);
    assert_eq!(
        fields(&stats),
        "image merges merges_total mounted_at schema_version streams"
    );
    assert_eq!(
        fields(&stats["streams"][0]),
        "carried_bytes commits name number operations own_bytes uncommitted_now user waits"
    );
    assert_eq!(fields(&stats["merges"][0]), "cause inode path streams");
    assert_eq!(
        fields(&stats["merges"][0]["streams"][0]),
        "name number user"
    );
    let rules = json(&place, &["stream", "rules", "list", "--json", "mnt"]);
    assert_eq!(
        fields(&rules["rules"][0]),
        "cgroup inode kind name path user"
    );
    let shown = json(
        &place,
        &["stream", "show", &own, "--json", "--mount", "mnt"],
    );
    assert_eq!(
        fields(&shown),
        "because ignore_fsync image mounted_at name number pid schema_version user"
    );
    for args in [
        &["stream", "list", "--json", "mnt"][..],
        &["stream", "stats", "--json", "mnt"],
        &["stream", "rules", "list", "--json", "mnt"],
        &["stream", "show", &own, "--json", "--mount", "mnt"],
    ] {
        let mut objects = vec![json(&place, args)];
        while let Some(value) = objects.pop() {
            match value {
                Value::Object(fields) => {
                    for (name, value) in fields {
                        assert!(reference.contains(&format!("`{name}`")), "{args:?}: {name}");
                        objects.push(value);
                    }
                }
                Value::Array(values) => objects.extend(values),
                _ => {}
            }
        }
    }
    place.end();
}

/// Runs in a mount namespace of its own, without other Steadfast volumes.
#[test]
fn without_a_mount_the_directory_decides_and_then_all_volumes_do() {
    let _alone = common::alone();
    let Some(place) = Place::new() else { return };
    place.must(&["mkfs", "--size", "64M", "other.img"]);
    place.must(&["mkfs", "--size", "64M", "--contract", "sync", "third.img"]);
    for dir in ["other", "third"] {
        fs::create_dir(place.path().join(dir)).unwrap();
    }
    let script = format!(
        "steadfast() {{ {PROGRAM} \"$@\"; }}
         for m in $(findmnt -rno TARGET -t fuse.steadfast); do umount -l $m; done
         if steadfast stream run x -- touch started 2>said; then exit 1; fi
         grep -q 'none with streams is mounted elsewhere' said
         [ ! -e started ]
         steadfast mount -o commit=3600 img mnt
         steadfast mount -o commit=3600 other.img other
         steadfast mount third.img third
         names() {{ steadfast stream list $1 | tail -n +3 | awk '{{print $1}}' | xargs; }}
         steadfast stream run all -- sh -c 'echo >mnt/a; echo >other/a'
         [ \"$(names mnt)\" = all ]; [ \"$(names other)\" = all ]
         cd mnt; steadfast stream run one -- sh -c 'echo >b; env -u STEADFAST_STREAM touch ../other/b'; cd ..
         [ \"$(names mnt)\" = 'all one' ]; [ \"$(names other)\" = all ]
         steadfast stream sync one
         if steadfast stream sync one --mount mnt --mount other 2>said; then exit 1; fi
         grep -q 'other: .*no stream' said
         steadfast stream set both $$ --mount mnt --mount other
         steadfast stream show $$ --mount other | grep -q 'in stream both of user 0'
         steadfast stream leave $$ --mount mnt --mount other
         steadfast stream show $$ --mount other | grep -q 'in the default stream'
         if steadfast stream list 2>said; then exit 1; fi
         grep -q 'several volumes with streams are mounted: name one of' said
         steadfast umount mnt; steadfast umount other; steadfast umount third
         echo done"
    );
    let output = place.command("unshare", &["-m", "sh", "-ec", &script]);
    assert!(said(&output).ends_with("done\n"), "{}", said(&output));
    place.must(&["fsck", "img"]);
}
