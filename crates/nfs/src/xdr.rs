//! A decoder of XDR (RFC 4506) for requests in memory.
//!
//! The types of `nfs3_types` decode only to owned bytes, and allocate as much as a length in the
//! message says, which is unsafe for an untrusted request. This decoder borrows, and no length
//! reaches beyond the message.

/// The arguments are not those of the procedure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Garbage;

/// The result of decoding.
pub(crate) type Parsed<T> = Result<T, Garbage>;

/// A decoder: the rest of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// A decoder at the start of `message`.
    pub(crate) fn new(message: &'a [u8]) -> Decoder<'a> {
        Decoder { rest: message }
    }

    /// The bytes not read yet.
    #[cfg(test)]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, len: usize) -> Parsed<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(len).ok_or(Garbage)?;
        self.rest = tail;
        Ok(head)
    }

    /// Bytes of a fixed number, a multiple of four.
    pub(crate) fn fixed<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        const { assert!(N.is_multiple_of(4)) };
        self.take(N)?.try_into().map_err(|_| Garbage)
    }

    /// An unsigned integer.
    pub(crate) fn u32(&mut self) -> Parsed<u32> {
        Ok(u32::from_be_bytes(self.fixed()?))
    }

    /// An unsigned hyper integer.
    pub(crate) fn u64(&mut self) -> Parsed<u64> {
        Ok(u64::from_be_bytes(self.fixed()?))
    }

    /// A boolean; other numbers than 0 and 1 are garbage.
    pub(crate) fn bool(&mut self) -> Parsed<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage),
        }
    }

    /// An optional value.
    pub(crate) fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Parsed<T>,
    ) -> Parsed<Option<T>> {
        self.bool()?.then(|| read(self)).transpose()
    }

    /// Bytes of a variable number, at most `max`; they are padded to a multiple of four.
    pub(crate) fn opaque(&mut self, max: usize) -> Parsed<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > max {
            return Err(Garbage);
        }
        let bytes = self.take(len)?;
        self.take(len.next_multiple_of(4) - len)?;
        Ok(bytes)
    }

    /// Bytes of a variable number, as many as there are.
    pub(crate) fn bytes(&mut self) -> Parsed<&'a [u8]> {
        self.opaque(u32::MAX as usize - 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_length_reaches_beyond_the_message() {
        for (message, max) in [
            (&[0, 0, 0, 5, 1, 2, 3, 4][..], 100),
            (&[0, 0, 0, 3, 1, 2, 3][..], 100),
            (&[0xff, 0xff, 0xff, 0xff][..], usize::MAX),
            (&[0xff, 0xff, 0xff, 0xfd, 0][..], usize::MAX),
            (&[0, 0, 0, 2, 1, 2, 0, 0][..], 1),
            (&[0, 0, 0][..], 4),
        ] {
            assert_eq!(
                Decoder::new(message).opaque(max),
                Err(Garbage),
                "{message:?}"
            );
        }
    }

    #[test]
    fn well_formed_bytes_are_borrowed() {
        let message = [0, 0, 0, 1, 0, 0, 0, 2, 7, 8, 0, 0, 0, 0, 0, 9];
        let mut decoder = Decoder::new(&message);
        assert_eq!(decoder.optional(|d| d.opaque(2)), Ok(Some(&[7u8, 8][..])));
        assert_eq!(decoder.u32(), Ok(9));
        assert_eq!(decoder.u32(), Err(Garbage));
        assert_eq!(Decoder::new(&[0, 0, 0, 2]).bool(), Err(Garbage));
    }
}
