//! Answered changes survive an immediate power cut, under every contract.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use crate::common;
use common::*;
use std::sync::Arc;
use steadfast_fs::{Contract, Fs, MountOptions};
use steadfast_nfs::{Export, ExportedVolume, Streams};
use steadfast_sim::SimDevice;
use steadfast_vfs::{Caller, FileSystem};

const UNSTABLE: stable_how = stable_how::UNSTABLE;
const FILE_SYNC: stable_how = stable_how::FILE_SYNC;

/// Bitmaps were read before the log was replayed: after a kill, acknowledged files were overwritten. Here the power fails
/// after every answer, and all unflushed writes are lost: answered changes are there, and new files
/// do not overwrite them.
#[test]
fn gonfs_02_answered_changes_survive_an_immediate_power_cut() {
    for (contract, streams) in [
        (Contract::Ordered, Streams::File),
        (Contract::Ordered, Streams::Client),
        (Contract::Ordered, Streams::User),
        (Contract::Ordered, Streams::Export),
        (Contract::MetadataPrefix, Streams::File),
        (Contract::Sync, Streams::File),
    ] {
        survives_a_power_cut(contract, streams);
    }
}

fn survives_a_power_cut(contract: Contract, streams: Streams) {
    let device = Arc::new(SimDevice::new(8192));
    format_for(&*device, contract);
    let mut options_of_mount = MountOptions::default();
    options_of_mount.defer_commits = true;
    let fs = Fs::mount(device.clone(), &options_of_mount).unwrap().0;
    let export_as = Export {
        streams,
        ..export()
    };
    let mut served = ExportedVolume::new(fs, "test");
    served.sync = contract == Contract::Sync;
    let site = Site::serving(served, vec![export_as], &options());
    let (mut c, root) = site.mounted();
    let mut expected: Vec<(&str, bool)> = Vec::new();
    let check = |expected: &[(&str, bool)]| {
        let after = cut(&device);
        let site = Site::with(after, vec![export()]);
        let mut c = site.client();
        for (name, there) in expected {
            assert_eq!(
                c.lookup(&root, name).is_ok(),
                *there,
                "{name}: {expected:?}"
            );
        }
        let mut others = Vec::new();
        for i in 0..5 {
            let f = c.create(&root, &format!("new{i}"));
            c.write(&f, 0, &[b'n'; 5000], FILE_SYNC).unwrap();
            others.push(f);
        }
        if let Ok(f) = c.lookup(&root, "f") {
            let (data, _) = c.read(&f, 0, 1 << 20).unwrap();
            assert!(
                data.is_empty() || data == [b'f'; 9000],
                "{} bytes",
                data.len()
            );
        }
        let _ = site.server.stop();
    };
    let f = c.create(&root, "f");
    expected.push(("f", true));
    check(&expected);
    c.write(&f, 0, &[b'f'; 9000], FILE_SYNC).unwrap();
    check(&expected);
    c.mkdir(&root, "d").unwrap();
    expected.push(("d", true));
    check(&expected);
    c.symlink(&root, "s", b"t").unwrap();
    expected.push(("s", true));
    check(&expected);
    c.link(&f, &root, "l").unwrap();
    expected.push(("l", true));
    check(&expected);
    c.rename((&root, "s"), (&root, "r")).unwrap();
    expected.extend([("r", true)]);
    expected[2].1 = false;
    check(&expected);
    c.rmdir(&root, "d").unwrap();
    expected[1].1 = false;
    check(&expected);
    c.create_how(&root, "e", createhow3::EXCLUSIVE(createverf3([1; 8])))
        .unwrap();
    expected.push(("e", true));
    check(&expected);
    c.remove(&root, "l").unwrap();
    expected[3].1 = false;
    check(&expected);
    status_of(c.setattr(&f, size(9000), None)).unwrap();
    let g = c.create(&root, "g");
    let wrote = c.write(&g, 0, &[b'g'; 100_000], UNSTABLE).unwrap();
    if contract == Contract::Sync {
        assert_eq!(wrote.committed, FILE_SYNC, "as stable as any");
    } else {
        c.commit(&g, 0, 0).unwrap();
    }
    let after = cut(&device);
    let attr = after.lookup(&Caller::root(), after.root(), b"g").unwrap();
    let mut data = vec![0; 100_000];
    assert_eq!(
        after.read(&Caller::root(), attr.ino, 0, &mut data).unwrap(),
        data.len()
    );
    assert!(data.iter().all(|b| *b == b'g'));
}

/// The volume after a power cut now that loses all unflushed writes.
fn cut(device: &SimDevice) -> Arc<Fs> {
    use steadfast_sim::Limits;
    let mut explorer = device.explorer();
    let limits = Limits {
        exhaustive_writes: 0,
        sampled: 0,
        tears: false,
        seed: 1,
    };
    let at = explorer.len();
    // If there are unflushed writes, the second image has none of them.
    let image = explorer.cut(at).images(&limits).take(2).last().unwrap();
    let device = Arc::new(SimDevice::from_image(image));
    Fs::mount(device, &MountOptions::default()).unwrap().0
}
