//! Directory slots: naming, renaming, exchanging, removing.
//!
//! ```text
//! Free --name--> Named --commit--> Committed<'i, New>                 one line, the commit word last
//! Free --continue_name--> Continued (Clean) --name--> ..              a long name: its rest first
//! Named, Live<'j> --aim--> Aimed<'i, From<'s>> --commit--> Committed  a rename, to a new name or over one
//! Named, Live<'j> --aim_swap--> Aimed<'i, Swap<'s, 'k>> --commit--> Committed    an exchange
//! Live<'i> of 's --clear--> Cleared                                   needs Committed<'i, From<'s>>, clean
//! Live<'i> of 's --swap--> Swapped<'k>                                needs Committed<'i, Swap<'s, 'k>>, clean
//! Live<'i> --remove--> Cleared
//! ```
//!
//! The line of a slot: commit word, rename pointer (two words), tag, name. A rename stores the pointer to the old slot before
//! the commit word. A mount that finds both slots naming the same inode, and the old slot's tag in the pointer, finishes the
//! rename. Pointers stay where they are; so a slot needs a new tag whenever it names something new: an old pointer to it is
//! dead then.

use std::marker::PhantomData;

use super::inode::states::{Init, Live as LiveInode};
use super::inode::{Inode, Nameable};
use super::line::LineWriter;
use super::medium::Medium;
use super::name::{LongName, ShortName};
use super::persist::{Brand, Clean, Dirty, Fenced, FencedSealed, InFlight, Witness};
use super::token::{FreeSlots, FreedSlots, Unlinked};
use crate::layout::{
    InodeRef, NAME_CONT, NAME_HEAD, Page, Place, Pointer, SLOT_BYTES, Tag, name_hash, slot,
    slots_of,
};
use crate::state::{Error, Result};

/// Operational states of a [`Dentry`].
pub mod states {
    use std::marker::PhantomData;
    type Of<'i> = PhantomData<fn(&'i ()) -> &'i ()>;

    /// Names nothing.
    pub struct Free(());
    /// Names nothing, and the slots after it hold the rest of a long name.
    pub struct Continued(());
    /// Tag and name are stored, the commit word is not.
    pub struct Named(());
    /// The rename pointer is stored as well; the slot is going to name the inode `'i`.
    pub struct Aimed<'i, A>(Of<'i>, PhantomData<A>);
    /// Names the inode `'i`, from this call on.
    pub struct Committed<'i, A>(Of<'i>, PhantomData<A>);
    /// Names the inode `'i`, from before this call.
    pub struct Live<'i>(Of<'i>);
    /// Names nothing any more.
    pub struct Cleared<W>(PhantomData<W>);
    /// Names the inode `'j`, which another slot had named.
    pub struct Swapped<'j>(Of<'j>);

    /// Origin of a slot's inode: it has a new name.
    pub struct New(());
    /// By a rename from the slot `'s`, which is to be cleared.
    pub struct From<'s>(Of<'s>);
    /// By an exchange with the slot `'s`, which is to name the inode `'j` instead.
    pub struct Swap<'s, 'j>(Of<'s>, Of<'j>);

    /// Reason why a slot was cleared: its name was removed.
    pub struct Removed(());
    /// Its inode has another name now.
    pub struct Moved(());
}
use states::{
    Aimed, Cleared, Committed, Continued, Free, From, Live, Moved, Named, New, Removed, Swap,
    Swapped,
};

/// A directory slot in the persistence state `P` and the operational state `S`; `'s` is its brand.
#[must_use]
pub struct Dentry<'s, P, S> {
    m: &'s Medium,
    place: Place,
    /// Slots that it has.
    count: u64,
    /// Inode that it named before the call, or [`NOTHING`].
    old: InodeRef,
    /// Inode that it is going to name.
    new: InodeRef,
    /// Inode that the other slot of an exchange is to name.
    other: InodeRef,
    _brand: PhantomData<fn(&'s ()) -> &'s ()>,
    _state: PhantomData<(P, S)>,
}

/// Names no inode.
const NOTHING: InodeRef = InodeRef {
    number: 0,
    generation: 0,
};

impl<'s, P, S> Dentry<'s, P, S> {
    #[inline]
    fn new(m: &'s Medium, place: Place, count: u64, old: InodeRef) -> Self {
        Dentry {
            m,
            place,
            count,
            old,
            new: NOTHING,
            other: NOTHING,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }

    #[inline]
    fn in_state<Q, T>(self) -> Dentry<'s, Q, T> {
        Dentry {
            new: self.new,
            other: self.other,
            ..Dentry::new(self.m, self.place, self.count, self.old)
        }
    }

    /// Its place.
    #[must_use]
    #[inline]
    pub fn place(&self) -> Place {
        self.place
    }

    #[inline]
    fn line(&self) -> LineWriter<'s> {
        LineWriter::new(self.m, self.place.at())
    }

    #[inline]
    fn tag(&self) -> Tag {
        Tag::from_word(self.m.load(self.place.at() + slot::TAG))
    }

    /// The first slots of a new page.
    #[inline]
    pub(super) fn first_in(brand: Brand<'s>, page: Page, count: u64) -> Self {
        Dentry::new(brand.m, Place::new(page, 0), count, NOTHING)
    }

    #[inline]
    fn store_name(&self, name: &[u8], tag: NewTag) {
        let mut line = self.line();
        line.word(slot::POINTER, 0);
        let tag = Tag {
            tag: tag.0,
            len: name.len() as u8,
            hash: name_hash(name),
        };
        line.word(slot::TAG, tag.word());
        let head = &name[..name.len().min(NAME_HEAD)];
        store_words(&mut line, slot::NAME, head, NAME_HEAD);
    }

    /// Stores a pointer to `from`.
    #[inline]
    fn store_pointer<T>(&mut self, from: &Dentry<'_, Clean, T>, other: Option<InodeRef>) {
        let pointer = Pointer {
            from: from.place,
            tag: from.tag().tag,
            exchange: other.map(|inode| inode.number),
        };
        let (one, two) = pointer.words();
        let mut line = self.line();
        // An old pointer goes first: no prefix of these stores mixes the words of two pointers.
        line.word(slot::POINTER, 0);
        line.word(slot::OTHER, two);
        line.word(slot::POINTER, one);
        self.new = from.old;
        self.other = other.unwrap_or(NOTHING);
    }

    #[inline]
    fn store_tag(&self, tag: NewTag) {
        let tag = Tag {
            tag: tag.0,
            ..self.tag()
        };
        self.line().word(slot::TAG, tag.word());
    }
}

/// A tag that no slot and no pointer has had, taken before the first store of a call.
#[must_use]
#[derive(Debug)]
pub struct NewTag(u64);

impl NewTag {
    /// The next one.
    ///
    /// # Errors
    /// [`Error::TagsExhausted`].
    #[inline]
    pub fn take(m: &Medium) -> Result<NewTag> {
        m.new_tag().map(NewTag)
    }
}

/// Stores bytes as words, padded with zeros.
#[inline]
fn store_words(line: &mut LineWriter<'_>, offset: u64, bytes: &[u8], room: usize) {
    let (words, tail) = bytes.as_chunks::<8>();
    let last = tail
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let padded = words.chain([last]).chain(std::iter::repeat(0));
    for (word, index) in padded.zip(0..room as u64 / 8) {
        line.word(offset + index * 8, word);
    }
}

/// Stores the rest of a long name to the slots after `first`. Their commit words are 0 and stay so.
#[inline]
pub(super) fn store_continuation(m: &Medium, first: Place, name: &LongName<'_>) {
    let rest = &name.bytes()[NAME_HEAD..];
    for (index, bytes) in rest.chunks(NAME_CONT).enumerate() {
        let place = Place(first.0 + 1 + index as u64);
        let mut line = LineWriter::new(m, place.at());
        store_words(&mut line, slot::CONT, bytes, NAME_CONT);
    }
}

impl<'s> Dentry<'s, Clean, Free> {
    /// Free slots.
    #[inline]
    pub fn free(brand: Brand<'s>, slots: FreeSlots) -> Self {
        Dentry::new(brand.m, slots.first, slots.count, NOTHING)
    }

    /// Stores tag and name of a short name.
    #[inline]
    pub fn name(self, name: ShortName<'_>, tag: NewTag) -> Dentry<'s, Dirty, Named> {
        self.store_name(name.bytes(), tag);
        self.in_state()
    }

    /// Stores the rest of a long name. The first slot stays as it is.
    #[inline]
    pub fn continue_name(self, name: &LongName<'_>) -> Dentry<'s, Dirty, Continued> {
        store_continuation(self.m, self.place, name);
        self.in_state()
    }
}

impl<'s> Dentry<'s, Dirty, Continued> {
    /// Writes the further slots back.
    #[inline]
    pub fn flush(self) -> Dentry<'s, InFlight, Continued> {
        let at = self.place.at() + SLOT_BYTES;
        self.m.region.write_back(at, (self.count - 1) * SLOT_BYTES);
        self.in_state()
    }
}

impl<'s> Dentry<'s, Clean, Continued> {
    /// Stores tag and name of a long name, whose rest is durable.
    #[inline]
    pub fn name(self, name: &LongName<'_>, tag: NewTag) -> Dentry<'s, Dirty, Named> {
        self.store_name(name.bytes(), tag);
        self.in_state()
    }
}

impl<'s> Dentry<'s, Dirty, Named> {
    /// Stores the commit word: the inode has this name.
    #[inline]
    pub fn commit<'i>(self, inode: &impl Nameable<'i>) -> Dentry<'s, Dirty, Committed<'i, New>> {
        self.line().commit(slot::COMMIT, inode.named().word());
        self.in_state()
    }

    /// Stores the pointer of a rename from the slot `from`.
    #[inline]
    pub fn aim<'f, 'i>(
        mut self,
        from: &Dentry<'f, Clean, Live<'i>>,
    ) -> Dentry<'s, Dirty, Aimed<'i, From<'f>>> {
        self.store_pointer(from, None);
        self.in_state()
    }

    /// Stores the pointer of a rename that leaves the inode `'w` under the old name.
    #[inline]
    pub fn aim_swap<'f, 'i, 'w>(
        mut self,
        from: &Dentry<'f, Clean, Live<'i>>,
        left: &Inode<'w, Clean, Init>,
    ) -> Dentry<'s, Dirty, Aimed<'i, Swap<'f, 'w>>> {
        self.store_pointer(from, Some(left.inode));
        self.in_state()
    }
}

impl<'s, 'i, A> Dentry<'s, Dirty, Aimed<'i, A>> {
    /// Stores the commit word: the inode has this name, and the other slot's no longer counts.
    #[inline]
    pub fn commit(self) -> Dentry<'s, Dirty, Committed<'i, A>> {
        self.line().commit(slot::COMMIT, self.new.word());
        self.in_state()
    }
}

impl<'s, 'j> Dentry<'s, Clean, Live<'j>> {
    /// A slot that names an inode. The caller holds the lock of its directory.
    ///
    /// # Errors
    /// [`Error::NotThere`] if it names something else.
    #[inline]
    pub fn live(
        brand: Brand<'s>,
        place: Place,
        inode: &Inode<'j, Clean, LiveInode>,
    ) -> Result<Self> {
        let (m, named) = (brand.m, inode.inode);
        if !m.geometry().is_place(place) || m.load(place.at() + slot::COMMIT) != named.word() {
            return Err(Error::NotThere(place));
        }
        let len = Tag::from_word(m.load(place.at() + slot::TAG)).len;
        let count = slots_of(usize::from(len)) as u64;
        Ok(Dentry::new(m, place, count, named))
    }

    /// Stores the pointer of a rename over this name, and a new tag.
    #[inline]
    pub fn aim<'f, 'i>(
        mut self,
        from: &Dentry<'f, Clean, Live<'i>>,
        tag: NewTag,
    ) -> Dentry<'s, Dirty, Aimed<'i, From<'f>>> {
        self.store_pointer(from, None);
        self.store_tag(tag);
        self.in_state()
    }

    /// Stores the pointer of an exchange with the slot `from`, and a new tag.
    #[inline]
    pub fn aim_exchange<'f, 'i>(
        mut self,
        from: &Dentry<'f, Clean, Live<'i>>,
        tag: NewTag,
    ) -> Dentry<'s, Dirty, Aimed<'i, Swap<'f, 'j>>> {
        self.store_pointer(from, Some(self.old));
        self.store_tag(tag);
        self.in_state()
    }

    /// Stores the pointer of a rename over this name that leaves the inode `'w` under the old name, and a new tag.
    #[inline]
    pub fn aim_swap<'f, 'i, 'w>(
        mut self,
        from: &Dentry<'f, Clean, Live<'i>>,
        left: &Inode<'w, Clean, Init>,
        tag: NewTag,
    ) -> Dentry<'s, Dirty, Aimed<'i, Swap<'f, 'w>>> {
        self.store_pointer(from, Some(left.inode));
        self.store_tag(tag);
        self.in_state()
    }

    /// Second step of a rename: this slot names nothing any more.
    #[inline]
    pub fn clear<'d>(
        self,
        to: &Dentry<'d, Clean, Committed<'j, From<'s>>>,
    ) -> Dentry<'s, Dirty, Cleared<Moved>> {
        let _ = to;
        self.line().commit(slot::COMMIT, 0);
        self.in_state()
    }

    /// Second step of an exchange: this slot loses its own pointer, names the other inode, and gets a new tag.
    ///
    /// * The tag makes the pointer of the first step out of date. Before the commit word it would do so too early. If it never
    ///   changed, a later exchange that brings the first inode back here would bring that pointer back to life. So a mount that
    ///   finds this slot under the old tag gives it a new one.
    /// * Its own pointer is out of date already. It goes so that this does not rest on every mount: one that a crash left
    ///   uncommitted here may point to a slot that names what this one is about to name.
    #[inline]
    pub fn swap<'d, 'k>(
        self,
        to: &Dentry<'d, Clean, Committed<'j, Swap<'s, 'k>>>,
        tag: NewTag,
    ) -> Dentry<'s, Dirty, Swapped<'k>> {
        let tag = Tag {
            tag: tag.0,
            ..self.tag()
        };
        let mut line = self.line();
        line.word(slot::POINTER, 0);
        line.word(slot::COMMIT, to.other.word());
        line.commit(slot::TAG, tag.word());
        self.in_state()
    }

    /// Removes the name.
    #[inline]
    pub fn remove(self) -> Dentry<'s, Dirty, Cleared<Removed>> {
        self.line().commit(slot::COMMIT, 0);
        self.in_state()
    }
}

/// States in which the line of the slot has its commit word: it can be written back.
pub trait Done: done_sealed::Sealed {}
mod done_sealed {
    pub trait Sealed {}
}
impl<A> done_sealed::Sealed for Committed<'_, A> {}
impl<A> Done for Committed<'_, A> {}
impl<W> done_sealed::Sealed for Cleared<W> {}
impl<W> Done for Cleared<W> {}
impl done_sealed::Sealed for Swapped<'_> {}
impl Done for Swapped<'_> {}

impl<'s, S: Done> Dentry<'s, Dirty, S> {
    /// Writes the line back.
    #[inline]
    pub fn flush(self) -> Dentry<'s, InFlight, S> {
        self.m.region.write_back(self.place.at(), SLOT_BYTES);
        self.in_state()
    }
}

impl<S> FencedSealed for Dentry<'_, InFlight, S> {}
impl<'s, S> Fenced for Dentry<'s, InFlight, S> {
    type Clean = Dentry<'s, Clean, S>;
    #[inline]
    fn non_temporal(&self) -> bool {
        false
    }
    #[inline]
    fn cleaned(self, _: Witness) -> Self::Clean {
        self.in_state()
    }
}

impl Dentry<'_, Clean, Cleared<Moved>> {
    /// Its slots.
    #[inline]
    pub fn freed(self) -> FreedSlots<Clean> {
        FreedSlots::new(self.place, self.count)
    }
}

impl Dentry<'_, Clean, Cleared<Removed>> {
    /// Its slots, and that the inode has lost a name.
    #[inline]
    pub fn freed(self) -> (FreedSlots<Clean>, Unlinked) {
        let slots = FreedSlots::new(self.place, self.count);
        (slots, Unlinked::new(self.old))
    }
}

impl<A> Dentry<'_, Clean, Committed<'_, A>> {
    /// The inode that has lost this name for good, if there is one.
    #[inline]
    pub fn replaced(self) -> Option<Unlinked> {
        (self.old != NOTHING && self.old != self.other).then(|| Unlinked::new(self.old))
    }
}
