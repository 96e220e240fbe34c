//! The C header agrees with the library, and compiles as C and as C++.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::path::Path;
use std::process::Command;

use steadfast_stream::wire;

/// Prints the definitions of the header.
const PROGRAM: &str = r#"
#include <steadfast/stream.h>
#include <stdio.h>

int main(void)
{
	int result;

	printf("%zu %zu %zu %zu %zu\n", sizeof(struct steadfast_stream), offsetof(struct steadfast_stream, interval_ms),
	       offsetof(struct steadfast_stream, number), offsetof(struct steadfast_stream, name),
	       (size_t)STEADFAST_STREAM_NAME_MAX);
	printf("%lu %lu %lu %lu %lu\n", (unsigned long)STEADFAST_STREAM_IOC_SET, (unsigned long)STEADFAST_STREAM_IOC_GET,
	       (unsigned long)STEADFAST_STREAM_IOC_SYNC, (unsigned long)STEADFAST_STREAM_IOC_SYNC_NAMED,
	       (unsigned long)STEADFAST_STREAM_IOC_SHOW);
	printf("%u %u %u %u\n", STEADFAST_STREAM_IGNORE_FSYNC, STEADFAST_STREAM_HONOUR_FSYNC, STEADFAST_STREAM_DEFAULT,
	       STEADFAST_STREAM_USER_ANY);
	printf("%s %s\n", STEADFAST_STREAM_XATTR, STEADFAST_STREAM_XATTR_SYNC);
	/* On a file of another file system. */
	result = steadfast_setstream(0, "x", STEADFAST_STREAM_THREAD, 0);
	printf("%d %d\n", result, errno);
	result = steadfast_setstream(0, "", STEADFAST_STREAM_THREAD, 0);
	printf("%d %d\n", result, errno);
	result = steadfast_streamsync_name(0, "x");
	printf("%d %d\n", result, errno);
	return 0;
}
"#;

/// Output of the program; nothing if there is no such compiler.
fn printed(compiler: &str, language: &str) -> Option<String> {
    let dir = std::env::temp_dir().join(format!(
        "steadfast-header-{}-{language}",
        std::process::id()
    ));
    std::fs::create_dir_all(&dir).unwrap();
    let source = dir.join(format!("program.{language}"));
    std::fs::write(&source, PROGRAM).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let program = dir.join("program");
    let compiled = Command::new(compiler)
        .args([
            "-Wall",
            "-Wextra",
            "-Wconversion",
            "-Werror",
            "-pedantic",
            "-I",
        ])
        .arg(&include)
        .arg("-o")
        .args([&program, &source])
        .output();
    let text = compiled.ok().map(|compiled| {
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{said}");
        let ran = Command::new(&program)
            .stdin(std::fs::File::open(&source).unwrap())
            .output()
            .unwrap();
        assert!(ran.status.success());
        String::from_utf8(ran.stdout).unwrap()
    });
    std::fs::remove_dir_all(&dir).unwrap();
    if text.is_none() {
        steadfast_testkit::skipped!("there is no {compiler} here");
    }
    text
}

#[test]
fn the_header_has_the_layout_and_the_numbers_of_the_library() {
    let expected = format!(
        "{} 16 24 32 {}\n{} {} {} {} {}\n{} {} {} {}\n{} {}\n",
        wire::MESSAGE_BYTES,
        wire::NAME_MAX,
        wire::IOCTL_SET,
        wire::IOCTL_GET,
        wire::IOCTL_SYNC,
        wire::IOCTL_SYNC_NAMED,
        wire::IOCTL_SHOW,
        wire::IGNORE_FSYNC,
        wire::HONOUR_FSYNC,
        wire::DEFAULT,
        wire::USER_DEFAULT,
        wire::XATTR_STREAM,
        wire::XATTR_SYNC,
    );
    for (compiler, language) in [("cc", "c"), ("c++", "cc")] {
        let Some(text) = printed(compiler, language) else {
            continue;
        };
        let refused = text.strip_prefix(&expected);
        // EOPNOTSUPP, EINVAL, EOPNOTSUPP.
        assert_eq!(refused, Some("-1 95\n-1 22\n-1 95\n"), "{text}\n{expected}");
    }
}
