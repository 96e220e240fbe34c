//! lseek for data and holes. Unwritten pages are holes: they read as zeros.

use super::exists;
use crate::fs::PmFs;
use crate::layout::{PAGE_BYTES, PageState};
use steadfast_vfs::policy::require_file;
use steadfast_vfs::{Errno, Ino, Result, Seek};

impl PmFs {
    /// Finds data or a hole at or after `offset`. ENXIO past the end.
    pub(crate) fn op_seek(&self, ino: Ino, offset: u64, whence: Seek) -> Result<u64> {
        let node = self.node(ino)?;
        let state = node.read();
        exists(&node, &state)?;
        require_file(node.kind)?;
        self.sound(&node)?;
        let size = self.disk(&node).size;
        if offset >= size {
            return Err(Errno::NxIo.into());
        }
        let (first, last) = (offset / PAGE_BYTES, size.div_ceil(PAGE_BYTES));
        let written = state.pages().into_iter().flat_map(|pages| {
            let pages = pages.range(first, last);
            pages.filter(|extent| extent.state == PageState::Written)
        });
        let mut hole = first;
        for extent in written {
            match whence {
                Seek::Data => return Ok((extent.offset * PAGE_BYTES).max(offset)),
                Seek::Hole if extent.offset == hole => hole = extent.end(),
                Seek::Hole => break,
            }
        }
        match whence {
            Seek::Data => Err(Errno::NxIo.into()),
            Seek::Hole => Ok((hole * PAGE_BYTES).clamp(offset, size)),
        }
    }
}
