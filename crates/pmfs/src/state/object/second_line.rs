//! The second line of an inode: times of birth and access, and a small file's content.

use super::line::LineWriter;
use super::medium::Medium;
use crate::layout::{INLINE_BYTES, inode};

/// Line 1 of an inode.
pub(super) struct SecondLine<'m> {
    pub(super) m: &'m Medium,
    /// First byte of the inode.
    pub(super) at: u64,
    pub(super) generation: u32,
}

impl SecondLine<'_> {
    /// Stores the whole line, its header last.
    #[inline]
    pub(super) fn write(&self, btime: u64, atime: u64, inline: Option<&[u8]>) {
        let mut line = LineWriter::of(self.m, self.at, inode::EXTRA);
        line.word(inode::BTIME, btime);
        line.word(inode::ATIME, atime);
        let inline = inline.unwrap_or_default();
        for (index, bytes) in inline.chunks(8).enumerate().take(INLINE_BYTES / 8) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            line.word(inode::INLINE + index as u64 * 8, u64::from_le_bytes(word));
        }
        let header = u64::from(self.generation) << 32 | inline.len() as u64;
        line.commit(inode::EXTRA, header);
    }

    /// Stores a time of access or an inline set, or both, and leaves the rest as it is. A line that a crash cut off from its
    /// birth is made whole; its time of birth is then the inode's last change, which is the best that is known.
    #[inline]
    pub(super) fn rewrite(&self, atime: Option<u64>, inline: Option<&[u8]>) {
        let header = self.m.load(self.at + inode::EXTRA);
        if header >> 32 != u64::from(self.generation) {
            let ctime = self.m.load(self.at + inode::CTIME);
            return self.write(ctime, atime.unwrap_or(ctime), inline);
        }
        if let Some(inline) = inline {
            let kept = [inode::BTIME, inode::ATIME].map(|word| self.m.load(self.at + word));
            return self.write(kept[0], atime.unwrap_or(kept[1]), Some(inline));
        }
        if let Some(atime) = atime {
            self.m.region.store(self.at + inode::ATIME, atime);
        }
    }
}
