//! Source of metadata: the current image of the volume, or that image as one unfinished
//! operation sees it. Directory, tree and inode code is written once against [`Reader`]
//! and serves both lookups and changes.

use crate::error::from_journal;
use std::ops::Deref;
use std::sync::Arc;
use steadfast_block::{Block, BlockNo};
use steadfast_journal::{Journal, Kind};
use steadfast_vfs::Result;

/// A metadata block as its reader sees it.
pub(crate) enum Image<'a> {
    /// The current image.
    Shared(Arc<Block>),
    /// The image with an operation's own changes.
    Own(&'a Block),
}

impl Deref for Image<'_> {
    type Target = Block;

    fn deref(&self) -> &Block {
        match self {
            Image::Shared(block) => block,
            Image::Own(block) => block,
        }
    }
}

/// Reads metadata blocks.
pub(crate) trait Reader {
    /// The block at `at`, its seal verified. EIO if it cannot be read, EUCLEAN if it is damaged.
    fn meta(&mut self, at: BlockNo) -> Result<Image<'_>>;
}

/// Reads the current image: everything committed in memory.
#[derive(Clone, Copy)]
pub(crate) struct Current<'a>(pub(crate) &'a Journal);

impl Reader for Current<'_> {
    fn meta(&mut self, at: BlockNo) -> Result<Image<'_>> {
        self.0
            .read(at, Kind::Meta)
            .map(Image::Shared)
            .map_err(from_journal)
    }
}
