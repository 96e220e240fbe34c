//! Operations that fsx leaves out: keeping the size, zeroing ranges, seeking for data and holes, direct input and
//! output and new mounts in the middle, mixed at random on one file. Every byte and the size are compared with a copy
//! in memory, under each contract.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use crate::common;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use common::Place;
use rustix::fs::{FallocateFlags as F, Mode, OFlags, SeekFrom};
use steadfast_testkit::Random;

const FILE_BYTES_MAX: u64 = 400_000;
const OP_BYTES_MAX: u64 = 70_000;
const BLOCK: u64 = 4096;

/// An offset and a length, often at the edges of blocks.
fn range(random: &mut Random, limit: u64) -> (u64, u64) {
    let mut at = random.below(limit);
    let mut len = 1 + random.below(OP_BYTES_MAX);
    if random.below(3) == 0 {
        at -= at % BLOCK;
    }
    if random.below(3) == 0 {
        len = len.next_multiple_of(BLOCK);
    }
    (at, len)
}

struct Exercise {
    path: PathBuf,
    file: File,
    direct: File,
    model: Vec<u8>,
    random: Random,
    /// The last operations, for debugging.
    log: Vec<String>,
}

fn open(path: &PathBuf) -> (File, File) {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)).unwrap();
    let direct = rustix::fs::open(
        path,
        OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap();
    (file.into(), direct.into())
}

impl Exercise {
    fn new(path: PathBuf, seed: u64) -> Exercise {
        let (file, direct) = open(&path);
        let random = Random::new(seed);
        Exercise {
            path,
            file,
            direct,
            model: Vec::new(),
            random,
            log: Vec::new(),
        }
    }

    fn size(&self) -> u64 {
        self.model.len() as u64
    }

    fn grow(&mut self, end: u64) {
        if end > self.size() {
            self.model.resize(end as usize, 0);
        }
    }

    fn note(&mut self, what: String) {
        self.log.push(what);
    }

    /// Fails with the last operations.
    fn check(&self, holds: bool, what: &str) {
        let last = &self.log[self.log.len().saturating_sub(12)..];
        assert!(
            holds,
            "{what} after {} operations, the last of them:\n{}",
            self.log.len(),
            last.join("\n")
        );
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let first = self.random.below(255) as u8 + 1;
        (0..len)
            .map(|i| first.wrapping_add((i / 7) as u8) | 1)
            .collect()
    }

    fn write(&mut self) {
        let (at, len) = range(&mut self.random, FILE_BYTES_MAX - OP_BYTES_MAX);
        let bytes = self.bytes(len);
        self.note(format!("write {at} +{len}"));
        self.file.write_all_at(&bytes, at).unwrap();
        self.grow(at + len);
        self.model[at as usize..][..len as usize].copy_from_slice(&bytes);
    }

    fn write_directly(&mut self) {
        let at = self.random.below((FILE_BYTES_MAX - OP_BYTES_MAX) / BLOCK) * BLOCK;
        let len = (1 + self.random.below(8)) * BLOCK;
        let bytes = self.bytes(len);
        self.note(format!("write directly {at} +{len}"));
        let mut space = Vec::new();
        let aligned = aligned(&mut space, len as usize);
        aligned.copy_from_slice(&bytes);
        self.direct.write_all_at(aligned, at).unwrap();
        self.grow(at + len);
        self.model[at as usize..][..len as usize].copy_from_slice(&bytes);
    }

    fn truncate(&mut self) {
        let size = self.random.below(FILE_BYTES_MAX);
        self.note(format!("truncate {size}"));
        self.file.set_len(size).unwrap();
        self.model.resize(size as usize, 0);
    }

    fn allocate(&mut self) {
        let modes = [
            F::empty(),
            F::KEEP_SIZE,
            F::PUNCH_HOLE | F::KEEP_SIZE,
            F::ZERO_RANGE,
            F::ZERO_RANGE | F::KEEP_SIZE,
        ];
        let mode = *self.random.pick(&modes);
        let (at, len) = range(&mut self.random, FILE_BYTES_MAX - OP_BYTES_MAX - BLOCK);
        self.note(format!("fallocate {mode:?} {at} +{len}"));
        rustix::fs::fallocate(&self.file, mode, at, len).unwrap();
        if !mode.contains(F::KEEP_SIZE) {
            self.grow(at + len);
        }
        if mode.intersects(F::PUNCH_HOLE | F::ZERO_RANGE) {
            let end = (at + len).min(self.size());
            if at < end {
                self.model[at as usize..end as usize].fill(0);
            }
        }
    }

    fn copy(&mut self) {
        let size = self.size();
        let (from, len) = range(&mut self.random, size.max(1));
        let (to, _) = range(&mut self.random, FILE_BYTES_MAX - OP_BYTES_MAX - BLOCK);
        let len = len.min(self.size().saturating_sub(from));
        if len == 0 || from < to + len && to < from + len {
            return;
        }
        self.note(format!("copy {from} +{len} to {to}"));
        let (mut at, mut at_to) = (from, to);
        while at < from + len {
            let left = (from + len - at) as usize;
            let copied = rustix::fs::copy_file_range(
                &self.file,
                Some(&mut at),
                &self.file,
                Some(&mut at_to),
                left,
            );
            self.check(copied.unwrap() > 0, "nothing was copied");
        }
        self.grow(to + len);
        self.model
            .copy_within(from as usize..(from + len) as usize, to as usize);
    }

    fn read(&mut self) {
        let (at, len) = range(&mut self.random, FILE_BYTES_MAX);
        let mut bytes = vec![0xee; len as usize];
        let mut done = 0;
        while let n @ 1.. = self
            .file
            .read_at(&mut bytes[done..], at + done as u64)
            .unwrap()
        {
            done += n;
        }
        let from = at.min(self.size()) as usize;
        let to = (at + len).min(self.size()) as usize;
        self.check(done == to - from, "another length is read");
        self.check(
            bytes[..done] == self.model[from..to],
            "other bytes are read",
        );
    }

    fn read_directly(&mut self) {
        let at = self.random.below(FILE_BYTES_MAX / BLOCK) * BLOCK;
        let mut space = Vec::new();
        let bytes = aligned(&mut space, (8 * BLOCK) as usize);
        let done = self.direct.read_at(bytes, at).unwrap();
        let from = at.min(self.size()) as usize;
        self.check(
            done <= self.model.len() - from,
            "more is read directly than is there",
        );
        let same = bytes[..done] == self.model[from..][..done];
        self.check(same, "other bytes are read directly");
    }

    /// Checks that no byte in a reported hole is other than zero.
    fn seek(&mut self) {
        let at = self.random.below(FILE_BYTES_MAX);
        let zero = |from: u64, to: u64| {
            self.model[from as usize..to as usize]
                .iter()
                .all(|&byte| byte == 0)
        };
        match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) => {
                self.check(data >= at && data < self.size(), "data behind the end");
                self.check(zero(at, data), "data was passed over");
            }
            Err(rustix::io::Errno::NXIO) => {
                self.check(
                    at >= self.size() || zero(at, self.size()),
                    "data was not found",
                );
            }
            Err(e) => panic!("seek: {e}"),
        }
        match rustix::fs::seek(&self.file, SeekFrom::Hole(at)) {
            Ok(hole) => {
                self.check(hole >= at && hole <= self.size(), "a hole behind the end");
                if hole < self.size() {
                    let next =
                        rustix::fs::seek(&self.file, SeekFrom::Data(hole)).unwrap_or(self.size());
                    self.check(zero(hole, next), "a hole with data in it");
                }
            }
            Err(rustix::io::Errno::NXIO) => self.check(at >= self.size(), "no hole up to the end"),
            Err(e) => panic!("seek: {e}"),
        }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..20 => self.write(),
            20..26 => self.write_directly(),
            26..34 => self.truncate(),
            34..52 => self.allocate(),
            52..60 => self.copy(),
            60..82 => self.read(),
            82..88 => self.read_directly(),
            88..94 => self.seek(),
            94..96 => self.file.sync_data().unwrap(),
            96..98 => self.file.sync_all().unwrap(),
            _ => (self.file, self.direct) = open(&self.path),
        }
        let found = fs::metadata(&self.path).unwrap().size();
        self.check(found == self.size(), "another size");
    }

    fn check_all(&self) {
        self.check(
            fs::read(&self.path).unwrap() == self.model,
            "another content",
        );
    }
}

fn aligned(space: &mut Vec<u8>, len: usize) -> &mut [u8] {
    space.resize(len + BLOCK as usize, 0);
    let skip = space.as_ptr().align_offset(BLOCK as usize);
    &mut space[skip..skip + len]
}

fn exercise(contract: &str, ops: usize, seeds: std::ops::Range<u64>) {
    let Some(place) = Place::new() else { return };
    place.must(&["mkfs", "--force", "--contract", contract, "img"]);
    for seed in seeds {
        place.must(&["mount", "img", "mnt"]);
        let path = place.mnt().join("file");
        let mut exercise = Exercise::new(path, seed);
        println!("contract {contract}, seed {seed}");
        for op in 1..=ops {
            exercise.step();
            if op % (ops / 3).max(1) == 0 {
                exercise.check_all();
                let Exercise {
                    path,
                    file,
                    direct,
                    model,
                    random,
                    log,
                } = exercise;
                drop((file, direct));
                place.must(&["umount", "mnt"]);
                place.must(&["mount", "-o", "cache=1M", "img", "mnt"]);
                let (file, direct) = open(&path);
                exercise = Exercise {
                    path,
                    file,
                    direct,
                    model,
                    random,
                    log,
                };
                exercise.note("new mount".to_owned());
                exercise.check_all();
            }
        }
        drop(exercise);
        fs::remove_file(place.mnt().join("file")).unwrap();
        place.must(&["umount", "mnt"]);
    }
    place.must(&["fsck", "img"]);
}

fn each(contract: &str) {
    let long = std::env::var_os("STEADFAST_LONG").is_some();
    let (ops, seeds) = if long { (60_000, 1..11) } else { (800, 1..2) };
    exercise(contract, ops, seeds);
}

#[test]
fn every_byte_is_as_in_memory_under_ordered() {
    each("ordered");
}

#[test]
fn every_byte_is_as_in_memory_under_metadata_prefix() {
    each("metadata-prefix");
}

#[test]
fn every_byte_is_as_in_memory_under_relaxed() {
    each("relaxed");
}

#[test]
fn every_byte_is_as_in_memory_under_sync() {
    each("sync");
}
