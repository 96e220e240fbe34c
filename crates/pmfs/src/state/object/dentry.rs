//! Directory slots: naming, renaming, exchanging, removing.
//!
//! ```text
//! Room --describe--> Described --commit--> Named<'i>           one line, the commit word last
//! Room --continue_name--> Continued (Clean) --describe--> ..   a long name: its rest first
//! Described --rename_from--> Renamed<'s,'i>                    rename to a new name
//! Names<'j> --replace--> Renamed<'s,'i>                        rename over a name
//! Names<'i> of 's --clear--> Moved                             needs the first step clean
//! Names<'j> --exchange--> Exchanged<'s,'i,'j>                  exchange
//! Names<'i> of 's --swap--> Named<'j>                          needs the first step clean
//! Names<'i> --remove--> Removed<'i>
//! ```
//!
//! The line of a slot: commit word, rename pointer (two words), tag, name. A rename stores the pointer to the old slot before
//! the commit word; a mount that finds both slots naming the same inode, and the old slot's tag in the pointer, finishes the
//! rename. Pointers stay where they are, so that a slot needs a new tag whenever it names something new: an old pointer to it
//! is dead then.

use std::marker::PhantomData;

use super::inode::states::{Born, Live};
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

    /// Free slots.
    pub struct Room(());
    /// Free slots with the rest of a long name.
    pub struct Continued(());
    /// Tag and name are stored, the commit word is not.
    pub struct Described(());
    /// Names the inode `'i`, from this call on.
    pub struct Named<'i>(Of<'i>);
    /// Names the inode `'i`, from before this call.
    pub struct Names<'i>(Of<'i>);
    /// Names the inode `'i` and points to the slot `'s`, which is to lose its name.
    pub struct Renamed<'s, 'i>(Of<'s>, Of<'i>);
    /// Names the inode `'i` and points to the slot `'s`, which is to name `'j` instead.
    pub struct Exchanged<'s, 'i, 'j>(Of<'s>, Of<'i>, Of<'j>);
    /// Names nothing: the name is in another slot now.
    pub struct Moved(());
    /// Names nothing: the inode `'i` has a name less.
    pub struct Removed<'i>(Of<'i>);
}
use states::{Continued, Described, Exchanged, Moved, Named, Names, Removed, Renamed, Room};

/// A directory slot in the persistence state `P` and the operational state `S`; `'s` is its brand.
#[must_use]
pub struct Dentry<'s, P, S> {
    m: &'s Medium,
    place: Place,
    /// Slots that it has, as far as they are known.
    count: u64,
    /// What it named before the call, or [`NOTHING`].
    old: InodeRef,
    /// What the other slot of an exchange is to name.
    other: InodeRef,
    _brand: PhantomData<fn(&'s ()) -> &'s ()>,
    _state: PhantomData<(P, S)>,
}

impl<'s, P, S> Dentry<'s, P, S> {
    fn in_state<Q, T>(self) -> Dentry<'s, Q, T> {
        Dentry {
            m: self.m,
            place: self.place,
            count: self.count,
            old: self.old,
            other: self.other,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }

    /// Where it is.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }

    fn line(&self) -> LineWriter<'s> {
        LineWriter::new(self.m, self.place.at())
    }

    fn tag_word(&self) -> Tag {
        Tag::from_word(self.m.load(self.place.at() + slot::TAG))
    }
}

/// Names no inode.
const NOTHING: InodeRef = InodeRef {
    number: 0,
    generation: 0,
};

/// A tag that no slot and no pointer has had, taken before the first store of a call.
#[must_use]
#[derive(Debug)]
pub struct NewTag(u64);

impl NewTag {
    /// The next one.
    ///
    /// # Errors
    /// [`Error::TagsExhausted`].
    pub fn take(m: &Medium) -> Result<NewTag> {
        m.new_tag().map(NewTag)
    }
}

impl<'s> Dentry<'s, Clean, Room> {
    /// Free slots.
    pub fn free(brand: Brand<'s>, slots: FreeSlots) -> Self {
        Dentry {
            m: brand.m,
            place: slots.first,
            count: slots.count,
            old: NOTHING,
            other: NOTHING,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }

    /// Stores tag and name of a short name.
    pub fn describe(self, name: ShortName<'_>, tag: NewTag) -> Dentry<'s, Dirty, Described> {
        self.store_name(name.bytes(), tag);
        self.in_state()
    }

    /// Stores the rest of a long name. The first slot stays as it is.
    pub fn continue_name(self, name: &LongName<'_>) -> Dentry<'s, Dirty, Continued> {
        store_continuation(self.m, self.place, name);
        self.in_state()
    }
}

impl<'s> Dentry<'s, Dirty, Continued> {
    /// Writes the further slots back.
    pub fn flush(self) -> Dentry<'s, InFlight, Continued> {
        let at = self.place.at() + SLOT_BYTES;
        let len = (self.count - 1) * SLOT_BYTES;
        self.m.region.write_back(at, len);
        self.in_state()
    }
}

impl<'s> Dentry<'s, Clean, Continued> {
    /// Stores tag and name of a long name, whose rest is durable.
    pub fn describe(self, name: &LongName<'_>, tag: NewTag) -> Dentry<'s, Dirty, Described> {
        self.store_name(name.bytes(), tag);
        self.in_state()
    }
}

impl<'s, P, S> Dentry<'s, P, S> {
    /// The first slots of a new page.
    pub(super) fn first_in(brand: Brand<'s>, page: Page, count: u64) -> Self {
        Dentry {
            m: brand.m,
            place: Place::new(page, 0),
            count,
            old: NOTHING,
            other: NOTHING,
            _brand: PhantomData,
            _state: PhantomData,
        }
    }

    fn store_name(&self, name: &[u8], tag: NewTag) {
        let mut line = self.line();
        line.word(slot::POINTER, 0);
        let tag = Tag {
            tag: tag.0,
            len: name.len() as u8,
            hash: name_hash(name),
        };
        line.word(slot::TAG, tag.word());
        store_words(
            &mut line,
            slot::NAME,
            &name[..name.len().min(NAME_HEAD)],
            NAME_HEAD,
        );
    }
}

/// Stores bytes as words, padded with zeros.
fn store_words(line: &mut LineWriter<'_>, offset: u64, bytes: &[u8], room: usize) {
    for index in 0..room / 8 {
        let mut word = [0; 8];
        let rest = bytes.get(index * 8..).unwrap_or_default();
        let len = rest.len().min(8);
        word[..len].copy_from_slice(&rest[..len]);
        line.word(offset + index as u64 * 8, u64::from_le_bytes(word));
    }
}

/// Stores the rest of a long name to the slots after `first`. Their commit words are 0 and stay so.
pub(super) fn store_continuation(m: &Medium, first: Place, name: &LongName<'_>) {
    let rest = &name.bytes()[NAME_HEAD..];
    for (index, bytes) in rest.chunks(NAME_CONT).enumerate() {
        let place = Place(first.0 + 1 + index as u64);
        let mut line = LineWriter::new(m, place.at());
        store_words(&mut line, slot::CONT, bytes, NAME_CONT);
    }
}

impl<'s> Dentry<'s, Dirty, Described> {
    /// Stores the commit word: the inode has this name.
    pub fn commit<'i>(self, inode: &impl Nameable<'i>) -> Dentry<'s, Dirty, Named<'i>> {
        self.line().commit(slot::COMMIT, inode.named().word());
        self.in_state()
    }

    /// First step of a rename to a new name: stores the pointer to the old slot, then the commit word.
    pub fn rename_from<'f, 'i>(
        self,
        from: &Dentry<'f, Clean, Names<'i>>,
    ) -> Dentry<'s, Dirty, Renamed<'f, 'i>> {
        self.point(from, None, None);
        self.in_state()
    }

    /// First step of a rename that leaves the inode `'w` under the old name.
    pub fn rename_leaving<'f, 'i, 'w>(
        mut self,
        from: &Dentry<'f, Clean, Names<'i>>,
        left: &Inode<'w, Clean, Born>,
    ) -> Dentry<'s, Dirty, Exchanged<'f, 'i, 'w>> {
        self.other = left.inode;
        self.point(from, Some(left.inode), None);
        self.in_state()
    }
}

impl<'s, 'j> Dentry<'s, Clean, Names<'j>> {
    /// A slot that names an inode. The caller holds the lock of its directory.
    ///
    /// # Errors
    /// [`Error::NotThere`] if it names something else.
    pub fn live(brand: Brand<'s>, place: Place, inode: &Inode<'j, Clean, Live>) -> Result<Self> {
        let (m, named) = (brand.m, inode.inode);
        if !m.geometry().is_place(place) || m.load(place.at() + slot::COMMIT) != named.word() {
            return Err(Error::NotThere(place));
        }
        let len = Tag::from_word(m.load(place.at() + slot::TAG)).len;
        Ok(Dentry {
            m,
            place,
            count: slots_of(usize::from(len)) as u64,
            old: named,
            other: NOTHING,
            _brand: PhantomData,
            _state: PhantomData,
        })
    }

    /// First step of a rename over this name: pointer, new tag, commit word.
    pub fn replace<'f, 'i>(
        self,
        from: &Dentry<'f, Clean, Names<'i>>,
        tag: NewTag,
    ) -> Dentry<'s, Dirty, Renamed<'f, 'i>> {
        self.point(from, None, Some(tag));
        self.in_state()
    }

    /// The same, if the inode `'w` is to be left under the old name.
    pub fn replace_leaving<'f, 'i, 'w>(
        mut self,
        from: &Dentry<'f, Clean, Names<'i>>,
        left: &Inode<'w, Clean, Born>,
        tag: NewTag,
    ) -> Dentry<'s, Dirty, Exchanged<'f, 'i, 'w>> {
        self.other = left.inode;
        self.point(from, Some(left.inode), Some(tag));
        self.in_state()
    }

    /// First step of an exchange with the slot `from`: pointer with the inode that `from` is to name, new tag, commit word.
    pub fn exchange<'f, 'i>(
        mut self,
        from: &Dentry<'f, Clean, Names<'i>>,
        tag: NewTag,
    ) -> Dentry<'s, Dirty, Exchanged<'f, 'i, 'j>> {
        self.other = self.old;
        self.point(from, Some(self.old), Some(tag));
        self.in_state()
    }

    /// Second step of a rename: this slot names nothing any more.
    pub fn clear<'d>(self, to: &Dentry<'d, Clean, Renamed<'s, 'j>>) -> Dentry<'s, Dirty, Moved> {
        let _ = to;
        self.line().commit(slot::COMMIT, 0);
        self.in_state()
    }

    /// Second step of an exchange: this slot names the other inode, and then it gets a new tag.
    ///
    /// The tag comes after the commit word: before it, the pointer of the first step would be dead too early. A mount that
    /// finds this slot naming the other inode under the old tag stores a new tag itself: else a later exchange that brings
    /// the first inode back here would bring the pointer back to life.
    pub fn swap<'d, 'k>(
        self,
        to: &Dentry<'d, Clean, Exchanged<'s, 'j, 'k>>,
        tag: NewTag,
    ) -> Dentry<'s, Dirty, Named<'k>> {
        let tag = Tag {
            tag: tag.0,
            ..self.tag_word()
        };
        let mut line = self.line();
        line.word(slot::COMMIT, to.other.word());
        line.commit(slot::TAG, tag.word());
        self.in_state()
    }

    /// Removes the name.
    pub fn remove(self) -> Dentry<'s, Dirty, Removed<'j>> {
        self.line().commit(slot::COMMIT, 0);
        self.in_state()
    }
}

impl<P, S> Dentry<'_, P, S> {
    /// Stores a rename pointer to `from`, a new tag if there is one, and the inode of `from` as the commit word.
    fn point<T>(&self, from: &Dentry<'_, Clean, T>, other: Option<InodeRef>, tag: Option<NewTag>) {
        let pointer = Pointer {
            from: from.place,
            tag: from.tag_word().tag,
            exchange: other.map(|inode| inode.number),
        };
        let (one, two) = pointer.words();
        let mut line = self.line();
        // An old pointer goes first: no prefix of these stores mixes the words of two pointers.
        line.word(slot::POINTER, 0);
        line.word(slot::OTHER, two);
        line.word(slot::POINTER, one);
        if let Some(tag) = tag {
            let word = Tag {
                tag: tag.0,
                ..self.tag_word()
            };
            line.word(slot::TAG, word.word());
        }
        line.commit(slot::COMMIT, from.old.word());
    }
}

/// States whose stores are all in the line of the first slot.
pub trait OneLine: one_line_sealed::Sealed {}
mod one_line_sealed {
    pub trait Sealed {}
}
macro_rules! one_line {
    ($($state:ty),+) => {$(
        impl one_line_sealed::Sealed for $state {}
        impl OneLine for $state {}
    )+};
}
one_line!(
    Named<'_>,
    Renamed<'_, '_>,
    Exchanged<'_, '_, '_>,
    Moved,
    Removed<'_>
);

impl<'s, S: OneLine> Dentry<'s, Dirty, S> {
    /// Writes the line back.
    pub fn flush(self) -> Dentry<'s, InFlight, S> {
        self.m.region.write_back(self.place.at(), SLOT_BYTES);
        self.in_state()
    }
}

impl<S> FencedSealed for Dentry<'_, InFlight, S> {}
impl<'s, S> Fenced for Dentry<'s, InFlight, S> {
    type Clean = Dentry<'s, Clean, S>;
    fn non_temporal(&self) -> bool {
        false
    }
    fn cleaned(self, _: Witness) -> Self::Clean {
        self.in_state()
    }
}

impl Dentry<'_, Clean, Moved> {
    /// Its slots.
    pub fn freed(self) -> FreedSlots<Clean> {
        FreedSlots::new(self.place, self.count)
    }
}

impl Dentry<'_, Clean, Removed<'_>> {
    /// Its slots, and that the inode has lost a name.
    pub fn freed(self) -> (FreedSlots<Clean>, Unlinked) {
        let slots = FreedSlots::new(self.place, self.count);
        (slots, Unlinked::new(self.old))
    }
}

impl<S: Replaced> Dentry<'_, Clean, S> {
    /// The inode that has lost this name, if it had been another's.
    pub fn replaced(self) -> Option<Unlinked> {
        (self.old != NOTHING && self.old != self.other).then(|| Unlinked::new(self.old))
    }
}

/// States in which a slot may have taken its name from another inode.
pub trait Replaced: OneLine {}
impl Replaced for Renamed<'_, '_> {}
impl Replaced for Exchanged<'_, '_, '_> {}
