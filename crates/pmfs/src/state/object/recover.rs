//! The stores of recovery: one fence, and then the free space may be built.

use super::line::Lines;
use super::medium::Medium;
use super::persist::Clean;
use super::token::{Recovered, Survey};
use crate::layout::LINE_BYTES;
use crate::state::{Error, Result};

/// One word that recovery stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repair {
    /// Where, a multiple of 8.
    pub at: u64,
    /// What.
    pub word: u64,
}

/// Stores the repairs in their order, writes each line back once, and fences, if there are any. A crash in the middle leaves
/// work that the next mount finds again: no repair relies on another one in another line.
///
/// # Errors
/// [`Error::Outside`] if an address is none; nothing is stored then.
pub fn recover(m: &Medium, repairs: &[Repair], survey: Survey) -> Result<Recovered<Clean>> {
    let sound = |at: u64| at.is_multiple_of(8) && at.checked_add(8).is_some_and(|e| e <= m.len());
    if let Some(bad) = repairs.iter().find(|repair| !sound(repair.at)) {
        return Err(Error::Outside { at: bad.at });
    }
    let mut lines = Lines::default();
    for repair in repairs {
        m.region.store(repair.at, repair.word);
        lines.add(repair.at / LINE_BYTES * LINE_BYTES, LINE_BYTES);
    }
    if !repairs.is_empty() {
        lines.write_back(m);
        m.region.fence();
    }
    m.set_next_tag(survey.next_tag);
    Ok(Recovered::new(survey))
}
