//! The workloads. Each runs once, checks the system's answers, and returns the seconds of the part that counts:
//! making names and data, and files that only have to be there, is not in it.

mod beside;
mod files;
mod lone;
mod mixes;
mod programs;
mod spool;

pub(crate) use beside::{byte, bytes, fill, paced, randwrite, truncate};
pub(crate) use files::{
    append, append_pages, largefile, log, overwrites, random_reads, sequential_reads,
};
pub(crate) use lone::{attributes, lookups, writes};
pub(crate) use mixes::{Mix, mix};
pub(crate) use programs::{checkout, clone, remove, sqlite, untar};
pub(crate) use spool::{Delivery, create_files, mail, smallfile, varmail};

use std::io;
use std::path::Path;
use steadfast_testkit::Random;

/// Bytes that are neither zero nor repeat within a block, the same in every run.
fn pattern(len: usize) -> Vec<u8> {
    let mut random = Random::new(0);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.number().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn failed(what: &str, path: &Path, error: &io::Error) -> String {
    format!("could not {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let dir = std::env::temp_dir().join(format!("steadfast-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Scratch(dir)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_workloads_leave_the_files_they_are_named_for() {
        let dir = Scratch::new("load-files");
        let dir = dir.0.as_path();
        assert!(smallfile(dir, 6, 2).unwrap() > 0.0);
        assert!(append(dir, 2).unwrap() > 0.0);
        assert!(largefile(dir, 11).unwrap() > 0.0);
        assert_eq!(
            fs::read(dir.join("small-1-000002")).unwrap(),
            pattern(spool::SMALL_FILE_BYTES)
        );
        assert!(log(dir, 3).unwrap() > 0.0);
        assert!(overwrites(dir, 3).unwrap() > 0.0);
        assert_eq!(fs::metadata(dir.join("log")).unwrap().len(), 3 << 10);
        assert_eq!(fs::metadata(dir.join("append")).unwrap().len(), 2 << 20);
        fs::remove_file(dir.join("append")).unwrap();
        assert!(append_pages(dir, 1).unwrap() > 0.0);
        assert_eq!(fs::metadata(dir.join("append")).unwrap().len(), 1 << 20);
        assert_eq!(fs::metadata(dir.join("large")).unwrap().len(), 11 << 20);
        let again = smallfile(dir, 3, 1);
        assert!(again.unwrap_err().contains("small-0-000000"));
    }

    #[test]
    fn a_load_beside_another_stream_leaves_its_file() {
        let dir = Scratch::new("load-beside");
        let file = dir.0.join("file");
        let len = || fs::metadata(&file).unwrap().len();
        fill(&file, 2).unwrap();
        fill(&file, 1).unwrap();
        assert_eq!(len(), 2 << 20);
        truncate(&file).unwrap();
        byte(&file).unwrap();
        assert_eq!(bytes(&file, 2, 1).unwrap().lines().count(), 2);
        assert_eq!(len(), 3);
        paced(&file, 4, 1).map(|_| ()).unwrap();
        assert_eq!(len(), (4 << 20) + 3);
        randwrite(&file, 1, 200).unwrap();
        create_files(&dir.0.join("many"), 250, 2).unwrap();
        assert_eq!(count_files(&dir.0), 251);
    }

    #[test]
    fn reads_return_the_written_bytes() {
        let dir = Scratch::new("load-reads");
        let dir = dir.0.as_path();
        assert!(sequential_reads(dir, 2).unwrap() > 0.0);
        assert!(random_reads(dir, 2, 100).unwrap() > 0.0);
        let file = dir.join("read");
        assert_eq!(fs::metadata(&file).unwrap().len(), 2 << 20);
    }

    #[test]
    fn each_delivered_mail_is_in_its_box_alone() {
        let dir = Scratch::new("load-mail");
        for (turn, how) in ["safe", "data-first", "once", "never"].iter().enumerate() {
            let spool = dir.0.join(how);
            mail(&spool, 5, Delivery::named(how).unwrap()).unwrap();
            assert_eq!(count_files(&dir.0), 5 * (turn + 1));
            assert_eq!(count_files(&spool.join("tmp")), 0);
        }
        assert_eq!(Delivery::named("at once"), None);
    }

    #[test]
    fn a_mail_spool_keeps_its_number_of_files() {
        let dir = Scratch::new("load-varmail");
        assert!(varmail(&dir.0, 40, 2).unwrap() > 0.0);
        assert_eq!(
            fs::read_dir(&dir.0).unwrap().count() as u64,
            2 * spool::MAILBOXES
        );
    }

    #[test]
    fn the_mixes_keep_their_number_of_files() {
        for (kind, there) in [
            (Mix::FileServer, 96),
            (Mix::WebServer, 120),
            (Mix::WebProxy, 96),
        ] {
            let dir = Scratch::new(&format!("load-{kind:?}"));
            assert!(mix(kind, &dir.0, 120, 20, 2).unwrap() > 0.0);
            let files = count_files(&dir.0);
            // The log is one of them.
            assert_eq!(files, there + 1, "{kind:?}");
        }
        let dir = Scratch::new("load-few");
        assert!(mix(Mix::WebServer, &dir.0, 20, 20, 2).is_err());
    }

    fn count_files(dir: &Path) -> usize {
        let entries = fs::read_dir(dir).unwrap();
        let count = |entry: fs::DirEntry| match entry.file_type().unwrap().is_dir() {
            true => count_files(&entry.path()),
            false => 1,
        };
        entries.map(|entry| count(entry.unwrap())).sum()
    }
}
