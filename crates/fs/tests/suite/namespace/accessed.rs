//! Noted reads: seen at once, written later, and no obstacle to other operations.

use super::common::*;
use steadfast_vfs::{FileSystem, Ino, SetAttr, SetTime, Time};

fn read(v: &Volume, ino: Ino) -> Time {
    v.accessed(&stream(2), ino).unwrap();
    v.attr(ino).atime
}

#[test]
fn a_noted_read_is_seen_at_once_and_outlives_a_sync_and_an_unmount() {
    let mut v = Volume::new(16);
    let d = v.dir(v.root(), "d");
    let file = v.file(d, "file");
    let made = v.attr(file);
    let (of_file, of_dir) = (read(&v, file), read(&v, d));
    assert!(of_file > made.atime && of_dir > of_file);
    assert_eq!(v.look(d, "file").unwrap().atime, of_file);
    assert_eq!(v.attr(file).ctime, made.ctime);
    // A second read is not due.
    assert_eq!(read(&v, file), of_file);
    v.write(&root(), file, 0, b"changed").unwrap();
    let again = read(&v, file);
    assert!(again > of_dir);
    // The note of an inode with changes that are not durable has to wait for the next sync.
    v.sync().unwrap();
    v.sync().unwrap();
    v.cut();
    assert_eq!((v.attr(file).atime, v.attr(d).atime), (again, of_dir));
    let link = v.symlink(&root(), d, b"link", b"x").unwrap().ino;
    let of_link = read(&v, link);
    v.remount();
    assert_eq!(v.attr(link).atime, of_link);
}

#[test]
fn a_time_of_access_that_is_set_takes_the_note_away() {
    let mut v = Volume::new(16);
    let file = v.file(v.root(), "file");
    read(&v, file);
    let time = Time { secs: 5, nanos: 6 };
    let set = SetAttr {
        atime: Some(SetTime::At(time)),
        ..SetAttr::default()
    };
    assert_eq!(v.setattr(&root(), file, &set).unwrap().atime, time);
    assert_eq!(v.attr(file).atime, time);
    v.remount();
    assert_eq!(v.attr(file).atime, time);
}

#[test]
fn a_note_goes_with_its_inode() {
    let mut v = Volume::new(16);
    let r = v.root();
    let file = v.file(r, "file");
    let noted = read(&v, file);
    v.unlink(&root(), r, b"file").unwrap();
    let next = v.file(r, "next");
    assert_eq!(next, file, "the number is used again");
    let made = v.attr(next);
    assert!(made.atime > noted);
    v.remount();
    assert_eq!(v.attr(next), made);
}

#[test]
fn notes_that_wait_are_bounded() {
    let mut v = Volume::new(16);
    let r = v.root();
    let files: Vec<Ino> = (0..1500).map(|n| v.file(r, &format!("{n}"))).collect();
    v.sync().unwrap();
    let noted: Vec<Time> = files.iter().map(|file| read(&v, *file)).collect();
    // Some went to the device meanwhile, whole operations of a stream of their own.
    v.cut();
    let kept = |(file, time): (&Ino, &Time)| v.attr(*file).atime == *time;
    let kept = files.iter().zip(&noted).filter(|note| kept(*note)).count();
    assert!((1024..1500).contains(&kept), "{kept} notes are durable");
}
