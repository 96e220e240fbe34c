//! The disk that counts, delays and records.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};

use crate::files;
use crate::record::Writer;

/// A file as a disk.
pub(crate) struct Disk {
    backing: File,
    len: u64,
    delay: Duration,
    record: Mutex<Option<Writer>>,
    counters: [AtomicU64; 4],
}

impl Disk {
    pub(crate) fn open(
        backing: &Path,
        delay: Duration,
        record: Option<&Path>,
    ) -> Result<Disk, String> {
        let file = File::options().read(true).write(true).open(backing);
        let file = file.map_err(|e| format!("{}: {e}", backing.display()))?;
        let len = file
            .metadata()
            .map_err(|e| format!("{}: {e}", backing.display()))?
            .len();
        let record = match record {
            Some(path) => {
                Some(Writer::create(path).map_err(|e| format!("{}: {e}", path.display()))?)
            }
            None => None,
        };
        Ok(Disk {
            backing: file,
            len,
            delay,
            record: Mutex::new(record),
            counters: Default::default(),
        })
    }

    fn recorded(&self, put: impl FnOnce(&mut Writer) -> io::Result<()>) -> io::Result<()> {
        match &mut *self.record.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(record) => put(record),
            None => Ok(()),
        }
    }
}

impl files::Disk for Disk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.backing.read_exact_at(bytes, at)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.backing.write_all_at(bytes, at)?;
        self.counters[0].fetch_add(1, Relaxed);
        self.counters[1].fetch_add(bytes.len() as u64, Relaxed);
        self.recorded(|record| record.write(at, bytes))
    }

    fn flush(&self) -> io::Result<()> {
        self.counters[2].fetch_add(1, Relaxed);
        self.recorded(Writer::flush)?;
        thread::sleep(self.delay);
        self.backing.sync_data()
    }

    fn trim(&self, at: u64, len: u64) -> io::Result<()> {
        fallocate(
            &self.backing,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            at,
            len,
        )?;
        self.counters[3].fetch_add(1, Relaxed);
        self.recorded(|record| record.trim(at, len))
    }

    fn command(&self) -> &'static str {
        "mark"
    }

    fn commanded(&self, text: &[u8]) -> Result<(), String> {
        self.recorded(|record| record.mark(text))
            .map_err(|e| format!("the record: {e}"))
    }

    fn answer(&self) -> String {
        String::new()
    }

    fn counters(&self) -> [u64; 4] {
        [0, 1, 2, 3].map(|k| self.counters[k].load(Relaxed))
    }

    fn end(&self) -> io::Result<()> {
        self.recorded(Writer::end)
    }
}
