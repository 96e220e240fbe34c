//! The operations on a volume and the states that its contract therefore allows: the model's history
//! under that contract.

use steadfast_fs::Contract;
use steadfast_model::{
    History, OpResult, PrefixHistory, RelaxedHistory, Rules, Snapshot, Step, Tree, ordered,
};

/// A history under one of the contracts.
pub(crate) enum Promise {
    /// `ordered` and `sync`.
    Ordered(Box<History>),
    /// `metadata-prefix`.
    Prefix(PrefixHistory),
    /// `relaxed`.
    Relaxed(RelaxedHistory),
}

impl Promise {
    /// A volume that begins with a durable tree.
    pub(crate) fn new(contract: Contract, initial: Tree) -> Promise {
        match contract {
            Contract::MetadataPrefix => return Promise::Prefix(PrefixHistory::new(initial)),
            Contract::Relaxed => return Promise::Relaxed(RelaxedHistory::new(initial)),
            Contract::Ordered | Contract::Sync => {}
        }
        // A refused operation binds nothing, like a lookup: the kernel answers many itself.
        let rules = Rules {
            split: ordered::atomic,
            failures_bind: false,
            sync: contract == Contract::Sync,
            ..Rules::default()
        };
        Promise::Ordered(Box::new(History::with_rules(initial, rules)))
    }

    /// Notes an operation that was answered. An error has the model's answer.
    pub(crate) fn record(&mut self, step: &Step, result: OpResult) -> Result<(), String> {
        let recorded = match self {
            Promise::Ordered(history) => history.record(step, result),
            Promise::Prefix(history) => history.record(step, result),
            Promise::Relaxed(history) => history.record(step, result),
        };
        recorded.map(drop).map_err(|e| e.to_string())
    }

    /// The model's answer.
    #[cfg(test)]
    pub(crate) fn expected(&self, step: &Step) -> OpResult {
        match self {
            Promise::Ordered(history) => history.expected(step),
            Promise::Prefix(history) => history.expected(step),
            Promise::Relaxed(history) => history.expected(step),
        }
    }

    /// Notes an operation whose answer is not known.
    #[cfg(test)]
    pub(crate) fn in_flight(&mut self, step: &Step) -> Result<(), String> {
        let noted = match self {
            Promise::Ordered(history) => history.in_flight(step),
            Promise::Prefix(history) => history.in_flight(step),
            Promise::Relaxed(history) => history.in_flight(step),
        };
        noted.map(drop).map_err(|e| e.to_string())
    }

    /// The tree with the fewest operations that a cut at `moment` may leave, if the contract distinguishes streams.
    pub(crate) fn weakest(&self, moment: ordered::Cut) -> Option<Tree> {
        match self {
            Promise::Ordered(history) => history.weakest(moment),
            Promise::Prefix(_) | Promise::Relaxed(_) => None,
        }
    }

    /// Operations noted.
    pub(crate) fn len(&self) -> usize {
        match self {
            Promise::Ordered(history) => history.len(),
            Promise::Prefix(history) => history.len(),
            Promise::Relaxed(history) => history.len(),
        }
    }

    /// The tree after all of them.
    pub(crate) fn current(&self) -> &Tree {
        match self {
            Promise::Ordered(history) => history.current(),
            Promise::Prefix(history) => history.current(),
            Promise::Relaxed(history) => history.current(),
        }
    }

    /// Whether a cut at `moment` may leave the found state; an error explains why not.
    pub(crate) fn check(&self, found: &Snapshot, moment: ordered::Cut) -> Result<(), String> {
        match self {
            Promise::Ordered(history) => {
                if history.allows(&found.digest(), moment) {
                    return Ok(());
                }
                // The full check explains.
                match history.check(found, moment) {
                    Err(violation) => Err(violation.to_string()),
                    Ok(_) => Err("the two checks of the model disagree".into()),
                }
            }
            Promise::Prefix(history) => match history.check(found, moment) {
                Ok(_) => Ok(()),
                Err(violation) => Err(violation.to_string()),
            },
            Promise::Relaxed(history) => match history.check(found, moment) {
                Ok(_) => Ok(()),
                Err(violation) => Err(violation.to_string()),
            },
        }
    }
}
