//! What the machines ask of the store, and what it may answer.

use super::{Head, Nonce, ObjectName, SlotName, Stamp, Version};

/// One request to the store. Its outcome comes back by [`Answer`], exactly once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Request {
    /// Read `head`: answered by [`Answer::Head`].
    ReadHead,
    /// Overwrite `head` if it still is version `from`: by `If-Match`, with the ETag under which this version was seen.
    SwapHead {
        /// The version to replace.
        from: Version,
        /// What to write.
        to: Head,
    },
    /// Overwrite `head` whatever it is. Only a planted fault asks for it.
    #[cfg(feature = "faults")]
    WriteHead(Head),
    /// Read a slot: answered by [`Answer::Slot`].
    ReadSlot(SlotName),
    /// Create a slot object: `If-None-Match: *`.
    PutSlot {
        /// Where.
        at: SlotName,
        /// What.
        body: Body,
    },
    /// Create an object of this writer's own name: `If-None-Match: *`.
    PutObject {
        /// Its name.
        name: ObjectName,
        /// Its contents.
        stamp: Stamp,
    },
    /// Read which contents an object has: answered by [`Answer::Object`].
    ReadObject(ObjectName),
}

/// What a slot object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Body {
    /// An epoch with these contents.
    Epoch(Stamp),
    /// The end of the term, put there by this machine.
    Seal(Nonce),
}

/// What a read of a slot found.
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
    /// The PUT took effect, and the store says so.
    Done,
    /// The store says that the condition does not hold: 412, 409, *already exists*. An earlier attempt of the same request
    /// may have caused that, so the object must be read before anything is concluded.
    Refused,
    /// Nobody knows: timed out, cut, 5xx. It may have taken effect, or may still.
    Unknown,
    /// `head`, decoded and checked.
    Head(Head),
    /// What a slot holds.
    Slot(SlotSeen),
    /// The contents of an object; none if it is absent.
    Object(Option<Stamp>),
}
