//! The MOUNT program, version 3 (RFC 1813, appendix I): from a path to a root handle.
//!
//! The list of mounts has what clients reported. It serves only `showmount`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nfs3_types::mount::{
    MNTPATHLEN, MOUNT_PROGRAM, dirpath, export_node, fhandle3, mountbody, mountres3, mountres3_ok,
    mountstat3, name,
};
use nfs3_types::xdr_codec::{List, Opaque, Pack};
use steadfast_vfs::{Caller, FileKind};

use crate::auth::{AUTH_NONE, AUTH_SYS};
use crate::exports::Table;
use crate::handles::Named;
use crate::reply::Reply;
use crate::xdr::{Decoder, Parsed};

/// Longest path.
pub(crate) const PATH_BYTES_MAX: usize = MNTPATHLEN;
/// Most listed mounts.
const LISTED_MAX: usize = 1024;

/// The mounts that clients reported.
#[derive(Debug, Default)]
pub(crate) struct Mounts(Mutex<VecDeque<(String, Vec<u8>)>>);

impl Mounts {
    fn list(&self) -> MutexGuard<'_, VecDeque<(String, Vec<u8>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, client: &str, path: &[u8]) {
        let mut list = self.list();
        if list.iter().any(|(c, p)| c == client && p == path) {
            return;
        }
        if list.len() == LISTED_MAX {
            list.pop_front();
        }
        list.push_back((client.to_owned(), path.to_vec()));
    }
}

/// Runs a procedure. Returns its answer.
///
/// # Errors
/// The arguments are garbage.
pub(crate) fn run(
    procedure: MOUNT_PROGRAM,
    table: &Table,
    mounts: &Mounts,
    peer: SocketAddr,
    args: &mut Decoder<'_>,
    reply: &mut Reply,
) -> Parsed<mountstat3> {
    let mut status = mountstat3::MNT3_OK;
    let client = peer.ip().to_canonical().to_string();
    match procedure {
        MOUNT_PROGRAM::MOUNTPROC3_NULL => {}
        MOUNT_PROGRAM::MOUNTPROC3_MNT => {
            let path = args.bytes()?;
            let result = mount(table, peer, path);
            match &result {
                mountres3::Ok(_) => mounts.add(&client, path),
                mountres3::Err(why) => status = *why,
            }
            reply.put(&result);
        }
        MOUNT_PROGRAM::MOUNTPROC3_DUMP => {
            for (client, path) in mounts.list().iter() {
                put_item(
                    reply,
                    &mountbody {
                        ml_hostname: name(Opaque::borrowed(client.as_bytes())),
                        ml_directory: dirpath(Opaque::borrowed(path)),
                    },
                );
            }
            reply.put(&false);
        }
        MOUNT_PROGRAM::MOUNTPROC3_UMNT => {
            let path = args.bytes()?;
            mounts.list().retain(|(c, p)| *c != client || p != path);
        }
        MOUNT_PROGRAM::MOUNTPROC3_UMNTALL => mounts.list().retain(|(c, _)| *c != client),
        MOUNT_PROGRAM::MOUNTPROC3_EXPORT => {
            for export in table.all() {
                let networks = export.access.iter().flat_map(|access| &access.clients);
                let groups = networks.map(|net| {
                    let everybody = net.prefix_len() == 0;
                    let text = if everybody {
                        "*".to_owned()
                    } else {
                        net.to_string()
                    };
                    name(Opaque::owned(text.into_bytes()))
                });
                put_item(
                    reply,
                    &export_node {
                        ex_dir: dirpath(Opaque::borrowed(export.path.as_bytes())),
                        ex_groups: List(groups.collect()),
                    },
                );
            }
            reply.put(&false);
        }
    }
    Ok(status)
}

fn put_item(reply: &mut Reply, item: &impl Pack) {
    reply.put(&true);
    reply.put(item);
}

/// The root handle for a path: an export, or a directory in it.
fn mount(table: &Table, peer: SocketAddr, path: &[u8]) -> mountres3<'static> {
    match find(table, peer, path) {
        Ok(handle) => mountres3::Ok(mountres3_ok {
            fhandle: fhandle3(Opaque::owned(handle)),
            auth_flavors: vec![AUTH_SYS, AUTH_NONE],
        }),
        Err(status) => mountres3::Err(status),
    }
}

fn find(table: &Table, peer: SocketAddr, path: &[u8]) -> Result<Vec<u8>, mountstat3> {
    if path.len() > PATH_BYTES_MAX {
        return Err(mountstat3::MNT3ERR_NAMETOOLONG);
    }
    // Some clients (the tools of libnfs) send the directory of `/name` without its slash.
    let path = if path.is_empty() { b"/" } else { path };
    let (id, rest) = table.by_path(path).ok_or(mountstat3::MNT3ERR_NOENT)?;
    let (export, volume) = table.by_id(id).ok_or(mountstat3::MNT3ERR_NOENT)?;
    if export.access_of(peer).is_none() {
        return Err(mountstat3::MNT3ERR_ACCES);
    }
    // An admitted client may mount any directory of the export; permissions are checked at each call.
    let caller = Caller {
        checked: true,
        ..Caller::root()
    };
    let failed = |e: steadfast_vfs::Error| match e.errno {
        steadfast_vfs::Errno::NoEnt | steadfast_vfs::Errno::Stale => mountstat3::MNT3ERR_NOENT,
        steadfast_vfs::Errno::NotDir => mountstat3::MNT3ERR_NOTDIR,
        steadfast_vfs::Errno::NameTooLong => mountstat3::MNT3ERR_NAMETOOLONG,
        steadfast_vfs::Errno::Inval => mountstat3::MNT3ERR_INVAL,
        _ => mountstat3::MNT3ERR_IO,
    };
    let fs = volume.fs();
    let subtree = table.subtree(id);
    let top = subtree.map_or_else(|| fs.root(), |subtree| subtree.ino);
    let mut attr = fs.getattr(&caller, top).map_err(failed)?;
    if subtree.is_some_and(|subtree| subtree.generation != attr.generation) {
        return Err(mountstat3::MNT3ERR_NOENT);
    }
    for part in rest.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(mountstat3::MNT3ERR_INVAL),
            part => attr = fs.lookup(&caller, attr.ino, part).map_err(failed)?,
        }
    }
    if attr.kind != FileKind::Directory {
        return Err(mountstat3::MNT3ERR_NOTDIR);
    }
    Ok(volume.key.handle(Named::of(id, &attr), subtree).to_vec())
}
