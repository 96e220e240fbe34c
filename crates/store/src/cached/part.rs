//! A part of a device.

use std::ops::Range;
use std::sync::Arc;
use steadfast_block::{
    BlockDevice, BlockNo, DeviceOp, Geometry, check_count, check_range, check_segments,
};

/// A range of a device's blocks, as a device.
pub(super) struct Part {
    device: Arc<dyn BlockDevice>,
    first: u64,
    blocks: u64,
}

impl Part {
    pub(super) fn new(device: &Arc<dyn BlockDevice>, range: Range<u64>) -> Part {
        Part {
            device: Arc::clone(device),
            first: range.start,
            blocks: range.end.saturating_sub(range.start),
        }
    }
}

impl BlockDevice for Part {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.blocks,
            ..self.device.geometry()
        }
    }

    fn read(&self, at: BlockNo, buf: &mut [u8]) -> steadfast_block::Result<()> {
        check_range(DeviceOp::Read, at, buf.len(), self.blocks)?;
        self.device.read(at.offset(self.first), buf)
    }

    fn write(&self, at: BlockNo, segments: &[&[u8]]) -> steadfast_block::Result<()> {
        check_segments(at, segments, self.blocks)?;
        self.device.write(at.offset(self.first), segments)
    }

    fn flush(&self) -> steadfast_block::Result<()> {
        self.device.flush()
    }

    fn discard(&self, at: BlockNo, count: u64) -> steadfast_block::Result<()> {
        check_count(DeviceOp::Discard, at, count, self.blocks)?;
        self.device.discard(at.offset(self.first), count)
    }
}
