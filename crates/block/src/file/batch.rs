//! Batches of scattered requests, which the engines carry out.

use crate::BlockNo;
use std::io;

/// The parts of a batch of writes.
pub(super) type Writes<'a, 'b> = &'a [(BlockNo, &'b [&'b [u8]])];
/// The parts of a batch of reads.
pub(super) type Reads<'a, 'b> = &'a mut [(BlockNo, &'b mut [u8])];

/// The failure of one part of a batch.
pub(super) struct Failure {
    /// Index of the part.
    pub(super) part: usize,
    pub(super) error: io::Error,
}

impl Failure {
    /// The same failure in a batch that has `parts` more in front.
    pub(super) fn shifted(mut self, parts: usize) -> Failure {
        self.part += parts;
        self
    }
}
