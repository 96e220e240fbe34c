//! The procedures of NFS version 3 (RFC 1813), one family per file.
//!
//! A procedure decodes its arguments, resolves handles to [`Node`]s, calls the file system, and
//! puts the result into the reply. A read-only procedure is validated *afterwards*: attributes are read
//! again for the reply, and must be of the handle's generation. A changing procedure *pins* its
//! inodes first, so that no other inode can take their numbers, and holds their turns, so that the
//! attributes before and after belong to its own change.
//!
//! Order: a change is durable before its reply (except unstable writes): its procedure registers the commit that it
//! owes ([`Node::owe`]), and the reply waits for a sync of the caller's stream and of the inode (`commits`). A call that
//! succeeds because an earlier call has made the change already waits for that change in the same way.

// An error of the protocol carries attributes like a success.
#![allow(clippy::result_large_err)]

mod attrs;
mod create;
mod data;
mod listing;
mod look;
mod names;
mod state;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nfs3_types::nfs3::{
    NFS_PROGRAM, Nfs3Option, Nfs3Result, RENAME3resfail, nfs_fh3, nfsstat3, post_op_attr, wcc_data,
};
use nfs3_types::xdr_codec::{Opaque, Pack};
use steadfast_vfs::{Attr, Caller, FileKind, Ino, Note, SetAttr, Stream, Wanted};

use crate::auth::{self, Claimed};
use crate::clients::Client;
use crate::commits::Owed;
use crate::convert;
use crate::exports::{Access, Export, Streams, Table};
use crate::handles::{HANDLE_BYTES, Named, Unproved};
use crate::metrics::Metrics;
use crate::reply::Reply;
use crate::security::Security;
use crate::subtree::Subtree;
use crate::volume::{ObjectLocks, Volume};
use crate::xdr::{Decoder, Parsed};

/// Most data bytes of a READ or WRITE.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// The permission to read.
const READ: u8 = 4;
/// The permission to write.
const WRITE: u8 = 2;
/// The permission to execute or search.
const EXEC: u8 = 1;

/// Number of streams of clients, users and exports.
const OWN_STREAMS: u64 = 1 << 12;
/// Number of streams of files.
const FILE_STREAMS: u64 = 1 << 16;

/// One call of a procedure.
pub(crate) struct Context<'a> {
    /// The table of exports.
    pub(crate) table: &'a Table,
    /// Counters.
    pub(crate) metrics: &'a Metrics,
    /// Address of the client.
    pub(crate) peer: SocketAddr,
    /// Protection of its connection.
    pub(crate) security: Security,
    /// If that is not enough: the export, and its required protection.
    pub(crate) wanted_more: Cell<Option<(&'a Export, Security)>>,
    /// The caller.
    pub(crate) claimed: &'a Claimed,
    /// The counters of the client.
    pub(crate) client: Option<&'a Client>,
    /// The commit that the call owes before its answer.
    pub(crate) debts: &'a Debts,
    /// Note that must become durable with the change, of a non-idempotent call.
    pub(crate) note: Option<&'a Arc<Note>>,
}

/// The commit that a call owes: see the module's header.
#[derive(Debug, Default)]
pub(crate) struct Debts {
    volume: RefCell<Option<Arc<Volume>>>,
    owed: RefCell<Owed>,
}

impl Debts {
    /// The owed objects and their volume; none if nothing is owed.
    pub(crate) fn take(&self) -> Option<(Arc<Volume>, Owed)> {
        Some((self.volume.take()?, self.owed.take()))
    }

    /// Owes all changes in a volume's only stream.
    pub(crate) fn owe_everything(&self, volume: &Arc<Volume>) {
        self.owe(
            volume,
            Wanted {
                stream: Stream::default(),
                ino: volume.fs().root(),
                data_only: false,
            },
        );
    }

    fn owe(&self, volume: &Arc<Volume>, wanted: Wanted) {
        self.volume
            .borrow_mut()
            .get_or_insert_with(|| Arc::clone(volume));
        self.owed.borrow_mut().push(wanted);
    }
}

/// The inode of a handle, with its caller.
#[derive(Debug)]
struct Node<'a> {
    volume: &'a Arc<Volume>,
    export: &'a Export,
    access: &'a Access,
    subtree: Option<Subtree>,
    named: Named,
    caller: Caller,
    debts: &'a Debts,
}

/// Keeps an inode from being freed.
#[derive(Debug)]
struct Pin<'a> {
    volume: &'a Volume,
    ino: Ino,
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.volume.fs().release(self.ino);
    }
}

/// Result of a step; the error is the status to answer with.
type Step<T> = Result<T, nfsstat3>;

/// Runs a procedure. Returns the status of its answer.
///
/// # Errors
/// The arguments are garbage.
pub(crate) fn run(
    procedure: NFS_PROGRAM,
    cx: &Context<'_>,
    args: &mut Decoder<'_>,
    reply: &mut Reply,
) -> Parsed<nfsstat3> {
    use NFS_PROGRAM as P;
    match procedure {
        P::NFSPROC3_NULL => Ok(nfsstat3::NFS3_OK),
        P::NFSPROC3_GETATTR => attrs::getattr(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_SETATTR => attrs::setattr(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_LOOKUP => look::lookup(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_ACCESS => look::access(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_READLINK => look::readlink(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_READ => data::read(cx, args, reply),
        P::NFSPROC3_WRITE => data::write(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_CREATE => create::create(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_MKDIR => create::mkdir(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_SYMLINK => create::symlink(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_MKNOD => create::mknod(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_REMOVE => names::remove(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_RMDIR => names::rmdir(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_RENAME => names::rename(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_LINK => names::link(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_READDIR => listing::readdir(cx, args, reply),
        P::NFSPROC3_READDIRPLUS => listing::readdirplus(cx, args, reply),
        P::NFSPROC3_FSSTAT => state::fsstat(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_FSINFO => state::fsinfo(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_PATHCONF => state::pathconf(cx, args).map(|res| answer(reply, &res)),
        P::NFSPROC3_COMMIT => data::commit(cx, args).map(|res| answer(reply, &res)),
    }
}

/// Puts the result of a call that was executed, and whose commit failed.
pub(crate) fn fail_late(procedure: NFS_PROGRAM, status: nfsstat3, reply: &mut Reply) {
    use NFS_PROGRAM as P;
    reply.put(&status);
    // Without attributes, because it is not known which of the present ones will survive.
    match procedure {
        P::NFSPROC3_RENAME => reply.put(&RENAME3resfail::default()),
        P::NFSPROC3_LINK => {
            reply.put(&post_op_attr::None);
            reply.put(&wcc_data::default());
        }
        _ => reply.put(&wcc_data::default()),
    }
}

/// Puts the present verifier into the finished reply of a COMMIT.
pub(crate) fn verify_again(volume: &Volume, record: &mut [u8]) {
    if let Some(verf) = record.last_chunk_mut() {
        *verf = volume.verifier().0;
    }
}

fn answer<T: Pack, E: Pack>(reply: &mut Reply, result: &Nfs3Result<T, E>) -> nfsstat3 {
    reply.put(result);
    match result {
        Nfs3Result::Ok(_) => nfsstat3::NFS3_OK,
        Nfs3Result::Err((status, _)) => *status,
    }
}

/// A stream out of `count`, numbered from `first` on.
fn stream_of(what: &[u8], first: u64, count: u64) -> Stream {
    let number = first + xxhash_rust::xxh3::xxh3_64(what) % count;
    Stream(u32::try_from(number).unwrap_or_default())
}

impl<'a> Context<'a> {
    /// Counts bytes that were read.
    fn has_read(&self, len: usize) {
        self.metrics.bytes_read(len);
        if let Some(client) = self.client {
            client.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
        }
    }

    /// Counts bytes that were written.
    fn has_written(&self, len: usize) {
        self.metrics.bytes_written(len);
        if let Some(client) = self.client {
            client
                .bytes_written
                .fetch_add(len as u64, Ordering::Relaxed);
        }
    }

    /// The stream of this call's changes in an export.
    fn stream(&self, export: &Export) -> Stream {
        let own = |what: &[u8]| stream_of(what, 1, OWN_STREAMS);
        let client = || match self.peer.ip().to_canonical() {
            std::net::IpAddr::V4(ip) => own(&ip.octets()),
            std::net::IpAddr::V6(ip) => own(&ip.octets()),
        };
        match (export.streams, self.claimed) {
            (Streams::File | Streams::Client, _) => client(),
            (Streams::User, Claimed::User { uid, .. }) => own(&uid.to_be_bytes()),
            (Streams::User, Claimed::Nobody) => own(b"nobody"),
            (Streams::Export, _) => own(export.path.as_bytes()),
        }
    }

    /// Resolves a handle. Reading the attributes later shows whether the inode still exists.
    fn node(&self, handle: &[u8]) -> Step<Node<'a>> {
        let handle = Unproved::read(handle).ok_or(nfsstat3::NFS3ERR_BADHANDLE)?;
        // The export is gone, and with it the key that could show whether the handle is forged.
        let (export, volume) = self
            .table
            .by_id(handle.named.export)
            .ok_or(nfsstat3::NFS3ERR_STALE)?;
        let subtree = self.table.subtree(handle.named.export);
        if !volume.key.made(&handle, subtree) {
            self.metrics.forged_handles.fetch_add(1, Ordering::Relaxed);
            return Err(nfsstat3::NFS3ERR_BADHANDLE);
        }
        let Some(access) = export.access_of(self.peer) else {
            self.metrics.refused.fetch_add(1, Ordering::Relaxed);
            return Err(nfsstat3::NFS3ERR_ACCES);
        };
        if self.security < access.security {
            self.wanted_more.set(Some((export, access.security)));
            return Err(nfsstat3::NFS3ERR_ACCES);
        }
        let stream = self.stream(export);
        let mut caller = auth::caller(self.claimed, access.squash, access.anonymous, stream);
        caller.note = self.note.cloned();
        let node = Node {
            volume,
            export,
            access,
            subtree,
            named: handle.named,
            debts: self.debts,
            caller,
        };
        node.confine()?;
        Ok(node)
    }
}

/// Status of a failed call.
fn failed<T>(result: steadfast_vfs::Result<T>) -> Step<T> {
    result.map_err(|e| convert::status(&e))
}

impl<'a> Node<'a> {
    fn ino(&self) -> Ino {
        self.named.ino
    }

    /// The ID of the file system for clients.
    fn fsid(&self) -> u64 {
        u64::from(self.named.export)
    }

    /// The present attributes. STALE if the inode was replaced, or has no names left.
    fn attr(&self) -> Step<Attr> {
        let attr = failed(self.volume.fs().getattr(&self.caller, self.named.ino))?;
        if attr.generation == self.named.generation && attr.nlink > 0 {
            Ok(attr)
        } else {
            Err(nfsstat3::NFS3ERR_STALE)
        }
    }

    /// STALE for a directory outside of the export's subtree.
    fn confine(&self) -> Step<()> {
        let Some(subtree) = self.subtree else {
            return Ok(());
        };
        let attr = self.attr()?;
        let fs = self.volume.fs();
        if attr.kind != FileKind::Directory || failed(subtree.holds(fs, &attr))? {
            Ok(())
        } else {
            Err(nfsstat3::NFS3ERR_STALE)
        }
    }

    /// Whether it is the root directory of the export.
    fn is_top(&self) -> bool {
        let own = Subtree {
            ino: self.named.ino,
            generation: self.named.generation,
        };
        self.subtree == Some(own)
    }

    /// Looks a name up in the directory. The result is never outside of the export's subtree.
    fn lookup(&self, name: &[u8]) -> Step<Attr> {
        if name == b".." && self.is_top() {
            return self.attr();
        }
        let found = failed(self.volume.fs().lookup(&self.caller, self.ino(), name))?;
        match self.subtree {
            Some(subtree) if name == b".." && !failed(subtree.holds(self.volume.fs(), &found))? => {
                Err(nfsstat3::NFS3ERR_STALE)
            }
            _ => Ok(found),
        }
    }

    /// Keeps the inode from being freed.
    fn pin(&self) -> Step<Pin<'a>> {
        failed(self.volume.fs().open(&self.caller, self.named.ino))?;
        Ok(Pin {
            volume: self.volume,
            ino: self.named.ino,
        })
    }

    /// ROFS if the caller may not change anything here.
    fn writable(&self) -> Step<()> {
        if self.access.read_only || self.volume.read_only() {
            Err(nfsstat3::NFS3ERR_ROFS)
        } else {
            Ok(())
        }
    }

    /// The handle of an inode of the same export.
    fn handle_bytes(&self, attr: &Attr) -> [u8; HANDLE_BYTES] {
        let named = Named::of(self.named.export, attr);
        self.volume.key.handle(named, self.subtree)
    }

    /// The encoded handle of an inode of the same export.
    fn handle(&self, attr: &Attr) -> nfs_fh3 {
        nfs_fh3 {
            data: Opaque::owned(self.handle_bytes(attr).to_vec()),
        }
    }

    fn post_op(&self, attr: Option<&Attr>) -> post_op_attr {
        convert::post_op(attr, self.fsid())
    }

    /// The present attributes for a reply, if the inode still exists.
    fn post_op_now(&self) -> post_op_attr {
        self.post_op(self.attr().ok().as_ref())
    }

    /// Whether the caller has the permissions `mask`. The owner may always read and write: on the client,
    /// the file may have been opened before its mode was changed, or created without the bits.
    fn may(&self, attr: &Attr, mask: u8) -> Step<()> {
        if attr.uid == self.caller.uid && mask & EXEC == 0 {
            return Ok(());
        }
        failed(self.volume.fs().access(&self.caller, self.ino(), mask))
    }

    /// The call may take several operations: its note is not kept before all are done.
    fn note_in_parts(&self) {
        if let Some(note) = &self.caller.note {
            note.in_parts();
        }
    }

    /// All operations of the call are done: its note may be kept.
    fn note_whole(&self) {
        if let Some(note) = &self.caller.note {
            note.whole();
        }
    }

    /// The caller for operations whose permission was checked here.
    fn permitted(&self) -> Caller {
        Caller {
            checked: true,
            ..self.caller.clone()
        }
    }

    /// Makes the reply wait until the caller's stream and this inode are durable.
    fn owe(&self) {
        self.owe_of(self.ino(), false);
    }

    /// Makes the reply wait until the caller's stream and another inode of the volume are durable.
    fn owe_of(&self, ino: Ino, data_only: bool) {
        self.debts.owe(self.volume, self.wanted(ino, data_only));
    }

    fn wanted(&self, ino: Ino, data_only: bool) -> Wanted {
        Wanted {
            stream: self.caller.stream,
            ino,
            data_only,
        }
    }
}

/// A change of an object in progress, with its attributes before.
struct Change<'a> {
    node: &'a Node<'a>,
    before: Attr,
    _pin: Pin<'a>,
}

impl<'a> Change<'a> {
    /// Begins a change of `node`, whose turn is held.
    fn begin(node: &'a Node<'a>, pin: Pin<'a>, _turns: &ObjectLocks<'_>) -> Step<Change<'a>> {
        Ok(Change {
            before: node.attr()?,
            node,
            _pin: pin,
        })
    }

    /// Attributes before and after, while the turn is still held.
    fn wcc(&self) -> wcc_data {
        // An object that the change removed has none.
        let after = self.node.attr().ok();
        convert::change(Some(&self.before), after.as_ref(), self.node.fsid())
    }
}

/// The attributes of an object whose change was not begun.
fn untouched(node: &Node<'_>) -> wcc_data {
    wcc_data {
        before: Nfs3Option::None,
        after: node.post_op_now(),
    }
}

/// The volume of a call's first argument, if that is a handle. The handle's hash is not checked.
pub(crate) fn volume_of<'t>(table: &'t Table, mut args: Decoder<'_>) -> Option<&'t Arc<Volume>> {
    let handle = read_handle(&mut args).ok().and_then(Unproved::read)?;
    table.by_id(handle.named.export).map(|(_, volume)| volume)
}

/// Whether a call's first argument is a genuine handle of an export that admits the caller.
pub(crate) fn is_admitted(
    table: &Table,
    peer: SocketAddr,
    security: Security,
    mut args: Decoder<'_>,
) -> bool {
    let handle = read_handle(&mut args).ok().and_then(Unproved::read);
    handle.is_some_and(|handle| {
        table
            .by_id(handle.named.export)
            .filter(|(_, volume)| {
                let subtree = table.subtree(handle.named.export);
                volume.key.made(&handle, subtree)
            })
            .and_then(|(export, _)| export.access_of(peer))
            .is_some_and(|access| access.security <= security)
    })
}

/// Checks the name of a new or present entry. INVAL if it can never be one.
fn check_name(name: &[u8]) -> Step<()> {
    if name.len() > steadfast_vfs::NAME_MAX {
        Err(nfsstat3::NFS3ERR_NAMETOOLONG)
    } else if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        Err(nfsstat3::NFS3ERR_INVAL)
    } else {
        Ok(())
    }
}

/// `.` and `..`.
fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

/// Longest handle of the protocol.
const FH_BYTES_MAX: usize = nfs3_types::nfs3::NFS3_FHSIZE;

/// Reads a handle.
fn read_handle<'m>(args: &mut Decoder<'m>) -> Parsed<&'m [u8]> {
    args.opaque(FH_BYTES_MAX)
}

/// Reads a directory's handle and a name in it.
fn read_entry<'m>(args: &mut Decoder<'m>) -> Parsed<(&'m [u8], &'m [u8])> {
    Ok((read_handle(args)?, args.bytes()?))
}

/// Whether there is nothing to set.
fn is_nothing(set: &SetAttr) -> bool {
    *set == SetAttr {
        guard: set.guard,
        by_handle: set.by_handle,
        ..SetAttr::default()
    }
}
