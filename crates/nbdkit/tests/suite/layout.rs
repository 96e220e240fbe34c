//! The plugin's table of functions is laid out as nbdkit's header says.
#![allow(clippy::unwrap_used, missing_docs)]

use crate::common;

use std::process::Command;

/// Fields as the plugin has them.
fn ours() -> Option<String> {
    let output = Command::new("nbdkit")
        .arg("--dump-plugin")
        .arg(common::plugin())
        .output();
    let output = String::from_utf8(output.ok()?.stdout).unwrap();
    let line = output.lines().find(|l| l.starts_with("steadfast_layout="));
    Some(line.unwrap().split_once('=').unwrap().1.to_owned())
}

#[test]
fn the_table_of_functions_is_laid_out_as_the_header_says() {
    let Some(ours) = ours() else {
        steadfast_testkit::skipped!("nbdkit is missing (apt-get install nbdkit)");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let mut program = String::from(
        "#define NBDKIT_API_VERSION 2\n#include <nbdkit-plugin.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n\
         printf(\"sizeof:%zu\", sizeof(struct nbdkit_plugin));\n",
    );
    for field in ours.split(',').skip(1) {
        let name = field.split(':').next().unwrap();
        program.push_str(&format!(
            "printf(\",{name}:%zu\", offsetof(struct nbdkit_plugin, {name}));\n"
        ));
    }
    program.push('}');
    std::fs::write(dir.path().join("layout.c"), program).unwrap();
    let compiled = Command::new("cc")
        .args(["-o", "layout", "layout.c"])
        .current_dir(dir.path())
        .output();
    let compiled = match compiled {
        Ok(output) => output,
        Err(_) => {
            steadfast_testkit::skipped!("there is no C compiler");
            return;
        }
    };
    let said = String::from_utf8_lossy(&compiled.stderr);
    if said.contains("nbdkit-plugin.h: No such file") {
        steadfast_testkit::skipped!("the header is missing (apt-get install nbdkit-plugin-dev)");
        return;
    }
    assert!(compiled.status.success(), "{said}");
    let theirs = Command::new(dir.path().join("layout")).output().unwrap();
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    // A newer header may have more fields after ours.
    let fields = |text: &str| {
        text.split(',')
            .skip(1)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(fields(&ours), fields(&theirs));
    let size = |text: &str| -> u64 {
        let first = text.split(',').next().unwrap();
        first.split(':').nth(1).unwrap().parse().unwrap()
    };
    assert!(size(&ours) <= size(&theirs));
    assert_eq!(fields(&ours).len(), 49);
}
