//! Names on the medium: reading, comparing and validating those of directory slots.
//!
//! Promise: for any content of a slot, no byte outside its page is read, and a name that is handed out is one that a directory
//! may have: 1 to 255 bytes, no NUL, no slash, neither `.` nor `..`.

use crate::layout::{NAME_CONT, NAME_HEAD, Place, SLOT_BYTES, SLOTS_PER_PAGE, Tag, slot, slots_of};
use crate::words::Words;
use steadfast_vfs::NAME_MAX;

/// A name, copied from the medium.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; NAME_MAX],
    len: u8,
}

impl Name {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.bytes().escape_ascii().to_string())
    }
}

/// Fault of a slot's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadName {
    /// Its length is 0.
    #[error("its name is empty")]
    Empty,
    /// It needs more slots than the page has from there on.
    #[error("its name goes beyond the end of the page")]
    BeyondPage,
    /// It has a NUL or a slash, or is `.` or `..`.
    #[error("its name has a byte that no name may have, or is \".\" or \"..\"")]
    Forbidden,
}

/// Whether a directory may hold a name of these bytes.
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Slots that the name of a slot takes, if they are in its page.
///
/// # Errors
/// [`BadName::Empty`], [`BadName::BeyondPage`].
pub fn slots(m: &impl Words, place: Place) -> Result<u64, BadName> {
    let len = Tag::from_word(m.load(place.at() + slot::TAG)).len;
    let slots = slots_of(usize::from(len)) as u64;
    match len {
        0 => Err(BadName::Empty),
        _ if place.index() + slots > SLOTS_PER_PAGE => Err(BadName::BeyondPage),
        _ => Ok(slots),
    }
}

/// The name of a slot in a page for data.
///
/// # Errors
/// It is not one that a directory may hold.
pub fn read(m: &impl Words, place: Place) -> Result<Name, BadName> {
    slots(m, place)?;
    let len = Tag::from_word(m.load(place.at() + slot::TAG)).len;
    let mut name = Name {
        bytes: [0; NAME_MAX],
        len,
    };
    let bytes = &mut name.bytes[..usize::from(len)];
    let (head, rest) = bytes.split_at_mut(NAME_HEAD.min(usize::from(len)));
    load_bytes(m, place.at() + slot::NAME, head);
    for (piece, at) in rest.chunks_mut(NAME_CONT).zip(continuations(place)) {
        load_bytes(m, at, piece);
    }
    if is_name(name.bytes()) {
        Ok(name)
    } else {
        Err(BadName::Forbidden)
    }
}

/// Whether the slot's name is `name`.
#[must_use]
pub fn matches(m: &impl Words, place: Place, name: &[u8]) -> bool {
    let tag = Tag::from_word(m.load(place.at() + slot::TAG));
    if usize::from(tag.len) != name.len() || slots(m, place).is_err() {
        return false;
    }
    let (head, rest) = name.split_at(NAME_HEAD.min(name.len()));
    holds(m, place.at() + slot::NAME, head)
        && rest
            .chunks(NAME_CONT)
            .zip(continuations(place))
            .all(|(piece, at)| holds(m, at, piece))
}

/// Start of each piece of a name past its first one.
fn continuations(place: Place) -> impl Iterator<Item = u64> {
    (1..SLOTS_PER_PAGE - place.index()).map(move |k| place.at() + k * SLOT_BYTES + slot::CONT)
}

/// Copies bytes from a multiple of 8 on, word by word: names are metadata, so they are loaded as they were stored.
fn load_bytes(m: &impl Words, at: u64, bytes: &mut [u8]) {
    for (piece, at) in bytes.chunks_mut(8).zip((at..).step_by(8)) {
        piece.copy_from_slice(&m.load(at).to_le_bytes()[..piece.len()]);
    }
}

/// Whether these bytes are there.
fn holds(m: &impl Words, at: u64, bytes: &[u8]) -> bool {
    let (words, tail) = bytes.as_chunks::<8>();
    let whole = words.iter().zip((at..).step_by(8));
    let at = at + bytes.len() as u64 / 8 * 8;
    whole
        .into_iter()
        .all(|(word, at)| m.load(at) == u64::from_le_bytes(*word))
        && (tail.is_empty() || {
            let mut word = 0;
            for byte in tail.iter().rev() {
                word = word << 8 | u64::from(*byte);
            }
            let unused = 64 - 8 * tail.len();
            m.load(at) << unused == word << unused
        })
}
