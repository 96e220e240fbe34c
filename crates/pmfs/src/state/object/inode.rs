//! Inodes: birth, and the commit of a change.
//!
//! ```text
//! Free --init--> Init                   nothing needs to be durable before its name
//! Free --init_bodied--> Bodied           it has a body (a target, attributes) that must be
//! Bodied (Clean) --complete--> Init     the body is durable, too
//! Live --commit--> Changed              size, owner, mode and page states change at once
//! ```
//!
//! Line 0 ends with the birth word when the inode is born, with the commit word when it changes. Line 1 ends with its header,
//! and counts only if the header has the inode's generation.

use std::marker::PhantomData;

use steadfast_vfs::FileKind;

use super::content::Content;
use super::line::LineWriter;
use super::medium::Medium;
use super::pages::{Before, Beside, Descriptors, Next};
use super::persist::{Brand, Clean, Dirty, Fenced, FencedSealed, Flushed, InFlight, Witness};
use super::second_line::SecondLine;
use super::times::Times;
use super::token::{FreeInode, Freed, PageRuns, Unlinked};
use crate::layout::{
    AttributePlace, Commit, INLINE_BYTES, INODE_BYTES, InodeRef, LINE_BYTES, birth_parts,
    birth_word, inode,
};
use crate::state::{Error, Result};

/// Operational states of an [`Inode`].
pub mod states {
    /// No name and no reference counts.
    pub struct Free(());
    /// Its words are stored; it has a body that must be durable before it is named.
    pub struct Bodied(());
    /// Its words are stored, and it may be named.
    pub struct Init(());
    /// It was there before this call.
    pub struct Live(());
    /// Its commit word is stored.
    pub struct Changed(());
}
use states::{Bodied, Changed, Free, Init, Live};

/// An inode in the persistence state `P` and the operational state `S`; `'i` is its brand.
#[must_use]
pub struct Inode<'i, P, S> {
    pub(super) m: &'i Medium,
    pub(super) inode: InodeRef,
    at: u64,
    _brand: PhantomData<fn(&'i ()) -> &'i ()>,
    _state: PhantomData<(P, S)>,
}

/// A new inode.
#[derive(Clone, Copy, Debug)]
pub struct Newborn<'a> {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits, 12.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes; of a device: its number.
    pub size_or_rdev: u64,
    /// Its four times.
    pub now: u64,
    /// Place of its extended attributes.
    pub attributes: AttributePlace,
    /// A symlink's target or inline attributes; at most [`INLINE_BYTES`].
    pub inline: &'a [u8],
}

/// Attributes of an inode after a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Permission bits, 12.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes; of a device: its number.
    pub size: u64,
    /// Place of its extended attributes.
    pub place: AttributePlace,
}

impl<'i, P, S> Inode<'i, P, S> {
    #[inline]
    fn in_state<Q, T>(self) -> Inode<'i, Q, T> {
        Inode {
            m: self.m,
            inode: self.inode,
            at: self.at,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }

    /// Number and generation.
    #[must_use]
    #[inline]
    pub fn inode(&self) -> InodeRef {
        self.inode
    }
}

impl<'i> Inode<'i, Clean, Free> {
    /// A free inode.
    #[inline]
    pub fn free(brand: Brand<'i>, token: FreeInode<'_>) -> Inode<'i, Clean, Free> {
        let inode = token.spend();
        Inode {
            at: brand.m.geometry().inode_at(inode.number),
            m: brand.m,
            inode,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }

    /// Stores both lines of an inode that may be named in the same fence: it has neither target nor attributes. `new.inline`
    /// must be empty and `new.attributes` none; they are not stored.
    #[inline]
    pub fn init(self, new: &Newborn<'_>) -> Inode<'i, Dirty, Init> {
        debug_assert!(new.inline.is_empty() && new.attributes == AttributePlace::None);
        self.write(&Newborn {
            attributes: AttributePlace::None,
            inline: &[],
            ..*new
        });
        self.in_state()
    }

    /// Stores both lines of an inode whose body must be durable before it is named.
    #[inline]
    pub fn init_bodied(self, new: &Newborn<'_>) -> Inode<'i, Dirty, Bodied> {
        self.write(new);
        self.in_state()
    }

    #[inline]
    fn write(&self, new: &Newborn<'_>) {
        let commit = Commit {
            sequence: 0,
            perm: new.perm,
            attributes: new.attributes,
        };
        let mut line = LineWriter::new(self.m, self.at);
        line.word(inode::COMMIT, commit.word());
        line.word(inode::SIZE[0], new.size_or_rdev);
        line.word(inode::OWNER[0], owner(new.uid, new.gid));
        line.word(inode::MTIME, new.now);
        line.word(inode::CTIME, new.now);
        let birth = birth_word(self.inode.generation, new.kind);
        line.commit(inode::BIRTH, birth);
        let line = SecondLine {
            m: self.m,
            at: self.at,
            generation: self.inode.generation,
        };
        line.write(new.now, new.now, Some(new.inline));
    }
}

#[inline]
fn owner(uid: u32, gid: u32) -> u64 {
    u64::from(uid) << 32 | u64::from(gid)
}

impl<'i> Inode<'i, Clean, Bodied> {
    /// Its body is in its own lines.
    #[inline]
    pub fn complete_inline(self) -> Inode<'i, Clean, Init> {
        self.in_state()
    }

    /// Its body is in these pages.
    #[inline]
    pub fn complete(
        self,
        descriptors: &Descriptors<'i, Clean, Before>,
        content: &Content<'i, Clean>,
    ) -> Inode<'i, Clean, Init> {
        let _ = (descriptors, content);
        self.in_state()
    }
}

impl<'i> Inode<'i, Clean, Init> {
    /// It got no name: an unnamed temporary file.
    #[inline]
    pub fn nameless(self) -> Unlinked {
        Unlinked::new(self.inode)
    }
}

/// Evidence that an inode may be named: after the next fence at the latest, it is whole.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may not be named: a crash could leave a name of an inode that is not whole",
    label = "must be `Init` and written back, or `Live`",
    note = "an inode with a body must be `Clean` and pass `complete` before it is named"
)]
pub trait Nameable<'i>: nameable_sealed::Sealed {
    #[doc(hidden)]
    fn named(&self) -> InodeRef;
}
mod nameable_sealed {
    pub trait Sealed {}
}
impl<P: Flushed> nameable_sealed::Sealed for Inode<'_, P, Init> {}
impl<'i, P: Flushed> Nameable<'i> for Inode<'i, P, Init> {
    #[inline]
    fn named(&self) -> InodeRef {
        self.inode
    }
}
impl nameable_sealed::Sealed for Inode<'_, Clean, Live> {}
impl<'i> Nameable<'i> for Inode<'i, Clean, Live> {
    #[inline]
    fn named(&self) -> InodeRef {
        self.inode
    }
}

/// The objects that must be durable before a commit. A change leaves out those that it does not have.
#[derive(Default)]
pub struct Ready<'i> {
    /// New content.
    pub content: Option<Content<'i, Clean>>,
    /// Pages that come alive or die with the commit.
    pub descriptors: Option<Descriptors<'i, Clean, Before>>,
    /// A new inline set of attributes.
    pub inline: Option<Inline<'i, Clean>>,
}

impl<'i> Ready<'i> {
    /// The pages that died: the commit is durable, too.
    #[inline]
    pub fn freed(self, inode: &Inode<'i, Clean, Changed>) -> Freed<Clean> {
        match self.descriptors {
            Some(descriptors) => descriptors.freed(inode),
            None => Freed::new(PageRuns::new(), None),
        }
    }
}

impl<'i> Inode<'i, Clean, Live> {
    /// An inode that is there. The caller holds its lock.
    ///
    /// # Errors
    /// [`Error::Stale`] if the inode of this number has another generation.
    #[inline]
    pub fn live(brand: Brand<'i>, inode: InodeRef) -> Result<Inode<'i, Clean, Live>> {
        Ok(Inode {
            at: brand.m.live_inode(inode)?,
            m: brand.m,
            inode,
            _brand: PhantomData,
            _state: PhantomData,
        })
    }

    #[inline]
    pub(super) fn committed(&self) -> Commit {
        Commit::from_word(self.m.load(self.at + inode::COMMIT))
    }

    /// Its size in bytes.
    #[must_use]
    #[inline]
    pub fn size(&self) -> u64 {
        let slot = inode::SIZE[self.committed().parity()];
        self.m.load(self.at + slot)
    }

    /// Place of its attributes.
    #[must_use]
    #[inline]
    pub fn attribute_place(&self) -> AttributePlace {
        self.committed().attributes
    }

    /// Whether it is a symlink.
    #[must_use]
    #[inline]
    pub fn is_symlink(&self) -> bool {
        birth_parts(self.m.load(self.at + inode::BIRTH)).1 == Some(FileKind::Symlink)
    }

    /// Checks that an inline set of attributes may be stored in line 1.
    ///
    /// # Errors
    /// [`Error::InlineTaken`] if the present set is there, or a symlink's target may be; [`Error::TooLong`] for more than
    /// [`INLINE_BYTES`].
    #[inline]
    pub fn inline_room<'a>(&self, set: &'a [u8]) -> Result<InlineRoom<'i, 'a>> {
        if self.attribute_place() == AttributePlace::Inline || self.is_symlink() {
            return Err(Error::InlineTaken(self.inode));
        }
        if set.len() > INLINE_BYTES {
            return Err(Error::TooLong(set.len()));
        }
        Ok(InlineRoom {
            set,
            _brand: PhantomData,
        })
    }

    /// Stores an inline set of attributes in line 1. It counts from the commit on that says so.
    #[inline]
    pub fn write_inline(&self, room: &InlineRoom<'i, '_>) -> Inline<'i, Dirty> {
        let line = SecondLine {
            m: self.m,
            at: self.at,
            generation: self.inode.generation,
        };
        line.rewrite(None, Some(room.set));
        Inline {
            m: self.m,
            at: self.at,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }

    /// Stores the other slots and then the commit word: everything that names the new sequence counts from here on.
    ///
    /// `ready` is durable. `beside` may reach the medium before, after or never: see
    /// [`Descriptors::beside`].
    #[inline]
    pub fn commit(
        self,
        next: Next<'i>,
        new: &Attributes,
        times: &Times,
        ready: &Ready<'i>,
        beside: Option<&Descriptors<'i, InFlight, Beside>>,
    ) -> Inode<'i, Dirty, Changed> {
        let _ = (ready, beside);
        let commit = Commit {
            sequence: next.sequence,
            perm: new.perm,
            attributes: new.place,
        };
        let mut line = LineWriter::new(self.m, self.at);
        line.word(inode::SIZE[commit.parity()], new.size);
        line.word(inode::OWNER[commit.parity()], owner(new.uid, new.gid));
        if let Some(mtime) = times.mtime {
            line.word(inode::MTIME, mtime);
        }
        if let Some(ctime) = times.ctime {
            line.word(inode::CTIME, ctime);
        }
        line.commit(inode::COMMIT, commit.word());
        self.in_state()
    }
}

impl<'i> Inode<'i, Dirty, Init> {
    /// Writes both lines back.
    #[inline]
    pub fn flush(self) -> Inode<'i, InFlight, Init> {
        self.m.region.write_back(self.at, INODE_BYTES);
        self.in_state()
    }
}

impl<'i> Inode<'i, Dirty, Bodied> {
    /// Writes both lines back.
    #[inline]
    pub fn flush(self) -> Inode<'i, InFlight, Bodied> {
        self.m.region.write_back(self.at, INODE_BYTES);
        self.in_state()
    }
}

impl<'i> Inode<'i, Dirty, Changed> {
    /// Writes line 0 back.
    #[inline]
    pub fn flush(self) -> Inode<'i, InFlight, Changed> {
        self.m.region.write_back(self.at, LINE_BYTES);
        self.in_state()
    }
}

impl<S> FencedSealed for Inode<'_, InFlight, S> {}
impl<'i, S> Fenced for Inode<'i, InFlight, S> {
    type Clean = Inode<'i, Clean, S>;
    #[inline]
    fn non_temporal(&self) -> bool {
        false
    }
    #[inline]
    fn cleaned(self, _: Witness) -> Self::Clean {
        self.in_state()
    }
}

/// A set of attributes that fits into line 1 of the inode `'i`, which does not use it.
#[derive(Clone, Copy, Debug)]
pub struct InlineRoom<'i, 'a> {
    set: &'a [u8],
    _brand: PhantomData<fn(&'i ()) -> &'i ()>,
}

/// An inline set of attributes in line 1 of the inode `'i`.
#[must_use]
pub struct Inline<'i, P> {
    m: &'i Medium,
    at: u64,
    _brand: PhantomData<fn(&'i ()) -> &'i ()>,
    _state: PhantomData<P>,
}

impl<'i> Inline<'i, Dirty> {
    /// Writes line 1 back.
    #[inline]
    pub fn flush(self) -> Inline<'i, InFlight> {
        self.m.region.write_back(self.at + inode::EXTRA, LINE_BYTES);
        Inline {
            m: self.m,
            at: self.at,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }
}

impl FencedSealed for Inline<'_, InFlight> {}
impl<'i> Fenced for Inline<'i, InFlight> {
    type Clean = Inline<'i, Clean>;
    #[inline]
    fn non_temporal(&self) -> bool {
        false
    }
    #[inline]
    fn cleaned(self, _: Witness) -> Self::Clean {
        Inline {
            m: self.m,
            at: self.at,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }
}
