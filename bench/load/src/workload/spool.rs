//! Many small files, each made durable at once: the habits of mail servers.

use super::{Random, failed, pattern};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

pub(super) const SMALL_FILE_BYTES: usize = 100;
/// Files of one mail thread, as far as they go in one run.
pub(super) const MAILBOXES: u64 = 50;
const MAIL_BYTES: usize = 16 << 10;

/// Creates `count` files in `dir`, each with 100 bytes and made durable before the next, on `threads` threads.
pub(crate) fn smallfile(dir: &Path, count: u32, threads: u32) -> Result<f64, String> {
    let data = pattern(SMALL_FILE_BYTES);
    let paths = |thread: u32| -> Vec<PathBuf> {
        (0..count / threads)
            .map(|i| dir.join(format!("small-{thread}-{i:06}")))
            .collect()
    };
    side_by_side(threads, paths, |paths| {
        for path in &*paths {
            let written = create_new(path).and_then(|mut file| {
                file.write_all(&data)?;
                file.sync_all()
            });
            written.map_err(|e| failed("create, write and fsync", path, &e))?;
        }
        Ok(())
    })
}

/// Files of a directory that [`create_files`] fills.
const DIRECTORY_WIDTH: u32 = 100;

/// Filebench's createfiles: makes `count` files of 16 KiB in directories of 100, on `threads` threads, without an fsync.
pub(crate) fn create_files(dir: &Path, count: u32, threads: u32) -> Result<f64, String> {
    let data = pattern(MAIL_BYTES);
    let paths = |thread: u32| -> Vec<PathBuf> {
        (0..count / threads)
            .map(|i| {
                let parent = i / DIRECTORY_WIDTH;
                dir.join(format!("dir-{thread}-{parent:04}/file-{i:06}"))
            })
            .collect()
    };
    side_by_side(threads, paths, |paths| {
        for path in &*paths {
            let parent = path.parent().unwrap_or(dir);
            let written = fs::create_dir_all(parent)
                .and_then(|()| create_new(path))
                .and_then(|mut file| file.write_all(&data));
            written.map_err(|e| failed("create and write", path, &e))?;
        }
        Ok(())
    })
}

/// Calls of a delivery. They make sure that after a crash an acknowledged mail is in its box, and no part of one ever is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// The mail before its name, then the box: where nothing is promised.
    Safe,
    /// The mail's data before its name, then the box: where only data may come late.
    DataFirst,
    /// The box: where everything before it is in order.
    Once,
    /// Nothing: where each call is durable.
    Never,
}

impl Delivery {
    pub(crate) fn named(name: &str) -> Option<Delivery> {
        match name {
            "safe" => Some(Delivery::Safe),
            "data-first" => Some(Delivery::DataFirst),
            "once" => Some(Delivery::Once),
            "never" => Some(Delivery::Never),
            _ => None,
        }
    }
}

/// Delivers `count` mails of 1 to 16 KiB as qmail does: write a file in `tmp`, make it durable, link it into `new`, remove the
/// first name.
pub(crate) fn mail(dir: &Path, count: u32, how: Delivery) -> Result<f64, String> {
    let data = pattern(MAIL_BYTES);
    let (tmp, new) = (dir.join("tmp"), dir.join("new"));
    for box_ in [&tmp, &new] {
        fs::create_dir_all(box_).map_err(|e| failed("make", box_, &e))?;
    }
    let mut random = Random::new(5);
    let start = Instant::now();
    for number in 0..count {
        let name = format!("{number:08}");
        let len = 1024 + random.below(MAIL_BYTES as u64 - 1023) as usize;
        let deliver = || -> io::Result<()> {
            let mut file = create_new(&tmp.join(&name))?;
            file.write_all(&data[..len])?;
            match how {
                Delivery::Safe => file.sync_all()?,
                Delivery::DataFirst => file.sync_data()?,
                Delivery::Once | Delivery::Never => {}
            }
            fs::hard_link(tmp.join(&name), new.join(&name))?;
            if how != Delivery::Never {
                File::open(&new)?.sync_all()?;
            }
            fs::remove_file(tmp.join(&name))
        };
        deliver().map_err(|e| failed("deliver into", &new, &e))?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Filebench's varmail in its order: delete a mail; write one and make it durable; read one, add to it, make it durable; read
/// one. `rounds` in all, on `threads` threads, each with a set of mails of its own in the one directory.
pub(crate) fn varmail(dir: &Path, rounds: u32, threads: u32) -> Result<f64, String> {
    let data = pattern(MAIL_BYTES);
    let mails = |thread: u32| -> Vec<PathBuf> {
        (0..MAILBOXES)
            .map(|i| dir.join(format!("mail-{thread}-{i:04}")))
            .collect()
    };
    for thread in 0..threads {
        for path in mails(thread) {
            fs::write(&path, &data).map_err(|e| failed("prepare", &path, &e))?;
        }
    }
    side_by_side(
        threads,
        |thread| (Random::new(u64::from(thread)), mails(thread)),
        |(random, paths)| {
            let mut buffer = Vec::new();
            for _ in 0..rounds / threads {
                let mut pick = || &paths[random.below(MAILBOXES) as usize];
                let path = pick();
                round_of_mail(path, pick(), pick(), &data, &mut buffer)
                    .map_err(|e| failed("work on", path, &e))?;
            }
            Ok(())
        },
    )
}

fn round_of_mail(
    new: &Path,
    grown: &Path,
    read: &Path,
    data: &[u8],
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    fs::remove_file(new)?;
    let mut file = create_new(new)?;
    file.write_all(data)?;
    file.sync_all()?;
    drop(file);
    let mut file = OpenOptions::new().read(true).append(true).open(grown)?;
    buffer.clear();
    file.read_to_end(buffer)?;
    file.write_all(data)?;
    file.sync_all()?;
    drop(file);
    buffer.clear();
    File::open(read)?.read_to_end(buffer)?;
    Ok(())
}

/// A new file, open for writing alone, as `creat(2)` gives it.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Prepares each thread's work, then starts all at once; the seconds until the last has ended.
pub(super) fn side_by_side<W: Send>(
    threads: u32,
    mut prepare: impl FnMut(u32) -> W,
    work: impl Fn(&mut W) -> Result<(), String> + Sync,
) -> Result<f64, String> {
    let barrier = Barrier::new(threads as usize + 1);
    let (barrier, work) = (&barrier, &work);
    thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| {
                let mut part = prepare(thread);
                scope.spawn(move || {
                    barrier.wait();
                    work(&mut part)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        for thread in started {
            thread
                .join()
                .map_err(|_| "a thread panicked".to_owned())??;
        }
        Ok(start.elapsed().as_secs_f64())
    })
}
