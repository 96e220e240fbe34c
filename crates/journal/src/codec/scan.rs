//! The walk of recovery along the log: which record it accepts next, and where it then stands.

use super::Word;
use super::record::RecordClaim;
use super::tail::TailHeader;

/// Position of the walk. From a header that makes sense on: `tail_pos <= pos <= tail_pos + log_blocks`,
/// and there are no more records than blocks between tail and `pos`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan<W = u64> {
    tail_pos: W,
    log_blocks: W,
    epoch: W,
    /// Position of the next record.
    pub(crate) pos: W,
    /// Its sequence number.
    pub(crate) seq: W,
    /// Highest sequence number that the header or a record taken proves durable.
    pub(crate) proved: W,
}

impl<W: Word> Scan<W> {
    pub(crate) fn new(header: &TailHeader<W>, log_blocks: W) -> Scan<W> {
        Scan {
            tail_pos: header.tail_pos,
            log_blocks,
            epoch: header.record_epoch,
            pos: header.tail_pos,
            seq: header.tail_seq,
            proved: header.flushed_seq,
        }
    }

    /// Log blocks that the next record may take: it must not overtake the tail.
    pub(crate) fn room(&self) -> W {
        self.log_blocks - (self.pos - self.tail_pos)
    }

    /// Position after the lap that begins with the tail.
    pub(crate) fn lap_end(&self) -> W {
        self.tail_pos + self.log_blocks
    }

    /// Whether this is the next record.
    pub(crate) fn expects(&self, claim: &RecordClaim<W>) -> bool {
        claim.id.pos == self.pos
            && claim.blocks <= self.room()
            && claim.id.seq == self.seq
            && claim.id.epoch == self.epoch
    }

    /// Advances past a record that was expected and is valid.
    pub(crate) fn take(&mut self, claim: &RecordClaim<W>) {
        if claim.id.flushed_seq > self.proved {
            self.proved = claim.id.flushed_seq;
        }
        self.pos = self.pos + claim.blocks;
        self.seq = self.seq + W::of(1);
    }
}
