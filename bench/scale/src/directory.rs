//! One directory with very many files.

use crate::figures::{Figures, Process};
use crate::volume::{create, forget, open};
use std::path::Path;
use std::time::Instant;
use steadfast_fs::Fs;
use steadfast_testkit::Random;
use steadfast_vfs::{Caller, FileSystem as _, Ino};

const DIR: &[u8] = b"directory";

fn name(index: u64) -> Vec<u8> {
    format!("file-{index:08}").into_bytes()
}

fn lookup(fs: &Fs, dir: Ino, name: &[u8]) -> Result<Ino, String> {
    let found = fs.lookup(&Caller::root(), dir, name);
    found.map(|attr| attr.ino).map_err(|e| e.to_string())
}

/// Creates, looks up in random order from a cold cache, lists, removes in random order.
pub(crate) fn measure(image: &Path, count: u64, figures: &mut Figures) -> Result<(), String> {
    let caller = Caller::root();
    let (fs, _) = open(image)?;
    let made = fs.mkdir(&caller, fs.root(), DIR, 0o755);
    let dir = made.map_err(|e| e.to_string())?.ino;
    figures.curve("directory-create", count, Process::Own, |index| {
        create(&fs, dir, &name(index)).map(drop)
    })?;
    fs.unmount().map_err(|e| e.to_string())?;
    drop(fs);

    forget(image)?;
    let (fs, _) = open(image)?;
    let mut random = Random::new(count);
    // The first look-ups find nothing in memory; the later ones the content of the cache by then.
    figures.curve("directory-lookup", count / 10, Process::Own, |_| {
        lookup(&fs, dir, &name(random.below(count))).map(drop)
    })?;
    fs.unmount().map_err(|e| e.to_string())?;
    drop(fs);

    forget(image)?;
    let (fs, _) = open(image)?;
    let (mut seen, mut point, mut begun) = (0, 0, Instant::now());
    let mut cpu = Process::Own.cpu_seconds()?;
    let mut failure = None;
    let listed = fs.readdir(&caller, dir, 0, &mut |_| {
        seen += 1;
        // `.` and `..` are listed, too.
        if seen * 10 >= (count + 2) * (point + 1) {
            let each = (count + 2) as f64 / 10.0;
            point += 1;
            let now = Process::Own.cpu_seconds().unwrap_or(cpu);
            let seconds = [begun.elapsed().as_secs_f64(), now - cpu];
            let micros = seconds.map(|seconds| seconds * 1e6 / each);
            let noted = figures.point("directory-readdir", point * 10, micros, Process::Own);
            failure = noted.err().or(failure.take());
            (begun, cpu) = (Instant::now(), now);
        }
        true
    });
    listed.map_err(|e| e.to_string())?;
    if let Some(why) = failure {
        return Err(why);
    }
    if seen != count + 2 {
        return Err(format!("{seen} entries listed, {count} made"));
    }

    // A permutation: every file once, neighbours far apart.
    let step = (count * 618 / 1000..)
        .find(|step| coprime(*step, count))
        .unwrap_or(1);
    figures.curve("directory-remove", count, Process::Own, |index| {
        let file = (u128::from(index) * u128::from(step) % u128::from(count)) as u64;
        let removed = fs.unlink(&caller, dir, &name(file));
        removed.map_err(|e| e.to_string())
    })?;
    fs.rmdir(&caller, fs.root(), DIR)
        .map_err(|e| e.to_string())?;
    fs.unmount().map_err(|e| e.to_string())
}

fn coprime(mut a: u64, mut b: u64) -> bool {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}
