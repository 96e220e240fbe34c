//! Finds out whether a program survives a power cut: its run is recorded call by call, and the states that a cut may
//! leave are judged.
//!
//! - [`trace`]: a recorded run as a value and as a file;
//! - [`record`](mod@record): a program run on a mount that records;
//! - [`models`]: guarantees of file systems over a power cut, as data;
//! - [`effects`]: the effects of a run's calls on the medium under a model;
//! - [`states`]: the trees that a power cut may leave;
//! - [`check`]: the commands that judge them;
//! - [`judge`]: verdicts on states;
//! - [`explore`]: the exploration of one run, findings with their causes and repairs (`why`), cuts inside the
//!   recovery (`recovery`), and superfluous syncs ([`superfluous`]);
//! - [`report`]: reports of findings, as text, JSON, JUnit, SARIF and HTML;
//! - [`live`]: a mount whose power can be cut while programs use it;
//! - [`real`]: the same calls on real file systems: models calibrated, findings confirmed.

pub mod check;
pub mod effects;
pub mod explore;
pub mod judge;
pub mod live;
pub mod models;
pub mod planted;
pub mod real;
pub mod record;
pub mod recovery;
pub mod report;
pub mod states;
pub mod superfluous;
pub mod trace;
pub mod why;

#[cfg(test)]
mod planted_tests;
#[cfg(test)]
mod prune_tests;
#[cfg(test)]
mod script;
#[cfg(test)]
mod served_tests;
#[cfg(test)]
mod whole_tests;
