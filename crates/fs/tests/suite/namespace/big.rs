//! Corner 31: large directories, and positions that hold while entries come and go.

use super::common::*;
use std::collections::{BTreeSet, HashMap};
use steadfast_vfs::{Cookie, FileSystem};

#[test]
fn corner_31_positions_hold_while_a_hundred_thousand_entries_come_and_go() {
    // A million in the long form.
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let (count, mib) = if long {
        (1_000_000, 1024)
    } else {
        (100_000, 128)
    };
    let mut v = Volume::new(mib);
    let r = v.root();
    let d = v.dir(r, "d");
    let f = v.file(r, "f");
    // Links are cheap; their number is limited, so there are several files.
    let mut file = f;
    for n in 0..count {
        if n % 50_000 == 0 {
            file = v.file(d, &format!("file {n}"));
            continue;
        }
        v.link(
            &root(),
            file,
            d,
            format!("a name of some length {n}").as_bytes(),
        )
        .unwrap();
    }
    v.remount();
    let before = v.attr(d).blocks;

    // Read in small pieces, each from the last position; between them others come and go.
    let mut cookies: HashMap<String, Cookie> = HashMap::new();
    let mut seen = BTreeSet::new();
    let mut cookie = 0;
    let mut piece = 0;
    loop {
        let mut got = Vec::new();
        v.readdir(&root(), d, cookie, &mut |entry| {
            if got.len() == 997 {
                return false;
            }
            got.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.next));
            true
        })
        .unwrap();
        let Some((_, last)) = got.last() else { break };
        assert!(*last > cookie, "positions ascend");
        cookie = *last;
        for (name, next) in got {
            assert!(seen.insert(name.clone()), "{name} twice");
            cookies.insert(name, next);
        }
        piece += 1;
        v.link(&root(), f, d, format!("new {piece}").as_bytes())
            .unwrap();
        v.unlink(
            &root(),
            d,
            format!("a name of some length {}", piece * 7 + 1).as_bytes(),
        )
        .unwrap();
    }
    let removed = |n: usize| n % 7 == 1 && n / 7 >= 1 && n / 7 <= piece;
    // Names that were there all the time were seen exactly once.
    for n in 0..count {
        if !removed(n) && n % 50_000 != 0 {
            assert!(
                seen.contains(&format!("a name of some length {n}")),
                "{n} was not seen"
            );
        }
    }

    // Positions survive the removal of most entries and a remount.
    for n in 0..count {
        let name = format!("a name of some length {n}");
        if n % 10 != 3 && v.look(d, &name).is_some() {
            v.unlink(&root(), d, name.as_bytes()).unwrap();
        }
    }
    v.remount();
    assert!(v.attr(d).blocks < before, "empty blocks are given back");
    v.readdir(&root(), d, 0, &mut |entry| {
        let name = String::from_utf8(entry.name.to_vec()).unwrap();
        if let Some(cookie) = cookies.get(&name) {
            assert_eq!(*cookie, entry.next, "{name}");
        }
        true
    })
    .unwrap();
    let rest = v.names(d);
    let kept = (0..count).filter(|n| n % 10 == 3 && !removed(*n)).count();
    assert_eq!(rest.len(), kept + count.div_ceil(50_000) + piece);
    for name in rest {
        v.unlink(&root(), d, name.as_bytes()).unwrap();
    }
    v.rmdir(&root(), r, b"d").unwrap();
}

#[test]
fn a_reader_that_stops_goes_on_where_it_was() {
    let v = Volume::new(16);
    let r = v.root();
    for n in 0..300 {
        v.file(r, &format!("{n}"));
    }
    let mut all = Vec::new();
    v.readdir(&root(), r, 0, &mut |entry| {
        all.push((entry.name.to_vec(), entry.next));
        true
    })
    .unwrap();
    assert_eq!(all.len(), 302);
    for start in 0..all.len() {
        let from = if start == 0 { 0 } else { all[start - 1].1 };
        let mut got = None;
        v.readdir(&root(), r, from, &mut |entry| {
            got = Some((entry.name.to_vec(), entry.next));
            false
        })
        .unwrap();
        assert_eq!(got.as_ref(), Some(&all[start]));
    }
    for end in [all[301].1, u64::MAX, i64::MAX as u64] {
        v.readdir(&root(), r, end, &mut |_| panic!("past the end"))
            .unwrap();
    }
}

#[test]
fn many_threads_in_one_directory_make_what_they_make() {
    let mut v = Volume::new(64);
    let r = v.root();
    let d = v.dir(r, "d");
    std::thread::scope(|scope| {
        let v = &v;
        for t in 0..4 {
            scope.spawn(move || {
                let caller = stream(t);
                for n in 0..500 {
                    let name = format!("thread {t} file {n}");
                    v.file_by(&caller, d, &name).unwrap();
                    if n % 3 == 0 {
                        v.unlink(&caller, d, name.as_bytes()).unwrap();
                    }
                }
            });
        }
    });
    let names = v.names(d);
    assert_eq!(names.len(), 4 * 333);
    v.remount();
    assert_eq!(v.names(d), names);
}
