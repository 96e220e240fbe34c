//! A reader of untrusted bytes.

use super::Bad;
use crate::protocol::{Nonce, ObjectName, Reference, Slot, SlotName, Stamp, Term};

const SHORT: Bad = Bad::Content("it ends too early");

/// The bytes that are not read yet.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Bad> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Bad> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Bad> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Bad> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Bad> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Bad> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, Bad> {
        self.array().map(u128::from_le_bytes)
    }

    pub(super) fn flag(&mut self) -> Result<bool, Bad> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Bad::Content("a flag is neither 0 nor 1")),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, Bad> {
        let length = self.u16()?;
        let text = std::str::from_utf8(self.take(usize::from(length))?);
        text.map(str::to_owned)
            .map_err(|_| Bad::Content("a text is not UTF-8"))
    }

    /// A count of items of at least `bytes` bytes each. It is never larger than the rest can hold, so it can be allocated.
    pub(super) fn count(&mut self, bytes: usize) -> Result<usize, Bad> {
        let count = self.u32()? as usize;
        if count > self.0.len() / bytes.max(1) {
            return Err(Bad::Content("a count is larger than what follows"));
        }
        Ok(count)
    }

    /// A reference, or none.
    pub(super) fn reference(&mut self) -> Result<Option<Reference>, Bad> {
        let kind = self.u8()?;
        let (term, number, stamp) = (Term(self.u64()?), self.u128()?, Stamp(self.u128()?));
        if kind == 0 {
            return Ok(None);
        }
        let name = object_name(kind, term, number)?;
        Ok(Some(Reference { name, stamp }))
    }

    pub(super) fn name(&mut self) -> Result<ObjectName, Bad> {
        let kind = self.u8()?;
        let (term, number) = (Term(self.u64()?), self.u128()?);
        object_name(kind, term, number)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn end(self) -> Result<(), Bad> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Bad::Content("bytes follow its end")),
        }
    }
}

/// Bytes of a reference.
pub(super) const REFERENCE: usize = 41;

pub(super) fn put_reference(draft: &mut super::Draft, reference: Option<Reference>) {
    match reference {
        None => draft.put(&[0; REFERENCE]),
        Some(Reference { name, stamp }) => {
            put_name(draft, name);
            draft.put_u128(stamp.0);
        }
    }
}

pub(super) fn put_name(draft: &mut super::Draft, name: ObjectName) {
    let (kind, term, number) = super::identity(name);
    draft.put_u8(kind as u8);
    draft.put_u64(term);
    draft.put_u128(number);
}

pub(super) fn object_name(kind: u8, term: Term, number: u128) -> Result<ObjectName, Bad> {
    let small = || u64::try_from(number).map_err(|_| Bad::Content("a number is too large"));
    Ok(match kind {
        3 => ObjectName::Log(SlotName {
            term,
            slot: Slot(small()?),
        }),
        4 => ObjectName::Data {
            term,
            number: small()?,
        },
        5 => ObjectName::Map {
            term,
            number: small()?,
        },
        6 => ObjectName::Roots {
            term,
            nonce: Nonce(number),
        },
        _ => return Err(Bad::Content("it names an object of no known kind")),
    })
}
