//! Calls that wait for the device do not delay others: NULL, and calls answered from memory, are served meanwhile. Calls that
//! wait for a commit occupy no worker, and share the commit.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use crate::common;
use common::*;
use nfs3_types::xdr_codec::Opaque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use steadfast_block::{BlockDevice, BlockNo, Geometry, MemDevice};
use steadfast_fs::{Contract, Fs, MountOptions};
use steadfast_nfs::{ExportedVolume, Options};

/// Gates of a device: which requests it lets pass, and counts of them.
#[derive(Default)]
struct Gates {
    reads_wait: bool,
    flushes_wait: bool,
    /// Number of waiting reads.
    waiting: usize,
    flushes: usize,
}

/// A device whose reads and flushes can be held.
struct Gated {
    inner: Arc<MemDevice>,
    gates: Mutex<Gates>,
    changed: Condvar,
}

impl Gated {
    fn new(inner: Arc<MemDevice>) -> Arc<Gated> {
        Arc::new(Gated {
            inner,
            gates: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn set(&self, change: impl FnOnce(&mut Gates)) {
        change(&mut self.gates.lock().unwrap());
        self.changed.notify_all();
    }

    fn pass(&self, waits: fn(&Gates) -> bool) {
        let mut gates = self.gates.lock().unwrap();
        gates.waiting += 1;
        while waits(&gates) {
            gates = self.changed.wait(gates).unwrap();
        }
        gates.waiting -= 1;
    }
}

struct Opens<'a>(&'a Gated);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.set(|gates| {
            gates.reads_wait = false;
            gates.flushes_wait = false;
        });
    }
}

impl BlockDevice for Gated {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        self.pass(|gates| gates.reads_wait);
        self.inner.read(at, buf)
    }
    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        self.inner.write(at, segments)
    }
    fn flush(&self) -> steadfast_block::Result<()> {
        self.pass(|gates| gates.flushes_wait);
        self.set(|gates| gates.flushes += 1);
        self.inner.flush()
    }
    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        self.inner.discard(at, count)
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn small(threads: usize) -> Options {
    let mut options = options();
    options.threads = threads;
    options
}

fn mount(device: Arc<Gated>) -> Arc<Fs> {
    let mut wanted = MountOptions::default();
    wanted.keep_data = true;
    wanted.defer_commits = true;
    Fs::mount(device, &wanted).unwrap().0
}

/// As many workers ran as there are processors, and calls that were not expected to wait blocked them: two cold LOOKUPs
/// stopped the server. Without that limit, the waiting calls occupied all workers.
#[test]
fn null_and_calls_in_memory_are_answered_while_all_others_wait_for_the_device() {
    const COLD: usize = 40;
    let inner = Arc::new(MemDevice::new(8192));
    format(&*inner);
    let name = |i: usize| format!("d{i}");
    {
        let fs = mount(Gated::new(Arc::clone(&inner)));
        let site = Site::opt(fs.clone(), vec![export()], &small(8));
        let (mut c, root) = site.mounted();
        c.create(&root, "warm");
        for i in 0..COLD {
            let dir = c.mkdir(&root, &name(i)).unwrap();
            c.create(&dir, "f");
        }
        let _ = site.server.stop();
        fs.unmount().unwrap();
    }
    let device = Gated::new(inner);
    let site = Site::opt(mount(Arc::clone(&device)), vec![export()], &small(8));
    let (mut c, root) = site.mounted();
    let dirs: Vec<_> = (0..COLD)
        .map(|i| c.lookup(&root, &name(i)).unwrap())
        .collect();
    let warm = c.lookup(&root, "warm").unwrap();
    // Opened again even if the test fails: the shutdown of the server waits for its calls.
    let _open = Opens(&device);
    device.set(|gates| gates.reads_wait = true);
    let waiting: Vec<_> = dirs
        .iter()
        .enumerate()
        .map(|(i, dir)| {
            let mut other = site.client();
            let what = entry(dir, b"f");
            let call = match i % 2 {
                0 => other.call_bytes(PROGRAM, VERSION, 3, &LOOKUP3args { what }),
                _ => other.call_bytes(PROGRAM, VERSION, 12, &REMOVE3args { object: what }),
            };
            other.send(&call);
            (i, other)
        })
        .collect();
    // All slots of waiting calls are taken: 6 of 8 workers. The other calls are parked.
    until("all places are taken", || {
        device.gates.lock().unwrap().waiting >= 6
    });
    for _ in 0..100 {
        c.null();
        c.getattr(&root).unwrap();
        assert_eq!(c.lookup(&root, "warm").unwrap(), warm);
        assert!(c.access(&warm, ACCESS3_READ).is_ok());
    }
    // A new client finds a worker, too.
    site.client().null();
    device.set(|gates| gates.reads_wait = false);
    for (i, mut other) in waiting {
        let reply = other.reply().unwrap();
        match i % 2 {
            0 => drop(status_of(Client::decode::<LOOKUP3res>(&reply).1.unwrap()).unwrap()),
            _ => drop(status_of(Client::decode::<REMOVE3res>(&reply).1.unwrap()).unwrap()),
        }
    }
}

/// With `sync`, every call blocked a worker during its commit: 16 clients committed 5 times as much as one, against 20 times
/// with `ordered`, and NULL waited for the device. Now these calls wait for commits like those of `ordered`: more of
/// them than there are workers share one commit, and the workers answer others.
#[test]
fn calls_that_wait_for_a_commit_hold_no_worker_and_share_it_under_every_contract() {
    const CLIENTS: usize = 40;
    for contract in [Contract::Ordered, Contract::Sync] {
        let inner = Arc::new(MemDevice::new(8192));
        format_for(&*inner, contract);
        let device = Gated::new(inner);
        let fs = mount(Arc::clone(&device));
        let mut served = ExportedVolume::new(fs.clone(), "test");
        served.sync = contract == Contract::Sync;
        let site = Site::serving(served, vec![export()], &small(4));
        let (mut c, root) = site.mounted();
        let file = c.create(&root, "file");
        let _open = Opens(&device);
        device.set(|gates| gates.flushes_wait = true);
        let flushes = device.gates.lock().unwrap().flushes;
        let waiting: Vec<_> = (0..CLIENTS)
            .map(|i| {
                let mut other = site.client();
                let call = match i % 2 {
                    0 => {
                        let name = format!("d{i}");
                        let args = MKDIR3args {
                            where_: entry(&root, name.as_bytes()),
                            attributes: mode(0o755),
                        };
                        other.call_bytes(PROGRAM, VERSION, 9, &args)
                    }
                    _ => {
                        let args = WRITE3args {
                            file: file.clone(),
                            offset: 4096 * i as u64,
                            count: 100,
                            stable: stable_how::FILE_SYNC,
                            data: Opaque::owned(vec![i as u8; 100]),
                        };
                        other.call_bytes(PROGRAM, VERSION, 7, &args)
                    }
                };
                other.send(&call);
                (i, other)
            })
            .collect();
        // All changes are done and visible to others, and none is answered.
        for i in (0..CLIENTS).step_by(2) {
            until("the directory is there", || {
                c.null();
                c.lookup(&root, &format!("d{i}")).is_ok()
            });
        }
        until("the file is written", || {
            c.getattr(&file).unwrap().size > 4096 * (CLIENTS as u64 - 1)
        });
        for (_, other) in &waiting {
            other.stream.set_nonblocking(true).unwrap();
            let nothing = other.stream.peek(&mut [0]);
            assert!(nothing.is_err(), "answered before it is durable");
            other.stream.set_nonblocking(false).unwrap();
        }
        device.set(|gates| gates.flushes_wait = false);
        for (i, mut other) in waiting {
            let reply = other.reply().unwrap();
            match i % 2 {
                0 => drop(status_of(Client::decode::<MKDIR3res>(&reply).1.unwrap()).unwrap()),
                _ => drop(status_of(Client::decode::<WRITE3res>(&reply).1.unwrap()).unwrap()),
            }
        }
        let flushes = device.gates.lock().unwrap().flushes - flushes;
        assert!(flushes <= 8, "{contract}: {flushes} for {CLIENTS} calls");
        // A lone client: one flush for each call, and no more.
        let before = device.gates.lock().unwrap().flushes;
        for i in 0..10 {
            c.mkdir(&root, &format!("lone{i}")).unwrap();
        }
        let lone = device.gates.lock().unwrap().flushes - before;
        assert!((10..20).contains(&lone), "{contract}: {lone}");
    }
}

/// With `sync`, an unstable write is durable before its reply, and the reply says so.
#[test]
fn an_unstable_write_under_sync_is_durable_when_it_is_answered() {
    let inner = Arc::new(MemDevice::new(8192));
    format_for(&*inner, Contract::Sync);
    let device = Gated::new(inner);
    let mut served = ExportedVolume::new(mount(Arc::clone(&device)), "test");
    served.sync = true;
    let site = Site::serving(served, vec![export()], &options());
    let (mut c, root) = site.mounted();
    let file = c.create(&root, "file");
    let before = device.gates.lock().unwrap().flushes;
    let written = c.write(&file, 0, b"bytes", stable_how::UNSTABLE).unwrap();
    assert_eq!(written.committed, stable_how::FILE_SYNC);
    assert!(device.gates.lock().unwrap().flushes > before);
}
