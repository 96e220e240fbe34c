//! Large directories, and positions that hold while entries come and go (corner 31); names at the end of a page (corner 70).

use super::common::*;
use std::collections::{BTreeSet, HashMap};
use steadfast_vfs::{Cookie, FileSystem, Ino, RenameMode};

/// Names after `cookie`, at most `max`, with the positions after them.
fn some(v: &Volume, dir: Ino, cookie: Cookie, max: usize) -> Vec<(Vec<u8>, Cookie)> {
    let mut got = Vec::new();
    v.readdir(&root(), dir, cookie, &mut |entry| {
        let room = got.len() < max;
        if room {
            got.push((entry.name.to_vec(), entry.next));
        }
        room
    })
    .unwrap();
    got
}

#[test]
fn corner_31_positions_hold_while_entries_come_and_go_and_after_mounts() {
    let mut v = Volume::new(16);
    let r = v.root();
    let (d, f) = (v.dir(r, "d"), v.file(r, "f"));
    let count = 20_000;
    let name = |n: usize| match n % 5 {
        0 => format!("{n}"),
        1 => format!("a name of more than thirty-two bytes {n}"),
        _ => format!("a name of some length {n}"),
    };
    for n in 0..count {
        v.link(&root(), f, d, name(n).as_bytes()).unwrap();
    }
    v.remount();
    let mut cookies: HashMap<Vec<u8>, Cookie> = HashMap::new();
    let mut seen = BTreeSet::new();
    let mut cookie = 0;
    let mut piece = 0;
    loop {
        let got = some(&v, d, cookie, 97);
        let Some((_, last)) = got.last() else { break };
        assert!(*last > cookie, "positions ascend");
        cookie = *last;
        for (name, next) in got {
            assert!(seen.insert(name.clone()), "twice: {name:?}");
            cookies.insert(name, next);
        }
        // Others come and go meanwhile, and a mount.
        piece += 1;
        let new = format!("new {piece}");
        v.link(&root(), f, d, new.as_bytes()).unwrap();
        v.unlink(&root(), d, name(piece * 7 + 1).as_bytes())
            .unwrap();
        let (from, to) = (name(piece * 7 + 2), format!("moved {piece}"));
        let (from, to) = ((d, from.as_bytes()), (d, to.as_bytes()));
        v.rename(&root(), from, to, RenameMode::Replace).unwrap();
        if piece % 50 == 0 {
            v.cut();
        }
    }
    let touched = |n: usize| (n % 7 == 1 || n % 7 == 2) && n / 7 >= 1 && n / 7 <= piece;
    for n in (0..count).filter(|n| !touched(*n)) {
        assert!(seen.contains(name(n).as_bytes()), "{n} was not seen");
    }
    for n in (0..count).filter(|n| !touched(*n) && n % 10 != 3) {
        v.unlink(&root(), d, name(n).as_bytes()).unwrap();
    }
    v.cut();
    let rest = some(&v, d, 2, usize::MAX);
    for (name, next) in &rest {
        if let Some(cookie) = cookies.get(name) {
            assert_eq!(cookie, next);
        }
    }
    // Freed slots take new names: the directory does not grow.
    let blocks = v.attr(d).blocks;
    for n in 0..count / 2 {
        v.link(&root(), f, d, format!("{n} again").as_bytes())
            .unwrap();
    }
    assert_eq!(v.attr(d).blocks, blocks);
}

#[test]
fn a_reader_that_stops_goes_on_where_it_was() {
    let v = Volume::new(4);
    let r = v.root();
    for n in 0..300 {
        v.file(r, &format!("{n}"));
    }
    let all = some(&v, r, 0, usize::MAX);
    assert_eq!(all.len(), 302);
    for start in 0..all.len() {
        let from = if start == 0 { 0 } else { all[start - 1].1 };
        assert_eq!(some(&v, r, from, 1).first(), Some(&all[start]));
    }
    for end in [all[301].1, u64::MAX, i64::MAX as u64] {
        assert!(some(&v, r, end, 9).is_empty());
    }
}

#[test]
fn a_reader_may_call_the_file_system() {
    let v = Volume::new(4);
    let r = v.root();
    for n in 0..200 {
        v.file(r, &format!("{n}"));
    }
    v.readdir(&root(), r, 2, &mut |entry| {
        v.lookup(&root(), r, entry.name).unwrap();
        v.unlink(&root(), r, entry.name).unwrap();
        true
    })
    .unwrap();
    assert!(v.names(r).is_empty());
}

#[test]
fn corner_70_names_of_every_length_at_every_place_of_a_page() {
    let mut v = Volume::new(4);
    let r = v.root();
    let f = v.file(r, "f");
    for len in [1, 31, 32, 33, 87, 88, 89, 144, 145, 200, 201, 254, 255] {
        // Short names before it, so that it lies at each place in turn, the last ones of the page included.
        for before in [0, 1, 57, 58, 59, 60, 61, 62, 63, 64] {
            let d = v.dir(r, "d");
            for n in 0..before {
                v.link(&root(), f, d, format!("{n}").as_bytes()).unwrap();
            }
            let name = |letter: u8| vec![letter; len];
            v.link(&root(), f, d, &name(b'x')).unwrap();
            v.rename(
                &root(),
                (d, &name(b'x')),
                (d, &name(b'y')),
                RenameMode::Replace,
            )
            .unwrap();
            v.link(&root(), f, d, &name(b'z')).unwrap();
            v.cut();
            assert_eq!(v.names(d).len(), before + 2, "{len}, {before}");
            for letter in [b'y', b'z'] {
                assert_eq!(v.lookup(&root(), d, &name(letter)).unwrap().ino, f);
                v.unlink(&root(), d, &name(letter)).unwrap();
            }
            for n in 0..before {
                v.unlink(&root(), d, format!("{n}").as_bytes()).unwrap();
            }
            v.rmdir(&root(), r, b"d").unwrap();
        }
    }
    assert_eq!(v.attr(f).nlink, 1);
}

#[test]
fn corner_67_the_same_name_renamed_back_and_forth_a_thousand_times() {
    let mut v = Volume::new(4);
    let r = v.root();
    let (d, f) = (v.dir(r, "d"), v.file(r, "f"));
    let g = v.file(d, "g");
    for round in 0..1000 {
        let mode = match round % 3 {
            0 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        if round % 3 == 0 {
            v.rename(&root(), (r, b"f"), (d, b"g"), mode).unwrap();
            v.rename(&root(), (d, b"g"), (r, b"f"), mode).unwrap();
        } else {
            v.rename(&root(), (r, b"f"), (d, b"f"), mode).unwrap();
            v.link(&root(), g, r, b"f").unwrap();
            v.unlink(&root(), r, b"f").unwrap();
            v.rename(&root(), (d, b"f"), (r, b"f"), mode).unwrap();
        }
        if round % 100 == 0 {
            v.cut();
        }
    }
    assert_eq!(v.look(r, "f").unwrap().ino, f);
    assert_eq!(v.look(d, "g").unwrap().ino, g);
    assert_eq!((v.attr(f).nlink, v.attr(g).nlink), (1, 1));
}
