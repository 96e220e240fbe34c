//! Each call, cut at every point under line order, shows the tree before it or the tree after it.

use std::collections::BTreeMap;

use steadfast_pm::{Exploration, Model};

use super::*;
use crate::index::name;
use crate::layout::{Commit, InodeRef, PAGE_BYTES, Page, inode, slot};
use crate::mount::{Mount, mount};
use crate::options::MountOptions;
use crate::table::Content as Held;
use smallvec::smallvec;

/// Paths, with their content. Two names of one inode show its number in the order of the paths.
type Tree = BTreeMap<Vec<u8>, String>;

fn tree(region: Region) -> Tree {
    let mount = mount(region, &MountOptions::default(), &mut |_, _| {}).unwrap();
    let mut seen = Vec::new();
    let mut tree = Tree::new();
    visit(&mount, root().number, &mut Vec::new(), &mut seen, &mut tree);
    tree
}

fn visit(mount: &Mount, number: u32, path: &mut Vec<u8>, seen: &mut Vec<u32>, tree: &mut Tree) {
    let (m, node) = (&mount.medium, mount.table.get(number).unwrap());
    let at = m.geometry().inode_at(number);
    let commit = Commit::from_word(m.load(at + inode::COMMIT));
    let size = m.load(at + inode::SIZE[commit.parity()]);
    let owner = m.load(at + inode::OWNER[commit.parity()]);
    let known = seen.iter().position(|known| *known == number);
    let alias = known.unwrap_or(seen.len());
    if known.is_none() {
        seen.push(number);
    }
    let state = node.read();
    let mut content = Vec::new();
    let mut names = BTreeMap::new();
    match &state.content {
        Held::Pages(pages) => {
            content = vec![0; size as usize];
            for extent in pages.iter().filter(|e| e.state == PageState::Written) {
                for index in 0..extent.len {
                    let from = ((extent.offset + index) * PAGE_BYTES) as usize;
                    let to = content.len().min(from + PAGE_BYTES as usize);
                    if from < to {
                        let page = Page(extent.page.0 + index);
                        m.read(page.at(), &mut content[from..to]);
                    }
                }
            }
            let inline = node.kind == FileKind::Symlink && pages.is_empty();
            if inline {
                m.read(at + inode::INLINE, &mut content);
            }
        }
        Held::Directory(directory) => {
            for (_, page) in directory.names.pages() {
                for index in 0..64 {
                    let place = Place::new(*page, index);
                    if let Some(of) = InodeRef::from_word(m.load(place.at() + slot::COMMIT)) {
                        let name = name::read(m, place).unwrap().bytes().to_vec();
                        assert!(names.insert(name, of.number).is_none(), "a name twice");
                    }
                }
            }
        }
    }
    let digest = content.iter().fold(0u64, |sum, byte| {
        sum.wrapping_mul(1_099_511_628_211)
            .wrapping_add(u64::from(*byte) + 1)
    });
    let held = match node.kind {
        FileKind::Directory => String::new(),
        _ => format!(" {size} bytes {digest:x}"),
    };
    let place = commit.attributes as u8;
    let links = state.links;
    let what = format!(
        "{alias} {:?} {:o} {owner:x} {links} links {place}{held}",
        node.kind, commit.perm
    );
    drop(state);
    assert!(tree.insert(path.clone(), what).is_none());
    for (name, number) in names {
        let len = path.len();
        path.push(b'/');
        path.extend(name);
        visit(mount, number, path, seen, tree);
        path.truncate(len);
    }
}

/// Runs a call and looks at every image that a crash in it may leave.
fn cut<R>(lab: &Lab, what: &str, call: impl FnOnce() -> R) -> R {
    let before = tree(Region::with_content(&lab.m.content()));
    lab.m.restart_recorder();
    let result = call();
    let after = tree(Region::with_content(&lab.m.content()));
    let trace = lab.m.recorder().unwrap().trace();
    let options = Exploration {
        model: Model::Line,
        images_max: 400,
        samples: 60,
        seed: 1,
    };
    // Data words are many, and alike: the words of tables and slots are varied first.
    let first = |at: u64| !lab.m.geometry().is_data_page(Page(at / PAGE_BYTES));
    let (mut old, mut new) = (0, 0);
    let looked = trace.explore(&options, first, |image| {
        let found = tree(image.region());
        old += u32::from(found == before);
        new += u32::from(found == after);
        if found == before || found == after {
            Ok(())
        } else {
            Err(format!(
                "{what}: {image}\n{found:#?}\nbefore {before:#?}\nafter {after:#?}"
            ))
        }
    });
    looked.unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(old > 0 && new > 0, "{what}: {old} {new}");
    result
}

#[test]
fn names_are_there_or_not_whatever_a_crash_leaves() {
    let lab = Lab::new(512 << 10);
    let m = &lab.m;
    let mut dir = Dir::new(root());
    let long = [b'l'; 100];
    let mut made = Vec::new();
    for (name, kind) in [
        (&b"a"[..], FileKind::Regular),
        (b"b", FileKind::Regular),
        (&long, FileKind::Directory),
    ] {
        let (birth, room) = (lab.birth(kind), lab.room(&mut dir, name));
        let new = cut(&lab, "create", || {
            create(m, birth, room, touch(&dir)).unwrap()
        });
        made.push(dir.placed(new.placed, new.inode));
    }
    let ((a, at_a), (b, at_b), (sub, at_sub)) = (made[0], made[1], made[2]);
    let mut sub = Dir::new(sub);
    let again = Link {
        inode: a,
        ctime: NOW,
    };
    let room = lab.room(&mut sub, &long);
    let placed = cut(&lab, "link", || link(m, again, room, touch(&sub)).unwrap());
    let (_, at_link) = sub.placed(placed, a);
    for (name, target) in [
        (&b"s"[..], SymlinkTarget::Inline(b"target")),
        (
            b"t",
            SymlinkTarget::Page {
                page: lab.page(),
                target: b"in a page",
            },
        ),
    ] {
        let (birth, room) = (lab.birth(FileKind::Regular), lab.room(&mut dir, name));
        let made = cut(&lab, "symlink", || {
            symlink(m, birth, target, room, touch(&dir)).unwrap()
        });
        dir.placed(made.placed, made.inode);
    }

    // Exchanges, and a third name of the moved inode: old pointers must stay dead.
    let both = [touch(&dir), touch(&sub)];
    for (one, other) in [
        ((at_a, a, NOW), (at_b, b, NOW)),
        ((at_b, a, NOW), (at_a, b, NOW)),
        ((at_a, a, NOW), (at_b, b, NOW)),
    ] {
        let swap = Exchange { one, other };
        cut(&lab, "exchange", || exchange(m, swap, &both[..1]).unwrap());
    }
    // Now slot a names b, slot b names a, and a has another name in the directory.
    let swap = Exchange {
        one: (at_a, b, NOW),
        other: (at_link, a, NOW),
    };
    cut(&lab, "exchange across", || {
        exchange(m, swap, &both).unwrap();
    });
    let moved = Rename {
        from: at_link,
        inode: b,
        ctime: NOW,
        to: Target::New(lab.room(&mut dir, b"moved")),
    };
    let moved = cut(&lab, "rename", || rename(m, moved, &both).unwrap());
    sub.slots.add(moved.slots);
    let at_moved = moved.placed.place;
    let over = Rename {
        from: at_moved,
        inode: b,
        ctime: NOW,
        to: Target::Over(Over {
            place: at_a,
            inode: a,
            ctime: NOW,
            kills: vec![],
        }),
    };
    let moved = cut(&lab, "rename over", || rename(m, over, &both[..1]).unwrap());
    dir.slots.add(moved.slots);
    let left = Whiteout {
        rename: Rename {
            from: at_a,
            inode: b,
            ctime: NOW,
            to: Target::New(lab.room(&mut dir, &[b'w'; 50])),
        },
        birth: lab.birth(FileKind::CharDevice),
    };
    let moved = cut(&lab, "whiteout", || {
        rename_whiteout(m, left, &both[..1]).unwrap()
    });
    let gone = Remove {
        place: moved.placed.place,
        inode: b,
        ctime: NOW,
        kills: vec![],
    };
    let _ = cut(&lab, "unlink", || remove(m, gone, touch(&dir)).unwrap());
    let gone = Remove {
        place: at_sub,
        inode: sub.inode,
        ctime: NOW,
        kills: sub.pages.clone(),
    };
    let _ = cut(&lab, "rmdir", || remove(m, gone, touch(&dir)).unwrap());
}

#[test]
fn a_change_is_there_or_not_whatever_a_crash_leaves() {
    let lab = Lab::new(512 << 10);
    let m = &lab.m;
    let mut dir = Dir::new(root());
    let (a, run) = lab.file(&mut dir, b"a", 3);
    let page = |index: u64| PageRun {
        start: Page(run.start.0 + index),
        len: 1,
    };
    let die = |pages, offset, state| PageChange::Die {
        pages,
        offset,
        kind: PageKind::Data,
        state,
    };
    let text = [0x55; 4096];
    let store = |at: Page, bytes| DataStore { at: at.at(), bytes };
    let written = PageState::Written;
    let cases = |what: &str, new: Change<'_, '_>| {
        let freed = cut(&lab, what, || change(m, new).unwrap());
        lab.space.add(freed);
    };

    let free = lab.page();
    let to = free.start();
    cases(
        "replace a page and append one's beginning",
        Change {
            pages: smallvec![adopt(free, 1, written), die(page(1), 1, written)],
            data: smallvec![store(to, Bytes::Data(&text))],
            ..change_of(a, 3 * 4096)
        },
    );
    let mut new = change_of(a, 3 * 4096);
    new.attributes.perm = 0o600;
    new.attributes.uid = 99;
    cases("chmod and chown", new);
    cases(
        "truncate down",
        Change {
            pages: smallvec![die(page(2), 2, written)],
            ..change_of(a, 4097)
        },
    );
    cases(
        "truncate up, tail",
        Change {
            data: smallvec![DataStore {
                at: to.at() + 1,
                bytes: Bytes::Zeros(4095),
            }],
            ..change_of(a, 4 * 4096)
        },
    );
    let mut free = lab.space.pages(2, None).unwrap().remove(0);
    let two = PageRun {
        start: free.start(),
        len: 2,
    };
    cases(
        "fallocate",
        Change {
            pages: smallvec![adopt(free.split(2), 2, PageState::Unwritten)],
            ..change_of(a, 5 * 4096)
        },
    );
    cases(
        "write to unwritten",
        Change {
            pages: smallvec![PageChange::Turn {
                pages: two,
                offset: 2,
            }],
            data: smallvec![
                store(two.start, Bytes::Data(&text)),
                store(Page(two.start.0 + 1), Bytes::Data(&text)),
            ],
            ..change_of(a, 5 * 4096)
        },
    );
    cases(
        "zero a range and punch",
        Change {
            pages: smallvec![
                PageChange::Clear {
                    pages: two,
                    offset: 2,
                },
                die(page(0), 0, written),
            ],
            ..change_of(a, 5 * 4096)
        },
    );
    let mut new = change_of(a, 5 * 4096);
    new.attributes.place = AttributePlace::Inline;
    new.inline = Some(b"some attributes");
    cases("attributes inline", new);
}
