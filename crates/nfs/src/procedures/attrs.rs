//! GETATTR and SETATTR.

use nfs3_types::nfs3::{
    GETATTR3res, GETATTR3resok, Nfs3Result, SETATTR3res, SETATTR3resfail, SETATTR3resok, nfsstat3,
    wcc_data,
};
use nfs3_types::xdr_codec::Void;
use steadfast_vfs::{Attr, Errno, FileKind, SetAttr};

use super::{Change, Context, Node, Step, WRITE, data, read_handle, untouched};
use crate::convert;
use crate::xdr::{Decoder, Parsed};

pub(super) fn getattr(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<GETATTR3res> {
    let handle = read_handle(args)?;
    let found = cx.node(handle).and_then(|node| {
        let attr = node.attr()?;
        Ok(convert::attributes(&attr, node.fsid()))
    });
    Ok(match found {
        Ok(obj_attributes) => Nfs3Result::Ok(GETATTR3resok { obj_attributes }),
        Err(status) => Nfs3Result::Err((status, Void)),
    })
}

pub(super) fn setattr(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<SETATTR3res> {
    let handle = read_handle(args)?;
    let mut set = convert::read_set(args)?;
    set.guard = args.optional(convert::read_time)?;
    let node = match cx.node(handle) {
        Ok(node) => node,
        Err(status) => return Ok(Nfs3Result::Err((status, SETATTR3resfail::default()))),
    };
    Ok(match set_on(&node, &set) {
        Ok(obj_wcc) => Nfs3Result::Ok(SETATTR3resok { obj_wcc }),
        Err((status, obj_wcc)) => {
            let obj_wcc = obj_wcc.unwrap_or_else(|| untouched(&node));
            Nfs3Result::Err((status, SETATTR3resfail { obj_wcc }))
        }
    })
}

/// Executes a SETATTR. An error has the attributes, if the change was begun.
pub(super) fn set_on(
    node: &Node<'_>,
    set: &SetAttr,
) -> Result<wcc_data, (nfsstat3, Option<wcc_data>)> {
    let early = |status| (status, None);
    node.writable().map_err(early)?;
    let pin = node.pin().map_err(early)?;
    let turns = node.volume.lock_objects([node.ino()]);
    let change = Change::begin(node, pin, &turns).map_err(early)?;
    let done = set_attributes(node, &change.before, set);
    let wcc = change.wcc();
    drop(turns);
    // Even if nothing was to be set: the attributes that the client sees must survive.
    match done {
        Ok(()) => {
            node.owe();
            Ok(wcc)
        }
        Err(status) => Err((status, Some(wcc))),
    }
}

/// Sets attributes of an inode. It is pinned, and its turn is held.
fn set_attributes(node: &Node<'_>, attr: &Attr, set: &SetAttr) -> Step<()> {
    convert::settable(set)?;
    let mut set = *set;
    if set.size.is_some() {
        if attr.kind != FileKind::Regular {
            let is_directory = attr.kind == FileKind::Directory;
            return Err(if is_directory {
                nfsstat3::NFS3ERR_ISDIR
            } else {
                nfsstat3::NFS3ERR_INVAL
            });
        }
        // The owner always has access: see `may`.
        node.may(attr, WRITE)?;
        set.by_handle = true;
    }
    let changes_program = set.size.is_some() || set.uid.is_some() || set.gid.is_some();
    if changes_program && attr.kind == FileKind::Regular && data::has_capability(node, attr.ino) {
        // Capabilities are removed first, so that after a crash no changed program has them. This changes ctime,
        // so the guard is checked before. A foreign owner is refused below, and must not remove capabilities.
        if set.guard.take().is_some_and(|guard| guard != attr.ctime) {
            return Err(nfsstat3::NFS3ERR_NOT_SYNC);
        }
        if set.size.is_some() || node.caller.uid == 0 || node.caller.uid == attr.uid {
            data::drop_capability(node, attr.ino)?;
        }
    }
    match node.volume.fs().setattr(&node.caller, attr.ino, &set) {
        Ok(_) => Ok(()),
        Err(e) if e == Errno::Again && set.guard.is_some_and(|guard| guard != attr.ctime) => {
            Err(nfsstat3::NFS3ERR_NOT_SYNC)
        }
        Err(e) => Err(convert::status(&e)),
    }
}
