//! Reading file data.

use super::exists;
use crate::fs::PmFs;
use crate::layout::{PAGE_BYTES, PageState};
use steadfast_vfs::policy::require_file;
use steadfast_vfs::{Ino, Result};

impl PmFs {
    /// Reads up to `buf.len()` bytes at `offset`; returns how many, fewer only at the end.
    pub(crate) fn op_read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let node = self.node(ino)?;
        let state = node.read();
        exists(&node, &state)?;
        require_file(node.kind)?;
        self.sound(&node)?;
        let size = self.disk(&node).size;
        let len = size.saturating_sub(offset).min(buf.len() as u64);
        let (buf, end) = (&mut buf[..len as usize], offset.saturating_add(len));
        let mut at = offset;
        let extents = state.pages().into_iter().flat_map(|pages| {
            let pages = pages.range(offset / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
            pages.filter(|extent| extent.state == PageState::Written)
        });
        for extent in extents {
            let start = extent.offset * PAGE_BYTES;
            let from = start.max(offset);
            let to = (extent.end() * PAGE_BYTES).min(end);
            buf[(at - offset) as usize..(from - offset) as usize].fill(0);
            let piece = &mut buf[(from - offset) as usize..(to - offset) as usize];
            self.medium().read(extent.page.at() + (from - start), piece);
            at = to;
        }
        buf[(at - offset) as usize..].fill(0);
        Ok(len as usize)
    }
}
