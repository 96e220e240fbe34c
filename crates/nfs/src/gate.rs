//! The right to answer, of a server whose volumes another machine may take over.

/// Whether the server may answer: another machine may be about to take its volumes over.
pub trait Gate: Send + Sync + std::fmt::Debug {
    /// Asked when an answer is complete, before it is sent. May wait until that is known. False: it is not sent, and its connection
    /// is closed.
    fn may_answer(&self) -> bool;

    /// What counters show of it: name, meaning, value now.
    fn gauges(&self) -> Vec<(&'static str, &'static str, u64)> {
        Vec::new()
    }
}
