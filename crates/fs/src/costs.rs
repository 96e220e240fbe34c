//! Log bytes of the parts of an operation, of which its credits are added up.

use steadfast_journal::BLOCK_CREDIT;

/// Fixed cost of patching a block: its header in the log, or its write of an epoch.
pub(crate) const COST_BLOCK: u64 = BLOCK_CREDIT;
/// Log bytes of freeing a block that has patches in the log.
pub(crate) const COST_REVOKE: u64 = 40;
/// Log bytes of a byte range besides its bytes.
pub(crate) const COST_RANGE: u64 = 8;
/// Log bytes of setting or clearing a run of bits, with the bitmap block's header.
pub(crate) const COST_BITS: u64 = COST_BLOCK + 8;
/// Log bytes of freeing a run, without its blocks.
pub(crate) const COST_FREE: u64 = 16;
