//! Results of repairs: names in lost+found, one form of attributes; texts of findings; full volumes.

use super::image::{Image, mount};
use super::plant::is_sound;
use crate::fsck::{Outcome, Problem};
use Problem as P;
use steadfast_vfs::{Caller, Errno, FileKind, FileSystem};

#[test]
fn inodes_without_a_name_go_to_lost_and_found() {
    let mut image = Image::populated();
    image.wipe_entry(image.ino("/"), b"a");
    image.wipe_entry(image.ino("/"), b"flat");
    let (repaired, report) = image.repair();
    assert_eq!(report.outcome(), Outcome::Repaired, "{:#?}", report.left);
    let fs = mount(repaired.device());
    let me = &Caller::root();
    let found = fs.lookup(me, fs.root(), b"lost+found").unwrap();
    assert_eq!(
        (found.kind, found.nlink, found.perm),
        (FileKind::Directory, 3, 0o700)
    );
    let flat = fs
        .lookup(me, found.ino, format!("#{}", image.ino("/flat")).as_bytes())
        .unwrap();
    assert_eq!((flat.ino, flat.size), (image.ino("/flat"), 12288));
    let a = fs
        .lookup(me, found.ino, format!("#{}", image.ino("/a")).as_bytes())
        .unwrap();
    assert_eq!(fs.lookup(me, a.ino, b"..").unwrap().ino, found.ino);
    let b = fs.lookup(me, a.ino, b"b").unwrap();
    let small = fs.lookup(me, b.ino, b"small").unwrap();
    let mut text = [0; 5];
    fs.read(me, small.ino, 0, &mut text).unwrap();
    assert_eq!(&text, b"hello");
}

#[test]
fn of_two_forms_of_attributes_one_is_kept_the_block_if_it_is_whole() {
    let base = Image::populated();
    let few = base.inode(base.ino("/few")).xattrs;
    let names = |image: &Image| {
        let fs = mount(image.device());
        let mut names = fs.listxattr(&Caller::root(), image.ino("/attrs")).unwrap();
        names.sort();
        names
    };
    let mut both = base.clone();
    both.edit_inode(both.ino("/attrs"), |inode| inode.xattrs = few);
    let fs = mount(both.device());
    let refused = fs.listxattr(&Caller::root(), both.ino("/attrs"));
    assert!(refused.is_err_and(|error| error == Errno::Uclean));
    drop(fs);
    let (repaired, _) = both.repair();
    assert_eq!(names(&repaired), [&b"user.colour"[..], b"user.size"]);
    is_sound(&repaired, "both forms");

    let block = both.inode(both.ino("/attrs")).xattr_block.get();
    both.scratch(block, |bytes| bytes[20] ^= 1);
    let (repaired, report) = both.repair();
    assert!(report.has(P::XattrUnreadable) && !report.has(P::XattrInline));
    assert_eq!(names(&repaired), [&b"security.capability"[..], b"user.k"]);
    is_sound(&repaired, "both forms, the block damaged");
}

#[test]
fn findings_name_the_path_and_the_effect_of_a_repair() {
    let mut image = Image::populated();
    image.edit_inode(image.ino("/a/b/small"), |inode| inode.nlink = 7.into());
    let report = image.check();
    let finding = report
        .findings
        .iter()
        .find(|f| f.problem == P::LinkCount)
        .unwrap();
    let text = finding.to_string();
    assert!(text.contains("small") || text.contains("hard"), "{text}");
    assert!(
        text.contains("link count is 7") && text.contains("a repair corrects"),
        "{text}"
    );
}

#[test]
fn a_repair_works_on_a_full_volume() {
    let mut image = Image::populated();
    let device = image.device();
    let fs = mount(device.clone());
    let me = &Caller::root();
    let node = steadfast_vfs::NewNode {
        kind: FileKind::Regular,
        perm: 0o600,
        rdev: 0,
    };
    let fill = fs.mknod(me, fs.root(), b"fill", &node).unwrap();
    let mut at = 0;
    for step in [65536, 4096] {
        while fs.write(me, fill.ino, at, &vec![5; step]).is_ok() {
            at += step as u64;
        }
    }
    fs.unmount().unwrap();
    drop(fs);
    image.bytes = device.to_bytes();
    let leaf = image.tree(image.ino("/many")).0[1].block.get();
    image.scratch(leaf, |block| block[100] ^= 1);
    let node = image.tree(image.ino("/big")).1[0];
    image.edit(node, |b| {
        Image::change_item(b, 3, |item| item.key = 0.into())
    });
    let (repaired, report) = image.repair();
    assert_eq!(report.outcome(), Outcome::Repaired, "{:#?}", report);
    is_sound(&repaired, "a full volume");
}
