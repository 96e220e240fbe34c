//! nbdkit with the plugin, and a client that speaks NBD by hand.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, missing_docs)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use steadfast_ftl::{Disk, Options, WhenFull, geometry_for};

/// Blocks of the disks here, and of their epochs.
pub(crate) const BLOCKS: u64 = 256;
pub(crate) const BYTES: u64 = BLOCKS * 4096;
pub(crate) const EPOCH: u64 = 32;

/// The plugin, as it was built for these tests.
pub(crate) fn plugin() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.join("libsteadfast_nbdkit.so")
}

/// A directory with a flash image `disk`. None, with a word, where there is no nbdkit.
pub(crate) fn place() -> Option<tempfile::TempDir> {
    if Command::new("nbdkit").arg("--version").output().is_err() {
        steadfast_testkit::skipped!("nbdkit is missing (apt-get install nbdkit)");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let like = steadfast_flash::Geometry {
        channels: 2,
        dies: 1,
        blocks: 1,
        pages: 32,
        sectors: 1,
        sector_bytes: 4096,
        spare_bytes: 128,
    };
    let geometry = geometry_for(like, BLOCKS, EPOCH, 25).unwrap();
    let options = Options {
        sectors: BLOCKS,
        epoch: EPOCH,
        region: None,
        volume: 1,
    };
    let image = dir.path().join("disk");
    drop(Disk::create(&image, geometry, options, WhenFull::default()).unwrap());
    Some(dir)
}

/// nbdkit, to its end, with these settings: for refusals.
pub(crate) fn refused(dir: &Path, settings: &[&str]) -> String {
    let output: Output = Command::new("timeout")
        .args(["20", "nbdkit", "--foreground", "--unix", "other.sock"])
        .arg(plugin())
        .args(settings)
        .current_dir(dir)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{settings:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// nbdkit with `disk`.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) dir: PathBuf,
}

impl Server {
    pub(crate) fn start(dir: &Path, settings: &[&str]) -> Server {
        let socket = dir.join("sock");
        let _ = std::fs::remove_file(&socket);
        let spawn = || {
            Command::new("nbdkit")
                .args(["--foreground", "--exit-with-parent", "--unix", "sock"])
                .arg(plugin())
                .arg("disk")
                .args(settings)
                .current_dir(dir)
                .stdin(Stdio::null())
                // It has much to say of such clients.
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let mut server = Server {
            child: spawn(),
            dir: dir.to_owned(),
        };
        let begun = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(300), "no server");
            std::thread::sleep(Duration::from_millis(5));
            // A child of a neighbouring test that has not executed its program yet holds the disk's lock: it is in use for a moment.
            if server.child.try_wait().unwrap().is_some() {
                server.child = spawn();
            }
        }
        server
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.dir.join("sock")).unwrap();
        let limit = Some(Duration::from_secs(300));
        stream.set_read_timeout(limit).unwrap();
        stream.set_write_timeout(limit).unwrap();
        stream
    }

    pub(crate) fn client(&self) -> Client {
        Client::over(self.connect())
    }

    /// Ends it by a signal: its exit code.
    pub(crate) fn end(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(
                begun.elapsed() < Duration::from_secs(300),
                "it does not end"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const ZERO: u16 = 6;
pub(crate) const FUA: u16 = 1;

/// The first exchange: the server's greeting, our flags, and the export by its empty name.
pub(crate) fn greet(stream: &mut UnixStream) -> (u64, u16) {
    let mut hello = [0; 18];
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(&hello[..8], b"NBDMAGIC");
    // Fixed newstyle, no zeros after the flags; NBD_OPT_EXPORT_NAME.
    let mut ours = 3u32.to_be_bytes().to_vec();
    ours.extend(MAGIC.to_be_bytes());
    ours.extend(1u32.to_be_bytes());
    ours.extend(0u32.to_be_bytes());
    stream.write_all(&ours).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    let size = u64::from_be_bytes(reply[..8].try_into().unwrap());
    (size, u16::from_be_bytes([reply[8], reply[9]]))
}

/// A request's header.
pub(crate) fn header(flags: u16, kind: u16, offset: u64, count: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(77u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(count.to_be_bytes());
    bytes
}

/// A client whose requests come one after another.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) size: u64,
    pub(crate) flags: u16,
}

impl Client {
    pub(crate) fn over(mut stream: UnixStream) -> Client {
        let (size, flags) = greet(&mut stream);
        Client {
            stream,
            size,
            flags,
        }
    }

    /// Sends a request; the error number of its reply.
    pub(crate) fn ask(
        &mut self,
        flags: u16,
        kind: u16,
        offset: u64,
        count: u32,
        data: &[u8],
    ) -> u32 {
        self.stream
            .write_all(&header(flags, kind, offset, count))
            .unwrap();
        self.stream.write_all(data).unwrap();
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(reply[8..], 77u64.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> u32 {
        self.ask(0, WRITE, offset, data.len() as u32, data)
    }

    pub(crate) fn flush(&mut self) {
        assert_eq!(self.ask(0, FLUSH, 0, 0, &[]), 0);
    }

    pub(crate) fn read(&mut self, offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        match self.ask(0, READ, offset, count, &[]) {
            0 => {
                let mut data = vec![0; count as usize];
                self.stream.read_exact(&mut data).unwrap();
                Ok(data)
            }
            errno => Err(errno),
        }
    }

    /// The first byte of a block.
    pub(crate) fn stamp(&mut self, block: u64) -> u8 {
        self.read(block * 4096, 1).unwrap()[0]
    }

    /// Says good-bye, and waits until the server has heard it.
    pub(crate) fn leave(mut self) {
        self.stream.write_all(&header(0, 2, 0, 0)).unwrap();
        let _ = self.stream.read(&mut [0; 1]);
    }
}
