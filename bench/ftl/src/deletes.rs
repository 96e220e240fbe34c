//! Files are deleted: the pages that the collector moves with and without discards. A disk as large as the flash
//! memory allows is filled with files up to nine tenths; most are deleted, so that half of it is in use, and then
//! files come and go.

use crate::{EPOCH, Error, SECTOR, paper, record};
use std::sync::Arc;
use std::time::Duration;
use steadfast_flash::{Latency, MemoryStore, Nand, Rng};
use steadfast_fs::{Fs, MkfsOptions, MountOptions, mkfs};
use steadfast_ftl::{Disk, Emulated, Limits, Options, WhenFull};
use steadfast_vfs::{Caller, FileKind, FileSystem, NewNode};

/// Files of 4 KiB to 1 MiB in one directory, by name.
struct Files {
    fs: Arc<Fs>,
    rng: Rng,
    there: Vec<(u64, u64)>,
    next: u64,
    /// Blocks in use.
    blocks: u64,
    /// Blocks written.
    written: u64,
}

impl Files {
    fn make(&mut self) -> Result<(), Error> {
        let (me, name, blocks) = (&Caller::root(), self.next, 1 + self.rng.below(256));
        let node = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let dir = self.fs.root();
        let ino = (self
            .fs
            .mknod(me, dir, format!("file {name}").as_bytes(), &node)?)
        .ino;
        let bytes = vec![name as u8; (blocks * SECTOR) as usize];
        self.fs.write(me, ino, 0, &bytes)?;
        self.fs.fsync(me, ino, false)?;
        self.there.push((name, blocks));
        self.next += 1;
        self.blocks += blocks;
        self.written += blocks;
        Ok(())
    }

    fn delete(&mut self) -> Result<(), Error> {
        let which = self.rng.below(self.there.len() as u64) as usize;
        let (name, blocks) = self.there.swap_remove(which);
        let dir = self.fs.root();
        (self.fs).unlink(&Caller::root(), dir, format!("file {name}").as_bytes())?;
        self.blocks -= blocks;
        Ok(())
    }
}

pub(crate) fn measure(quick: bool) -> Result<(), Error> {
    for (system, trim_bytes) in [("steadfast", 1 << 20), ("untold", u64::MAX)] {
        let geometry = paper(if quick { 8 } else { 32 });
        let nand = Nand::new(geometry, Latency::mlc(), MemoryStore::new(&geometry))?;
        let shape = Emulated::new(nand.clone()).shape();
        let options = Options {
            sectors: Limits::largest(&shape, EPOCH)?.sectors,
            epoch: EPOCH,
            region: None,
            volume: 1,
        };
        let disk = Arc::new(Disk::format(nand, options, WhenFull::Wait(Duration::ZERO))?);
        let made = MkfsOptions {
            without_log: true,
            seed: Some(1),
            ..MkfsOptions::default()
        };
        mkfs(&*disk, &made, &mut |_, _| {})?;
        let mut options = MountOptions::default();
        options.background = false;
        options.seed = Some(1);
        options.trim_bytes = trim_bytes;
        let (fs, _) = Fs::mount(disk.clone(), &options)?;
        let space = fs.statfs();
        let all = space.map_err(|e| e.to_string())?.blocks;
        let mut files = Files {
            fs,
            rng: Rng::new(3),
            there: Vec::new(),
            next: 0,
            blocks: 0,
            written: 0,
        };
        while files.blocks < all * 9 / 10 {
            files.make()?;
        }
        while files.blocks > all / 2 {
            files.delete()?;
        }
        files.fs.sync()?;
        // Once over without a look, then the measured part.
        let mut before = Default::default();
        for measured in [false, true] {
            let counts = || {
                disk.look(|layer| {
                    let nand = layer.platform().nand();
                    (nand.counts().programs, nand.now())
                })
            };
            if measured {
                before = counts().ok_or("the disk is gone")?;
            }
            files.written = 0;
            while files.written < all / 2 {
                if files.blocks < all / 2 {
                    files.make()?;
                } else {
                    files.delete()?;
                }
            }
            files.fs.sync()?;
            if measured {
                let (programs, now) = counts().ok_or("the disk is gone")?;
                let bytes = ((programs - before.0) * geometry.page_bytes() as u64) as f64;
                let useful = (files.written * SECTOR) as f64;
                let row = "deletes-amplification";
                record(row, "bytes/byte", "lower", system, bytes / useful);
                let seconds = (now - before.1) as f64 / 1e9;
                record("deletes", "MB/s", "higher", system, useful / 1e6 / seconds);
            }
        }
        files.fs.unmount()?;
    }
    Ok(())
}
