//! Planted faults: rules that tests leave out. A release has none.

/// A rule that a machine leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "faults"),
    allow(dead_code, reason = "only tests plant faults")
)]
#[cfg_attr(
    not(feature = "faults"),
    allow(unreachable_pub, reason = "public with the feature `faults`")
)]
pub enum Fault {
    /// The successor opens without a seal.
    NoSeal,
    /// The seal of a term is deleted with the term's slots.
    SealDeleted,
    /// The successor scans and seals without a claim.
    NoClaim,
    /// A checkpoint is published by an unconditional PUT.
    CheckpointWithoutSwap,
    /// A slot above the checkpoint is deleted.
    SlotDeletedEarly,
    /// A slot is acknowledged before an earlier one is known to be the writer's own.
    AcknowledgedOutOfOrder,
    /// A refused slot is taken for the writer's own.
    ForeignTakenForOwn,
    /// A refused slot is taken for another writer's, although the writer's own earlier attempt is there.
    OwnTakenForForeign,
    /// Objects are deleted when the swap that retires them is sent.
    DeletedBeforeSwap,
    /// A slot is sent before the data that it names has landed.
    DataNamedEarly,
    /// A checkpoint that retires objects is merged with a snapshot made meanwhile, without checking its pins.
    SnapshotNotPinned,
    /// A cache's tail is sent after another machine's term.
    TailUnderNewTerm,
    /// A lease counts from the answer instead of the request.
    LeaseFromAnswer,
    /// A retired object is deleted while a reader may still use it.
    ReaderOutlived,
    /// The store's clock, which counts whole seconds, is taken for exact.
    CoarseClockTrusted,
    /// A claim is recognised by its term alone.
    NonceRepeated,
    /// The end of the log is taken from a listing, which may be stale.
    StaleListBelieved,
    /// A checkpoint is published before its root has landed.
    RootNamedEarly,
}

/// The planted faults; in a release, none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    #[cfg(feature = "faults")]
    planted: Option<Fault>,
}

impl Faults {
    /// One fault.
    #[cfg(feature = "faults")]
    #[must_use]
    pub const fn only(fault: Fault) -> Faults {
        Faults {
            planted: Some(fault),
        }
    }

    #[cfg(feature = "faults")]
    pub(super) fn has(self, fault: Fault) -> bool {
        self.planted == Some(fault)
    }

    #[cfg(not(feature = "faults"))]
    #[expect(
        clippy::unused_self,
        reason = "the same call with and without the feature"
    )]
    pub(super) const fn has(self, _: Fault) -> bool {
        false
    }
}
