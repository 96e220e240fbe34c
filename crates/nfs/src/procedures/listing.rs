//! READDIR and READDIRPLUS.
//!
//! Cookies are those of the file system. They are stable while entries are added and removed, so the cookie
//! verifier only identifies the directory: it is the generation. Entries are collected first, and their
//! attributes are read afterwards: no entry is accessed while its directory is being listed.

use nfs3_types::nfs3::{NFS3_COOKIEVERFSIZE, Nfs3Option, READDIR3resfail, cookieverf3, nfsstat3};
use steadfast_vfs::{Attr, Cookie, FileKind, Ino};

use super::{Context, EXEC, Node, READ, Step, TRANSFER_BYTES_MAX, failed, read_handle};
use crate::convert;
use crate::handles::HANDLE_BYTES;
use crate::reply::Reply;
use crate::xdr::{Decoder, Parsed};

/// Bytes of a result besides its entries: status, attributes, verifier, end of the list, eof.
const FRAME_BYTES: usize = 4 + (4 + 84) + NFS3_COOKIEVERFSIZE + 4 + 4;
/// Bytes of an entry besides its name: presence flag, inode number, length, cookie.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// More bytes of an entry with attributes and handle.
const PLUS_BYTES: usize = (4 + 84) + (4 + 4 + HANDLE_BYTES);
/// Bytes of an entry that count as information about the directory: inode number, length, cookie.
const DIR_INFO_BYTES: usize = 8 + 4 + 8;

/// Parameters of a listing.
struct Wanted {
    cookie: Cookie,
    verifier: [u8; NFS3_COOKIEVERFSIZE],
    /// Bytes of names, numbers and cookies.
    dir_bytes: usize,
    /// Bytes of the whole result.
    bytes: usize,
    /// With attributes and handles.
    plus: bool,
}

/// A collected entry.
struct Taken {
    ino: Ino,
    next: Cookie,
    name: Vec<u8>,
}

pub(super) fn readdir(
    cx: &Context<'_>,
    args: &mut Decoder<'_>,
    reply: &mut Reply,
) -> Parsed<nfsstat3> {
    let handle = read_handle(args)?;
    let (cookie, verifier) = (args.u64()?, args.fixed()?);
    let bytes = args.u32()?.min(TRANSFER_BYTES_MAX) as usize;
    let wanted = Wanted {
        cookie,
        verifier,
        dir_bytes: bytes,
        bytes,
        plus: false,
    };
    Ok(list(cx, handle, &wanted, reply))
}

pub(super) fn readdirplus(
    cx: &Context<'_>,
    args: &mut Decoder<'_>,
    reply: &mut Reply,
) -> Parsed<nfsstat3> {
    let handle = read_handle(args)?;
    let (cookie, verifier) = (args.u64()?, args.fixed()?);
    let (dir_bytes, bytes) = (args.u32()?, args.u32()?);
    let wanted = Wanted {
        cookie,
        verifier,
        dir_bytes: dir_bytes as usize,
        bytes: bytes.min(TRANSFER_BYTES_MAX) as usize,
        plus: true,
    };
    Ok(list(cx, handle, &wanted, reply))
}

fn list(cx: &Context<'_>, handle: &[u8], wanted: &Wanted, reply: &mut Reply) -> nfsstat3 {
    let start = reply.position();
    let (status, dir_attributes) = match cx.node(handle) {
        Ok(node) => match list_to(&node, wanted, reply) {
            Ok(()) => return nfsstat3::NFS3_OK,
            Err(status) => (status, node.post_op_now()),
        },
        Err(status) => (status, Nfs3Option::None),
    };
    reply.back_to(start);
    reply.put(&status);
    reply.put(&READDIR3resfail { dir_attributes });
    status
}

fn list_to(node: &Node<'_>, wanted: &Wanted, reply: &mut Reply) -> Step<()> {
    let attr = node.attr()?;
    if attr.kind != FileKind::Directory {
        return Err(nfsstat3::NFS3ERR_NOTDIR);
    }
    failed(node.volume.fs().access(&node.caller, node.ino(), READ))?;
    let verifier = attr.generation.to_be_bytes();
    if wanted.cookie != 0 && wanted.verifier != verifier {
        return Err(nfsstat3::NFS3ERR_BAD_COOKIE);
    }
    let (entries, eof) = take(node, wanted)?;
    // A user that may not search the directory gets names, without attributes and handles.
    let searchable = failed(node.volume.fs().access(&node.caller, node.ino(), EXEC)).is_ok();
    // Validates that it is still the same directory.
    let attr = node.attr()?;
    reply.put(&nfsstat3::NFS3_OK);
    reply.put(&node.post_op(Some(&attr)));
    reply.put(&cookieverf3(verifier));
    for entry in &entries {
        reply.put(&true);
        reply.put(&entry.ino);
        reply.put(&nfs3_types::xdr_codec::Opaque::borrowed(&entry.name));
        reply.put(&entry.next);
        if wanted.plus {
            let found = if searchable {
                attr_of(node, &attr, entry)
            } else {
                None
            };
            put_found(node, found.as_ref(), reply);
        }
    }
    reply.put(&false);
    reply.put(&eof);
    Ok(())
}

/// Collects as many entries as fit. Returns also whether there are no more.
fn take(node: &Node<'_>, wanted: &Wanted) -> Step<(Vec<Taken>, bool)> {
    let mut entries = Vec::new();
    let (mut bytes, mut dir_bytes) = (FRAME_BYTES, 0);
    let mut eof = true;
    let plus = if wanted.plus { PLUS_BYTES } else { 0 };
    let listed =
        node.volume
            .fs()
            .readdir(&node.permitted(), node.ino(), wanted.cookie, &mut |entry| {
                let name = entry.name.len().next_multiple_of(4);
                bytes += ENTRY_BYTES + name + plus;
                // The first entry always counts as fitting the information limit.
                let enough =
                    !entries.is_empty() && dir_bytes + DIR_INFO_BYTES + name > wanted.dir_bytes;
                dir_bytes += DIR_INFO_BYTES + name;
                if bytes > wanted.bytes || enough {
                    eof = false;
                    return false;
                }
                let ino = match entry.name {
                    b".." if node.is_top() => node.ino(),
                    _ => entry.ino,
                };
                entries.push(Taken {
                    ino,
                    next: entry.next,
                    name: entry.name.to_vec(),
                });
                true
            });
    failed(listed)?;
    if (entries.is_empty() && !eof) || wanted.bytes < FRAME_BYTES {
        return Err(nfsstat3::NFS3ERR_TOOSMALL);
    }
    Ok((entries, eof))
}

/// The attributes of an entry's inode; none if the entry is gone, so that another inode is never taken for it.
fn attr_of(node: &Node<'_>, dir: &Attr, entry: &Taken) -> Option<Attr> {
    match &*entry.name {
        b"." => Some(*dir),
        name => {
            let found = node.lookup(name).ok()?;
            (found.ino == entry.ino).then_some(found)
        }
    }
}

fn put_found(node: &Node<'_>, found: Option<&Attr>, reply: &mut Reply) {
    let Some(attr) = found else {
        reply.put(&false);
        reply.put(&false);
        return;
    };
    reply.put(&true);
    reply.put(&convert::attributes(attr, node.fsid()));
    reply.put(&true);
    let handle = node.handle_bytes(attr);
    reply.put(&nfs3_types::xdr_codec::Opaque::borrowed(&handle));
}
