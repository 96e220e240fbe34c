//! The body of the fuzz target `nfs`: any bytes as records, as the arguments of calls that have a
//! valid header, and as TLS.
//!
//! Properties: no panic; every call gets one well-formed reply with its own number, unless it is not a call at all; a reply is
//! never longer than a client may request.

mod tls;

use std::sync::{Arc, OnceLock};

use nfs3_types::rpc::{RPC_VERSION_2, msg_type};
use nfs3_types::{mount, nfs3};

use crate::connection::Connection;
use crate::dispatch::{Outcome, Service};
use crate::drc::Cache;
use crate::exports::{Access, Export, Table, everybody};
use crate::record::{Assembler, exactly_one};
use crate::reply::Reply;
use crate::volume::Volume;
use crate::xdr::Decoder;

/// Longest record.
const RECORD_BYTES: usize = (1 << 20) + 4096;
/// Longest reply: data and its envelope.
const REPLY_BYTES: usize = (1 << 20) + 4096;

/// The next bytes of the input; zeros when there are no more.
fn take<const N: usize>(input: &mut &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let len = N.min(input.len());
    bytes[..len].copy_from_slice(&input[..len]);
    *input = &input[len..];
    bytes
}

/// A call with a valid header. Its arguments come from the input: a byte of 1 stands for a valid handle, 2 for a name, 3 for a
/// small number, and any other byte for the four bytes after it.
fn call(input: &mut &[u8], root: &[u8]) -> Vec<u8> {
    let [program, procedure, flavor, words] = take(input);
    let program = if program % 8 == 0 {
        mount::PROGRAM
    } else {
        nfs3::PROGRAM
    };
    let mut call = Vec::new();
    let mut put = |word: u32| call.extend_from_slice(&word.to_be_bytes());
    for word in [1, msg_type::CALL as u32, RPC_VERSION_2, program, 3] {
        put(word);
    }
    put(u32::from(procedure % 23));
    if flavor % 4 == 0 {
        for word in [0, 0] {
            put(word);
        }
    } else {
        // AUTH_SYS of some user.
        for word in [1, 20, 0, 0, u32::from(flavor % 3), 5, 0] {
            put(word);
        }
    }
    for word in [0, 0] {
        put(word);
    }
    for _ in 0..words % 24 {
        match take(input) {
            [1] => {
                call.extend_from_slice(&(root.len() as u32).to_be_bytes());
                call.extend_from_slice(root);
            }
            [2] => {
                let [letter] = take(input);
                call.extend_from_slice(&[0, 0, 0, 1, b'a' + letter % 4, 0, 0, 0]);
            }
            [3] => {
                let [number] = take(input);
                call.extend_from_slice(&u32::from(number).to_be_bytes());
            }
            [_] => call.extend_from_slice(&take::<4>(input)),
        }
    }
    call
}

fn check(record: &[u8], outcome: &Outcome, reply: &mut Reply) {
    let sent = match outcome {
        Outcome::Reply => reply.finish(),
        Outcome::Owes(_, waiting) => &waiting.reply,
        Outcome::BeginTls | Outcome::Later | Outcome::MustWait | Outcome::Close => return,
    };
    let body = exactly_one(sent, REPLY_BYTES);
    assert!(body.is_some(), "one record of a sane length");
    let mut decoder = Decoder::new(body.unwrap_or_default());
    let head = (decoder.u32(), decoder.u32());
    assert_eq!(
        head,
        (Decoder::new(record).u32(), Ok(msg_type::REPLY as u32))
    );
    let accepted = decoder.u32() == Ok(0);
    let outcome = if accepted {
        let _verifier = (decoder.u32(), decoder.opaque(400));
        decoder.u32().ok()
    } else {
        None
    };
    assert_ne!(outcome, Some(5), "SYSTEM_ERR");
    assert!(outcome.is_none() || sent.len().is_multiple_of(4));
}

/// Any bytes from a client.
pub fn serve(data: &[u8]) {
    match data.split_first() {
        Some((mode, input)) if mode % 4 == 3 => tls::serve(input),
        _ => serve_calls(data),
    }
}

fn serve_calls(data: &[u8]) {
    static CONNECTION: OnceLock<Arc<Connection>> = OnceLock::new();
    let connection = CONNECTION.get_or_init(Connection::for_tests);
    let export = Export::new().with_access(Access {
        any_port: true,
        clients: everybody(),
        squash: crate::auth::Squash::None,
        ..Access::new()
    });
    let id = export.id();
    let volume = Volume::for_tests();
    let fs = volume.fs();
    let Ok(attr) = fs.getattr(&steadfast_vfs::Caller::root(), fs.root()) else {
        return;
    };
    let root = volume
        .key
        .handle(crate::handles::Named::of(id, &attr), None);
    let Ok(table) = Table::new(vec![Arc::new(volume)], vec![export]) else {
        return;
    };
    let service = Service::new(
        table,
        Arc::default(),
        Arc::default(),
        Cache::default(),
        crate::watch::Watch::default(),
    );
    let mut reply = Reply::default();
    let mut input = data;
    let [mode] = take(&mut input);
    if mode % 2 == 0 {
        // Bytes of a stream, in pieces.
        let mut assembler = Assembler::new(RECORD_BYTES);
        for mut piece in input.chunks(usize::from(mode / 2) + 1) {
            loop {
                match assembler.feed(&mut piece) {
                    Err(_) => return,
                    Ok(None) => break,
                    Ok(Some(record)) => {
                        let outcome = service.answer(connection, &record, false, &mut reply);
                        check(&record, &outcome, &mut reply);
                    }
                }
            }
        }
        return;
    }
    for _ in 0..16 {
        if input.is_empty() {
            break;
        }
        let record = call(&mut input, &root);
        let outcome = service.answer(connection, &record, false, &mut reply);
        assert!(
            matches!(outcome, Outcome::Reply | Outcome::Owes(..)),
            "a call with a valid header is answered"
        );
        check(&record, &outcome, &mut reply);
    }
}
