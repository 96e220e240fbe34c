//! File data: a read returns the written bytes, or zeros (corners 26 and 69); holes, space without content, large writes.

use super::common::*;
use proptest::prelude::*;
use steadfast_vfs::{AllocateMode, Errno, FileSystem, Ino, Seek, SetAttr};

const PAGE: u64 = 4096;
const FILE_MAX: u64 = 1 << 44;

fn truncate(v: &Volume, ino: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    assert_eq!(v.setattr(&root(), ino, &set).unwrap().size, size);
}

fn read(v: &Volume, ino: Ino, at: u64, len: usize) -> Vec<u8> {
    // The former content of the buffer must not shine through.
    let mut bytes = vec![0xee; len];
    let got = v.read(&root(), ino, at, &mut bytes).unwrap();
    bytes.truncate(got);
    bytes
}

/// Fills pages with bytes that are no zeros, and frees them.
fn soil(v: &Volume) {
    let r = v.root();
    let f = v.file(r, "dirt");
    let free = v.free() - 8;
    let len = v.write(&root(), f, 0, &vec![0xdd; (free * PAGE) as usize]);
    assert!(len.unwrap() > 0);
    v.unlink(&root(), r, b"dirt").unwrap();
}

#[test]
fn corner_69_bytes_cut_off_never_come_back() {
    let mut v = Volume::new(2);
    soil(&v);
    for cut in [1, 100, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE] {
        for regrow in 0..6 {
            for crash in [false, true] {
                let f = v.file(v.root(), "f");
                v.write(&root(), f, 0, &[7; 3 * 4096]).unwrap();
                truncate(&v, f, cut);
                if crash {
                    v.cut();
                }
                let mut expected = vec![7; cut as usize];
                match regrow {
                    0 => truncate(&v, f, 4 * PAGE),
                    1 => drop(v.write(&root(), f, 4 * PAGE - 1, &[0]).unwrap()),
                    2 => drop(v.append(&root(), f, &[9; 5000]).unwrap()),
                    3 => drop(v.write(&root(), f, cut + 9, &[0; 3]).unwrap()),
                    4 => v
                        .fallocate(&root(), f, AllocateMode::Allocate, 0, 4 * PAGE)
                        .unwrap(),
                    _ => v
                        .fallocate(&root(), f, AllocateMode::ZeroRange, 2 * PAGE, 2 * PAGE)
                        .unwrap(),
                }
                if regrow == 2 {
                    expected.extend([9; 5000]);
                }
                expected.resize(v.attr(f).size as usize, 0);
                assert_eq!(v.content(f), expected, "{cut}, {regrow}");
                v.cut();
                assert_eq!(v.content(f), expected, "{cut}, {regrow}, after a cut");
                v.unlink(&root(), v.root(), b"f").unwrap();
            }
        }
    }
}

#[test]
fn corner_69_unwritten_pages_past_the_end_read_as_zeros_when_the_file_grows() {
    let mut v = Volume::new(2);
    soil(&v);
    let f = v.file(v.root(), "f");
    v.write(&root(), f, 0, b"abc").unwrap();
    v.fallocate(&root(), f, AllocateMode::KeepSize, 0, 8 * PAGE)
        .unwrap();
    assert_eq!((v.attr(f).size, v.attr(f).blocks), (3, 8 * 8));
    v.cut();
    assert_eq!(v.attr(f).blocks, 8 * 8);
    v.write(&root(), f, 3 * PAGE + 1, b"x").unwrap();
    truncate(&v, f, 6 * PAGE + 5);
    let mut expected = vec![0; (6 * PAGE + 5) as usize];
    expected[..3].copy_from_slice(b"abc");
    expected[(3 * PAGE + 1) as usize] = b'x';
    assert_eq!(v.content(f), expected);
    v.cut();
    assert_eq!(v.content(f), expected);
    truncate(&v, f, 3);
    assert_eq!(v.attr(f).blocks, 8, "a truncation frees what was kept");
}

#[test]
fn reads_end_at_the_end_and_see_no_other_bytes() {
    let v = Volume::new(2);
    soil(&v);
    let f = v.file(v.root(), "f");
    v.write(&root(), f, 5000, b"hello").unwrap();
    assert_eq!(read(&v, f, 4998, 100), b"\0\0hello");
    assert_eq!(read(&v, f, 5005, 10), b"");
    assert_eq!(read(&v, f, u64::MAX, 10), b"");
    assert_eq!(read(&v, f, 0, 5000), vec![0; 5000]);
    let d = v.dir(v.root(), "d");
    fails(v.read(&root(), d, 0, &mut [0]), Errno::IsDir);
    fails(v.write(&root(), d, 0, b"x"), Errno::IsDir);
    let l = v.symlink(&root(), v.root(), b"l", b"f").unwrap().ino;
    fails(v.read(&root(), l, 0, &mut [0]), Errno::Inval);
}

#[test]
fn the_largest_file_ends_at_its_limit() {
    let mut v = Volume::new(2);
    let f = v.file(v.root(), "f");
    fails(v.write(&root(), f, FILE_MAX, b"x"), Errno::FBig);
    fails(v.write(&root(), f, FILE_MAX - 1, b"xx"), Errno::FBig);
    fails(v.write(&root(), f, u64::MAX, b"x"), Errno::FBig);
    let beyond = SetAttr {
        size: Some(FILE_MAX + 1),
        ..SetAttr::default()
    };
    fails(v.setattr(&root(), f, &beyond), Errno::FBig);
    let allocate = |at, len| v.fallocate(&root(), f, AllocateMode::Allocate, at, len);
    fails(allocate(FILE_MAX, 1), Errno::FBig);
    fails(allocate(u64::MAX, u64::MAX), Errno::FBig);
    fails(allocate(0, 0), Errno::Inval);
    fails(allocate(0, FILE_MAX), Errno::NoSpc);
    assert_eq!(v.attr(f).size, 0);
    v.write(&root(), f, FILE_MAX - 1, b"x").unwrap();
    assert_eq!((v.attr(f).size, v.attr(f).blocks), (FILE_MAX, 8));
    fails(v.append(&root(), f, b"x"), Errno::FBig);
    v.cut();
    assert_eq!(read(&v, f, FILE_MAX - 2, 9), b"\0x");
    v.fallocate(&root(), f, AllocateMode::PunchHole, 0, FILE_MAX)
        .unwrap();
    assert_eq!(v.attr(f).blocks, 0);
}

#[test]
fn data_and_holes_are_found() {
    let v = Volume::new(2);
    let f = v.file(v.root(), "f");
    let seek = |at, whence| v.seek(&root(), f, at, whence);
    fails(seek(0, Seek::Data), Errno::NxIo);
    v.write(&root(), f, 2 * PAGE, &[1; 4096]).unwrap();
    v.write(&root(), f, 5 * PAGE + 10, &[1; 10]).unwrap();
    v.fallocate(&root(), f, AllocateMode::Allocate, 3 * PAGE, PAGE)
        .unwrap();
    let size = 5 * PAGE + 20;
    for (at, data, hole) in [
        (0, 2 * PAGE, 0),
        (2 * PAGE + 1, 2 * PAGE + 1, 3 * PAGE),
        (3 * PAGE + 1, 5 * PAGE, 3 * PAGE + 1),
        (5 * PAGE, 5 * PAGE, size),
        (size - 1, size - 1, size),
    ] {
        assert_eq!(seek(at, Seek::Data).unwrap(), data);
        assert_eq!(seek(at, Seek::Hole).unwrap(), hole);
    }
    fails(seek(size, Seek::Hole), Errno::NxIo);
    truncate(&v, f, 9 * PAGE);
    fails(seek(6 * PAGE, Seek::Data), Errno::NxIo);
    assert_eq!(seek(8 * PAGE, Seek::Hole).unwrap(), 8 * PAGE);
}

#[test]
fn set_id_bits_do_not_survive_a_change_of_the_content() {
    let v = Volume::new(2);
    let f = v.file(v.root(), "f");
    v.write(&root(), f, 0, &[1; 9000]).unwrap();
    let set = SetAttr {
        perm: Some(0o6777),
        uid: Some(5),
        ..SetAttr::default()
    };
    let me = user(5);
    let punch = AllocateMode::PunchHole;
    let calls: [&dyn Fn() -> bool; 3] = [
        &|| v.write(&me, f, 0, b"x").is_ok(),
        &|| v.append(&me, f, b"x").is_ok(),
        &|| v.fallocate(&me, f, punch, 0, 4096).is_ok(),
    ];
    for call in calls {
        v.setattr(&root(), f, &set).unwrap();
        let again = SetAttr { uid: None, ..set };
        assert_eq!(v.setattr(&root(), f, &again).unwrap().perm, 0o6777);
        assert!(call());
        assert_eq!(v.attr(f).perm, 0o777);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: u64, len: usize, byte: u8 },
    Append { len: usize, byte: u8 },
    Truncate(u64),
    Allocate { mode: u8, at: u64, len: u64 },
    Cut,
}

fn step(span: u64) -> impl Strategy<Value = Step> {
    // Often at the borders of pages.
    let place = || {
        prop_oneof![
            0..span,
            (0..span / PAGE).prop_map(|page| page * PAGE),
            (1..span / PAGE, -1i64..2)
                .prop_map(|(page, by)| (page * PAGE).saturating_add_signed(by)),
        ]
    };
    prop_oneof![
        4 => (place(), place(), 1u8..).prop_map(|(at, len, byte)| Step::Write { at, len: len as usize, byte }),
        2 => (place(), 1u8..).prop_map(|(len, byte)| Step::Append { len: len as usize, byte }),
        2 => place().prop_map(Step::Truncate),
        3 => (0u8..5, place(), place()).prop_map(|(mode, at, len)| Step::Allocate { mode, at, len: len.max(1) }),
        1 => Just(Step::Cut),
    ]
}

fn put(model: &mut Vec<u8>, at: u64, data: &[u8]) {
    let end = at as usize + data.len();
    if !data.is_empty() {
        model.resize(model.len().max(end), 0);
        model[at as usize..end].copy_from_slice(data);
    }
}

fn allocated(model: &mut Vec<u8>, mode: u8, at: u64, len: u64) -> AllocateMode {
    let end = (at + len) as usize;
    let zeroed = (at as usize).min(model.len())..end.min(model.len());
    if mode >= 2 {
        model[zeroed].fill(0);
    }
    if mode == 0 || mode == 3 {
        model.resize(model.len().max(end), 0);
    }
    [
        AllocateMode::Allocate,
        AllocateMode::KeepSize,
        AllocateMode::PunchHole,
        AllocateMode::ZeroRange,
        AllocateMode::ZeroRangeKeepSize,
    ][usize::from(mode)]
}

/// One file on a volume that is often full, beside a vector. A second file has every other free page, so that free runs are
/// short.
fn run(steps: &[Step], mib: u64, in_place: bool) -> Result<(), TestCaseError> {
    let mut options = options();
    options.in_place = in_place;
    let mut v = Volume::with(made(mib << 20, 64 << 10), options);
    soil(&v);
    let r = v.root();
    let other = v.file(r, "other");
    for page in 0..60 {
        v.write(&root(), other, page * 2 * PAGE, &[3; 4096])
            .unwrap();
    }
    for page in (0..60).step_by(2) {
        v.fallocate(
            &root(),
            other,
            AllocateMode::PunchHole,
            page * 2 * PAGE,
            PAGE,
        )
        .unwrap();
    }
    let f = v.file(r, "f");
    let mut model: Vec<u8> = Vec::new();
    for step in steps {
        let free = v.free();
        let (size, blocks) = (v.attr(f).size, v.attr(f).blocks);
        let refused = match *step {
            Step::Write { at, len, byte } => match v.write(&root(), f, at, &vec![byte; len]) {
                Ok(done) => {
                    prop_assert!(done == len || v.free() == 0 || done > 0);
                    put(&mut model, at, &vec![byte; done]);
                    false
                }
                Err(error) => error == Errno::NoSpc,
            },
            Step::Append { len, byte } => match v.append(&root(), f, &vec![byte; len]) {
                Ok((at, done)) => {
                    prop_assert_eq!(at as usize, model.len());
                    put(&mut model, at, &vec![byte; done]);
                    false
                }
                Err(error) => error == Errno::NoSpc,
            },
            Step::Truncate(size) => {
                truncate(&v, f, size);
                model.resize(size as usize, 0);
                false
            }
            Step::Allocate { mode, at, len } => {
                let before = model.clone();
                let mode = allocated(&mut model, mode, at, len);
                match v.fallocate(&root(), f, mode, at, len) {
                    Ok(()) => false,
                    Err(error) => {
                        model = before;
                        error == Errno::NoSpc
                    }
                }
            }
            Step::Cut => {
                v.cut();
                false
            }
        };
        if refused {
            prop_assert_eq!(
                (v.free(), v.attr(f).blocks, v.attr(f).size),
                (free, blocks, size)
            );
        }
        prop_assert_eq!(v.attr(f).size, model.len() as u64);
        let found = v.content(f);
        if found != model {
            let at = found.iter().zip(&model).position(|(a, b)| a != b);
            prop_assert!(false, "{step:?}: byte {at:?}");
        }
    }
    v.cut();
    prop_assert!(v.content(f) == model);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_holds_the_written_bytes_and_a_full_volume_refuses_without_a_trace(
        steps in prop::collection::vec(step(40 * PAGE), 1..40), small: bool, in_place: bool,
    ) {
        run(&steps, if small { 1 } else { 2 }, in_place)?;
    }
}

#[test]
fn a_write_of_any_length_is_one_change() {
    let v = Volume::new(16);
    let f = v.file(v.root(), "f");
    let data: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8 + 1).collect();
    assert_eq!(v.write(&root(), f, 123, &data).unwrap(), data.len());
    assert_eq!(read(&v, f, 123, data.len() + 1), data);
    let before = v.free();
    assert_eq!(v.write(&root(), f, 123, &data).unwrap(), data.len());
    assert_eq!(v.free(), before);
}
