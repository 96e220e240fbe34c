//! The on-disk codecs and the decisions of recovery's scan, written once for two readers: the
//! journal runs them on `u64` and byte slices, `proofs/smt` on a solver's terms, to show
//! their promises for all possible bytes.
//!
//! The rules that keep this possible: numbers are [`Word`]s with ordinary operators, and no operation
//! may overflow; bytes are read through [`Bytes`] alone, and never out of range; a loop whose
//! length comes from the medium is a [`Bytes::repeat`]; nothing outside this folder is used.
//! [`Keyed`] hides the hash. The format is in `layout`.

pub(crate) mod record;
pub(crate) mod scan;
pub(crate) mod tail;

use record::Cursor;
use std::ops::{Add, BitAnd, Shr, Sub};

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u64 = 4096;
pub(crate) const VERSION: u32 = 1;
/// Bytes of a hash.
pub(crate) const HASH_BYTES: u64 = 32;

/// A number: `u64`, or a solver's term. Comparing terms decides a branch.
pub(crate) trait Word:
    Copy
    + PartialEq
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + BitAnd<Output = Self>
    + Shr<u32, Output = Self>
{
    fn of(value: u64) -> Self;
    /// The low half, for messages alone.
    fn low(self) -> u32;
}

/// Bytes from the medium, or on their way to it.
pub(crate) trait Bytes: Copy {
    type Word: Word;
    /// A hash, as it lies in the bytes or as it was computed.
    type Digest: PartialEq;

    fn length(self) -> Self::Word;
    /// The `N` bytes from `at` on, 8 at most, as a little-endian number. They are there.
    fn word<const N: usize>(self, at: Self::Word) -> Self::Word;
    /// The hash at `at`. It is there.
    fn digest(self, at: Self::Word) -> Self::Digest;
    /// The bytes `from .. to`. They are there.
    fn slice(self, from: Self::Word, to: Self::Word) -> Self;
    /// Zeros, and nothing else. For messages alone.
    fn is_blank(self) -> bool;
    /// Takes `times` steps, or fewer if one fails. Each goes forward and stays inside the cursor's end.
    fn repeat<E>(
        times: Self::Word,
        cursor: &mut Cursor<Self>,
        step: impl FnMut(&mut Cursor<Self>) -> Result<(), E>,
    ) -> Result<(), E>;
}

/// Receives encoded bytes: appends them to those that it has.
pub(crate) trait Sink<B: Bytes> {
    /// `N` bytes, 8 at most, little-endian. The value fits them.
    fn put<const N: usize>(&mut self, value: B::Word);
    fn put_digest(&mut self, digest: &B::Digest);
    fn append(&mut self, bytes: B);
}

/// A volume's identity and its keyed hash.
pub(crate) trait Keyed<B: Bytes> {
    type Out: Sink<B>;

    /// The identity's two halves, as little-endian numbers.
    fn volume(&self) -> [B::Word; 2];
    /// Hash of `head`, of zeros in the place of the hash itself, and of `body`, which follows.
    fn digest(&self, head: B, body: Option<B>) -> B::Digest;
    /// Appends the hash that [`Keyed::digest`] gives for all that `out` holds, and `body`.
    fn seal(&self, out: &mut Self::Out, body: Option<B>);
}

/// Reason why a block is no tail header, or no start of a record, of this volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Zeros.
    Blank,
    /// Something else.
    Magic,
    /// A format that this version does not know.
    Version(u32),
    /// Written for another volume.
    Volume,
    /// Flags or a length that nothing has.
    Fields,
    /// Damaged, or cut while it was written.
    Hash,
}

/// Refusal by magic, version or volume, which tail headers and records have in the same places.
fn refuse<B: Bytes, K: Keyed<B>>(id: &K, block: B, magic: u64) -> Option<Refusal> {
    let of = B::Word::of;
    if block.word::<8>(of(0)) != of(magic) {
        return Some(if block.is_blank() {
            Refusal::Blank
        } else {
            Refusal::Magic
        });
    }
    let version = block.word::<4>(of(8));
    if version != of(u64::from(VERSION)) {
        return Some(Refusal::Version(version.low()));
    }
    let [low, high] = id.volume();
    let same = block.word::<8>(of(16)) == low && block.word::<8>(of(24)) == high;
    (!same).then_some(Refusal::Volume)
}

/// Magic, version, the word after the version, and the volume.
fn put_prefix<B: Bytes, K: Keyed<B>>(id: &K, magic: u64, word: B::Word, out: &mut K::Out) {
    let of = B::Word::of;
    out.put::<8>(of(magic));
    out.put::<4>(of(u64::from(VERSION)));
    out.put::<4>(word);
    for half in id.volume() {
        out.put::<8>(half);
    }
}

impl Word for u64 {
    #[inline]
    fn of(value: u64) -> u64 {
        value
    }

    #[inline]
    fn low(self) -> u32 {
        self as u32
    }
}

impl Bytes for &[u8] {
    type Word = u64;
    type Digest = [u8; HASH_BYTES as usize];

    #[inline]
    fn length(self) -> u64 {
        self.len() as u64
    }

    #[inline]
    fn word<const N: usize>(self, at: u64) -> u64 {
        let mut word = [0; 8];
        word[..N].copy_from_slice(&self[at as usize..at as usize + N]);
        u64::from_le_bytes(word)
    }

    fn digest(self, at: u64) -> Self::Digest {
        let mut digest = Self::Digest::default();
        digest.copy_from_slice(self.slice(at, at + HASH_BYTES));
        digest
    }

    #[inline]
    fn slice(self, from: u64, to: u64) -> Self {
        &self[from as usize..to as usize]
    }

    fn is_blank(self) -> bool {
        const ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];
        (self.chunks(ZEROS.len())).all(|part| *part == ZEROS[..part.len()])
    }

    #[inline]
    fn repeat<E>(
        times: u64,
        cursor: &mut Cursor<Self>,
        mut step: impl FnMut(&mut Cursor<Self>) -> Result<(), E>,
    ) -> Result<(), E> {
        (0..times).try_for_each(|_| step(cursor))
    }
}

impl<'a> Sink<&'a [u8]> for Vec<u8> {
    #[inline]
    fn put<const N: usize>(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes()[..N]);
    }

    fn put_digest(&mut self, digest: &<&'a [u8] as Bytes>::Digest) {
        self.extend_from_slice(digest);
    }

    #[inline]
    fn append(&mut self, bytes: &'a [u8]) {
        self.extend_from_slice(bytes);
    }
}
