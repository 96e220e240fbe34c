//! READ, WRITE, COMMIT.
//!
//! Invariants:
//! * bytes of a WRITE are copied from the record to the file system, those of a READ from the file system to
//!   the reply, with no other copy; the file system keeps no reference to either;
//! * `committed` is truthful: a stable write is synced before its reply, in the stream in which it was
//!   written;
//! * the verifier of an unstable write is read before the write, that of a COMMIT after its sync: if any sync
//!   failed in between, the two differ;
//! * the file's capabilities are removed before a write: a crash in between leaves the old program without them.

use nfs3_types::nfs3::{
    COMMIT3res, COMMIT3resfail, COMMIT3resok, Nfs3Result, READ3resfail, WRITE3res, WRITE3resfail,
    WRITE3resok, nfsstat3, stable_how, wcc_data, writeverf3,
};
use steadfast_vfs::{Attr, Caller, FileKind, Ino};

use super::{
    Change, Context, EXEC, FILE_STREAMS, Node, OWN_STREAMS, READ, Step, TRANSFER_BYTES_MAX, WRITE,
    failed, read_handle, stream_of, untouched,
};
use crate::convert;
use crate::exports::Streams;
use crate::reply::Reply;
use crate::xdr::{Decoder, Garbage, Parsed};

/// The extended attribute with a program's capabilities.
const CAPABILITY: &[u8] = b"security.capability";

/// Up to this many bytes, the sync of a file is shared with others.
const TOGETHER_BYTES_MAX: u32 = 64 << 10;

/// Largest offset: file offsets are signed.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Bytes of a READ's result before the data: status, attributes, count, eof, length.
const READ_HEAD_BYTES: usize = 4 + (4 + 84) + 4 + 4 + 4;

/// ISDIR or INVAL for inodes without content.
fn has_content(attr: &Attr) -> Step<()> {
    match attr.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(nfsstat3::NFS3ERR_ISDIR),
        _ => Err(nfsstat3::NFS3ERR_INVAL),
    }
}

pub(super) fn read(
    cx: &Context<'_>,
    args: &mut Decoder<'_>,
    reply: &mut Reply,
) -> Parsed<nfsstat3> {
    let (handle, offset, count) = (read_handle(args)?, args.u64()?, args.u32()?);
    let start = reply.position();
    let node = match cx.node(handle) {
        Ok(node) => node,
        Err(status) => {
            reply.put(
                &(Nfs3Result::<nfs3_types::xdr_codec::Void, _>::Err((
                    status,
                    READ3resfail::default(),
                ))),
            );
            return Ok(status);
        }
    };
    match read_to(&node, offset, count, reply) {
        Ok(len) => {
            cx.has_read(len);
            Ok(nfsstat3::NFS3_OK)
        }
        Err(status) => {
            reply.back_to(start);
            let file_attributes = node.post_op_now();
            reply.put(&status);
            reply.put(&READ3resfail { file_attributes });
            Ok(status)
        }
    }
}

/// Puts the complete result of a READ. Returns the number of bytes read.
fn read_to(node: &Node<'_>, offset: u64, count: u32, reply: &mut Reply) -> Step<usize> {
    let attr = node.attr()?;
    has_content(&attr)?;
    // A user that may execute a program may read it: the client reads it to run it.
    node.may(&attr, READ)
        .or_else(|status| node.may(&attr, EXEC).map_err(|_| status))?;
    if offset > OFFSET_MAX {
        return Err(nfsstat3::NFS3ERR_INVAL);
    }
    let head = reply.skip(READ_HEAD_BYTES);
    let data = reply.position();
    let room = reply.skip(count.min(TRANSFER_BYTES_MAX) as usize);
    let target = reply.at(room);
    let fs = node.volume.fs();
    let len = failed(fs.read(&node.caller, node.ino(), offset, target))?.min(target.len());
    reply.back_to(data + len);
    reply.pad(data);
    // Of the same inode, and newer than the data: a short read counts as the end only if
    // the file ends there now.
    let attr = node.attr()?;
    let eof = offset.saturating_add(len as u64) >= attr.size;
    let len_sent = u32::try_from(len).map_err(|_| nfsstat3::NFS3ERR_SERVERFAULT)?;
    let mut at = head.start;
    for piece in [nfsstat3::NFS3_OK as u32, 1] {
        reply.put_at(at, &piece);
        at += 4;
    }
    reply.put_at(at, &convert::attributes(&attr, node.fsid()));
    at = head.end - 12;
    for piece in [len_sent, u32::from(eof), len_sent] {
        reply.put_at(at, &piece);
        at += 4;
    }
    Ok(len)
}

/// Whether a program has capabilities.
pub(super) fn has_capability(node: &Node<'_>, ino: Ino) -> bool {
    let caller = node.permitted();
    node.volume.fs().getxattr(&caller, ino, CAPABILITY).is_ok()
}

/// Removes a program's capabilities.
pub(super) fn drop_capability(node: &Node<'_>, ino: Ino) -> Step<()> {
    if !has_capability(node, ino) {
        return Ok(());
    }
    // Only root may remove them. The caller's permission to change the program was checked.
    let root = Caller {
        uid: 0,
        note: None,
        ..node.permitted()
    };
    failed(node.volume.fs().removexattr(&root, ino, CAPABILITY))
}

/// Assigns the content of a file to its stream of the export.
fn join_stream(node: &mut Node<'_>) {
    if node.export.streams == Streams::File {
        let what = [node.ino(), node.named.generation].map(u64::to_be_bytes);
        node.caller.stream = stream_of(what.as_flattened(), 1 + OWN_STREAMS, FILE_STREAMS);
    }
}

pub(super) fn write(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<WRITE3res> {
    let (handle, offset, count) = (read_handle(args)?, args.u64()?, args.u32()?);
    let stable = match args.u32()? {
        0 => stable_how::UNSTABLE,
        1 => stable_how::DATA_SYNC,
        2 => stable_how::FILE_SYNC,
        _ => return Err(Garbage),
    };
    let data = args.bytes()?;
    let mut node = match cx.node(handle) {
        Ok(node) => node,
        Err(status) => return Ok(Nfs3Result::Err((status, WRITE3resfail::default()))),
    };
    join_stream(&mut node);
    if stable == stable_how::UNSTABLE && !node.volume.sync_always() {
        node.caller.note = None;
    }
    // Its result must be known before the reply.
    node.note_in_parts();
    if data.len() != count as usize {
        let file_wcc = untouched(&node);
        return Ok(Nfs3Result::Err((
            nfsstat3::NFS3ERR_INVAL,
            WRITE3resfail { file_wcc },
        )));
    }
    Ok(match write_at(&node, offset, data, stable) {
        Ok(done) => {
            cx.has_written(done.count as usize);
            Nfs3Result::Ok(done)
        }
        Err((status, file_wcc)) => {
            let file_wcc = file_wcc.unwrap_or_else(|| untouched(&node));
            Nfs3Result::Err((status, WRITE3resfail { file_wcc }))
        }
    })
}

fn write_at(
    node: &Node<'_>,
    offset: u64,
    data: &[u8],
    stable: stable_how,
) -> Result<WRITE3resok, (nfsstat3, Option<wcc_data>)> {
    let early = |status| (status, None);
    node.writable().map_err(early)?;
    let verf = node.volume.verifier();
    let pin = node.pin().map_err(early)?;
    let turns = node.volume.lock_objects([node.ino()]);
    let change = Change::begin(node, pin, &turns).map_err(early)?;
    let written = has_content(&change.before)
        .and_then(|()| node.may(&change.before, WRITE))
        .and_then(|()| match offset.checked_add(data.len() as u64) {
            Some(end) if end <= node.volume.limits().file_bytes_max => Ok(()),
            _ => Err(nfsstat3::NFS3ERR_FBIG),
        })
        .and_then(|()| {
            if data.is_empty() {
                return Ok(0);
            }
            drop_capability(node, node.ino())?;
            failed(
                node.volume
                    .fs()
                    .write(&node.caller, node.ino(), offset, data),
            )
        });
    let file_wcc = change.wcc();
    drop(turns);
    let committed = match stable {
        _ if node.volume.sync_always() => stable_how::FILE_SYNC,
        stable => stable,
    };
    let synced = written.and_then(|written| {
        let count = u32::try_from(written).map_err(|_| nfsstat3::NFS3ERR_SERVERFAULT)?;
        if committed == stable_how::UNSTABLE {
            node.volume.wrote_unstably(node.ino(), count);
        } else {
            make_durable(node, committed == stable_how::DATA_SYNC, count)?;
        }
        Ok(count)
    });
    match synced {
        Ok(count) => Ok(WRITE3resok {
            file_wcc,
            count,
            committed,
            verf,
        }),
        Err(status) => Err((status, Some(file_wcc))),
    }
}

/// Makes a file's content durable before the reply: together with others', or separately if it is large, so that
/// no other call waits for it.
fn make_durable(node: &Node<'_>, data_only: bool, bytes: u32) -> Step<()> {
    if bytes <= TOGETHER_BYTES_MAX {
        node.owe_of(node.ino(), data_only);
        return Ok(());
    }
    failed(node.volume.sync(&[node.wanted(node.ino(), data_only)]))
}

pub(super) fn commit(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<COMMIT3res> {
    // The whole file is committed, whatever the range: 0 bytes mean up to the end, and a range beyond
    // the end has nothing to commit.
    let (handle, _offset, _count) = (read_handle(args)?, args.u64()?, args.u32()?);
    let mut node = match cx.node(handle) {
        Ok(node) => node,
        Err(status) => {
            let file_wcc = wcc_data::default();
            return Ok(Nfs3Result::Err((status, COMMIT3resfail { file_wcc })));
        }
    };
    join_stream(&mut node);
    Ok(match commit_file(&node) {
        Ok((file_wcc, verf)) => Nfs3Result::Ok(COMMIT3resok { file_wcc, verf }),
        Err(status) => {
            let file_wcc = untouched(&node);
            Nfs3Result::Err((status, COMMIT3resfail { file_wcc }))
        }
    })
}

fn commit_file(node: &Node<'_>) -> Step<(wcc_data, writeverf3)> {
    let _pin = node.pin()?;
    let before = node.attr()?;
    let unstable = node.volume.take_unstable(node.ino());
    make_durable(node, false, unstable)?;
    // Read again after the sync of the owed objects: `verify_again`.
    let verf = node.volume.verifier();
    let after = node.attr().ok();
    // A COMMIT changes no attribute. If others changed some meanwhile, the attributes before are left out, so that no
    // client takes that change for its own.
    let before =
        Some(before).filter(|before| after.is_some_and(|after| after.ctime == before.ctime));
    Ok((
        convert::change(before.as_ref(), after.as_ref(), node.fsid()),
        verf,
    ))
}
