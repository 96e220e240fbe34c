//! The model of a snapshot disk: it is always exactly some flush, and a flush that was acknowledged is in every later opening.

use std::collections::{BTreeMap, HashMap, HashSet};

use steadfast_store::protocol::{Reference, Term};

use super::codec::Disk;

/// Flush 0 is the new disk.
struct Flush {
    before: u64,
    disk: Disk,
}

#[derive(Default)]
pub(crate) struct Judge {
    flushes: Vec<Flush>,
    acknowledged: HashMap<u64, Term>,
    /// The flush that each term began with.
    openings: BTreeMap<Term, u64>,
    /// Snapshots that were acknowledged.
    pub(crate) snapshots: Vec<Reference>,
    pub(crate) wrong: Option<String>,
    pub(crate) acks: u64,
    pub(crate) reads: u64,
}

impl Judge {
    pub(crate) fn new(blocks: usize) -> Judge {
        let flush = Flush {
            before: 0,
            disk: vec![0; blocks],
        };
        Judge {
            flushes: vec![flush],
            ..Judge::default()
        }
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// A writer is about to commit this disk after that flush.
    pub(crate) fn flush(&mut self, before: u64, disk: Disk) -> u64 {
        self.flushes.push(Flush { before, disk });
        self.flushes.len() as u64 - 1
    }

    fn line(&self, flush: u64) -> HashSet<u64> {
        let mut line = HashSet::from([flush]);
        let mut at = flush;
        while at != 0 {
            at = self.flushes[at as usize].before;
            line.insert(at);
        }
        line
    }

    pub(crate) fn acknowledged(&mut self, term: Term, flush: u64) {
        self.acks += 1;
        self.acknowledged.insert(flush, term);
        let later = self.openings.range(Term(term.0 + 1)..);
        let lost = later
            .clone()
            .find(|(_, tip)| !self.line(**tip).contains(&flush));
        if let Some((other, _)) = lost {
            let what = format!(
                "flush {flush} was acknowledged in term {}, though term {} had opened without it",
                term.0, other.0
            );
            self.fail(what);
        }
    }

    pub(crate) fn opened(&mut self, term: Term, flush: u64, disk: &Disk) {
        self.is_flush(&format!("term {} opened", term.0), flush, disk);
        let line = self.line(flush);
        let lost = self.acknowledged.iter().filter(|(_, other)| **other < term);
        let lost = lost
            .map(|(flush, _)| *flush)
            .filter(|flush| !line.contains(flush))
            .min();
        if let Some(lost) = lost {
            self.fail(format!(
                "term {} opened without flush {lost}, which was acknowledged",
                term.0
            ));
        }
        if self.openings.insert(term, flush).is_some() {
            self.fail(format!("term {} was opened twice", term.0));
        }
    }

    /// The disk is exactly as that flush left it.
    pub(crate) fn is_flush(&mut self, who: &str, flush: u64, disk: &Disk) {
        self.reads += 1;
        let wanted = self.flushes.get(flush as usize).map(|flush| &flush.disk);
        if wanted != Some(disk) {
            let what = format!("{who} with {disk:?}, which is not flush {flush}: {wanted:?}");
            self.fail(what);
        }
    }

    pub(crate) fn openings(&self) -> usize {
        self.openings.len()
    }
}
