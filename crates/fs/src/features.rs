//! Features that a volume gets with their first use, so that a volume without them stays open to
//! older programs.
//!
//! Order, and why it suffices: the superblock's bit is an operation of the journal by itself, and
//! durable before the first operation that uses the feature begins. So no crash leaves a use without
//! its bit. The copy of the superblock is written at the next mount, before anything else: then block
//! 0 is at home, and no crash can tear both.

use crate::error::Error;
use crate::error::from_journal;
use crate::layout::{
    FEATURE_ACL, FEATURE_NOCOW, FEATURE_RO_FLAGS, FEATURE_XATTR_BLOCKS, Superblock,
};
use crate::superblock::Volume;
use crate::work::{COST_BLOCK, COST_RANGE, OWN_STREAM, Store};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};
use steadfast_journal::{Credits, Journal, Kind, seal, seal_holds};
use steadfast_vfs::Result;

/// Which.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Feature {
    /// [`FEATURE_ACL`].
    Acl,
    /// [`FEATURE_RO_FLAGS`].
    Flags,
    /// [`FEATURE_NOCOW`].
    Nocow,
    /// [`FEATURE_XATTR_BLOCKS`].
    XattrBlocks,
}

/// Bytes of the superblock's words of features.
const WORDS: std::ops::Range<usize> =
    offset_of!(Superblock, features_incompat)..offset_of!(Superblock, uuid);

/// The features in use.
#[derive(Default)]
pub(crate) struct Features {
    incompat: AtomicU32,
    read_only: AtomicU32,
    changing: Mutex<()>,
}

impl Features {
    pub(crate) fn of(volume: &Volume) -> Features {
        Features {
            incompat: AtomicU32::new(volume.features_incompat),
            read_only: AtomicU32::new(volume.features_ro),
            changing: Mutex::default(),
        }
    }

    /// Has the superblock say that a feature is in use; durable when this returns. May wait for a
    /// commit: hold no lock.
    pub(crate) fn need(&self, store: &Store, feature: Feature) -> Result<()> {
        let (word, bit, offset) = match feature {
            Feature::Acl => (
                &self.incompat,
                FEATURE_ACL,
                offset_of!(Superblock, features_incompat),
            ),
            Feature::Flags => (
                &self.read_only,
                FEATURE_RO_FLAGS,
                offset_of!(Superblock, features_ro),
            ),
            Feature::Nocow => (
                &self.incompat,
                FEATURE_NOCOW,
                offset_of!(Superblock, features_incompat),
            ),
            Feature::XattrBlocks => (
                &self.incompat,
                FEATURE_XATTR_BLOCKS,
                offset_of!(Superblock, features_incompat),
            ),
        };
        let has = || word.load(Ordering::Acquire) & bit != 0;
        if has() {
            return Ok(());
        }
        let changing = &self.changing;
        let _alone = changing.lock().unwrap_or_else(PoisonError::into_inner);
        if has() {
            return Ok(());
        }
        let new = word.load(Ordering::Acquire) | bit;
        let credits = Credits::log(COST_BLOCK + COST_RANGE + 8);
        let mut work = store.begin(OWN_STREAM, credits)?;
        work.write(BlockNo(0), Kind::Meta, offset, &new.to_le_bytes())?;
        if let Some(ticket) = work.commit() {
            store.journal.wait(ticket).map_err(from_journal)?;
        }
        word.store(new, Ordering::Release);
        Ok(())
    }
}

/// Writes the copy of the superblock anew if it lacks features that block 0 names. Called at mount, after
/// the recovery and before any operation.
pub(crate) fn update_copy(
    device: &dyn BlockDevice,
    journal: &Journal,
    volume: &Volume,
) -> std::result::Result<(), Error> {
    const FAILED: &str = "writing the copy of the superblock";
    let Ok(first) = journal.read(BlockNo(0), Kind::Meta) else {
        return Ok(()); // the copy serves
    };
    let at = BlockNo(volume.blocks - 1);
    let mut copy = [0; BLOCK_SIZE];
    device.read(at, &mut copy).map_err(Error::device(FAILED))?;
    if !seal_holds(&volume.uuid, at, &copy) || copy[WORDS] == first[WORDS] {
        return Ok(()); // what is damaged is fsck's
    }
    copy[WORDS].copy_from_slice(&first[WORDS]);
    seal(&volume.uuid, at, &mut copy);
    device.write(at, &[&copy]).map_err(Error::device(FAILED))?;
    device.flush().map_err(Error::device(FAILED))
}
