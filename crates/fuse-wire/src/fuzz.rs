//! Any bytes as a request, for fuzzing: each is decoded within its bounds, and gets one reply.
#![allow(clippy::panic)]

use zerocopy::FromBytes;

use crate::abi;
use crate::exchange::{Exchange, Outcome};
use crate::operation::Operation;

/// Bytes of a payload's room.
const ROOM: usize = 8192;

/// Serves `data` as a request in a ring's entry.
///
/// # Panics
/// If what must hold does not.
pub fn request(data: &[u8]) {
    let Ok((entry, rest)) = abi::UringReqHeader::read_from_prefix(data) else {
        return;
    };
    let mut payload = vec![0; ROOM];
    let len = rest.len().min(ROOM);
    payload[..len].copy_from_slice(&rest[..len]);
    let mut outcome = Outcome::default();
    let mut exchange = Exchange::over_ring(&entry, &mut payload, &mut outcome);
    let opcode = exchange.header().opcode;
    let silent = matches!(exchange.operation(), Operation::Forget(_))
        || matches!(opcode, abi::op::FORGET | abi::op::BATCH_FORGET);
    match exchange.operation() {
        Operation::Lookup { name } | Operation::Unlink { name } => assert!(!name.contains(&0)),
        Operation::Write { how, data } => assert_eq!(data.len(), how.size as usize),
        Operation::Forget(all) => assert!(all.count() <= ROOM / size_of::<abi::ForgetOne>()),
        _ => {}
    }
    match exchange.operation() {
        Operation::Readdir(how) => {
            let mut listing = exchange.listing(how.size);
            while listing.add(b"name", 1, 1, 0o100_000) {}
            let len = listing.len();
            assert!(len <= how.size as usize);
            exchange.filled(len);
        }
        Operation::Read(how) => exchange.filled(how.size as usize),
        Operation::Getxattr { size, .. } => exchange.xattr(size, &[0; 100]),
        _ => exchange.done(),
    }
    match outcome {
        Outcome::Silent => assert!(silent),
        Outcome::Bytes(len) => assert!(!silent && len <= ROOM),
        Outcome::Failed(error) => assert!(!silent && error > 0),
    }
}
