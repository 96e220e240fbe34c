//! Records of calls for administrators: counters by client, and the access log.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use nfs3_types::mount::{MOUNT_PROGRAM, mountstat3};
use nfs3_types::nfs3::{NFS_PROGRAM, nfsstat3};

use crate::access_log::{AccessLog, quoted, stamp};
use crate::auth::{self, Claimed};
use crate::clients::{Client, Clients};
use crate::connection::Connection;
use crate::exports::Table;
use crate::handles::Unproved;
use crate::metrics;
use crate::noted::{Line, Noted};
use crate::rpc::Call;

/// Longest handle of the protocol.
const FH_BYTES_MAX: usize = nfs3_types::nfs3::NFS3_FHSIZE;

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    pub(crate) clients: Clients,
    log: Option<AccessLog>,
}

impl Watch {
    pub(crate) fn new(log: Option<AccessLog>) -> Watch {
        Watch {
            clients: Clients::default(),
            log,
        }
    }

    fn client_of(
        &self,
        table: &Table,
        connection: &Connection,
        now: Instant,
    ) -> Option<Arc<Client>> {
        let peer = connection.peer();
        self.clients.of(peer.ip(), now, || table.admits(peer))
    }

    /// A call of NFS.
    pub(crate) fn begin(
        &self,
        table: &Table,
        connection: &Connection,
        call: &Call<'_>,
        procedure: NFS_PROGRAM,
        now: Instant,
    ) -> Noted {
        let line = self.log.is_some().then(|| {
            let mut line = head(connection, metrics::name_of(procedure));
            let mut args = call.args;
            let handle = args.opaque(FH_BYTES_MAX).ok().and_then(Unproved::read);
            if let Some(handle) = handle.filter(|_| procedure != NFS_PROGRAM::NFSPROC3_NULL) {
                let named = handle.named;
                if let Some((export, _)) = table.by_id(named.export) {
                    line.push_str(&format!(" export={}", quoted(export.path.as_bytes())));
                }
                line.push_str(&format!(" handle={}.{}", named.ino, named.generation));
                if takes_name(procedure)
                    && let Ok(name) = args.bytes()
                {
                    line.push_str(&format!(" name={}", quoted(name)));
                }
            }
            line.push_str(&user(call));
            Box::new(Line {
                text: line,
                since: now,
            })
        });
        Noted {
            client: self.client_of(table, connection, now),
            line,
            status: None,
        }
    }

    /// The end of a call; `failed` if its commit failed.
    pub(crate) fn end(&self, noted: Noted, failed: Option<nfsstat3>) {
        let status = failed.or(noted.status);
        self.finish(noted, status.is_none_or(|s| s != nfsstat3::NFS3_OK), || {
            status.map_or_else(
                || "REJECTED".to_owned(),
                |status| word(&format!("{status:?}")),
            )
        });
    }

    /// A call that was or will be answered from the duplicate request cache.
    pub(crate) fn repeated(&self, noted: Noted) {
        self.finish(noted, false, || "REPEATED".to_owned());
    }

    fn finish(&self, noted: Noted, failed: bool, status: impl FnOnce() -> String) {
        if let Some(client) = &noted.client {
            client.called(failed);
        }
        if let (Some(log), Some(line)) = (&self.log, noted.line) {
            let (text, us) = (line.text, line.since.elapsed().as_micros());
            log.put(format!("{text} status={} us={us}", status()));
        }
    }

    /// A call of the MOUNT program.
    pub(crate) fn mount(
        &self,
        table: &Table,
        connection: &Connection,
        call: &Call<'_>,
        procedure: MOUNT_PROGRAM,
        status: mountstat3,
    ) {
        let is_ok = matches!(status, mountstat3::MNT3_OK);
        let mounts = matches!(procedure, MOUNT_PROGRAM::MOUNTPROC3_MNT);
        if mounts
            && is_ok
            && let Some(client) = self.client_of(table, connection, Instant::now())
        {
            client.mounts.fetch_add(1, Relaxed);
        }
        if let Some(log) = &self.log {
            let name = format!("{procedure:?}").replace("MOUNTPROC3_", "MOUNT_");
            let mut line = head(connection, &name);
            let mut args = call.args;
            if let Ok(path) = args.bytes() {
                line.push_str(&format!(" path={}", quoted(path)));
            }
            let status = word(&format!("{status:?}"));
            log.put(format!("{line}{} status={status}", user(call)));
        }
    }
}

fn head(connection: &Connection, procedure: &str) -> String {
    let peer = connection.peer();
    let peer = std::net::SocketAddr::new(peer.ip().to_canonical(), peer.port());
    format!("{} {peer} {procedure}", stamp(SystemTime::now()))
}

fn user(call: &Call<'_>) -> String {
    match auth::read(call.flavor, call.credential) {
        Ok(Claimed::User { uid, gid, .. }) => format!(" uid={uid} gid={gid}"),
        Ok(Claimed::Nobody) | Err(_) => String::new(),
    }
}

/// A status without its prefix.
fn word(status: &str) -> String {
    let bare = ["NFS3ERR_", "NFS3_", "MNT3ERR_", "MNT3_"];
    let mut bare = bare.iter().filter_map(|prefix| status.strip_prefix(prefix));
    bare.next().unwrap_or(status).to_owned()
}

/// Whether a name follows the first handle.
fn takes_name(procedure: NFS_PROGRAM) -> bool {
    use NFS_PROGRAM as P;
    matches!(
        procedure,
        P::NFSPROC3_LOOKUP
            | P::NFSPROC3_CREATE
            | P::NFSPROC3_MKDIR
            | P::NFSPROC3_SYMLINK
            | P::NFSPROC3_MKNOD
            | P::NFSPROC3_REMOVE
            | P::NFSPROC3_RMDIR
            | P::NFSPROC3_RENAME
    )
}
