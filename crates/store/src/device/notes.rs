//! Notes: records that the client of the disk adds to an epoch. They become durable with the epoch.
//!
//! An epoch's slot has the notes of that epoch. A checkpoint has the newest notes of all slots that it supersedes, in a
//! separate cell. So after any crash the notes are exactly those of the surviving epochs, up to the bounds.

use crate::object::encode_notes;
use bytes::Bytes;
use std::collections::VecDeque;

/// Most notes that are kept, and most bytes of them. The newest are kept.
const KEPT: usize = 4096;
const KEPT_BYTES: usize = 16 << 20;
/// Most bytes of a note.
const NOTE_BYTES: usize = 64 << 10;

/// The newest notes, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    kept: VecDeque<Bytes>,
    bytes: usize,
    /// The notes differ from those of the last checkpoint.
    pub(super) changed: bool,
}

impl Notes {
    /// Adds a note. One that is too long is dropped.
    pub(super) fn push(&mut self, note: Bytes) {
        if note.len() > NOTE_BYTES {
            return;
        }
        self.changed = true;
        self.bytes += note.len();
        self.kept.push_back(note);
        while self.kept.len() > KEPT || self.bytes > KEPT_BYTES {
            let oldest = self.kept.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.len());
        }
    }

    /// The notes of a checkpoint.
    pub(super) fn loaded(notes: Vec<Bytes>) -> Notes {
        let mut loaded = Notes::default();
        notes.into_iter().for_each(|note| loaded.push(note));
        loaded.changed = false;
        loaded
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(super) fn take(&mut self) -> Vec<Bytes> {
        std::mem::take(self).kept.into()
    }

    pub(super) fn to_vec(&self) -> Vec<Vec<u8>> {
        self.kept.iter().map(|note| note.to_vec()).collect()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        encode_notes(&self.kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::decode_notes;

    #[test]
    fn the_newest_notes_are_kept_up_to_two_bounds() {
        let mut notes = Notes::default();
        notes.push(vec![0; NOTE_BYTES + 1].into());
        assert!(notes.is_empty(), "too long");
        for i in 0..KEPT as u32 + 5 {
            notes.push(i.to_le_bytes().to_vec().into());
        }
        assert_eq!(notes.kept.len(), KEPT);
        assert_eq!(notes.kept[0][..], 5_u32.to_le_bytes());
        let read = decode_notes(&notes.encode());
        assert_eq!(read.as_ref().map(Vec::len), Ok(KEPT));
        assert_eq!(Notes::loaded(read.unwrap_or_default()).kept, notes.kept);
        for _ in 0..KEPT_BYTES / NOTE_BYTES + 3 {
            notes.push(vec![1; NOTE_BYTES].into());
        }
        assert_eq!(notes.kept.len(), KEPT_BYTES / NOTE_BYTES);
        assert!(decode_notes(&[1, 0, 0, 0, 9, 0, 0, 0]).is_err(), "cut");
    }
}
