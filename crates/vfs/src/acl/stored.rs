//! The form in which file systems keep a list: a 32-bit 1, then for each entry a 16-bit tag and
//! 16-bit permissions, and a 32-bit id for users and groups. ext4 stores lists likewise.

use super::{Acl, Entry, Who};

const VERSION: u32 = 1;

impl Acl {
    /// As it is stored.
    #[must_use]
    pub fn to_stored(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for entry in self.entries() {
            value.extend(entry.who.tag().to_le_bytes());
            value.extend(u16::from(entry.perm).to_le_bytes());
            if let Some(id) = entry.who.id() {
                value.extend(id.to_le_bytes());
            }
        }
        value
    }

    /// From the stored form, if that is a valid list.
    #[must_use]
    pub fn from_stored(value: &[u8]) -> Option<Acl> {
        let (version, mut rest) = value.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION {
            return None;
        }
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (&[t0, t1, p0, p1], tail) = rest.split_first_chunk::<4>()?;
            rest = tail;
            let mut who = Who::new(u16::from_le_bytes([t0, t1]), 0)?;
            if who.is_named() {
                let (id, tail) = rest.split_first_chunk::<4>()?;
                rest = tail;
                who = Who::new(who.tag(), u32::from_le_bytes(*id))?;
            }
            let perm = u8::try_from(u16::from_le_bytes([p0, p1])).ok()?;
            entries.push(Entry { who, perm });
        }
        Acl::new(entries)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::acl::Acl;
    use crate::acl::tests::sample;

    #[test]
    fn a_stored_list_is_read_again_and_no_wrong_byte_is_more_than_an_error() {
        let value = sample().to_stored();
        assert_eq!(value.len(), 4 + 7 * 4 + 3 * 4);
        assert_eq!(Acl::from_stored(&value), Some(sample()));
        for len in 0..value.len() {
            assert_eq!(Acl::from_stored(&value[..len]), None);
        }
        for at in 0..value.len() {
            for wrong in [0, 1, 0x7f, 0xff] {
                let mut value = value.clone();
                value[at] = wrong;
                let _ = Acl::from_stored(&value);
            }
        }
    }
}
