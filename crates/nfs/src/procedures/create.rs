//! CREATE, MKDIR, SYMLINK, MKNOD.
//!
//! An exclusive CREATE keeps its verifier in the times of the new file (eight bytes as the seconds of
//! atime and mtime). They survive as long as the file and need no block of their own, unlike an extended
//! attribute. Creating the file and setting these times are two operations, and a crash may leave only the
//! first. So the file is created with a mode that no client requests ([`INTERRUPTED`]). A client that finds a file with this
//! mode, unchanged since, may take it over, because no client ever got a success for it.

use nfs3_types::nfs3::{
    CREATE3res, CREATE3resfail, CREATE3resok, MKDIR3res, MKDIR3resfail, MKDIR3resok, MKNOD3res,
    MKNOD3resfail, MKNOD3resok, NFS3_CREATEVERFSIZE, Nfs3Option, Nfs3Result, SYMLINK3res,
    SYMLINK3resfail, SYMLINK3resok, nfsstat3, wcc_data,
};
use steadfast_vfs::{Attr, FileKind, NewNode, SYMLINK_MAX, SetAttr, SetTime, Time};

use super::attrs::set_on;
use super::{Change, Context, Node, Step, check_name, failed, is_nothing, read_entry, untouched};
use crate::convert;
use crate::handles::Named;
use crate::xdr::{Decoder, Garbage, Parsed};

/// Permissions of a file between the two steps of an exclusive CREATE: set-user-id, and nothing else.
const INTERRUPTED: u16 = 0o4000;
/// Permissions of the file until the client sets others.
const EXCLUSIVE_PERM: u16 = 0o600;
/// Permissions if the client gives none.
const DEFAULT_PERM: u16 = 0o644;
/// Permissions of a directory if the client gives none.
const DEFAULT_DIR_PERM: u16 = 0o755;

/// Mode of CREATE.
enum How {
    Unchecked(SetAttr),
    Guarded(SetAttr),
    Exclusive([u8; NFS3_CREATEVERFSIZE]),
}

/// The answer: the new object or an error, and the directory's attributes.
type Made = Result<(Attr, wcc_data), (nfsstat3, Option<wcc_data>)>;

/// The requested object.
enum Object {
    /// It is new.
    New(Attr),
    /// An earlier operation made it.
    There(Attr),
}

/// Makes an object in a directory, durably. `make` runs while the directory's turn is held, `take`
/// afterwards, on an object that existed before.
fn make_in(
    dir: &Node<'_>,
    name: &[u8],
    make: impl FnOnce() -> Step<Object>,
    take: impl FnOnce(Attr) -> Step<Attr>,
) -> Made {
    let early = |status| (status, None);
    dir.writable().map_err(early)?;
    let pin = dir.pin().map_err(early)?;
    let turns = dir.volume.lock_objects([dir.ino()]);
    let change = Change::begin(dir, pin, &turns).map_err(early)?;
    let made = check_name(name).and_then(|()| make());
    let wcc = change.wcc();
    drop(turns);
    let made = made.and_then(|object| match object {
        Object::New(attr) => Ok(attr),
        Object::There(attr) => take(attr),
    });
    match made {
        Ok(attr) => {
            dir.owe();
            Ok((attr, wcc))
        }
        Err(status) => Err((status, Some(wcc))),
    }
}

/// Makes an object that must be new.
fn make_new(dir: &Node<'_>, name: &[u8], make: impl FnOnce() -> Step<Attr>) -> Made {
    make_in(dir, name, || make().map(Object::New), Ok)
}

/// For a new object with attributes to set, the last operation leaves the note.
fn defer_note(dir: &Node<'_>, set: &SetAttr) {
    let plain = SetAttr { perm: None, ..*set };
    if !is_nothing(&plain) {
        dir.note_in_parts();
    }
}

/// The attributes of a new object that were not set at its creation. An owner or group that the caller may
/// not set is left out, as if the client had not requested it.
fn rest_of(node: &Node<'_>, made: &Attr, set: &SetAttr) -> SetAttr {
    let caller = &node.caller;
    let root = caller.uid == 0;
    SetAttr {
        perm: None,
        uid: set.uid.filter(|uid| root && *uid != made.uid),
        gid: set
            .gid
            .filter(|gid| *gid != made.gid && (root || caller.in_group(*gid))),
        // The creator of a file has it open for writing, whatever its mode.
        by_handle: true,
        ..*set
    }
}

/// Sets the other attributes of a new object, or removes the object on failure.
fn set_rest(dir: &Node<'_>, name: &[u8], made: Attr, set: &SetAttr) -> Step<Attr> {
    let rest = rest_of(dir, &made, set);
    if is_nothing(&rest) {
        dir.note_whole();
        return Ok(made);
    }
    let fs = dir.volume.fs();
    let result = failed(fs.setattr(&dir.caller, made.ino, &rest));
    if result.is_ok() {
        dir.note_whole();
    } else {
        let _ = match made.kind {
            FileKind::Directory => fs.rmdir(&dir.caller, dir.ino(), name),
            _ => fs.unlink(&dir.caller, dir.ino(), name),
        };
    }
    result
}

/// The times that encode a verifier.
fn verifier_times(verifier: [u8; NFS3_CREATEVERFSIZE]) -> (Time, Time) {
    let [a, b, c, d, e, f, g, h] = verifier;
    let time = |bytes| Time {
        secs: i64::from(u32::from_be_bytes(bytes)),
        nanos: 0,
    };
    (time([a, b, c, d]), time([e, f, g, h]))
}

/// Makes a file, or finds the file that an earlier attempt of the same request made.
fn create_exclusively(
    dir: &Node<'_>,
    name: &[u8],
    verifier: [u8; NFS3_CREATEVERFSIZE],
) -> Step<Object> {
    let fs = dir.volume.fs();
    dir.note_in_parts();
    let (atime, mtime) = verifier_times(verifier);
    let node = NewNode {
        kind: FileKind::Regular,
        perm: INTERRUPTED,
        rdev: 0,
    };
    let made = match failed(fs.mknod(&dir.caller, dir.ino(), name, &node)) {
        Ok(made) => made,
        Err(nfsstat3::NFS3ERR_EXIST) => {
            let found = failed(fs.lookup(&dir.caller, dir.ino(), name))?;
            let is_file = found.kind == FileKind::Regular && found.size == 0;
            if is_file && (found.atime, found.mtime) == (atime, mtime) {
                return Ok(Object::There(found));
            }
            let untouched = found.perm == INTERRUPTED && found.ctime == found.btime;
            if !is_file || !untouched || found.uid != dir.caller.uid {
                return Err(nfsstat3::NFS3ERR_EXIST);
            }
            found
        }
        Err(status) => return Err(status),
    };
    let set = SetAttr {
        perm: Some(EXCLUSIVE_PERM),
        atime: Some(SetTime::At(atime)),
        mtime: Some(SetTime::At(mtime)),
        ..SetAttr::default()
    };
    failed(fs.setattr(&dir.caller, made.ino, &set)).map(Object::New)
}

/// Syncs an object that existed already. If it was removed since, the removal counts as a moment later.
fn rests_on(dir: &Node<'_>, found: &Attr) {
    dir.owe_of(found.ino, false);
}

/// Makes a file, or finds the existing one.
fn create_or_find(dir: &Node<'_>, name: &[u8], set: &SetAttr, guarded: bool) -> Step<Object> {
    convert::settable(set)?;
    defer_note(dir, set);
    let fs = dir.volume.fs();
    let node = NewNode {
        kind: FileKind::Regular,
        perm: set.perm.unwrap_or(DEFAULT_PERM),
        rdev: 0,
    };
    match failed(fs.mknod(&dir.caller, dir.ino(), name, &node)) {
        Ok(made) => set_rest(dir, name, made, set).map(Object::New),
        Err(nfsstat3::NFS3ERR_EXIST) if !guarded => {
            let found = failed(fs.lookup(&dir.caller, dir.ino(), name))?;
            match found.kind {
                FileKind::Regular => Ok(Object::There(found)),
                _ => Err(nfsstat3::NFS3ERR_EXIST),
            }
        }
        Err(status) => Err(status),
    }
}

/// Takes an existing file. Only the size is set, as by open(2).
fn take(dir: &Node<'_>, found: Attr, set: &SetAttr) -> Step<Attr> {
    if set.size.is_none() {
        rests_on(dir, &found);
        return Ok(found);
    }
    let file = Node {
        volume: dir.volume,
        export: dir.export,
        access: dir.access,
        subtree: dir.subtree,
        named: Named::of(dir.named.export, &found),
        caller: dir.caller.clone(),
        debts: dir.debts,
    };
    let set = SetAttr {
        size: set.size,
        ..SetAttr::default()
    };
    match set_on(&file, &set)
        .map_err(|(status, _)| status)
        .and_then(|_| file.attr())
    {
        // Removed since it was found: the client must try again.
        Err(nfsstat3::NFS3ERR_STALE) => Err(nfsstat3::NFS3ERR_JUKEBOX),
        other => other,
    }
}

pub(super) fn create(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<CREATE3res> {
    let (handle, name) = read_entry(args)?;
    let how = match args.u32()? {
        0 => How::Unchecked(convert::read_set(args)?),
        1 => How::Guarded(convert::read_set(args)?),
        2 => How::Exclusive(args.fixed()?),
        _ => return Err(Garbage),
    };
    let dir = match cx.node(handle) {
        Ok(dir) => dir,
        Err(status) => return Ok(Nfs3Result::Err((status, CREATE3resfail::default()))),
    };
    let make = || match &how {
        How::Unchecked(set) => create_or_find(&dir, name, set, false),
        How::Guarded(set) => create_or_find(&dir, name, set, true),
        How::Exclusive(verifier) => create_exclusively(&dir, name, *verifier),
    };
    let made = make_in(&dir, name, make, |found| match &how {
        How::Unchecked(set) => take(&dir, found, set),
        How::Guarded(_) | How::Exclusive(_) => {
            rests_on(&dir, &found);
            Ok(found)
        }
    });
    Ok(match made {
        Ok((attr, dir_wcc)) => Nfs3Result::Ok(CREATE3resok {
            obj: Nfs3Option::Some(dir.handle(&attr)),
            obj_attributes: dir.post_op(Some(&attr)),
            dir_wcc,
        }),
        Err((status, wcc)) => {
            let dir_wcc = wcc.unwrap_or_else(|| untouched(&dir));
            Nfs3Result::Err((status, CREATE3resfail { dir_wcc }))
        }
    })
}

pub(super) fn mkdir(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<MKDIR3res> {
    let ((handle, name), set) = (read_entry(args)?, convert::read_set(args)?);
    let dir = match cx.node(handle) {
        Ok(dir) => dir,
        Err(status) => return Ok(Nfs3Result::Err((status, MKDIR3resfail::default()))),
    };
    // The size of a directory cannot be set.
    let set = SetAttr { size: None, ..set };
    let made = make_new(&dir, name, || {
        convert::settable(&set)?;
        defer_note(&dir, &set);
        let perm = set.perm.unwrap_or(DEFAULT_DIR_PERM);
        let made = failed(dir.volume.fs().mkdir(&dir.caller, dir.ino(), name, perm))?;
        set_rest(&dir, name, made, &set)
    });
    Ok(match made {
        Ok((attr, dir_wcc)) => Nfs3Result::Ok(MKDIR3resok {
            obj: Nfs3Option::Some(dir.handle(&attr)),
            obj_attributes: dir.post_op(Some(&attr)),
            dir_wcc,
        }),
        Err((status, wcc)) => {
            let dir_wcc = wcc.unwrap_or_else(|| untouched(&dir));
            Nfs3Result::Err((status, MKDIR3resfail { dir_wcc }))
        }
    })
}

pub(super) fn symlink(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<SYMLINK3res> {
    let ((handle, name), set) = (read_entry(args)?, convert::read_set(args)?);
    let target = args.bytes()?;
    let dir = match cx.node(handle) {
        Ok(dir) => dir,
        Err(status) => return Ok(Nfs3Result::Err((status, SYMLINK3resfail::default()))),
    };
    // Neither size nor permissions of a symbolic link can be set.
    let set = SetAttr { size: None, ..set };
    let made = make_new(&dir, name, || {
        convert::settable(&set)?;
        defer_note(&dir, &set);
        match target.len() {
            0 => return Err(nfsstat3::NFS3ERR_INVAL),
            len if len > SYMLINK_MAX => return Err(nfsstat3::NFS3ERR_NAMETOOLONG),
            _ => {}
        }
        let made = failed(
            dir.volume
                .fs()
                .symlink(&dir.caller, dir.ino(), name, target),
        )?;
        set_rest(&dir, name, made, &set)
    });
    Ok(match made {
        Ok((attr, dir_wcc)) => Nfs3Result::Ok(SYMLINK3resok {
            obj: Nfs3Option::Some(dir.handle(&attr)),
            obj_attributes: dir.post_op(Some(&attr)),
            dir_wcc,
        }),
        Err((status, wcc)) => {
            let dir_wcc = wcc.unwrap_or_else(|| untouched(&dir));
            Nfs3Result::Err((status, SYMLINK3resfail { dir_wcc }))
        }
    })
}

/// An object that MKNOD can make: kind, attributes, device numbers.
type Special = (FileKind, SetAttr, Option<(u32, u32)>);

/// Decodes the object that MKNOD must make; none if MKNOD cannot make it.
fn read_node(args: &mut Decoder<'_>) -> Parsed<Option<Special>> {
    let kind = match args.u32()? {
        3 => FileKind::BlockDevice,
        4 => FileKind::CharDevice,
        6 => FileKind::Socket,
        7 => FileKind::Fifo,
        1 | 2 | 5 => return Ok(None),
        _ => return Err(Garbage),
    };
    let set = convert::read_set(args)?;
    let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
    let device = is_device
        .then(|| Ok((args.u32()?, args.u32()?)))
        .transpose()?;
    Ok(Some((kind, SetAttr { size: None, ..set }, device)))
}

pub(super) fn mknod(cx: &Context<'_>, args: &mut Decoder<'_>) -> Parsed<MKNOD3res> {
    let ((handle, name), what) = (read_entry(args)?, read_node(args)?);
    let dir = match cx.node(handle) {
        Ok(dir) => dir,
        Err(status) => {
            let dir_wcc = wcc_data::default();
            return Ok(Nfs3Result::Err((status, MKNOD3resfail { dir_wcc })));
        }
    };
    let made = make_new(&dir, name, || {
        let (kind, set, device) = what.ok_or(nfsstat3::NFS3ERR_BADTYPE)?;
        convert::settable(&set)?;
        defer_note(&dir, &set);
        let rdev = match device {
            Some((major, minor)) => {
                convert::device_from(major, minor).ok_or(nfsstat3::NFS3ERR_INVAL)?
            }
            None => 0,
        };
        let perm = set.perm.unwrap_or(DEFAULT_PERM);
        let node = NewNode { kind, perm, rdev };
        let made = failed(dir.volume.fs().mknod(&dir.caller, dir.ino(), name, &node))?;
        set_rest(&dir, name, made, &set)
    });
    Ok(match made {
        Ok((attr, dir_wcc)) => Nfs3Result::Ok(MKNOD3resok {
            obj: Nfs3Option::Some(dir.handle(&attr)),
            obj_attributes: dir.post_op(Some(&attr)),
            dir_wcc,
        }),
        Err((status, wcc)) => {
            let dir_wcc = wcc.unwrap_or_else(|| untouched(&dir));
            Nfs3Result::Err((status, MKNOD3resfail { dir_wcc }))
        }
    })
}
