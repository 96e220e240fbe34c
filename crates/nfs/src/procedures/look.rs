//! LOOKUP, ACCESS, READLINK: they change nothing.

use nfs3_types::nfs3::{
    ACCESS3_DELETE, ACCESS3_EXECUTE, ACCESS3_EXTEND, ACCESS3_LOOKUP, ACCESS3_MODIFY, ACCESS3_READ,
    ACCESS3res, ACCESS3resfail, ACCESS3resok, LOOKUP3res, LOOKUP3resfail, LOOKUP3resok, Nfs3Result,
    READLINK3res, READLINK3resfail, READLINK3resok,
};
use steadfast_vfs::{Attr, FileKind};

use super::{Context, EXEC, Node, READ, Step, WRITE, check_name, failed, read_entry, read_handle};
use crate::xdr::{Decoder, Parsed};

pub(super) fn lookup(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<LOOKUP3res> {
    let (handle, name) = read_entry(args)?;
    let node = match cx.node(handle) {
        Ok(node) => node,
        Err(status) => return Ok(Nfs3Result::Err((status, LOOKUP3resfail::default()))),
    };
    Ok(match find(&node, name) {
        Ok((found, dir)) => Nfs3Result::Ok(LOOKUP3resok {
            object: node.handle(&found),
            obj_attributes: node.post_op(Some(&found)),
            dir_attributes: node.post_op(Some(&dir)),
        }),
        Err(status) => {
            let dir_attributes = node.post_op_now();
            Nfs3Result::Err((status, LOOKUP3resfail { dir_attributes }))
        }
    })
}

/// Looks a name up in a directory. Returns also the directory's attributes.
fn find(node: &Node<'_>, name: &[u8]) -> Step<(Attr, Attr)> {
    // A stale handle is reported before any error of the directory.
    node.attr()?;
    check_name(name)?;
    let found = node.lookup(name)?;
    Ok((found, node.attr()?))
}

pub(super) fn access(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<ACCESS3res> {
    let (handle, wanted) = (read_handle(args)?, args.u32()?);
    let granted = cx.node(handle).and_then(|node| {
        let kind = node.attr()?.kind;
        let granted = granted(&node, kind)?;
        // Read again: this validates the granted permissions, too.
        let attr = node.attr()?;
        Ok((node.post_op(Some(&attr)), granted & wanted))
    });
    Ok(match granted {
        Ok((obj_attributes, access)) => Nfs3Result::Ok(ACCESS3resok {
            obj_attributes,
            access,
        }),
        Err(status) => Nfs3Result::Err((status, ACCESS3resfail::default())),
    })
}

/// The permissions of the caller. Deleting an object depends on its directory.
fn granted(node: &Node<'_>, kind: FileKind) -> Step<u32> {
    let may = |mask| {
        node.volume
            .fs()
            .access(&node.caller, node.ino(), mask)
            .is_ok()
    };
    let mut granted = 0;
    if may(READ) {
        granted |= ACCESS3_READ;
    }
    if node.writable().is_ok() && may(WRITE) {
        granted |= match kind {
            FileKind::Directory if !may(EXEC) => 0,
            FileKind::Directory => ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE,
            _ => ACCESS3_MODIFY | ACCESS3_EXTEND,
        };
    }
    if may(EXEC) {
        granted |= match kind {
            FileKind::Directory => ACCESS3_LOOKUP,
            _ => ACCESS3_EXECUTE,
        };
    }
    Ok(granted)
}

pub(super) fn readlink(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<READLINK3res<'static>> {
    let handle = read_handle(args)?;
    let node = match cx.node(handle) {
        Ok(node) => node,
        Err(status) => return Ok(Nfs3Result::Err((status, READLINK3resfail::default()))),
    };
    let read = node.attr().and_then(|_| {
        let target = failed(node.volume.fs().readlink(&node.caller, node.ino()))?;
        Ok((target, node.attr()?))
    });
    Ok(match read {
        Ok((target, attr)) => Nfs3Result::Ok(READLINK3resok {
            symlink_attributes: node.post_op(Some(&attr)),
            data: target.into(),
        }),
        Err(status) => {
            let symlink_attributes = node.post_op_now();
            Nfs3Result::Err((status, READLINK3resfail { symlink_attributes }))
        }
    })
}
