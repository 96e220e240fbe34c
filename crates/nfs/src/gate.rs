//! The gate of a server whose volumes another machine may take over: the right to answer.

/// Whether the server may answer: another machine may be about to take its volumes over.
pub trait Gate: Send + Sync + std::fmt::Debug {
    /// The server calls this for a complete answer, before it sends it. It may wait until the decision is known. False: the
    /// answer is not sent, and its connection is closed.
    fn may_answer(&self) -> bool;

    /// Gauges of the gate: name, help text, present value.
    fn gauges(&self) -> Vec<(&'static str, &'static str, u64)> {
        Vec::new()
    }
}
