//! Disks that return to a flush, and which flush: the contracts `flush=store` and `flush=cache`.
//!
//! `flush=store`: acknowledged flushes survive the loss of the machine; after any crash the disk is a flush that includes them.
//!
//! `flush=cache`: a flush is durable on the cache device. If process or power fails, the disk is exactly the last flush. If machine
//! or cache is lost, or another machine takes over, the disk is exactly some earlier flush, at most `lag` behind.
//!
//! A flush that was begun and not acknowledged may be there or not, as on any disk.

use std::fmt;

/// Promise of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// `flush=store`.
    Store,
    /// `flush=cache`.
    Cache {
        /// The age at which a flush that the store lacks holds up acknowledgements.
        lag_ms: u64,
        /// Maximum lag of the store, in the unit of [`Flushes::begin`].
        lag_weight: u64,
    },
}

/// Cause of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Process or power failed: the cache device is there.
    Power,
    /// Machine or cache were lost, or another machine took over.
    Cache,
}

#[derive(Clone, Debug)]
struct Flush<D> {
    disk: D,
    begun_ms: u64,
    weight: u64,
    acknowledged_ms: Option<u64>,
    stored: bool,
}

/// The flushes of a disk, and their results.
#[derive(Clone, Debug)]
pub struct Flushes<D> {
    contract: Contract,
    flushes: Vec<Flush<D>>,
}

/// A disk that the contract does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It is no flush: a mixture.
    NoFlush,
    /// It is a flush, and a later one had to be there.
    Lost {
        /// The flush that was found.
        found: usize,
        /// The oldest that it may be.
        oldest: usize,
    },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::NoFlush => f.write_str("the disk is what no flush left"),
            Wrong::Lost { found, oldest } => {
                write!(
                    f,
                    "the disk is flush {found}, and had to be {oldest} or a later one"
                )
            }
        }
    }
}

impl<D: PartialEq> Flushes<D> {
    /// A new disk.
    #[must_use]
    pub fn new(contract: Contract, disk: D) -> Flushes<D> {
        let first = Flush {
            disk,
            begun_ms: 0,
            weight: 0,
            acknowledged_ms: Some(0),
            stored: true,
        };
        Flushes {
            contract,
            flushes: vec![first],
        }
    }

    /// A flush begins; it leaves this disk, and writes so much. Returns its number.
    pub fn begin(&mut self, disk: D, now_ms: u64, weight: u64) -> usize {
        self.flushes.push(Flush {
            disk,
            begun_ms: now_ms,
            weight,
            acknowledged_ms: None,
            stored: false,
        });
        self.flushes.len() - 1
    }

    /// A flush is acknowledged, and with it all before it.
    pub fn acknowledged(&mut self, flush: usize, now_ms: u64) {
        let first = self.flushes.iter_mut().take(flush + 1);
        first
            .filter(|flush| flush.acknowledged_ms.is_none())
            .for_each(|flush| flush.acknowledged_ms = Some(now_ms));
    }

    /// A caller waited until the store has a flush.
    pub fn stored(&mut self, flush: usize) {
        let first = self.flushes.iter_mut().take(flush + 1);
        first.for_each(|flush| flush.stored = true);
    }

    /// The oldest flush that the disk may be.
    #[must_use]
    pub fn oldest(&self, loss: Loss) -> usize {
        let last = |holds: &dyn Fn(&Flush<D>) -> bool| {
            self.flushes.iter().rposition(holds).unwrap_or_default()
        };
        let acknowledged = last(&|flush| flush.acknowledged_ms.is_some());
        let Contract::Cache { lag_ms, lag_weight } = self.contract else {
            return acknowledged;
        };
        if loss == Loss::Power {
            return acknowledged;
        }
        let mut oldest = last(&|flush| flush.stored);
        // Missing changes are younger than the lag at each acknowledgement, and no more than the lag allows.
        let allowed = |oldest: usize| {
            let lost = &self.flushes[oldest + 1..=acknowledged.max(oldest)];
            let weight: u64 = lost.iter().map(|flush| flush.weight).sum();
            let begun = lost.first().map_or(u64::MAX, |flush| flush.begun_ms);
            let old = |at: u64| at.saturating_sub(begun) >= lag_ms;
            let late = lost.iter().filter_map(|flush| flush.acknowledged_ms);
            weight <= lag_weight && !late.into_iter().any(old)
        };
        while oldest < acknowledged && !allowed(oldest) {
            oldest += 1;
        }
        oldest
    }

    /// The disk was found after a crash. If it is allowed, the history goes on from there: later flushes never were. Returns which
    /// flush it is.
    ///
    /// # Errors
    /// What is wrong.
    pub fn found(&mut self, disk: &D, loss: Loss) -> Result<usize, Wrong> {
        let oldest = self.oldest(loss);
        let is = |flush: &Flush<D>| flush.disk == *disk;
        let Some(found) = self.flushes.iter().rposition(is) else {
            return Err(Wrong::NoFlush);
        };
        if found < oldest {
            return Err(Wrong::Lost { found, oldest });
        }
        self.flushes.truncate(found + 1);
        Ok(found)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const CACHE: Contract = Contract::Cache {
        lag_ms: 1000,
        lag_weight: 10,
    };

    /// Flushes 1 to 4, of which the first three are acknowledged at once.
    fn history(contract: Contract, begun: [u64; 4]) -> Flushes<u32> {
        let mut flushes = Flushes::new(contract, 0);
        for (disk, at) in (1..).zip(begun) {
            let flush = flushes.begin(disk, at, 3);
            if disk < 4 {
                flushes.acknowledged(flush, at);
            }
        }
        flushes
    }

    #[test]
    fn acknowledged_flushes_are_there_unless_the_contract_allows_the_lag_to_be_lost() {
        let begun = [100, 200, 300, 400];
        for (contract, loss, oldest) in [
            (Contract::Store, Loss::Power, 3),
            (Contract::Store, Loss::Cache, 3),
            (CACHE, Loss::Power, 3),
            (CACHE, Loss::Cache, 0),
        ] {
            for disk in 0..=4 {
                let found = history(contract, begun).found(&disk, loss);
                assert_eq!(
                    found.is_ok(),
                    disk >= oldest,
                    "{contract:?} {loss:?} {disk}"
                );
            }
        }
        assert_eq!(
            history(CACHE, begun).found(&9, Loss::Cache),
            Err(Wrong::NoFlush)
        );
    }

    #[test]
    fn at_most_the_lag_is_lost() {
        // Flush 1 was 1000 ms old when flush 3 was acknowledged.
        let late = history(CACHE, [100, 200, 1100, 1150]);
        assert_eq!(late.oldest(Loss::Cache), 1);
        let mut heavy = history(CACHE, [100, 200, 300, 400]);
        heavy.acknowledged(4, 400);
        assert_eq!(heavy.oldest(Loss::Cache), 1, "12 of 10");
        heavy.stored(2);
        assert_eq!(heavy.oldest(Loss::Cache), 2);
    }

    #[test]
    fn lost_flushes_never_come_back() {
        let mut flushes = history(CACHE, [100, 200, 300, 400]);
        assert_eq!(flushes.found(&2, Loss::Cache), Ok(2));
        assert_eq!(flushes.found(&3, Loss::Power), Err(Wrong::NoFlush));
        let next = flushes.begin(7, 500, 1);
        flushes.acknowledged(next, 500);
        assert_eq!(
            flushes.found(&2, Loss::Power),
            Err(Wrong::Lost {
                found: 2,
                oldest: 3
            })
        );
    }
}
