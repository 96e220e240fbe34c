//! A C program that sets its own streams with the header of the library.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

use common::streams::{mount, operations};

/// Works in three streams of the mount in its argument, and checks the answers.
const PROGRAM: &str = r#"
#include <steadfast/stream.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <sys/wait.h>

#define MUST(what) do { if (!(what)) { fprintf(stderr, "%d: %s: %s\n", __LINE__, #what, strerror(errno)); exit(1); } } while (0)

static void write_file(int dir, const char *name)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT, 0644);

	MUST(fd >= 0 && write(fd, "x", 1) == 1 && fsync(fd) == 0 && close(fd) == 0);
}

int main(int argc, char **argv)
{
	struct steadfast_stream now;
	char name[300];
	int dir, status;

	MUST(argc == 2);
	dir = open(argv[1], O_RDONLY | O_DIRECTORY);
	MUST(dir >= 0);
	MUST(steadfast_getstream(dir, &now) == 0 && now.number == 0 && now.name[0] == 0);
	write_file(dir, "default");

	MUST(steadfast_setstream(dir, "process", STEADFAST_STREAM_PROCESS, STEADFAST_STREAM_IGNORE_FSYNC) == 0);
	MUST(steadfast_getstream(dir, &now) == 0 && strcmp(now.name, "process") == 0 && now.number != 0);
	MUST(now.flags & STEADFAST_STREAM_IGNORE_FSYNC && now.user == getuid());
	write_file(dir, "process");
	MUST(steadfast_streamsync(dir) == 0);
	MUST(steadfast_streamsync_name(dir, "process") == 0);
	MUST(steadfast_streamsync_name(dir, "nobody's") == -1 && errno == ENOENT);

	if (fork() == 0) {
		write_file(dir, "child");
		_exit(0);
	}
	MUST(wait(&status) > 0 && status == 0);

	MUST(steadfast_setstream(dir, "thread", STEADFAST_STREAM_THREAD, 0) == 0);
	MUST(steadfast_getstream(dir, &now) == 0 && strcmp(now.name, "thread") == 0);
	write_file(dir, "thread");

	memset(name, 'x', sizeof(name));
	name[255] = 0;
	MUST(steadfast_setstream(dir, name, STEADFAST_STREAM_THREAD, 0) == 0);
	name[255] = 'x';
	name[256] = 0;
	MUST(steadfast_setstream(dir, name, STEADFAST_STREAM_THREAD, 0) == -1 && errno == EINVAL);
	MUST(steadfast_setstream(dir, "", STEADFAST_STREAM_THREAD, 0) == -1 && errno == EINVAL);
	MUST(steadfast_setstream(dir, "a/b", STEADFAST_STREAM_THREAD, 0) == -1 && errno == EINVAL);
	MUST(steadfast_setstream(dir, "\xff", STEADFAST_STREAM_THREAD, 0) == -1 && errno == EINVAL);
	MUST(steadfast_setstream(dir, "x", 7, 0) == -1 && errno == EINVAL);
	MUST(steadfast_setstream(dir, NULL, STEADFAST_STREAM_THREAD, 0) == 0);
	MUST(steadfast_getstream(dir, &now) == 0 && now.number == 0);
	return 0;
}
"#;

#[test]
fn a_c_program_works_in_the_streams_that_it_sets() {
    let Some(m) = mount() else { return };
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("program.c"), dir.path().join("program"));
    std::fs::write(&source, PROGRAM).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stream/include");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(include)
        .arg("-o")
        .args([&program, &source])
        .output();
    let Ok(compiled) = compiled else {
        steadfast_testkit::skipped!("there is no C compiler here");
        return;
    };
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said}");
    let ran = Command::new(&program).arg(m.path()).output().unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let found = operations(&m);
    // Each file is made and written.
    assert_eq!(found[""], 2, "{found:?}");
    assert_eq!(found["process"], 4, "{found:?}");
    // The default stream's, and that of the thread's own stream, which does not ignore them.
    assert_eq!(m.fs.fsyncs.load(SeqCst), 2);
    assert_eq!(
        m.fs.streams.as_ref().unwrap().syncs.lock().unwrap().len(),
        2
    );
}
