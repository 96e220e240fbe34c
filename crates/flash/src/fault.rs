//! Failures on purpose: the nth operation, a rate, or for ever.

use crate::Rng;

/// Operation that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultOp {
    /// Programming a page.
    Program,
    /// Erasing a block.
    Erase,
    /// Reading a page: this time only.
    Read,
}

/// A failure at one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Kind of operation.
    pub op: FaultOp,
    /// Number of operations of this kind that succeed first, counted from the injection of the fault.
    pub after: u64,
}

/// Failures at random, in a million operations of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rates {
    /// Programs that fail.
    pub program: u32,
    /// Erases that fail.
    pub erase: u32,
    /// Reads that fail, each time anew.
    pub read: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Faults {
    planned: Vec<Fault>,
    rates: Rates,
    rng: Rng,
}

impl Faults {
    pub(crate) fn new() -> Faults {
        Faults {
            planned: Vec::new(),
            rates: Rates::default(),
            rng: Rng::new(0),
        }
    }

    pub(crate) fn inject(&mut self, fault: Fault) {
        self.planned.push(fault);
    }

    pub(crate) fn set_rates(&mut self, rates: Rates, seed: u64) {
        self.rates = rates;
        self.rng = Rng::new(seed);
    }

    /// Whether this operation fails.
    pub(crate) fn strike(&mut self, op: FaultOp) -> bool {
        let mut struck = false;
        self.planned.retain_mut(|fault| {
            if fault.op != op {
                return true;
            }
            if fault.after == 0 {
                struck = true;
                return false;
            }
            fault.after -= 1;
            true
        });
        let rate = match op {
            FaultOp::Program => self.rates.program,
            FaultOp::Erase => self.rates.erase,
            FaultOp::Read => self.rates.read,
        };
        struck || (rate > 0 && self.rng.below(1_000_000) < u64::from(rate))
    }
}
