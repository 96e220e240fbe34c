//! One request and its reply.
//!
//! Invariants:
//! * every request that wants a reply gets exactly one: an [`Exchange`] that is dropped without is answered with `EIO`;
//! * a reply that the kernel refuses for its form is followed by an error, so that no client waits for ever;
//! * over a ring, request and reply share memory: what was decoded is gone when the reply begins, which the borrow of
//!   [`Exchange::operation`] sees to.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::abi::{self, op};
use crate::connection::write;
use crate::listing::Listing;
use crate::operation::Operation;

/// A structure that can be a reply.
pub trait Body: IntoBytes + Immutable {}

impl<T: IntoBytes + Immutable> Body for T {}

/// Where the bytes are that follow the structure of arguments, and where a reply's go.
enum Memory<'a> {
    /// The kernel wrote the request here, and there is room for a reply there.
    Apart { rest: &'a [u8], room: &'a mut [u8] },
    /// The reply overwrites the request, which has so many bytes.
    Shared {
        payload: &'a mut [u8],
        received: usize,
    },
}

/// Where a reply goes.
enum Target<'a> {
    /// To the kernel at once.
    Device(BorrowedFd<'a>),
    /// To the transport, which sends it when the server has returned.
    Later(&'a mut Outcome),
}

/// A reply that the transport is to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// None is wanted.
    #[default]
    Silent,
    /// So many bytes, at the beginning of the payload.
    Bytes(usize),
    /// An error's number.
    Failed(i32),
}

/// See the module's header.
pub struct Exchange<'a> {
    header: abi::InHeader,
    arguments: [u8; abi::URING_OP_IN_OUT_BYTES],
    memory: Memory<'a>,
    target: Target<'a>,
    answered: bool,
}

impl<'a> Exchange<'a> {
    /// A request as the device delivered it, whose reply is written to the device; `None` if it is shorter than its header says.
    pub(crate) fn through_device(
        request: &'a [u8],
        room: &'a mut [u8],
        device: BorrowedFd<'a>,
    ) -> Option<Exchange<'a>> {
        let (header, arguments, rest) = split(request)?;
        let memory = Memory::Apart { rest, room };
        Some(Exchange::new(
            header,
            arguments,
            memory,
            Target::Device(device),
        ))
    }

    /// A request in a ring's entry: `received` bytes of the payload belong to it.
    pub(crate) fn over_ring(
        entry: &abi::UringReqHeader,
        payload: &'a mut [u8],
        outcome: &'a mut Outcome,
    ) -> Exchange<'a> {
        let header = abi::InHeader::read_from_prefix(&entry.in_out);
        let header = header.map(|(header, _)| header).unwrap_or_default();
        let received = (entry.ent.payload_sz as usize).min(payload.len());
        let extensions = 8 * usize::from(header.total_extlen);
        let memory = Memory::Shared {
            payload,
            received: received.saturating_sub(extensions),
        };
        Exchange::new(header, &entry.op_in, memory, Target::Later(outcome))
    }

    fn new(
        header: abi::InHeader,
        arguments: &[u8],
        memory: Memory<'a>,
        target: Target<'a>,
    ) -> Exchange<'a> {
        let mut own = [0; abi::URING_OP_IN_OUT_BYTES];
        let len = arguments.len().min(own.len());
        own[..len].copy_from_slice(&arguments[..len]);
        let silent = matches!(header.opcode, op::FORGET | op::BATCH_FORGET);
        Exchange {
            header,
            arguments: own,
            memory,
            target,
            answered: silent,
        }
    }

    /// The request's header: node, user, group, thread.
    #[must_use]
    pub fn header(&self) -> &abi::InHeader {
        &self.header
    }

    /// What it asks for.
    #[must_use]
    pub fn operation(&self) -> Operation<'_> {
        let rest = match &self.memory {
            Memory::Apart { rest, .. } => rest,
            Memory::Shared { payload, received } => &payload[..*received],
        };
        Operation::decode(&self.header, &self.arguments, rest)
    }

    /// Room for a reply of `len` bytes, or for less if that is too much. [`Exchange::filled`] sends it.
    pub fn room(&mut self, len: usize) -> &mut [u8] {
        let room: &mut [u8] = match &mut self.memory {
            Memory::Apart { room, .. } => room,
            Memory::Shared { payload, .. } => payload,
        };
        let len = len.min(room.len());
        &mut room[..len]
    }

    /// Room for a directory's entries, as long as the client asks for.
    pub fn listing(&mut self, len: u32) -> Listing<'_> {
        Listing::new(self.room(len as usize))
    }

    /// Replies with the first `len` bytes of [`Exchange::room`].
    pub fn filled(mut self, len: usize) {
        let len = self.room(len).len();
        self.send(Outcome::Bytes(len));
    }

    /// Replies with a structure.
    pub fn answer(mut self, body: &impl Body) {
        self.put(&[body.as_bytes()]);
    }

    /// Replies with bytes.
    pub fn bytes(mut self, bytes: &[u8]) {
        self.put(&[bytes]);
    }

    /// Replies to an ioctl with the bytes that it passes back.
    pub fn ioctl(mut self, bytes: &[u8]) {
        self.put(&[abi::IoctlOut::default().as_bytes(), bytes]);
    }

    /// Replies to a query of an extended attribute, or of their names: its length if `size` is 0, else the bytes.
    pub fn xattr(self, size: u32, value: &[u8]) {
        match u32::try_from(value.len()) {
            Ok(len) if size == 0 => self.answer(&abi::GetxattrOut {
                size: len,
                padding: 0,
            }),
            Ok(len) if len <= size => self.bytes(value),
            Ok(_) => self.fail(Errno::RANGE),
            Err(_) => self.fail(Errno::TOOBIG),
        }
    }

    /// Replies that all went well.
    pub fn done(mut self) {
        self.send(Outcome::Bytes(0));
    }

    /// Replies with an error.
    pub fn fail(mut self, errno: Errno) {
        self.send(Outcome::Failed(errno.raw_os_error()));
    }

    /// Replies [`Exchange::done`] or with the error.
    pub fn result(self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.done(),
            Err(errno) => self.fail(errno),
        }
    }

    fn put(&mut self, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len()).sum();
        let room = self.room(len);
        if room.len() < len {
            return self.send(Outcome::Failed(Errno::IO.raw_os_error()));
        }
        let mut at = 0;
        for part in parts {
            room[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.send(Outcome::Bytes(len));
    }

    fn send(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        match &mut self.target {
            Target::Later(later) => **later = outcome,
            Target::Device(device) => {
                let room: &[u8] = match &self.memory {
                    Memory::Apart { room, .. } => room,
                    Memory::Shared { payload, .. } => payload,
                };
                let (bytes, error) = match outcome {
                    Outcome::Silent => return,
                    Outcome::Bytes(len) => (&room[..len], 0),
                    Outcome::Failed(error) => (&room[..0], error),
                };
                // A client that has gone (`ENOENT`) and a mount that has ended need no reply.
                let refused = write(*device, self.header.unique, -error, bytes);
                if refused == Err(Errno::INVAL) && error == 0 {
                    let error = Errno::IO.raw_os_error();
                    let _ = write(*device, self.header.unique, -error, &[]);
                }
            }
        }
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        self.send(Outcome::Failed(Errno::IO.raw_os_error()));
    }
}

/// Header, structure of arguments, and what follows it before the extensions.
fn split(request: &[u8]) -> Option<(abi::InHeader, &[u8], &[u8])> {
    let (header, body) = abi::InHeader::read_from_prefix(request).ok()?;
    let whole = (header.len as usize).checked_sub(size_of::<abi::InHeader>())?;
    let body = body.get(..whole)?;
    let end = body
        .len()
        .checked_sub(8 * usize::from(header.total_extlen))?;
    // A request that is too short for its arguments is malformed, and gets an answer.
    let arguments = abi::arguments_bytes(header.opcode).unwrap_or(0).min(end);
    Some((header, &body[..arguments], &body[arguments..end]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const ROOM: usize = 4096;

    /// A request as it lies in a ring's entry.
    fn entry(opcode: u32, arguments: &[u8], received: usize) -> abi::UringReqHeader {
        let mut entry = abi::UringReqHeader::read_from_bytes(&[0; 288]).unwrap();
        let header = abi::InHeader {
            opcode,
            unique: 7,
            nodeid: 1,
            ..abi::InHeader::default()
        };
        entry.in_out[..40].copy_from_slice(header.as_bytes());
        let len = arguments.len().min(entry.op_in.len());
        entry.op_in[..len].copy_from_slice(&arguments[..len]);
        entry.ent.payload_sz = received as u32;
        entry
    }

    /// The outcome of one request over a ring.
    fn outcome(
        opcode: u32,
        arguments: &[u8],
        payload: &mut [u8],
        serve: impl FnOnce(Exchange<'_>),
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let entry = entry(opcode, arguments, payload.len());
        serve(Exchange::over_ring(&entry, payload, &mut outcome));
        outcome
    }

    #[test]
    fn a_request_that_nobody_answers_fails() {
        let dropped = outcome(op::GETATTR, &[], &mut [0; ROOM], |exchange| drop(exchange));
        assert_eq!(dropped, Outcome::Failed(Errno::IO.raw_os_error()));
        let forgotten = outcome(op::FORGET, &[], &mut [0; ROOM], |exchange| drop(exchange));
        assert_eq!(forgotten, Outcome::Silent);
    }

    #[test]
    fn a_reply_that_does_not_fit_is_an_error_and_no_part_of_it() {
        let reply = outcome(op::READLINK, &[], &mut [0; 8], |exchange| {
            exchange.bytes(&[1; 9]);
        });
        assert_eq!(reply, Outcome::Failed(Errno::IO.raw_os_error()));
        for (size, expected) in [
            (0, Outcome::Bytes(8)),
            (3, Outcome::Bytes(3)),
            (2, Outcome::Failed(Errno::RANGE.raw_os_error())),
        ] {
            let reply = outcome(op::LISTXATTR, &[], &mut [0; ROOM], |exchange| {
                exchange.xattr(size, b"a\0b");
            });
            assert_eq!(reply, expected);
        }
    }

    #[test]
    fn a_listing_ends_where_the_room_does() {
        let mut payload = [0xee; ROOM];
        let listed = outcome(op::READDIR, &[], &mut payload, |mut exchange| {
            let mut listing = exchange.listing(70);
            assert!(listing.add(b"name", 9, 1, 0o040_755));
            assert!(listing.add(b"eight by", 10, 2, 0o100_644));
            assert!(!listing.add(b"x", 11, 3, 0o100_644));
            let len = listing.len();
            exchange.filled(len);
        });
        assert_eq!(listed, Outcome::Bytes(64));
        let (first, _) = abi::Dirent::read_from_prefix(&payload).unwrap();
        let expected = abi::Dirent {
            ino: 9,
            off: 1,
            namelen: 4,
            kind: 4,
        };
        assert_eq!(first, expected);
        assert_eq!(&payload[24..32], b"name\0\0\0\0");
        assert_eq!(&payload[56..64], b"eight by");
    }

    /// A request that lies in the device's buffer, with its length.
    fn in_device(opcode: u32, body: &[u8], cut: usize) -> Vec<u8> {
        let header = abi::InHeader {
            len: (40 + body.len()) as u32,
            opcode,
            ..abi::InHeader::default()
        };
        let mut whole = [header.as_bytes(), body].concat();
        whole.truncate(cut);
        whole
    }

    #[test]
    fn a_write_is_cut_at_every_length_without_a_byte_of_another_request() {
        let how = abi::WriteIn {
            size: 5,
            ..abi::WriteIn::default()
        };
        let whole = in_device(op::WRITE, &[how.as_bytes(), b"hello"].concat(), usize::MAX);
        for cut in 0..whole.len() {
            assert!(split(&whole[..cut]).is_none(), "{cut} bytes");
        }
        let (header, arguments, rest) = split(&whole).unwrap();
        let decoded = Operation::decode(&header, arguments, rest);
        assert!(matches!(decoded, Operation::Write { data: b"hello", .. }));
        // Lengths that lie: more data than there is, and extensions that are longer than the request.
        let longer = abi::WriteIn { size: 6, ..how };
        let lies = in_device(
            op::WRITE,
            &[longer.as_bytes(), b"hello"].concat(),
            usize::MAX,
        );
        let (header, arguments, rest) = split(&lies).unwrap();
        let decoded = Operation::decode(&header, arguments, rest);
        assert!(matches!(decoded, Operation::Malformed));
        let mut extended = whole;
        extended[36..38].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert!(split(&extended).is_none());
    }

    #[test]
    fn references_come_one_by_one_or_in_batches() {
        let forgotten = |opcode, body: &[u8]| -> Vec<(u64, u64)> {
            let mut request = in_device(opcode, body, usize::MAX);
            request[16..24].copy_from_slice(&3u64.to_ne_bytes());
            let (header, arguments, rest) = split(&request).unwrap();
            match Operation::decode(&header, arguments, rest) {
                Operation::Forget(all) => all.map(|one| (one.nodeid, one.nlookup)).collect(),
                _ => Vec::new(),
            }
        };
        assert_eq!(forgotten(op::FORGET, &5u64.to_ne_bytes()), [(3, 5)]);
        let numbers = |list: &[u64]| {
            list.iter()
                .flat_map(|n| n.to_ne_bytes())
                .collect::<Vec<_>>()
        };
        let batch = numbers(&[2, 8, 1, 9, 4]);
        assert_eq!(forgotten(op::BATCH_FORGET, &batch), [(8, 1), (9, 4)]);
        assert_eq!(
            forgotten(op::BATCH_FORGET, &numbers(&[3, 8, 1, 9, 4])),
            [],
            "fewer than it says"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_operation_or_malformed_and_get_one_reply(
            opcode in 0u32..60,
            arguments in prop::collection::vec(any::<u8>(), 0..130),
            mut payload in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let len = payload.len();
            let seen = outcome(opcode, &arguments, &mut payload, |exchange| {
                match exchange.operation() {
                    Operation::Forget(forgets) => assert!(forgets.count() <= len / 16 + 1),
                    Operation::Write { data, .. } => assert!(data.len() <= len),
                    Operation::Lookup { name } => assert!(!name.contains(&0)),
                    _ => {}
                }
                exchange.done();
            });
            let silent = matches!(opcode, op::FORGET | op::BATCH_FORGET);
            prop_assert_eq!(seen, if silent { Outcome::Silent } else { Outcome::Bytes(0) });
            let body = [&arguments[..], &payload].concat();
            let request = in_device(opcode, &body, usize::MAX);
            let (header, arguments, rest) = split(&request).unwrap();
            let _ = Operation::decode(&header, arguments, rest);
            prop_assert_eq!(arguments.len() + rest.len(), body.len());
        }
    }
}
