//! Source lines of the calls, if the sources are there.

use super::{Place, Report, SourceReport};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Maximum number of places that are shown: those of findings first.
const PLACES_MAX: usize = 400;
/// Lines before the one that calls, and after it.
const AROUND: u32 = 3;
/// Largest source file that is read.
const FILE_MAX: u64 = 4 << 20;
/// Maximum number of characters of a line.
const LINE_MAX: usize = 200;

impl Report {
    /// Adds the source lines of the calls. Relative names count from the working directory.
    pub fn add_sources(&mut self) {
        let mut places: Vec<&Place> = Vec::new();
        for under in self.findings.iter().flat_map(|f| &f.under) {
            let effects = under.durable.iter().chain(&under.lost).chain(&under.torn);
            places.extend(effects.filter_map(|e| e.location.as_ref()));
        }
        places.extend(self.steps.iter().filter_map(|s| s.location.as_ref()));
        let mut files: BTreeMap<&str, Option<Vec<String>>> = BTreeMap::new();
        let mut known = BTreeSet::new();
        let mut sources = Vec::new();
        for place in places {
            let Some(line) = place.line else {
                continue;
            };
            if sources.len() >= PLACES_MAX || !known.insert((&place.file, line)) {
                continue;
            }
            let lines = files
                .entry(&place.file)
                .or_insert_with(|| read(&place.file));
            sources.extend(lines.as_ref().and_then(|l| excerpt(place, line, l)));
        }
        self.sources = sources;
    }
}

fn read(path: &str) -> Option<Vec<String>> {
    let path = Path::new(path);
    // A pipe or a device that debug information names is not opened.
    let about = std::fs::metadata(path).ok()?;
    if !about.is_file() || about.len() > FILE_MAX {
        return None;
    }
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(FILE_MAX).read_to_string(&mut text).ok()?;
    Some(text.lines().map(str::to_owned).collect())
}

fn excerpt(place: &Place, line: u32, lines: &[String]) -> Option<SourceReport> {
    let first = line.saturating_sub(AROUND).max(1);
    let from = usize::try_from(first).ok()?.checked_sub(1)?;
    let at = usize::try_from(line).ok()?.checked_sub(1)?;
    // A file that is shorter is not the source of the program.
    lines.get(at)?;
    let until = (at + AROUND as usize + 1).min(lines.len());
    let shown = lines.get(from..until)?.iter();
    Some(SourceReport {
        place: place.text(),
        line,
        first,
        lines: shown
            .map(|l| {
                let short: String = l.replace('\t', "    ").chars().take(LINE_MAX).collect();
                crate::effects::readable(short.as_bytes())
            })
            .collect(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn place(file: &Path, line: u32) -> Place {
        Place {
            file: file.to_str().unwrap().to_owned(),
            line: Some(line),
        }
    }

    #[test]
    fn an_excerpt_has_the_line_and_those_around_it_and_none_where_there_is_no_such_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.c");
        std::fs::write(&path, "one\ntwo\n\tthree\nfour\nfive\nsix\nseven\n").unwrap();
        let lines = read(path.to_str().unwrap()).unwrap();
        let found = excerpt(&place(&path, 1), 1, &lines).unwrap();
        assert_eq!((found.first, found.lines.len()), (1, 4));
        let found = excerpt(&place(&path, 6), 6, &lines).unwrap();
        assert_eq!((found.first, found.lines[0].as_str()), (3, "    three"));
        assert_eq!(found.lines.len(), 5);
        assert!(excerpt(&place(&path, 8), 8, &lines).is_none());
        assert!(excerpt(&place(&path, 0), 0, &lines).is_none());
        assert!(read(dir.path().to_str().unwrap()).is_none());
        assert!(read("/dev/zero").is_none());
    }
}
