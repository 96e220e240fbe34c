//! Requests of the machines to the store, and its answers.

use super::{Head, Nonce, ObjectName, SlotName, Stamp, Version};

/// One request to the store. Exactly one [`Answer`] reports its outcome.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// Read `head`: answered by [`Answer::Head`].
    ReadHead,
    /// Overwrite `head` if it still is version `from`: `If-Match` with the ETag of this version.
    SwapHead {
        /// The version to replace.
        from: Version,
        /// The new head.
        to: Head,
    },
    /// Overwrite `head` without a condition. Only a planted fault sends this.
    #[cfg(feature = "faults")]
    WriteHead(Head),
    /// Read a slot: answered by [`Answer::Slot`].
    ReadSlot(SlotName),
    /// Create a slot object: `If-None-Match: *`.
    PutSlot {
        /// Name of the slot.
        at: SlotName,
        /// Contents of the slot.
        body: Body,
    },
    /// Create an object under a name of this writer: `If-None-Match: *`.
    PutObject {
        /// Name of the object.
        name: ObjectName,
        /// Stamp of its contents.
        stamp: Stamp,
    },
    /// Read the stamp of an object: answered by [`Answer::Object`].
    ReadObject(ObjectName),
}

/// The contents of a slot object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Body {
    /// An epoch with these contents.
    Epoch(Stamp),
    /// The end of the term, put there by this machine.
    Seal(Nonce),
}

/// The result of reading a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotSeen {
    /// No such object.
    Absent,
    /// An object of the right volume, term and number, its hash verified.
    Holds(Body),
    /// An object that fails its checks: swapped, torn, of another volume.
    Damaged,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// The store confirms that the PUT took effect.
    Done,
    /// The store says that the condition does not hold: 412, 409, *already exists*. An earlier attempt of the same request
    /// may be the cause, so the machine must read the object before it concludes anything.
    Refused,
    /// The outcome is unknown: timeout, broken connection, 5xx. The request may have taken effect, or may do so later.
    Unknown,
    /// `head`, decoded and checked.
    Head(Head),
    /// The contents of a slot.
    Slot(SlotSeen),
    /// The stamp of an object; none if it is absent.
    Object(Option<Stamp>),
}
