//! Volumes in memory for unit tests.
#![allow(clippy::unwrap_used)]

use crate::mkfs::{MkfsOptions, mkfs};
use crate::superblock;
use crate::work::{Store, Work};
use std::sync::{Arc, Weak};
use steadfast_block::{BlockDevice, BlockNo, MemDevice};
use steadfast_journal::{Client, Credits, Journal, Op};
use steadfast_vfs::{Stream, Time};

/// Options that give the same image each time.
pub(crate) fn options() -> MkfsOptions {
    MkfsOptions {
        uuid: Some([7; 16]),
        seed: Some(1),
        now: Some(Time {
            secs: 1_000_000,
            nanos: 0,
        }),
        ..MkfsOptions::default()
    }
}

/// A store without a file system above it.
pub(crate) struct Bare {
    pub(crate) store: Store,
}

impl Client for Bare {
    fn close(
        &self,
        op: Op<'_>,
        _keys: &[u64],
    ) -> steadfast_journal::Result<steadfast_journal::Ticket> {
        Ok(op.commit())
    }

    fn released(&self, runs: &[(BlockNo, u64)]) {
        self.store.alloc.released(runs);
    }
}

/// A newly made volume of `blocks` blocks, its journal inline.
pub(crate) fn bare(blocks: u64) -> Arc<Bare> {
    let device = MemDevice::new(blocks);
    mkfs(&device, &options(), &mut |_, _| {}).unwrap();
    open(Arc::new(device))
}

/// Opens the store on a device that has a volume.
pub(crate) fn open(device: Arc<dyn BlockDevice>) -> Arc<Bare> {
    let volume = superblock::load(&*device).ok().unwrap().volume;
    let config = volume.journal();
    let (journal, _) = Journal::open(device, config).unwrap();
    let bare = Arc::new(Bare {
        store: Store::new(journal, volume, 4096, 0),
    });
    let client: Weak<dyn Client> = Arc::<Bare>::downgrade(&bare);
    bare.store.journal.set_client(client);
    bare
}

impl Bare {
    /// An operation of at most `log_bytes` log bytes.
    pub(crate) fn begin(&self, log_bytes: u64) -> Work<'_> {
        self.store
            .begin(Stream(0), Credits::log(log_bytes))
            .unwrap()
    }
}
