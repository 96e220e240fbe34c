//! Notes of a run of tests for the scripts that count them: what was skipped, and which planted faults were found.
//!
//! libtest keeps what a passing test prints to itself, and knows no test that is skipped at run time. If `STEADFAST_NOTES`
//! names a file, each note is a line there: the kind, the test, and a text, separated by tabs. Lines of several programs do
//! not mix, because each is one write to a file opened for appending.

use std::ffi::OsStr;
use std::fmt::Debug;
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

/// The same for a planted fault that is a value: a variant (`SkipFlush` is `skip_flush`), or a struct with at least one switch
/// set. Switches of a struct inside it belong to the part that its field names.
///
/// # Panics
/// If no fault is planted: the test would count a find that is none.
pub fn caught_in(part: &str, planted: &impl Debug) {
    let names = names(part, &format!("{planted:?}"));
    assert!(
        !names.is_empty(),
        "nothing is planted in {part}: {planted:?}"
    );
    names.iter().for_each(|name| caught(name));
}

/// Names of the faults in the text of such a value.
fn names(part: &str, text: &str) -> Vec<String> {
    let (mut parts, mut field, mut found) = (Vec::new(), part, Vec::new());
    if !text.contains('{') {
        return vec![format!("{part}.{}", snake_case(text))];
    }
    for word in text.split([' ', ',', '\n']) {
        match (word, word.strip_suffix(':')) {
            ("{", _) => parts.push(field),
            ("}", _) => drop(parts.pop()),
            ("true", _) => found.push(format!("{}.{field}", parts.last().unwrap_or(&part))),
            (_, Some(name)) => field = name,
            _ => {}
        }
    }
    found
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (i, c) in name.char_indices() {
        if c.is_ascii_uppercase() && i > 0 {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
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
    fn switches_and_variants_have_names() {
        let switches = "Faults { one: false, two_words: true, inner: Faults { three: true, four: false }, five: true }";
        assert_eq!(
            names("outer", switches),
            ["outer.two_words", "inner.three", "outer.five"]
        );
        assert_eq!(names("part", "SkipFlush"), ["part.skip_flush"]);
        assert_eq!(names("part", "Faults { one: false }"), [""; 0]);
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
