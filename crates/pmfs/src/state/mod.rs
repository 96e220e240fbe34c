//! The order in which a volume's words become durable, checked by the compiler (SquirrelFS §3).
//!
//! Everything that stores metadata of a mounted volume is here, and nothing else can: [`Medium`] lets others read only.
//!
//! * `object` (private): objects on the medium and their states. A transition consumes an object, stores words, and returns
//!   the object in its next state. An object that must be durable first is an argument of the transition, in the state `Clean`.
//! * [`calls`]: one function for each change of the volume, made of transitions. This is the code that the types check.
//! * [`transitions`]: the transitions as a table, to compare with the model in `proofs/alloy`.
//!
//! # Meaning of the types
//!
//! * `P` in [`Inode<'i, P, S>`](Inode): the last stores are `Dirty`, `InFlight` or `Clean`. Only `flush` and
//!   [`fence`](persist::fence) lead from one to the next. A thing in flight is not [`Send`], because a fence covers the
//!   write-backs of its own thread.
//! * `S`: the steps taken with the object, so that each step has the one before it as its condition.
//! * `'i`: which object it is. Brands come from closures that must work for every lifetime ([`Medium::brand`]); evidence
//!   about one inode has another type than evidence about the next.
//! * A line ends with its commit word: [`line::LineWriter::commit`] consumes the writer.
//! * The free space takes [`Freed<Clean>`](Freed) and [`Recovered<Clean>`](Recovered), and these are made of clean things.
//!
//! # Rules that types cannot express, and where they are kept instead
//!
//! | statement | where |
//! |---|---|
//! | the inode of an [`InodeRef`] is there | `Inode::live` compares generations: [`Error::Stale`] |
//! | a slot names the inode that the caller means | `Dentry::live` compares the commit word: [`Error::NotThere`] |
//! | pages belong to an inode, at an offset, in a state | `Inode::owned` compares descriptors: [`Error::ForeignPage`] |
//! | data goes where the file does not show it | `Targets::hidden` looks at states and size: [`Error::ForeignPage`] |
//! | every page of a change is handed to the commit | [`calls::change`] passes whole lists; its tests count stores |
//! | the name, the mode, the size are the right ones | tests against the model file system |
//! | a call finishes each step that it begins | `must_use` warns; tests ask the recorder for stores without write-back or fence |
//! | free slots are used in the directory that they are of | the caller has a [`SlotMap`] for each directory; crash tests |
//! | all pages of a directory that goes are killed | [`Orphan::dissolve`] frees no others |
//! | an inode has lost its last name | the caller counts: [`Unlinked::last`]; crash tests compare trees |
//! | only one thread has an object | locks of the file system; tests with the recorder |
//! | the old slot's tag is in the pointer | `Dentry::aim` reads it; crash tests |
//! | the list of repairs is right | crash tests of recovery |
//! | stores before a fence skipped under eADR were ordered | each object knows whether it has non-temporal stores |
//!
//! # Requirements of the calls on a mount
//!
//! All of it is decided from the words on the medium before any repair, stored with one fence ([`recover`]), and over before the
//! first call:
//!
//! * A rename whose pointer is alive is finished. A slot that is to name another inode gets that as its commit word, and then a
//!   new tag, in its one line.
//! * A slot that goes on naming something gets a new tag if the pointer of another slot has its tag.
//! * Slots that name a generation which was never born are cleared, and so are descriptors.
//! * Marks of a change that did not commit are taken back; written pages past the end of a file are freed.
//! * Pages of directories that cannot be reached are killed.
//! * New tags are above all tags of slots that name something, and of their pointers.
//!
//! # Why this module is public
//!
//! The programs in `tests/compile_fail` break the rules as a developer would, from outside, and fail with the messages that a
//! developer sees. A hidden path would do for that; but the states *are* the protocol, and belong in the documentation. Being
//! public costs no safety: no constructor of a state, a token or evidence is.

pub mod calls;
mod object;
pub mod transitions;

pub use calls::*;
pub use object::content::{Bytes, Content, Hidden, Shown, Targets};
pub use object::dentry::{Dentry, NewTag};
pub use object::dirpage::DirPage;
pub use object::free::{FreeSpace, Taken};
pub use object::inode::{Attributes, Inline, Inode, Nameable, Newborn, Ready};
pub use object::medium::Medium;
pub use object::name::{LongName, NAME_MAX, Name, ShortName};
pub use object::pages::{
    Adoption, Before, Beside, Descriptors, DirectoryRun, Extent, Killed, Next, Owned, Unseen,
};
pub use object::recover::{Repair, recover};
pub use object::slots::SlotMap;
pub use object::superblock::store_hints;
pub use object::times::{Stamps, Times, Touches};
pub use object::token::{
    FreeInode, FreePages, FreeSlots, Freed, FreedSlots, Mounted, Orphan, PageRun, PageRuns,
    Recovered, Survey, Unlinked,
};
pub use object::{dentry, dirpage, inode, line, persist};

use crate::layout::{InodeRef, Page, Place};

/// Reason of a call's refusal. Nothing has been stored then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The inode is not there: its number now has another generation.
    #[error("inode {} of generation {} is not there any more", .0.number, .0.generation)]
    Stale(InodeRef),
    /// The slot does not name this inode.
    #[error("directory slot {} does not name the inode it should name: the volume or the index is damaged; run fsck", .0.0)]
    NotThere(Place),
    /// The page is not the inode's, or not in the state it should be in.
    #[error("page {} does not belong to the file as it should: the volume or the index is damaged; run fsck", .0.0)]
    ForeignPage(Page),
    /// An address is past the end, or does not fit.
    #[error("byte {at} is out of range")]
    Outside {
        /// The address.
        at: u64,
    },
    /// The inode has been changed 2^48 times; a copy of the file starts anew.
    #[error("inode {} has used up its sequence numbers: copy the file", .0.number)]
    SequenceExhausted(InodeRef),
    /// All 2^48 tags are used up.
    #[error("the volume has used up its tags of directory slots: copy it to a new volume")]
    TagsExhausted,
    /// A name, a target or a set of attributes of this many bytes does not fit.
    #[error("{0} bytes do not fit")]
    TooLong(usize),
    /// The bytes of line 1 are in use.
    #[error("the inline bytes of inode {} are in use", .0.number)]
    InlineTaken(InodeRef),
    /// A call for another kind of inode.
    #[error("the call does not fit the kind of the inode")]
    WrongKind,
}

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests;
