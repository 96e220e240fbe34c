//! A volume in use, by several streams and up to its last block, is sound at every moment:
//! as it lies on the device when its process is killed, and after it is unmounted.

use super::image::{Image, format, mount, walk};
use crate::Fs;
use crate::fsck::Outcome;
use std::collections::BTreeMap;
use steadfast_testkit::Random;
use steadfast_vfs::{
    AllocateMode, Caller, FileKind, FileSystem, Ino, NewNode, RenameMode, SetAttr, Stream,
    XattrMode,
};

/// A random call; its result does not matter.
fn step(
    fs: &Fs,
    random: &mut Random,
    dirs: &mut Vec<Ino>,
    files: &mut Vec<Ino>,
    open: &mut Vec<Ino>,
) {
    let me = &Caller {
        stream: Stream(random.below(3) as u32),
        ..Caller::root()
    };
    let name = |random: &mut Random| {
        let short = format!("n{}", random.below(12));
        if random.below(4) == 0 {
            short.repeat(50)
        } else {
            short
        }
        .into_bytes()
    };
    let (dir, other) = (*random.pick(dirs), *random.pick(dirs));
    let file = *random.pick(files);
    let (a, b) = (name(random), name(random));
    let (far, long) = (8 + random.below(16), random.below(17));
    let offset = random.below(1 << far);
    let len = 1 + random.below(1 << long);
    let node = NewNode {
        kind: FileKind::Regular,
        perm: 0o644,
        rdev: 0,
    };
    let modes = [
        AllocateMode::Allocate,
        AllocateMode::KeepSize,
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange,
        AllocateMode::ZeroRangeKeepSize,
    ];
    let renames = [
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    ];
    let _ = match random.below(20) {
        0..3 => fs
            .mknod(me, dir, &a, &node)
            .map(|attr| files.push(attr.ino)),
        3 => fs.mkdir(me, dir, &a, 0o755).map(|attr| dirs.push(attr.ino)),
        4 => fs.symlink(me, dir, &a, &vec![b't'; len as usize]).map(drop),
        5 => fs.link(me, file, dir, &a).map(drop),
        6 | 7 => fs.unlink(me, dir, &a),
        8 => fs.rmdir(me, dir, &a),
        9 | 10 => fs.rename(me, (dir, &a), (other, &b), *random.pick(&renames)),
        11..14 => fs.write(me, file, offset, &vec![7; len as usize]).map(drop),
        14 => fs.append(me, file, &vec![8; len as usize]).map(drop),
        15 => {
            let set = SetAttr {
                size: Some(offset),
                ..SetAttr::default()
            };
            fs.setattr(me, file, &set).map(drop)
        }
        16 => fs.fallocate(me, file, *random.pick(&modes), offset, len),
        17 => fs.setxattr(
            me,
            file,
            b"user.x",
            &vec![1; (len % 3000) as usize],
            XattrMode::Any,
        ),
        18 => match open.pop() {
            Some(ino) if random.below(2) == 0 => {
                fs.release(ino);
                Ok(())
            }
            kept => {
                open.extend(kept);
                let ino = if random.below(3) == 0 { dir } else { file };
                fs.open(me, ino).map(|()| open.push(ino))
            }
        },
        _ => fs.fsync(me, file, random.below(2) == 0),
    };
}

fn is_clean(image: &Image, when: &str) {
    let report = image.check();
    assert_eq!(
        report.outcome(),
        Outcome::Clean,
        "{when}: {:#?}",
        report.findings
    );
}

#[test]
fn a_volume_in_use_is_sound_at_every_moment() {
    for seed in 0..6 {
        let blocks = if seed % 2 == 0 { 3000 } else { 700 };
        let device = format(blocks);
        let fs = mount(device.clone());
        let mut random = Random::new(seed * 1_000_003);
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let first = fs
            .mknod(&Caller::root(), fs.root(), b"first", &node)
            .unwrap()
            .ino;
        let (mut dirs, mut files, mut open) = (vec![fs.root()], vec![first], Vec::new());
        for count in 1..1200 {
            step(&fs, &mut random, &mut dirs, &mut files, &mut open);
            if count % 100 == 0 {
                let image = Image::of(&device, BTreeMap::new());
                is_clean(&image, &format!("seed {seed}, killed after {count} calls"));
                let (recovered, report) = image.repair();
                assert_eq!(report.outcome(), Outcome::Clean);
                let again = mount(recovered.device());
                assert!(walk(&again).1.is_empty());
            }
        }
        open.into_iter().for_each(|ino| fs.release(ino));
        fs.unmount().unwrap();
        drop(fs);
        let report = Image::of(&device, BTreeMap::new()).check();
        assert!(
            report.findings.is_empty(),
            "seed {seed}, unmounted: {:#?}",
            report.findings
        );
    }
}
