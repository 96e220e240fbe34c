//! Notes of a run of tests for the scripts that count them: what was skipped, and which planted faults were found.
//!
//! libtest keeps what a passing test prints to itself, and knows no test that is skipped at run time. If `STEADFAST_NOTES`
//! names a file, each note is a line there: the kind, the test, and a text, separated by tabs. Lines of several programs do
//! not mix, because each is one write to a file opened for appending.

use std::ffi::OsStr;
use std::io::Write;

/// Says that the rest of this test cannot run here, and why. The script counts such a test as skipped, not as passed.
///
/// The caller returns afterwards; the macro does not, because some tests skip only a part.
#[macro_export]
macro_rules! skipped {
    ($($reason:tt)*) => { $crate::notes::note("skipped", &::std::format!($($reason)*)) };
}

/// Notes that this test has found a planted fault. The name is that of `docs/faults.md`: a part and the fault
/// (`journal.skip_flush`). Call it after the assertion that shows the find.
pub fn caught(fault: &str) {
    note("caught", fault);
}

/// Writes a note, and prints it for people who run the test alone.
///
/// # Panics
/// If the file of notes cannot be written: an uncounted test would count as passed.
#[doc(hidden)]
#[allow(clippy::panic)]
pub fn note(kind: &str, text: &str) {
    println!("{kind}: {text}");
    if let Some(path) = std::env::var_os("STEADFAST_NOTES") {
        let thread = std::thread::current();
        let line = line(kind, thread.name().unwrap_or("?"), text);
        if let Err(error) = append(&path, &line) {
            panic!("cannot note in {}: {error}", path.display());
        }
    }
}

/// One line, whatever the text holds.
fn line(kind: &str, test: &str, text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{kind}\t{test}\t{text}\n")
}

fn append(path: &OsStr, line: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::options()
        .append(true)
        .create(true)
        .open(path)?;
    file.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_note_is_one_line_with_three_fields() {
        let said = line("skipped", "suite::a_test", "no\tdevice:\nnot found\n");
        assert_eq!(said, "skipped\tsuite::a_test\tno device: not found\n");
    }

    #[test]
    fn notes_are_appended() {
        let path = std::env::temp_dir().join(format!("steadfast-notes-{}", std::process::id()));
        for text in ["one", "two"] {
            append(path.as_os_str(), &line("caught", "t", text)).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "caught\tt\tone\ncaught\tt\ttwo\n");
    }
}
