//! Crash exploration of our own stack: runs a workload on `fs` over the simulated device,
//! cuts the power everywhere, and checks the result against the volume's contract.
//!
//! | module | job |
//! |---|---|
//! | `scenario` | the operations: all pairs and sampled triples of operations over a small name space, streams side by side, and random sequences |
//! | `promise` | the model's history under the contract, and the states that it allows |
//! | `page_cache` | a kernel's write-back cache, which stands before volumes under `relaxed` |
//! | `record` | runs a scenario and notes which operation the trace belongs to |
//! | `check` | one crash image: recover, compare, fsck, cut the recovery, use the volume |
//! | `flash` | the same on flash: the power goes, or the client dies |
//! | `explore` | all of it, within a budget, on several threads; shrinks violations |
//! | `replace` | every crash state of `steadfast::atomic_replace` |
//!
//! A crash test that cannot fail proves nothing: [`Mutation`] plants a bug, and
//! [`explore`] must report it.

mod check;
mod explore;
#[cfg(test)]
mod failing;
mod flash;
mod page_cache;
mod promise;
mod record;
pub mod replace;
mod scenario;
#[cfg(test)]
mod tests;

pub use explore::{ALL_PAIRS_IMAGES, Options, Progress, Report, Violation, explore};
pub use record::{Medium, Mutation};
pub use scenario::Scenario;
pub use steadfast_fs::Contract;
