//! Epochs of a device that a crash returns to its last flush: the size of one, and the blocks of the one under way.

use crate::discards::PendingDiscards;
use crate::sync::Mutex;
use crate::{EPOCH_BLOCKS_MIN, Error, Result};
use steadfast_block::{BlockDevice, Ticket};

/// Room for writes until the next flush, and the writes so far.
pub(crate) struct Epoch {
    blocks: u64,
    pub(crate) ledger: Mutex<EpochLedger>,
}

/// An epoch that was closed. Flushes are counted in the order in which epochs are closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClosedEpoch {
    pub(crate) flush: u64,
    pub(crate) ticket: Ticket,
}

/// The epoch under way. Its lock is held while anything is written, and while the epoch is closed.
#[derive(Default)]
pub(crate) struct EpochLedger {
    pub(crate) written: u64,
    /// A part of a batch may have been written.
    pub(crate) torn: bool,
    pub(crate) discards: PendingDiscards,
}

impl EpochLedger {
    pub(crate) fn check(&self) -> Result<()> {
        if self.torn {
            let what = "a batch was written in part".into();
            return Err(Error::Corrupt { what });
        }
        Ok(())
    }
}

impl Epoch {
    /// The epochs of a device.
    pub(crate) fn of(device: &dyn BlockDevice) -> Result<Epoch> {
        let bad = |what: String| Err(Error::NoEpochs { what });
        let Some(snapshot) = device.snapshot() else {
            return bad(
                "the device does not return to its last flush after a crash, as one in flash memory does"
                    .into(),
            );
        };
        let blocks = snapshot.epoch_blocks();
        if blocks < EPOCH_BLOCKS_MIN {
            return bad(format!(
                "the device takes {blocks} blocks from one flush to the next, {EPOCH_BLOCKS_MIN} are needed"
            ));
        }
        let ledger = Mutex::default();
        Ok(Epoch { blocks, ledger })
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }
}
