//! Files that differ after a power cut from what the calls had made, side by side: text by lines, everything else by
//! bytes.
//!
//! Invariant: the output is bounded ([`FILES_MAX`], [`ROWS_MAX`], [`LINE_MAX`]), and no row calls content equal that
//! is not.

use super::{FileReport, RowReport};
use crate::effects::{Disk, Seen, readable};
use std::collections::BTreeSet;
use steadfast_model::data::FileData;
use steadfast_vfs::FileKind;

/// Maximum number of files of one comparison.
const FILES_MAX: usize = 12;
/// Maximum number of rows of one file.
const ROWS_MAX: usize = 40;
/// Largest content that is compared by lines.
const TEXT_MAX: u64 = 64 << 10;
/// Maximum number of lines, on either side, from the first to the last difference, that are matched with one another.
const MATCHED_MAX: usize = 300;
/// Equal lines around those that differ.
const AROUND: usize = 2;
/// Maximum number of characters of a line.
const LINE_MAX: usize = 200;
/// Bytes of a row.
const WIDTH: usize = 8;
/// Bytes that are compared at a time.
const PIECE: u64 = 4096;

/// The files that differ, by path: as the calls had made them, and as they are found. Also the number of others.
pub(super) fn differing(written: &Disk, found: &Disk) -> (Vec<FileReport>, usize) {
    let (before, after) = (written.observe(), found.observe());
    let paths: BTreeSet<&Vec<u8>> = before.keys().chain(after.keys()).collect();
    let (mut files, mut more) = (Vec::new(), 0);
    for path in paths {
        let (a, b) = (before.get(path), after.get(path));
        if a.zip(b).is_some_and(|(a, b)| is_same(a, b)) {
            continue;
        }
        if files.len() >= FILES_MAX {
            more += 1;
            continue;
        }
        files.push(file(path, a, b));
    }
    (files, more)
}

fn is_same(a: &Seen, b: &Seen) -> bool {
    (a.kind, a.perm) == (b.kind, b.perm) && a.data == b.data && a.target == b.target
}

fn file(path: &[u8], written: Option<&Seen>, found: Option<&Seen>) -> FileReport {
    let name = readable(path.strip_prefix(b"/").unwrap_or(path));
    let empty = FileData::new();
    let data = |seen: Option<&Seen>| seen.map_or_else(|| empty.clone(), |s| s.data.clone());
    let (a, b) = (data(written), data(found));
    let (rows, bytes, cut) = match (text(&a), text(&b)) {
        (Some(a), Some(b)) => by_lines(&a, &b),
        _ => by_bytes(&a, &b),
    };
    FileReport {
        path: if name.is_empty() {
            ".".to_owned()
        } else {
            name
        },
        written: written.map(what),
        found: found.map(what),
        bytes,
        rows,
        cut,
    }
}

/// An inode in a few words.
fn what(seen: &Seen) -> String {
    let perm = seen.perm & 0o7777;
    match seen.kind {
        FileKind::Regular => format!("{} bytes, mode {perm:04o}", seen.data.size()),
        FileKind::Directory => format!("directory, mode {perm:04o}"),
        FileKind::Symlink => format!("link to {}", readable(&seen.target)),
        FileKind::Fifo => format!("pipe, mode {perm:04o}"),
        FileKind::CharDevice | FileKind::BlockDevice => format!("device, mode {perm:04o}"),
        FileKind::Socket => format!("socket, mode {perm:04o}"),
    }
}

/// Content that reads as text.
fn text(data: &FileData) -> Option<String> {
    if data.size() > TEXT_MAX {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(data.size()).ok()?];
    data.read(0, &mut bytes);
    let text = String::from_utf8(bytes).ok()?;
    let plain = |c: char| !c.is_control() || matches!(c, '\n' | '\t' | '\r');
    text.chars().all(plain).then_some(text)
}

/// A line that differs, or one near it.
fn row(a: Option<(usize, &str)>, b: Option<(usize, &str)>) -> RowReport {
    let side = |line: Option<(usize, &str)>| {
        line.map(|(at, text)| {
            let short: String = text.chars().take(LINE_MAX).collect();
            let cut = short.len() < text.len();
            let text = readable(short.replace('\t', "    ").as_bytes());
            (at as u64 + 1, if cut { format!("{text}…") } else { text })
        })
    };
    RowReport {
        same: a.zip(b).is_some_and(|((_, a), (_, b))| a == b),
        written: side(a),
        found: side(b),
    }
}

fn lines(text: &str) -> Vec<&str> {
    let mut all: Vec<&str> = text.split('\n').collect();
    // After the last newline there is no line.
    all.pop_if(|last| last.is_empty());
    all
}

fn by_lines(written: &str, found: &str) -> (Vec<RowReport>, bool, bool) {
    let (a, b) = (lines(written), lines(found));
    let before = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let rest = a[before..].iter().rev().zip(b[before..].iter().rev());
    let behind = rest.take_while(|(a, b)| a == b).count();
    let (a_end, b_end) = (a.len() - behind, b.len() - behind);
    let mut rows = Vec::new();
    for i in before.saturating_sub(AROUND)..before {
        rows.push(row(Some((i, a[i])), Some((i, b[i]))));
    }
    let matched = matched(&a[before..a_end], &b[before..b_end]);
    for (i, j) in matched {
        let left = i.map(|i| (before + i, a[before + i]));
        let right = j.map(|j| (before + j, b[before + j]));
        rows.push(row(left, right));
    }
    for k in 0..behind.min(AROUND) {
        rows.push(row(
            Some((a_end + k, a[a_end + k])),
            Some((b_end + k, b[b_end + k])),
        ));
    }
    // Equal lines, and a newline that one of them lacks at the end.
    if !rows.iter().any(|r| !r.same) && written != found {
        let last = |text: &str, lines: &[&str]| {
            let ends = text.ends_with('\n');
            let word = if ends {
                "newline at the end"
            } else {
                "no newline at the end"
            };
            Some((lines.len() as u64, word.to_owned()))
        };
        rows.push(RowReport {
            same: false,
            written: last(written, &a),
            found: last(found, &b),
        });
    }
    let cut = rows.len() > ROWS_MAX;
    rows.truncate(ROWS_MAX);
    (rows, false, cut)
}

/// Pairs of lines of two lists that are side by side: those of a longest common subsequence, the others in order.
fn matched(a: &[&str], b: &[&str]) -> Vec<(Option<usize>, Option<usize>)> {
    let mut pairs = Vec::new();
    if a.len() <= MATCHED_MAX && b.len() <= MATCHED_MAX {
        let width = b.len() + 1;
        let mut longest = vec![0u16; (a.len() + 1) * width];
        for i in (0..a.len()).rev() {
            for j in (0..b.len()).rev() {
                longest[i * width + j] = match a[i] == b[j] {
                    true => longest[(i + 1) * width + j + 1] + 1,
                    false => longest[(i + 1) * width + j].max(longest[i * width + j + 1]),
                };
            }
        }
        let (mut i, mut j) = (0, 0);
        while i < a.len() && j < b.len() {
            if a[i] == b[j] {
                pairs.push((i, j));
                (i, j) = (i + 1, j + 1);
            } else if longest[(i + 1) * width + j] >= longest[i * width + j + 1] {
                i += 1;
            } else {
                j += 1;
            }
        }
    }
    pairs.push((a.len(), b.len()));
    let mut all = Vec::new();
    let (mut i, mut j) = (0, 0);
    for (to_i, to_j) in pairs {
        while i < to_i || j < to_j {
            let left = (i < to_i).then_some(i);
            let right = (j < to_j).then_some(j);
            all.push((left, right));
            i += usize::from(left.is_some());
            j += usize::from(right.is_some());
        }
        if to_i < a.len() && to_j < b.len() {
            all.push((Some(to_i), Some(to_j)));
            (i, j) = (to_i + 1, to_j + 1);
        }
    }
    all
}

/// Bytes as a line: hexadecimal, and as characters.
fn dump(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let plain: String = bytes
        .iter()
        .map(|b| match b {
            b' '..=b'~' => char::from(*b),
            _ => '.',
        })
        .collect();
    format!("{:<1$}  {plain}", hex.join(" "), WIDTH * 3 - 1)
}

/// Rows of bytes that differ, from the first on.
fn by_bytes(written: &FileData, found: &FileData) -> (Vec<RowReport>, bool, bool) {
    let end = written.size().max(found.size());
    let Some(first) = written.first_difference(found) else {
        return (Vec::new(), true, false);
    };
    let side = |data: &FileData, at: u64| {
        let mut bytes = [0; WIDTH];
        let n = data.read(at, &mut bytes);
        (n > 0).then(|| (at, dump(&bytes[..n])))
    };
    let mut rows: Vec<RowReport> = Vec::new();
    let mut at = first - first % WIDTH as u64;
    let (mut a, mut b) = (vec![0; PIECE as usize], vec![0; PIECE as usize]);
    while at < end {
        if at.is_multiple_of(PIECE) {
            let (n, m) = (written.read(at, &mut a), found.read(at, &mut b));
            if n == m && a[..n] == b[..m] {
                at += PIECE;
                continue;
            }
        }
        let (left, right) = (side(written, at), side(found, at));
        let same = left == right;
        if !same || rows.last().is_some_and(|r| !r.same) {
            if rows.len() >= ROWS_MAX {
                return (rows, true, true);
            }
            rows.push(RowReport {
                same,
                written: left,
                found: right,
            });
        }
        at += WIDTH as u64;
    }
    (rows, true, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(bytes: &[u8]) -> FileData {
        let mut data = FileData::new();
        data.write(0, bytes);
        data
    }

    fn sides(rows: &[RowReport]) -> Vec<(Option<&str>, Option<&str>, bool)> {
        fn text(side: &Option<(u64, String)>) -> Option<&str> {
            side.as_ref().map(|(_, text)| text.as_str())
        }
        let all = rows.iter();
        all.map(|r| (text(&r.written), text(&r.found), r.same))
            .collect()
    }

    #[test]
    fn lines_that_are_lost_stand_beside_nothing_and_equal_lines_beside_each_other() {
        let (rows, bytes, cut) = by_lines("a\nb\nc\nd\ne\nf\n", "a\nb\nX\nd\nf\n");
        assert!(!bytes && !cut);
        let want = [
            (Some("a"), Some("a"), true),
            (Some("b"), Some("b"), true),
            (Some("c"), Some("X"), false),
            (Some("d"), Some("d"), true),
            (Some("e"), None, false),
            (Some("f"), Some("f"), true),
        ];
        assert_eq!(sides(&rows), want);
    }

    #[test]
    fn a_newline_that_is_lost_is_said() {
        let (rows, _, _) = by_lines("a\n", "a");
        assert!(rows.iter().any(|r| !r.same), "{rows:?}");
    }

    #[test]
    fn whatever_two_texts_are_no_line_is_lost_and_each_row_says_whether_it_is_the_same() {
        let mut seed = 7u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for _ in 0..300 {
            let mut text = || {
                (0..next(12))
                    .map(|_| format!("{}\n", next(3)))
                    .collect::<String>()
            };
            let (a, b) = (text(), text());
            let (x, y) = (lines(&a), lines(&b));
            let rows = matched(&x, &y);
            let left: Vec<usize> = rows.iter().filter_map(|r| r.0).collect();
            let right: Vec<usize> = rows.iter().filter_map(|r| r.1).collect();
            assert!(left.into_iter().eq(0..x.len()) && right.into_iter().eq(0..y.len()));
            let (rows, ..) = by_lines(&a, &b);
            assert_eq!(a == b, rows.iter().all(|r| r.same), "{a:?} {b:?}");
        }
    }

    #[test]
    fn zeros_in_place_of_text_are_shown_byte_by_byte() {
        let (rows, bytes, cut) = by_bytes(&data(b"new content\n"), &data(&[0; 12]));
        assert!(bytes && !cut);
        let want = [
            (
                Some("6e 65 77 20 63 6f 6e 74  new cont"),
                Some("00 00 00 00 00 00 00 00  ........"),
                false,
            ),
            (
                Some("65 6e 74 0a              ent."),
                Some("00 00 00 00              ...."),
                false,
            ),
        ];
        assert_eq!(sides(&rows), want);
    }

    #[test]
    fn bytes_far_apart_are_found_and_what_is_equal_between_them_is_passed_over() {
        let mut a = vec![7u8; 100_000];
        let b = a.clone();
        a[5] = 1;
        a[70_000] = 2;
        let (rows, _, cut) = by_bytes(&data(&a), &data(&b));
        let differing: Vec<u64> = rows
            .iter()
            .filter(|r| !r.same)
            .filter_map(|r| r.written.as_ref().map(|(at, _)| *at))
            .collect();
        assert_eq!(differing, [0, 70_000]);
        assert!(!cut && rows.len() <= 4);
        let (rows, _, cut) = by_bytes(&data(&[1; 9000]), &data(&[2; 9000]));
        assert!(cut && rows.len() == ROWS_MAX);
    }
}
