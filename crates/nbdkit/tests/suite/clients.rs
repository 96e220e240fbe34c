//! Clients that speak NBD by hand: the promises to them, their errors, and the state after the
//! server dies.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use crate::common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use common::{
    BLOCKS, BYTES, Client, EPOCH, FLUSH, FUA, READ, Server, TRIM, WRITE, ZERO, header, place,
    refused,
};
use rustix::process::Signal;
use steadfast_block::{BlockDevice, BlockNo};
use steadfast_flash::Rng;
use steadfast_ftl::{Disk, DiskError, WhenFull};
use steadfast_testkit::retry_while;

const ENOSPC: u32 = 28;
const EINVAL: u32 = 22;

/// The first byte of a block of the image, as a crash left it.
fn left(dir: &std::path::Path, block: u64) -> u8 {
    let open = || Disk::open(&dir.join("disk"), WhenFull::default());
    let disk = retry_while(|disk| matches!(disk, Err(DiskError::InUse { .. })), open).unwrap();
    let mut data = [0; 4096];
    disk.read(BlockNo(block), &mut data).unwrap();
    data[0]
}

#[test]
fn a_killed_server_leaves_the_last_flush_and_fua_is_one() {
    let Some(dir) = place() else { return };
    let server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    assert_eq!(client.size, BYTES);
    // Flags, flush, FUA, trim, zeros, several connections.
    assert_eq!(
        client.flags & 0b1_0110_1101,
        0b1_0110_1101,
        "{:#b}",
        client.flags
    );
    assert_eq!(client.write(0, &[1; 4096]), 0);
    let mut other = server.client();
    assert_eq!(other.write(4096, &[2; 4096]), 0);
    // A write with FUA is a flush of the whole disk, of all clients' writes.
    assert_eq!(client.ask(FUA, WRITE, 8192, 4096, &[3; 4096]), 0);
    assert_eq!(client.write(0, &[9; 4096]), 0);
    assert_eq!(client.ask(0, TRIM, 4096, 4096, &[]), 0);
    assert_eq!((other.stamp(0), other.stamp(1), other.stamp(2)), (9, 0, 3));
    server.end(Signal::KILL);
    let found = [0, 1, 2].map(|block| left(dir.path(), block));
    assert_eq!(found, [1, 2, 3]);
}

#[test]
fn a_server_that_is_asked_to_end_flushes() {
    let Some(dir) = place() else { return };
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let stamp = signal.as_raw() as u8;
        let server = Server::start(dir.path(), &[]);
        let mut client = server.client();
        assert_eq!(client.write(5 * 4096, &[stamp; 4096]), 0);
        // nbdkit waits for its clients.
        client.leave();
        assert_eq!(server.end(signal), Some(0));
        assert_eq!(left(dir.path(), 5), stamp);
    }
}

#[test]
fn requests_past_the_end_are_refused_and_nothing_is_lost() {
    let Some(dir) = place() else { return };
    let server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    assert_eq!(client.write(BYTES - 4096, &[7; 4096]), 0);
    for offset in [BYTES - 4095, BYTES, BYTES + 4096, u64::MAX - 4096, 1 << 63] {
        assert_eq!(client.write(offset, &[8; 4096]), ENOSPC, "{offset}");
        assert_eq!(client.ask(0, ZERO, offset, 4096, &[]), ENOSPC, "{offset}");
        assert_eq!(client.ask(0, TRIM, offset, 4096, &[]), EINVAL, "{offset}");
        assert_eq!(client.read(offset, 4096), Err(EINVAL), "{offset}");
    }
    assert_eq!(client.ask(0, TRIM, 0, u32::MAX, &[]), EINVAL);
    assert_eq!(client.ask(0, ZERO, BYTES - 1, 2, &[]), ENOSPC);
    assert_eq!(client.ask(0, 99, 0, 0, &[]), EINVAL);
    assert_eq!(client.read(BYTES - 4096, 4096), Ok(vec![7; 4096]));
    assert_eq!(client.stamp(0), 0);
}

#[test]
fn bytes_anywhere_are_written_read_zeroed_and_trimmed() {
    let Some(dir) = place() else { return };
    let server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    let mut golden = vec![0; BYTES as usize];
    let mut rng = Rng::new(3);
    for _ in 0..400 {
        let offset = rng.below(BYTES);
        let count = (1 + rng.below(20_000)).min(BYTES - offset);
        let range = offset as usize..(offset + count) as usize;
        let errno = match rng.below(8) {
            0 => {
                golden[range].fill(0);
                client.ask(0, ZERO, offset, count as u32, &[])
            }
            1 => {
                let whole = offset.next_multiple_of(4096)..(offset + count) / 4096 * 4096;
                if whole.start < whole.end {
                    golden[whole.start as usize..whole.end as usize].fill(0);
                }
                client.ask(0, TRIM, offset, count as u32, &[])
            }
            2 => {
                assert!(client.read(offset, count as u32).unwrap() == golden[range]);
                0
            }
            _ => {
                golden[range].fill(rng.number() as u8);
                let data = &golden[offset as usize..][..count as usize];
                client.write(offset, data)
            }
        };
        assert_eq!(errno, 0);
    }
    assert!(client.read(0, BYTES as u32).unwrap() == golden);
    client.flush();
}

#[test]
fn a_client_that_goes_away_in_the_middle_changes_nothing() {
    let Some(dir) = place() else { return };
    let server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    assert_eq!(client.write(0, &[1; 8192]), 0);
    client.flush();
    for sent in [1, 27, 28, 29, 4096, 8191] {
        let mut broken = server.client();
        let mut request = header(0, WRITE, 0, 8192);
        request.extend([2; 8192]);
        broken.stream.write_all(&request[..sent]).unwrap();
        broken.stream.shutdown(Shutdown::Both).unwrap();
    }
    // One that asks, and is gone before the answer comes.
    for kind in [READ, FLUSH] {
        let count = if kind == READ { BYTES as u32 } else { 0 };
        let mut hasty = server.client();
        hasty.stream.write_all(&header(0, kind, 0, count)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(client.read(0, 8192), Ok(vec![1; 8192]));
    client.leave();
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert_eq!(left(dir.path(), 1), 1);
}

#[test]
fn garbage_is_no_request() {
    let Some(dir) = place() else { return };
    let server = Server::start(dir.path(), &[]);
    let mut client = server.client();
    assert_eq!(client.write(4096, &[1; 4096]), 0);
    let mut rng = Rng::new(11);
    for round in 0..60 {
        let mut stream = server.connect();
        if round % 2 == 0 {
            common::greet(&mut stream);
        }
        let mut bytes: Vec<u8> = (0..rng.below(3000)).map(|_| rng.number() as u8).collect();
        if round % 4 == 0 {
            // A valid header of an unknown request, or of one whose data is shorter than the header says.
            let kind = 5 + rng.below(60) as u16;
            bytes.splice(
                0..0,
                header(rng.number() as u16, kind, rng.number(), 64 << 20),
            );
        }
        // The server may have closed the connection already.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    }
    assert_eq!(client.read(4096, 4096), Ok(vec![1; 4096]));
    client.leave();
    assert_eq!(server.end(Signal::TERM), Some(0));
}

#[test]
fn corner_47_where_epochs_wait_a_write_waits_for_another_clients_flush_or_is_refused() {
    let Some(dir) = place() else { return };
    let server = Server::start(dir.path(), &["full=wait:1"]);
    let mut client = server.client();
    for block in 0..EPOCH {
        assert_eq!(client.write(block * 4096, &[1; 4096]), 0);
    }
    let begun = Instant::now();
    assert_eq!(client.write(EPOCH * 4096, &[1; 4096]), ENOSPC);
    assert!(begun.elapsed() >= Duration::from_millis(900));
    let mut other = server.client();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| client.write(EPOCH * 4096, &[2; 4096]));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished());
        other.flush();
        assert_eq!(waits.join().unwrap(), 0);
    });
    // A request larger than an epoch is refused as a whole.
    let large = vec![3; (EPOCH as usize + 1) * 4096];
    assert_eq!(client.write(0, &large), ENOSPC);
    assert_eq!(client.stamp(0), 1);
    server.end(Signal::KILL);
    assert_eq!((left(dir.path(), 0), left(dir.path(), EPOCH)), (1, 0));
}

#[test]
fn corner_64_the_next_client_finds_the_chosen_part_of_a_dead_ones_writes() {
    let Some(dir) = place() else { return };
    for (gone, found) in [("keep", 2), ("rollback", 1)] {
        assert_eq!(after_a_client_died(dir.path(), gone, found, 0), 1, "{gone}");
    }
    // The server acts on the end in a thread of its own, and no client sees when that is done. A server that does
    // not flush fails however long it is given.
    let found = [200, 2_000, 20_000, 60_000]
        .into_iter()
        .any(|wait_ms| after_a_client_died(dir.path(), "flush", 2, wait_ms) == 2);
    assert!(found, "flush");
}

/// A client writes stamp 1, flushes, writes stamp 2, and dies; a next one must find the stamp `found`. Then the server
/// is killed: the stamp that is durable.
fn after_a_client_died(dir: &std::path::Path, gone: &str, found: u8, wait_ms: u64) -> u8 {
    let server = Server::start(dir, &[&format!("gone={gone}")]);
    let mut client = server.client();
    assert_eq!(client.write(0, &[1; 4096]), 0);
    client.flush();
    assert_eq!(client.write(0, &[2; 4096]), 0);
    // It is killed: no good-bye.
    drop(client);
    let begun = Instant::now();
    let mut stamp = 0;
    while stamp != found && begun.elapsed() < Duration::from_secs(300) {
        let mut next = server.client();
        stamp = next.stamp(0);
        next.leave();
    }
    assert_eq!(stamp, found, "{gone}");
    std::thread::sleep(Duration::from_millis(wait_ms));
    server.end(Signal::KILL);
    left(dir, 0)
}

#[test]
fn several_connections_at_once_and_a_flush_of_one_is_everybodys() {
    let Some(dir) = place() else { return };
    let server = Server::start(dir.path(), &[]);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let server = &server;
            scope.spawn(move || {
                let mut client = server.client();
                for round in 0..30u8 {
                    for block in 0..8 {
                        let at = (thread * 8 + block) * 4096;
                        assert_eq!(client.write(at, &[round; 4096]), 0);
                        assert_eq!(client.read(at, 4096), Ok(vec![round; 4096]));
                    }
                    client.flush();
                }
            });
        }
    });
    server.end(Signal::KILL);
    for block in 0..32 {
        assert_eq!(left(dir.path(), block), 29);
    }
}

/// The plugin that people start took a record, a power cut on a signal, and planted faults: `fault=flush-ignored` made a disk
/// that answers flushes and loses them.
#[test]
fn a_served_disk_obeys_no_trial_key() {
    let Some(dir) = place() else { return };
    for setting in ["record=r", "cut=1", "fault=flush-ignored"] {
        let said = refused(dir.path(), &["disk", setting]);
        let (key, _) = setting.split_once('=').unwrap();
        assert!(said.contains(&format!("'{key}' is not known")), "{said}");
    }
    assert!(!dir.path().join("r").exists());
}

#[test]
fn settings_and_images_that_cannot_be_are_refused_by_name() {
    let Some(dir) = place() else { return };
    let dir = dir.path();
    for (settings, word) in [
        (&[][..], "name the flash image"),
        (&["image=none"], "none"),
        (&["image=disk", "full=never"], "full=never"),
        (&["image=disk", "color=red"], "'color' is not known"),
        (&["image=/etc/hostname"], "no flash image"),
    ] {
        let said = refused(dir, settings);
        assert!(said.contains(word), "{settings:?}: {said}");
    }
    let server = Server::start(dir, &[]);
    let said = refused(dir, &["image=disk"]);
    assert!(said.contains("in use"), "{said}");
    drop(server);
    // Read-only servers stand side by side, and refuse writes.
    let server = Server::start(dir, &["readonly=true"]);
    let before = std::fs::read(dir.join("disk")).unwrap();
    let mut client: Client = server.client();
    assert_eq!(client.flags & 2, 2);
    assert_eq!(client.write(0, &[1; 4096]), 1);
    assert_eq!(client.stamp(BLOCKS - 1), 0);
    client.leave();
    assert_eq!(server.end(Signal::TERM), Some(0));
    assert!(std::fs::read(dir.join("disk")).unwrap() == before);
}
