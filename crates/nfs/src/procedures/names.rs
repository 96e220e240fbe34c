//! REMOVE, RMDIR, RENAME, LINK.

use nfs3_types::nfs3::{
    LINK3res, LINK3resfail, LINK3resok, Nfs3Option, Nfs3Result, REMOVE3res, REMOVE3resfail,
    REMOVE3resok, RENAME3res, RENAME3resfail, RENAME3resok, RMDIR3res, RMDIR3resfail, RMDIR3resok,
    nfsstat3, post_op_attr, wcc_data,
};
use steadfast_vfs::{FileKind, RenameMode};

use super::{
    Change, Context, Node, Step, check_name, failed, is_dots, read_entry, read_handle, untouched,
};
use crate::xdr::{Decoder, Parsed};

/// Removes a name, durably.
fn take_away(
    dir: &Node<'_>,
    name: &[u8],
    act: impl FnOnce() -> Step<()>,
) -> Result<wcc_data, (nfsstat3, Option<wcc_data>)> {
    let early = |status| (status, None);
    dir.writable().map_err(early)?;
    let pin = dir.pin().map_err(early)?;
    let turns = dir.volume.lock_objects([dir.ino()]);
    let change = Change::begin(dir, pin, &turns).map_err(early)?;
    let done = check_name(name).and_then(|()| act());
    let wcc = change.wcc();
    drop(turns);
    match done {
        Ok(()) => {
            dir.owe();
            Ok(wcc)
        }
        Err(status) => Err((status, Some(wcc))),
    }
}

pub(super) fn remove(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<REMOVE3res> {
    let (handle, name) = read_entry(args)?;
    let dir = match cx.node(handle) {
        Ok(dir) => dir,
        Err(status) => return Ok(Nfs3Result::Err((status, REMOVE3resfail::default()))),
    };
    let removed = take_away(&dir, name, || {
        if is_dots(name) {
            return Err(nfsstat3::NFS3ERR_INVAL);
        }
        failed(dir.volume.fs().unlink(&dir.caller, dir.ino(), name))
    });
    Ok(match removed {
        Ok(dir_wcc) => Nfs3Result::Ok(REMOVE3resok { dir_wcc }),
        Err((status, wcc)) => {
            let dir_wcc = wcc.unwrap_or_else(|| untouched(&dir));
            Nfs3Result::Err((status, REMOVE3resfail { dir_wcc }))
        }
    })
}

pub(super) fn rmdir(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<RMDIR3res> {
    let (handle, name) = read_entry(args)?;
    let dir = match cx.node(handle) {
        Ok(dir) => dir,
        Err(status) => {
            let dir_wcc = wcc_data::default();
            return Ok(Nfs3Result::Err((status, RMDIR3resfail { dir_wcc })));
        }
    };
    let removed = take_away(&dir, name, || match name {
        b"." => Err(nfsstat3::NFS3ERR_INVAL),
        b".." => Err(nfsstat3::NFS3ERR_EXIST),
        _ => failed(dir.volume.fs().rmdir(&dir.caller, dir.ino(), name)),
    });
    Ok(match removed {
        Ok(dir_wcc) => Nfs3Result::Ok(RMDIR3resok { dir_wcc }),
        Err((status, wcc)) => {
            let dir_wcc = wcc.unwrap_or_else(|| untouched(&dir));
            Nfs3Result::Err((status, RMDIR3resfail { dir_wcc }))
        }
    })
}

/// XDEV unless both are of one export.
fn together(one: &Node<'_>, other: &Node<'_>) -> Step<()> {
    if one.named.export == other.named.export {
        Ok(())
    } else {
        Err(nfsstat3::NFS3ERR_XDEV)
    }
}

/// The two directories of a RENAME, before and after.
type Both = (wcc_data, wcc_data);

pub(super) fn rename(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<RENAME3res> {
    let ((from_dir, from), (to_dir, to)) = (read_entry(args)?, read_entry(args)?);
    let (source, target) = match (cx.node(from_dir), cx.node(to_dir)) {
        (Ok(source), Ok(target)) => (source, target),
        (Err(status), target) => {
            let todir_wcc = target.map_or_else(|_| wcc_data::default(), |dir| untouched(&dir));
            let fromdir_wcc = wcc_data::default();
            return Ok(Nfs3Result::Err((
                status,
                RENAME3resfail {
                    fromdir_wcc,
                    todir_wcc,
                },
            )));
        }
        (Ok(source), Err(status)) => {
            let (fromdir_wcc, todir_wcc) = (untouched(&source), wcc_data::default());
            return Ok(Nfs3Result::Err((
                status,
                RENAME3resfail {
                    fromdir_wcc,
                    todir_wcc,
                },
            )));
        }
    };
    Ok(match renamed(&source, from, &target, to) {
        Ok((fromdir_wcc, todir_wcc)) => Nfs3Result::Ok(RENAME3resok {
            fromdir_wcc,
            todir_wcc,
        }),
        Err((status, wcc)) => {
            let (fromdir_wcc, todir_wcc) =
                wcc.unwrap_or_else(|| (untouched(&source), untouched(&target)));
            Nfs3Result::Err((
                status,
                RENAME3resfail {
                    fromdir_wcc,
                    todir_wcc,
                },
            ))
        }
    })
}

fn renamed(
    source: &Node<'_>,
    from: &[u8],
    target: &Node<'_>,
    to: &[u8],
) -> Result<Both, (nfsstat3, Option<Both>)> {
    let early = |status| (status, None);
    together(source, target).map_err(early)?;
    source.writable().map_err(early)?;
    let pins = (source.pin().map_err(early)?, target.pin().map_err(early)?);
    let turns = source.volume.lock_objects([source.ino(), target.ino()]);
    let leaves = Change::begin(source, pins.0, &turns).map_err(early)?;
    let enters = Change::begin(target, pins.1, &turns).map_err(early)?;
    let done = check_name(from)
        .and_then(|()| check_name(to))
        .and_then(|()| {
            if is_dots(from) || is_dots(to) {
                return Err(nfsstat3::NFS3ERR_INVAL);
            }
            let (from, to) = ((source.ino(), from), (target.ino(), to));
            failed(
                source
                    .volume
                    .fs()
                    .rename(&source.caller, from, to, RenameMode::Replace),
            )
        });
    let wcc = (leaves.wcc(), enters.wcc());
    drop(turns);
    // One operation of one stream: a sync of either directory makes it durable. Both are synced, in case
    // another operation had done it already (two names of one file).
    match done {
        Ok(()) => {
            target.owe();
            source.owe();
            Ok(wcc)
        }
        Err(status) => Err((status, Some(wcc))),
    }
}

pub(super) fn link(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<LINK3res> {
    let (file, (dir, name)) = (read_handle(args)?, read_entry(args)?);
    let fail = |status, file_attributes, linkdir_wcc| {
        Ok(Nfs3Result::Err((
            status,
            LINK3resfail {
                file_attributes,
                linkdir_wcc,
            },
        )))
    };
    let (file, dir) = match (cx.node(file), cx.node(dir)) {
        (Ok(file), Ok(dir)) => (file, dir),
        (Err(status), dir) => {
            let wcc = dir.map_or_else(|_| wcc_data::default(), |dir| untouched(&dir));
            return fail(status, Nfs3Option::None, wcc);
        }
        (Ok(file), Err(status)) => return fail(status, file.post_op_now(), wcc_data::default()),
    };
    Ok(match linked(&file, &dir, name) {
        Ok((file_attributes, linkdir_wcc)) => Nfs3Result::Ok(LINK3resok {
            file_attributes,
            linkdir_wcc,
        }),
        Err((status, wcc)) => {
            let linkdir_wcc = wcc.unwrap_or_else(|| untouched(&dir));
            return fail(status, file.post_op_now(), linkdir_wcc);
        }
    })
}

fn linked(
    file: &Node<'_>,
    dir: &Node<'_>,
    name: &[u8],
) -> Result<(post_op_attr, wcc_data), (nfsstat3, Option<wcc_data>)> {
    let early = |status| (status, None);
    together(file, dir).map_err(early)?;
    dir.writable().map_err(early)?;
    let (_file_pin, pin) = (file.pin().map_err(early)?, dir.pin().map_err(early)?);
    let turns = dir.volume.lock_objects([file.ino(), dir.ino()]);
    let change = Change::begin(dir, pin, &turns).map_err(early)?;
    let done = file.attr().and_then(|attr| {
        check_name(name)?;
        if attr.kind == FileKind::Directory {
            return Err(nfsstat3::NFS3ERR_ISDIR);
        }
        failed(
            dir.volume
                .fs()
                .link(&dir.caller, file.ino(), dir.ino(), name),
        )
    });
    let wcc = change.wcc();
    drop(turns);
    match done {
        Ok(attr) => {
            dir.owe();
            Ok((file.post_op(Some(&attr)), wcc))
        }
        Err(status) => Err((status, Some(wcc))),
    }
}
