//! The server is killed under load, repeatedly: stable and committed writes survive; the verifier
//! tells clients to send the rest again; clients continue with their handles.
//!
//! The server is another process of this test program, with an image in its environment. `STEADFAST_LONG=1` kills it a
//! hundred times.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use crate::common;
use common::*;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use steadfast_block::{FileDevice, FileOptions};
use steadfast_fs::{Fs, FsckOptions, MountOptions, Outcome};

const IMAGE: &str = "STEADFAST_NFS_TEST_IMAGE";
const CLIENTS: u32 = 10;

fn open(image: &Path) -> Arc<FileDevice> {
    // The kernel releases the lock of a killed process a moment after its end.
    (0..500)
        .find_map(|_| {
            let opened = FileDevice::open(image, &FileOptions::default());
            if opened.is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
            opened.ok()
        })
        .map(Arc::new)
        .unwrap()
}

/// Not a test: the server that the test below starts and kills.
#[test]
fn the_server_that_is_killed() {
    let Some(image) = std::env::var_os(IMAGE) else {
        return;
    };
    let fs = Fs::mount(open(image.as_ref()), &MountOptions::default())
        .unwrap()
        .0;
    let mut options = options();
    options.threads = 32;
    let site = Site::opt(fs, vec![export()], &options);
    println!("\nserving {}", site.address);
    std::io::stdout().flush().unwrap();
    site.server.wait();
}

struct Running {
    child: Child,
    address: SocketAddr,
}

fn start(image: &Path) -> Running {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &steadfast_testkit::test_name(module_path!(), "the_server_that_is_killed"),
        ])
        .arg("--nocapture")
        .env(IMAGE, image)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let address = out
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("serving ")?.parse().ok());
    let address = address.unwrap();
    Running { child, address }
}

/// The promises that a client got, and the writes that it has to send again.
struct Promised {
    n: u32,
    /// Files with stable or committed writes: handle, name, first byte, length.
    stable: Vec<(nfs_fh3, String, u8, usize)>,
    removed: Vec<String>,
    /// Uncommitted writes, with their verifier.
    pending: Vec<(nfs_fh3, String, u8, usize, writeverf3)>,
    count: u32,
}

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add((i / 7) as u8)).collect()
}

impl Promised {
    /// Makes calls until the server is gone. Every answer is a promise.
    fn work(&mut self, c: &mut Client, root: &nfs_fh3) -> Result<(), Refused> {
        loop {
            self.count += 1;
            let (i, seed) = (self.count, (self.count * 31 + self.n) as u8);
            let name = format!("{}-{i}", self.n);
            let args = CREATE3args {
                where_: entry(root, name.as_bytes()),
                how: createhow3::GUARDED(mode(0o644)),
            };
            let made: CREATE3res = c.raw(PROGRAM, VERSION, 8, &args)?;
            let f = status_of(made).unwrap().obj.unwrap();
            let len = 1 + (i as usize * 977) % 20_000;
            let stable = if i % 3 == 0 {
                stable_how::UNSTABLE
            } else {
                stable_how::FILE_SYNC
            };
            let data = content(seed, len);
            let args = WRITE3args {
                file: f.clone(),
                offset: 0,
                count: len as u32,
                stable,
                data: nfs3_types::xdr_codec::Opaque::borrowed(&data),
            };
            let wrote: WRITE3res = c.raw(PROGRAM, VERSION, 7, &args)?;
            let wrote = status_of(wrote).unwrap();
            assert_eq!(wrote.committed, stable);
            if stable == stable_how::UNSTABLE {
                self.pending
                    .push((f.clone(), name.clone(), seed, len, wrote.verf));
                if i % 2 == 0 {
                    let args = COMMIT3args {
                        file: f.clone(),
                        offset: 0,
                        count: 0,
                    };
                    let done: COMMIT3res = c.raw(PROGRAM, VERSION, 21, &args)?;
                    assert_eq!(status_of(done).unwrap().verf, wrote.verf);
                    self.pending.pop();
                    self.stable.push((f, name, seed, len));
                }
            } else if i % 5 == 0 {
                let args = REMOVE3args {
                    object: entry(root, name.as_bytes()),
                };
                let res: REMOVE3res = c.raw(PROGRAM, VERSION, 12, &args)?;
                status_of(res).unwrap();
                self.removed.push(name);
            } else {
                self.stable.push((f, name, seed, len));
            }
        }
    }

    /// Checks every promise, and sends uncommitted writes again.
    fn check(&mut self, c: &mut Client, root: &nfs_fh3) {
        for (f, name, seed, len) in &self.stable {
            let (data, eof) = c
                .read(f, 0, 1 << 20)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(
                eof && data == content(*seed, *len),
                "{name}: {} of {len} bytes",
                data.len()
            );
        }
        for name in &self.removed {
            assert_eq!(c.lookup(root, name), Err(nfsstat3::NFS3ERR_NOENT), "{name}");
        }
        for (f, name, seed, len, old) in self.pending.drain(..) {
            assert_ne!(
                c.commit(&f, 0, 0).unwrap().verf,
                old,
                "the client learns that it has to send it again"
            );
            c.write(&f, 0, &content(seed, len), stable_how::UNSTABLE)
                .unwrap();
            c.commit(&f, 0, 0).unwrap();
            self.stable.push((f, name, seed, len));
        }
        // The volume is small, so the older files are removed.
        let old = self.stable.len().saturating_sub(20);
        for (_, name, ..) in self.stable.drain(..old) {
            c.remove(root, &name).unwrap();
        }
        self.removed.clear();
    }
}

#[test]
fn a_killed_server_has_kept_every_promise() {
    let rounds = if std::env::var_os("STEADFAST_LONG").is_some() {
        100
    } else {
        3
    };
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("img");
    format(
        &*FileDevice::create(&image, 32_768, false)
            .map(Arc::new)
            .unwrap(),
    );
    let mut all: Vec<Promised> = (0..CLIENTS)
        .map(|n| Promised {
            n,
            stable: vec![],
            removed: vec![],
            pending: vec![],
            count: 0,
        })
        .collect();
    let mut random = 0x5eed_u64;
    for round in 0..rounds {
        let mut running = start(&image);
        let address = running.address;
        let root = Client::connect(address).mnt("/").unwrap();
        let before: u32 = all.iter().map(|p| p.count).sum();
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let time = Duration::from_millis(250 + (random >> 33) % 300);
        let checked = std::sync::Barrier::new(CLIENTS as usize + 1);
        std::thread::scope(|scope| {
            for promised in &mut all {
                let (root, checked) = (&root, &checked);
                scope.spawn(move || {
                    let mut c = Client::connect(address);
                    promised.check(&mut c, root);
                    checked.wait();
                    let _ = promised.work(&mut c, root);
                });
            }
            checked.wait();
            std::thread::sleep(time);
            running.child.kill().unwrap();
            running.child.wait().unwrap();
        });
        let after: u32 = all.iter().map(|p| p.count).sum();
        println!("round {round}: {} files", after - before);
    }
    let mut running = start(&image);
    let mut c = Client::connect(running.address);
    let root = c.mnt("/").unwrap();
    all.iter_mut()
        .for_each(|promised| promised.check(&mut c, &root));
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    assert!(all.iter().map(|p| p.count).sum::<u32>() > 10 * rounds);
    // After another mount, which replays the log, the volume is consistent.
    let fs = Fs::mount(open(&image), &MountOptions::default()).unwrap().0;
    fs.unmount().unwrap();
    drop(fs);
    let report = steadfast_fs::fsck(open(&image), &FsckOptions::default()).unwrap();
    assert_eq!(report.outcome(), Outcome::Clean);
}
