//! From a record to its reply: header, credential, duplicate-request cache, procedure.
//!
//! Every call gets an answer: what no procedure takes, the answer that RPC has for it. A record that
//! is no call at all ends its connection.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use nfs3_types::mount::{self, MOUNT_PROGRAM};
use nfs3_types::nfs3::{self, NFS_PROGRAM, nfsstat3};
use nfs3_types::rpc::accept_stat_data;

use crate::auth;
use crate::connection::Connection;
use crate::exports::Table;
use crate::metrics::Metrics;
use crate::mountd::{self, Mounts};
use crate::procedures::{self, Context};
use crate::replay::{Cache, Key, Ticket, Verdict};
use crate::reply::Reply;
use crate::rpc::{self, Call, Message};

/// What is served, to whoever asks.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) table: Table,
    pub(crate) metrics: Arc<Metrics>,
    mounts: Mounts,
    replay: Cache,
}

/// What becomes of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The reply is ready.
    Reply,
    /// Another worker will send the reply.
    Later,
    /// The connection carries no RPC.
    Close,
}

/// Whether carrying a call out again would do something else, or undo what came after it.
fn once_only(procedure: NFS_PROGRAM) -> bool {
    use NFS_PROGRAM as P;
    matches!(
        procedure,
        P::NFSPROC3_SETATTR
            | P::NFSPROC3_WRITE
            | P::NFSPROC3_CREATE
            | P::NFSPROC3_MKDIR
            | P::NFSPROC3_SYMLINK
            | P::NFSPROC3_MKNOD
            | P::NFSPROC3_REMOVE
            | P::NFSPROC3_RMDIR
            | P::NFSPROC3_RENAME
            | P::NFSPROC3_LINK
    )
}

impl Service {
    pub(crate) fn new(table: Table, metrics: Arc<Metrics>) -> Service {
        Service {
            table,
            metrics,
            mounts: Mounts::default(),
            replay: Cache::default(),
        }
    }

    /// Answers a record that came over a connection.
    pub(crate) fn answer(
        &self,
        connection: &Arc<Connection>,
        record: &[u8],
        reply: &mut Reply,
    ) -> Outcome {
        let call = match rpc::read(record) {
            Ok(Message::Call(call)) => call,
            Ok(Message::WrongVersion { xid }) => {
                self.metrics.rejected_requests.fetch_add(1, Relaxed);
                rpc::wrong_version(reply, xid);
                return Outcome::Reply;
            }
            Err(_) => return Outcome::Close,
        };
        match (call.program, call.version) {
            (nfs3::PROGRAM, nfs3::VERSION) => self.nfs(connection, record, &call, reply),
            (mount::PROGRAM, mount::VERSION) => {
                self.mount(connection, &call, reply);
                Outcome::Reply
            }
            (program, _) => {
                let only = match program {
                    nfs3::PROGRAM => Some(nfs3::VERSION),
                    mount::PROGRAM => Some(mount::VERSION),
                    _ => None,
                };
                let why = match only {
                    Some(version) => accept_stat_data::PROG_MISMATCH {
                        low: version,
                        high: version,
                    },
                    None => accept_stat_data::PROG_UNAVAIL,
                };
                self.reject(&call, reply, why);
                Outcome::Reply
            }
        }
    }

    fn reject(&self, call: &Call<'_>, reply: &mut Reply, why: accept_stat_data) {
        self.metrics.rejected_requests.fetch_add(1, Relaxed);
        rpc::accepted(reply, call.xid, why);
    }

    fn nfs(
        &self,
        connection: &Arc<Connection>,
        record: &[u8],
        call: &Call<'_>,
        reply: &mut Reply,
    ) -> Outcome {
        let start = Instant::now();
        let Ok(procedure) = NFS_PROGRAM::try_from(call.procedure) else {
            self.reject(call, reply, accept_stat_data::PROC_UNAVAIL);
            return Outcome::Reply;
        };
        let ticket = if once_only(procedure) {
            let key = Key::of(connection.peer(), call.xid, call.procedure, record);
            match self.replay.ask(key, connection) {
                Verdict::New(ticket) => Some(ticket),
                Verdict::Again(known) => {
                    self.metrics.duplicates_answered.fetch_add(1, Relaxed);
                    reply.again(&known);
                    return Outcome::Reply;
                }
                Verdict::InProgress => {
                    self.metrics.duplicates_joined.fetch_add(1, Relaxed);
                    return Outcome::Later;
                }
            }
        } else {
            None
        };
        let status = self.run(connection, call, procedure, reply);
        let error = status != Some(nfsstat3::NFS3_OK);
        self.metrics.asked(procedure, start.elapsed(), error);
        if let Some(ticket) = ticket {
            share(ticket, reply);
        }
        Outcome::Reply
    }

    /// Runs a procedure of NFS; none if it did not get so far.
    fn run(
        &self,
        connection: &Arc<Connection>,
        call: &Call<'_>,
        procedure: NFS_PROGRAM,
        reply: &mut Reply,
    ) -> Option<nfsstat3> {
        let claimed = match auth::read(call.flavor, call.credential) {
            Ok(claimed) => claimed,
            Err(why) => {
                self.metrics.rejected_requests.fetch_add(1, Relaxed);
                rpc::not_authentic(reply, call.xid, why);
                return None;
            }
        };
        let cx = Context {
            table: &self.table,
            metrics: &self.metrics,
            peer: connection.peer(),
            claimed: &claimed,
        };
        rpc::accepted(reply, call.xid, accept_stat_data::SUCCESS);
        let mut args = call.args;
        match procedures::run(procedure, &cx, &mut args, reply) {
            Ok(status) => Some(status),
            Err(_) => {
                self.reject(call, reply, accept_stat_data::GARBAGE_ARGS);
                None
            }
        }
    }

    fn mount(&self, connection: &Arc<Connection>, call: &Call<'_>, reply: &mut Reply) {
        self.metrics.mount_requests.fetch_add(1, Relaxed);
        let Ok(procedure) = MOUNT_PROGRAM::try_from(call.procedure) else {
            return self.reject(call, reply, accept_stat_data::PROC_UNAVAIL);
        };
        if let Err(why) = auth::read(call.flavor, call.credential) {
            self.metrics.rejected_requests.fetch_add(1, Relaxed);
            return rpc::not_authentic(reply, call.xid, why);
        }
        rpc::accepted(reply, call.xid, accept_stat_data::SUCCESS);
        let (peer, mut args) = (connection.peer(), call.args);
        let ran = mountd::run(procedure, &self.table, &self.mounts, peer, &mut args, reply);
        if ran.is_err() {
            self.reject(call, reply, accept_stat_data::GARBAGE_ARGS);
        }
    }
}

/// Remembers a reply, and sends it to who asked again meanwhile.
fn share(ticket: Ticket<'_>, reply: &mut Reply) {
    let bytes = reply.finish();
    for waiting in ticket.done(bytes) {
        waiting.send_also(bytes);
    }
}
