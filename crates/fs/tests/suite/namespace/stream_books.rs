//! A volume's report on its streams: counts, merges with their causes, and which stream changed which inode.

use super::common::*;
use super::streams::Sim;
use std::sync::Arc;
use steadfast_block::MemDevice;
use steadfast_fs::{Contract, Fs, MkfsOptions, mkfs};
use steadfast_vfs::{FileSystem, MergeCause, Stream, StreamStats};

fn stats(fs: &dyn FileSystem, stream: u32) -> StreamStats {
    let all = fs.streams().unwrap().stats();
    let found = all.into_iter().find(|s| s.stream == Stream(stream));
    found.unwrap_or_default()
}

#[test]
fn a_stream_is_synced_counted_and_forgotten() {
    let v = Sim::new();
    let streams = v.streams().unwrap();
    let (a, b) = (v.file(v.root(), "a"), v.file(v.root(), "b"));
    v.sync().unwrap();
    v.write(&stream(1), a, 0, b"one").unwrap();
    v.write(&stream(2), b, 0, b"two").unwrap();
    assert_eq!(streams.of_inode(a), Some(Stream(1)));
    assert_eq!(streams.of_inode(b), Some(Stream(2)));
    assert_eq!(stats(&*v.fs, 1).uncommitted, 1);
    streams.sync(Stream(1)).unwrap();
    let after = v.after_a_cut();
    assert_eq!(after.getattr(&root(), a).unwrap().size, 3);
    assert_eq!(after.getattr(&root(), b).unwrap().size, 0);
    let (one, two) = (stats(&*v.fs, 1), stats(&*v.fs, 2));
    assert_eq!((one.uncommitted, one.commits), (0, 1));
    assert!(one.own_bytes > 0 && one.carried_bytes == 0);
    assert_eq!((two.uncommitted, two.own_bytes), (1, 0));
    assert!(streams.forget(Stream(1)) && !streams.forget(Stream(2)));
    assert_eq!(stats(&*v.fs, 1), StreamStats::default());
    assert!(v.counters().contains(&("stream_commits", 1)));
}

#[test]
fn two_writers_of_a_file_merge_because_of_it() {
    let v = Sim::new();
    let a = v.file(v.root(), "a");
    v.sync().unwrap();
    v.write(&stream(1), a, 0, b"one").unwrap();
    v.write(&stream(2), a, 0, b"two").unwrap();
    let merges = v.streams().unwrap().merges();
    let merge = merges.last().unwrap();
    assert_eq!(merge.streams, [Stream(2), Stream(1)]);
    assert_eq!((merge.cause, merge.inode), (MergeCause::File, Some(a)));
    assert!(v.counters().contains(&("stream_merges_file", 1)));
}

#[test]
fn contracts_with_one_stream_offer_none_and_merge_nothing() {
    for contract in [Contract::MetadataPrefix, Contract::Sync] {
        let device = Arc::new(MemDevice::new(16 * 256));
        let wanted = MkfsOptions {
            contract,
            seed: Some(1),
            ..MkfsOptions::default()
        };
        mkfs(&*device, &wanted, &mut |_, _| {}).unwrap();
        let (fs, _) = Fs::mount(device, &options()).unwrap();
        assert!(fs.streams().is_none());
        let a = fs.file(fs.root(), "a");
        fs.write(&stream(1), a, 0, b"one").unwrap();
        fs.write(&stream(2), a, 0, b"two").unwrap();
        assert_eq!(fs.journal_stats().merges, 0);
        fs.unmount().unwrap();
    }
}
