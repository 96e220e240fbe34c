//! The cost of each call: fences and written-back lines, under line order and where caches are persistent.

use super::*;
use crate::layout::Page;
use smallvec::smallvec;

/// A call, and its expected cost: fences and lines under line order, fences under eADR.
struct Row {
    call: &'static str,
    fences: u64,
    lines: u64,
    eadr: u64,
}

fn row(call: &'static str, fences: u64, lines: u64, eadr: u64) -> Row {
    Row {
        call,
        fences,
        lines,
        eadr,
    }
}

/// Compares the calls' stores with the plan.
struct Bill<'a> {
    lab: &'a Lab,
    rows: Vec<Row>,
    seen: usize,
}

impl Bill<'_> {
    #[track_caller]
    fn call<R>(&mut self, call: &'static str, f: impl FnOnce() -> R) -> R {
        let (result, cost) = self.lab.cost(f);
        let row = &self.rows[self.seen];
        assert_eq!(row.call, call, "the table and the script differ");
        self.seen += 1;
        let plan = if self.lab.m.durability() == steadfast_pm::Durability::Eadr {
            (row.eadr, 0)
        } else {
            (row.fences, row.lines)
        };
        assert_eq!((cost.fences, cost.lines), plan, "{call}");
        result
    }
}

const LONG: [u8; 255] = [b'n'; 255];

fn names(lab: &Lab) {
    // Lines: an inode is two, a slot one, each touched inode one for its times.
    let rows = vec![
        row("create, new page", 2, 2 + 1 + 1 + 1, 2),
        row("create", 1, 2 + 1 + 1, 1),
        row("create, long name", 2, 2 + 5 + 1, 1),
        row("mkdir", 1, 2 + 1 + 1, 1),
        row("create, long name in a new page", 2, 2 + 5 + 1 + 1, 2),
        row("mknod", 1, 2 + 1 + 1, 1),
        row("create, inline attributes", 2, 2 + 1 + 1, 1),
        row("create, attributes in a page", 2, 2 + 1 + 1 + 1, 2),
        row("nameless", 1, 2, 1),
        row("link of it", 1, 1 + 1 + 1, 1),
        row("link, long name", 2, 5 + 1 + 1, 1),
        row("symlink", 2, 2 + 1 + 1, 1),
        row("symlink in a page", 2, 2 + 1 + 1 + 1, 2),
        row("symlink in a page, long name", 2, 2 + 1 + 5 + 1, 2),
        row("unlink", 1, 1 + 1 + 1, 1),
        row("rmdir", 1, 1 + 1 + 1 + 1, 1),
    ];
    let mut bill = Bill { lab, rows, seen: 0 };
    let m = &lab.m;
    let mut dir = Dir::new(root());
    let make = |bill: &mut Bill<'_>, dir: &mut Dir, call, name: &[u8], birth| {
        let room = lab.room(dir, name);
        let made = bill.call(call, || create(m, birth, room, touch(dir)).unwrap());
        dir.placed(made.placed, made.inode)
    };
    let file = || lab.birth(FileKind::Regular);
    let (a, at_a) = make(&mut bill, &mut dir, "create, new page", b"a", file());
    make(&mut bill, &mut dir, "create", b"b", file());
    make(&mut bill, &mut dir, "create, long name", &LONG, file());
    let sub = lab.birth(FileKind::Directory);
    let (sub, at_sub) = make(&mut bill, &mut dir, "mkdir", b"sub", sub);
    let mut sub = Dir::new(sub);
    let call = "create, long name in a new page";
    let (inner, at_inner) = make(&mut bill, &mut sub, call, &LONG, file());
    make(
        &mut bill,
        &mut dir,
        "mknod",
        b"c",
        lab.birth(FileKind::Fifo),
    );
    let birth = Birth {
        attributes: Some(NewAttributes::Inline(&[1; 40])),
        ..file()
    };
    make(
        &mut bill,
        &mut dir,
        "create, inline attributes",
        b"d",
        birth,
    );
    let birth = Birth {
        attributes: Some(NewAttributes::Pages {
            pages: vec![lab.page()],
            set: &[1; 4096],
        }),
        ..file()
    };
    let call = "create, attributes in a page";
    make(&mut bill, &mut dir, call, b"e", birth);

    let birth = file();
    let orphan = bill.call("nameless", || nameless(m, birth).unwrap());
    let again = Link {
        inode: orphan.inode(),
        ctime: NOW,
    };
    for (call, name) in [("link of it", &b"f"[..]), ("link, long name", &[b'm'; 255])] {
        let room = lab.room(&mut dir, name);
        let placed = bill.call(call, || link(m, again, room, touch(&dir)).unwrap());
        assert!(placed.rest.is_none());
    }

    let short = SymlinkTarget::Inline(&[b't'; 40]);
    let in_page = || SymlinkTarget::Page {
        page: lab.page(),
        target: &[b't'; 4095],
    };
    for (call, name, target) in [
        ("symlink", &b"g"[..], short),
        ("symlink in a page", b"h", in_page()),
        ("symlink in a page, long name", &[b'o'; 255], in_page()),
    ] {
        let (room, birth) = (lab.room(&mut dir, name), file());
        bill.call(call, || {
            symlink(m, birth, target, room, touch(&dir)).unwrap()
        });
    }

    let gone = |place, inode, kills| Remove {
        place,
        inode,
        ctime: NOW,
        kills,
    };
    let name = gone(at_a, a, vec![]);
    bill.call("unlink", || remove(m, name, touch(&dir)).unwrap());
    let name = gone(at_inner, inner, vec![]);
    let _ = remove(m, name, touch(&sub)).unwrap();
    let name = gone(at_sub, sub.inode, sub.pages.clone());
    bill.call("rmdir", || remove(m, name, touch(&dir)).unwrap());
    assert_eq!(bill.seen, bill.rows.len());
}

#[test]
fn calls_on_names_cost_as_planned() {
    names(&Lab::new(4 << 20));
    names(&Lab::eadr(4 << 20));
}

fn renames(lab: &Lab) {
    let rows = vec![
        row("rename", 2, 2 + 1 + 1, 1),
        row("rename to another directory", 2, 2 + 2 + 1, 1),
        row("rename, long name", 3, 2 + 4 + 1 + 1, 1),
        row("rename to a new page", 3, 2 + 1 + 1 + 1, 2),
        row("rename, long name in a new page", 3, 2 + 4 + 1 + 1 + 1, 2),
        row("rename over", 2, 2 + 1 + 2, 1),
        row("rename over a directory", 2, 2 + 1 + 1 + 2, 1),
        row("exchange", 2, 2 + 1 + 2, 1),
        row("exchange across", 2, 2 + 2 + 2, 1),
        row("whiteout", 3, 2 + 2 + 1 + 1, 1),
        row(
            "whiteout, long name in a new page",
            3,
            2 + 2 + 4 + 1 + 1 + 1,
            2,
        ),
        row("whiteout over", 3, 2 + 2 + 1 + 2, 1),
    ];
    let mut bill = Bill { lab, rows, seen: 0 };
    let m = &lab.m;
    let mut dir = Dir::new(root());
    let (mut sub, at_sub) = lab.directory(&mut dir, b"sub");
    let (old, at_old) = lab.directory(&mut dir, b"old");
    let (a, mut at) = lab.make(&mut dir, b"a", FileKind::Regular);
    let rename_to = |from, to| Rename {
        from,
        inode: a,
        ctime: NOW,
        to,
    };
    let over = |place, inode, kills| {
        Target::Over(Over {
            place,
            inode,
            ctime: NOW,
            kills,
        })
    };

    let touches = [touch(&dir)];
    let to = rename_to(at, Target::New(lab.room(&mut dir, b"b")));
    at = bill
        .call("rename", || rename(m, to, &touches).unwrap())
        .placed
        .place;
    let touches = [touch(&dir), touch(&sub)];
    let to = rename_to(at, Target::New(lab.room(&mut sub, b"b")));
    let call = "rename to another directory";
    at = bill
        .call(call, || rename(m, to, &touches).unwrap())
        .placed
        .place;
    let touches = [touch(&sub)];
    let to = rename_to(at, Target::New(lab.room(&mut sub, &LONG)));
    let call = "rename, long name";
    let moved = bill.call(call, || rename(m, to, &touches).unwrap());
    assert_eq!((moved.slots.count(), moved.replaced.is_none()), (1, true));
    at = moved.placed.place;
    for (call, name) in [
        ("rename to a new page", &b"c"[..]),
        ("rename, long name in a new page", &LONG),
    ] {
        let name = NewName {
            dir: sub.inode,
            name,
            room: lab.new_page(&mut sub),
        };
        let to = rename_to(at, Target::New(name));
        let moved = bill.call(call, || rename(m, to, &touches).unwrap());
        at = moved.placed.place;
        sub.slots.add(moved.placed.rest.unwrap());
    }
    let (b, at_b) = lab.make(&mut sub, b"d", FileKind::Regular);
    let to = rename_to(at, over(at_b, b, vec![]));
    let moved = bill.call("rename over", || rename(m, to, &touches).unwrap());
    assert_eq!(moved.replaced.unwrap().inode(), b);
    assert_eq!(moved.slots.count(), 5);
    at = at_b;
    let moved = Rename {
        from: at_sub,
        inode: sub.inode,
        ctime: NOW,
        to: over(at_old, old.inode, old.pages.clone()),
    };
    let touches = [touch(&dir)];
    let call = "rename over a directory";
    bill.call(call, || rename(m, moved, &touches).unwrap());

    let (c, at_c) = lab.make(&mut sub, b"e", FileKind::Regular);
    let (d, at_d) = lab.make(&mut dir, b"f", FileKind::Regular);
    let swap = Exchange {
        one: (at, a, NOW),
        other: (at_c, c, NOW),
    };
    bill.call("exchange", || exchange(m, swap, &[touch(&sub)]).unwrap());
    let swap = Exchange {
        one: (at_c, a, NOW),
        other: (at_d, d, NOW),
    };
    let touches = [touch(&sub), touch(&dir)];
    let call = "exchange across";
    bill.call(call, || exchange(m, swap, &touches).unwrap());
    at = at_d;

    let touches = [touch(&dir)];
    let left = Whiteout {
        rename: rename_to(at, Target::New(lab.room(&mut dir, b"g"))),
        birth: lab.birth(FileKind::CharDevice),
    };
    let moved = bill.call("whiteout", || rename_whiteout(m, left, &touches).unwrap());
    at = moved.placed.place;
    let name = NewName {
        dir: dir.inode,
        name: &LONG,
        room: lab.new_page(&mut dir),
    };
    let left = Whiteout {
        rename: rename_to(at, Target::New(name)),
        birth: lab.birth(FileKind::CharDevice),
    };
    let call = "whiteout, long name in a new page";
    let moved = bill.call(call, || rename_whiteout(m, left, &touches).unwrap());
    at = moved.placed.place;
    dir.slots.add(moved.placed.rest.unwrap());
    let (e, at_e) = lab.make(&mut dir, b"h", FileKind::Regular);
    let left = Whiteout {
        rename: rename_to(at, over(at_e, e, vec![])),
        birth: lab.birth(FileKind::CharDevice),
    };
    let call = "whiteout over";
    let moved = bill.call(call, || rename_whiteout(m, left, &touches).unwrap());
    assert_eq!(moved.replaced.unwrap().inode(), e);
    assert_eq!(bill.seen, bill.rows.len());
}

#[test]
fn renames_cost_as_planned() {
    renames(&Lab::new(4 << 20));
    renames(&Lab::eadr(4 << 20));
}

fn changes(lab: &Lab) {
    let rows = vec![
        row("append a page", 2, 1 + 1, 2),
        row("append in the page", 2, 1, 2),
        row("append 64 pages", 2, 32 + 1, 2),
        row("replace a page", 2, 1 + 1, 2),
        row("chmod", 1, 1, 1),
        row("chmod and atime", 1, 2, 1),
        row("truncate down", 1, 32 + 1, 1),
        row("truncate up", 1, 1, 1),
        row("truncate up, tail", 2, 1, 2),
        row("fallocate", 1, 2 + 1, 1),
        row("write to unwritten", 2, 1 + 1, 2),
        row("zero a range", 2, 1 + 1, 1),
        row("punch", 2, 1 + 1, 1),
        row("punch what is unwritten", 1, 1 + 1, 1),
        row("attributes inline", 2, 1 + 1, 1),
        row("attributes to a page", 2, 1 + 1, 2),
        row("no attributes", 2, 1 + 1, 1),
        row("times", 1, 2, 1),
        row("overwrite in place", 1, 1, 1),
    ];
    let mut bill = Bill { lab, rows, seen: 0 };
    let m = &lab.m;
    let mut dir = Dir::new(root());
    let (a, _) = lab.make(&mut dir, b"a", FileKind::Regular);
    let mut pages = lab.space.pages(128, None).unwrap();
    // From an even page on: two descriptors share a line.
    let mut free = pages.remove(0);
    let odd = free.start().0 % 2;
    let _ = free.split(odd);
    let data = [1; 4096];
    let store = |page: u64, skip: u64, bytes| DataStore {
        at: Page(page).at() + skip,
        bytes,
    };
    let die = |start, offset, len, state| PageChange::Die {
        pages: PageRun {
            start: Page(start),
            len,
        },
        offset,
        kind: PageKind::Data,
        state,
    };

    let (one, two) = (free.split(1), free.split(1));
    let (first, second) = (one.start().0, two.start().0);
    let new = Change {
        pages: smallvec![adopt(one, 0, PageState::Written)],
        data: smallvec![store(first, 0, Bytes::Data(&data[..100]))],
        ..change_of(a, 100)
    };
    bill.call("append a page", || change(m, new).unwrap());
    let new = Change {
        data: smallvec![store(first, 100, Bytes::Data(&data[..100]))],
        ..change_of(a, 200)
    };
    bill.call("append in the page", || change(m, new).unwrap());
    let many = free.split(64);
    let start = many.start().0;
    let content = vec![5; 64 * 4096];
    let new = Change {
        pages: smallvec![adopt(many, 1, PageState::Written)],
        data: smallvec![
            store(first, 200, Bytes::Zeros(3896)),
            store(start, 0, Bytes::Data(&content)),
        ],
        ..change_of(a, 65 * 4096)
    };
    bill.call("append 64 pages", || change(m, new).unwrap());
    let new = Change {
        pages: smallvec![
            adopt(two, 0, PageState::Written),
            die(first, 0, 1, PageState::Written),
        ],
        data: smallvec![store(second, 0, Bytes::Data(&data))],
        ..change_of(a, 65 * 4096)
    };
    let freed = bill.call("replace a page", || change(m, new).unwrap());
    assert_eq!(freed.pages(), 1);
    lab.space.add(freed);
    let mut new = change_of(a, 65 * 4096);
    new.attributes.perm = 0o600;
    bill.call("chmod", || change(m, new).unwrap());
    let mut new = change_of(a, 65 * 4096);
    new.times.atime = Some(NOW);
    bill.call("chmod and atime", || change(m, new).unwrap());
    let new = Change {
        pages: smallvec![die(start, 1, 64, PageState::Written)],
        ..change_of(a, 100)
    };
    let freed = bill.call("truncate down", || change(m, new).unwrap());
    assert_eq!(freed.pages(), 64);
    lab.space.add(freed);
    let new = change_of(a, 100);
    bill.call("truncate up", || change(m, new).unwrap());
    let new = Change {
        data: smallvec![store(second, 100, Bytes::Zeros(3996))],
        ..change_of(a, 8192)
    };
    bill.call("truncate up, tail", || change(m, new).unwrap());
    let space = free.split(4);
    let start = space.start().0;
    let new = Change {
        pages: smallvec![adopt(space, 1, PageState::Unwritten)],
        ..change_of(a, 5 * 4096)
    };
    bill.call("fallocate", || change(m, new).unwrap());
    let new = Change {
        pages: smallvec![PageChange::Turn {
            pages: PageRun {
                start: Page(start),
                len: 2,
            },
            offset: 1,
        }],
        data: smallvec![
            store(start, 0, Bytes::Data(&data)),
            store(start + 1, 0, Bytes::Zeros(4096)),
        ],
        ..change_of(a, 5 * 4096)
    };
    bill.call("write to unwritten", || change(m, new).unwrap());
    let zeroed = PageChange::Clear {
        pages: PageRun {
            start: Page(start),
            len: 2,
        },
        offset: 1,
    };
    let new = Change {
        pages: smallvec![zeroed],
        ..change_of(a, 5 * 4096)
    };
    bill.call("zero a range", || change(m, new).unwrap());
    let turned = PageChange::Turn {
        pages: PageRun {
            start: Page(start),
            len: 2,
        },
        offset: 1,
    };
    let new = Change {
        pages: smallvec![turned],
        ..change_of(a, 5 * 4096)
    };
    let _ = change(m, new).unwrap();
    let new = Change {
        pages: smallvec![die(start, 1, 2, PageState::Written)],
        ..change_of(a, 5 * 4096)
    };
    let freed = bill.call("punch", || change(m, new).unwrap());
    assert_eq!(freed.pages(), 2);
    let new = Change {
        pages: smallvec![die(start + 2, 3, 2, PageState::Unwritten)],
        ..change_of(a, 5 * 4096)
    };
    bill.call("punch what is unwritten", || change(m, new).unwrap());

    let mut new = change_of(a, 5 * 4096);
    new.attributes.place = AttributePlace::Inline;
    new.inline = Some(b"user.a=b");
    bill.call("attributes inline", || change(m, new).unwrap());
    let set = free.split(1);
    let page = set.start();
    let mut new = change_of(a, 5 * 4096);
    new.attributes.place = AttributePlace::Pages;
    new.data = smallvec![store(page.0, 0, Bytes::Data(&data))];
    new.pages = smallvec![PageChange::Adopt {
        pages: set,
        offset: 0,
        kind: PageKind::Attributes,
        state: PageState::Written,
    }];
    bill.call("attributes to a page", || change(m, new).unwrap());
    let new = Change {
        pages: smallvec![PageChange::Die {
            pages: PageRun {
                start: page,
                len: 1,
            },
            offset: 0,
            kind: PageKind::Attributes,
            state: PageState::Written,
        }],
        ..change_of(a, 5 * 4096)
    };
    bill.call("no attributes", || change(m, new).unwrap());

    let times = Times {
        atime: Some(NOW),
        mtime: Some(NOW),
        ctime: Some(NOW),
    };
    bill.call("times", || set_times(m, a, times).unwrap());
    let times = Times {
        atime: None,
        ..times
    };
    let store = [store(second, 0, Bytes::Data(&data))];
    let call = "overwrite in place";
    bill.call(call, || overwrite(m, a, &store, times).unwrap());
    assert_eq!(bill.seen, bill.rows.len());
}

#[test]
fn changes_cost_as_planned() {
    changes(&Lab::new(4 << 20));
    changes(&Lab::eadr(4 << 20));
}

#[test]
fn recovery_costs_one_fence_and_each_line_once_and_nothing_if_there_is_nothing_to_do() {
    let lab = Lab::new(4 << 20);
    let at = lab.m.geometry().desc_at(Page(100));
    let repairs: Vec<Repair> = [0, 512, 8, 520, 16]
        .iter()
        .map(|offset| Repair {
            at: at + offset,
            word: 3,
        })
        .collect();
    let (_, cost) = lab.cost(|| recover(&lab.m, &repairs, Survey::default()).map(|_| ()));
    assert_eq!((cost.fences, cost.lines), (1, 2));
    let (_, cost) = lab.cost(|| recover(&lab.m, &[], Survey::default()).map(|_| ()));
    assert_eq!((cost.fences, cost.lines), (0, 0));
}

/// A change of every other page of a large file costs in proportion to its pages, with each line written back once.
#[test]
fn a_change_of_many_runs_writes_each_line_back_once() {
    let lab = Lab::new(16 << 20);
    let mut dir = Dir::new(root());
    let (file, run) = lab.file(&mut dir, b"a", 1000);
    let every_other = |first: u64| (first..1000).step_by(2);
    let die = |index: u64| PageChange::Die {
        pages: PageRun {
            start: Page(run.start.0 + index),
            len: 1,
        },
        offset: index,
        kind: PageKind::Data,
        state: PageState::Written,
    };
    let new = Change {
        pages: every_other(0).chain(every_other(1)).map(die).collect(),
        ..change_of(file, 1000 * 4096)
    };
    let (freed, cost) = lab.cost(|| change(&lab.m, new).unwrap());
    assert_eq!(freed.pages(), 1000);
    let lines = 500 + run.start.0 % 2 + 1;
    assert_eq!((cost.fences, cost.lines), (2, lines));
}
