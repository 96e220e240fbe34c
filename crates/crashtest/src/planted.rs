//! Faults planted in the tool itself, for its own tests: without the feature `faults` there are none.
//!
//! Faults of effects are in [`crate::effects`].

/// A fault of the recorder, the exploration or the repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A write is answered, and not written to the trace.
    LostReply,
    /// An acknowledgement is written to the trace one call late.
    LateAcknowledgement,
    /// Calls that FUSE does not see are not recorded.
    SyncUnseen,
    /// A close is not written to the trace.
    CloseForgotten,
    /// A verdict is taken from a state with the same tree and other acknowledgements.
    LookAlike,
    /// States are judged at the first moment at which they can arise.
    FirstMoment,
    /// A repair is believed without another exploration.
    RepairBelieved,
    /// The first broken state is reported without reduction.
    NotReduced,
    /// A different second verdict is ignored.
    FlakyUnsaid,
    /// A sync is called superfluous although states without it are worse.
    WorseUnseen,
    /// A read of a checker does not count as looked at.
    LookForgotten,
    /// A program's request for attributes counts as the kernel's.
    StatForgotten,
    /// A listing does not count as looked at.
    ListForgotten,
    /// After a write the whole file counts as the checker's own.
    OwnWhole,
    /// After a cut inside the recovery, acknowledgements before the first cut need not hold.
    RecoveryForgets,
    /// A power cut comes before or after a recovery, never inside it.
    RecoveryWhole,
}

#[cfg(any(test, feature = "faults"))]
mod set {
    use super::Planted;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU8, Ordering};

    static EVERYWHERE: AtomicU8 = AtomicU8::new(0);

    thread_local! {
        static HERE: Cell<Option<Planted>> = const { Cell::new(None) };
    }

    /// Plants a fault in all of this process.
    pub fn plant(fault: Planted) {
        EVERYWHERE.store(fault as u8 + 1, Ordering::Relaxed);
    }

    /// The fault of this thread.
    pub(crate) fn here() -> Option<Planted> {
        HERE.get()
    }

    /// Plants a fault in this thread, and in those that judge states for it.
    pub(crate) fn plant_here(fault: Option<Planted>) {
        HERE.set(fault);
    }

    pub(crate) fn is(fault: Planted) -> bool {
        HERE.get() == Some(fault) || EVERYWHERE.load(Ordering::Relaxed) == fault as u8 + 1
    }
}

#[cfg(any(test, feature = "faults"))]
pub use set::plant;
#[cfg(any(test, feature = "faults"))]
pub(crate) use set::{here, is, plant_here};

#[cfg(not(any(test, feature = "faults")))]
pub(crate) const fn is(_: Planted) -> bool {
    false
}

#[cfg(not(any(test, feature = "faults")))]
pub(crate) const fn here() -> Option<Planted> {
    None
}

#[cfg(not(any(test, feature = "faults")))]
pub(crate) const fn plant_here(_: Option<Planted>) {}
