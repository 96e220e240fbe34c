//! From a record to its reply: header, credential, duplicate-request cache, procedure.
//!
//! Every call gets an answer; if no procedure matches it, it gets the RPC error for that. A record that
//! is not a call ends its connection.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use nfs3_types::mount::{self, MOUNT_PROGRAM};
use nfs3_types::nfs3::{self, NFS_PROGRAM, nfsstat3};
use nfs3_types::rpc::{accept_stat_data, auth_stat};

use crate::auth::{self, AUTH_TLS};
use crate::clients::Client;
use crate::commits::{Unanswered, Waiting};
use crate::connection::Connection;
use crate::convert;
use crate::drc::{Cache, Key, Verdict};
use crate::exports::{Export, Table};
use crate::kept;
use crate::log::Log;
use crate::memory::{Account, Waiter};
use crate::metrics::Metrics;
use crate::mountd::{self, Mounts};
use crate::procedures::{self, Context, Debts};
use crate::reply::Reply;
use crate::rpc::{self, Call, Message};
use crate::security::Security;
use crate::volume::Volume;
use crate::watch::Watch;
use steadfast_vfs::Note;

/// The exports and caches of a server.
#[derive(Debug)]
pub(crate) struct Service {
    table: RwLock<Arc<Table>>,
    pub(crate) metrics: Arc<Metrics>,
    log: Arc<Log>,
    mounts: Mounts,
    pub(crate) drc: Cache,
    pub(crate) watch: Watch,
}

/// The outcome of a record.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The reply is ready.
    Reply,
    /// The reply is ready, and must wait for a commit of this volume.
    Owes(Arc<Volume>, Waiting),
    /// The reply is ready; TLS begins after it.
    BeginTls,
    /// Another thread will send the reply.
    Later,
    /// Nothing was done: the call would have to wait for the device.
    MustWait,
    /// The connection carries no RPC.
    Close,
}

/// Whether a procedure is non-idempotent: a second execution would differ, or undo later changes.
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
    pub(crate) fn new(
        table: Table,
        metrics: Arc<Metrics>,
        log: Arc<Log>,
        drc: Cache,
        watch: Watch,
    ) -> Service {
        Service {
            table: RwLock::new(Arc::new(table)),
            metrics,
            log,
            mounts: Mounts::default(),
            drc,
            watch,
        }
    }

    /// The present table of exports.
    pub(crate) fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the table of exports. Calls in progress keep the table with which they began.
    pub(crate) fn exchange(&self, table: Table) {
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    /// Answers a record from a connection. `in_memory`: only if it need not wait for the device.
    pub(crate) fn answer(
        &self,
        connection: &Arc<Connection>,
        record: &[u8],
        in_memory: bool,
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
            (nfs3::PROGRAM, nfs3::VERSION) | (mount::PROGRAM, mount::VERSION)
                if call.flavor == AUTH_TLS =>
            {
                self.begin_tls(connection, &call, reply)
            }
            (nfs3::PROGRAM, nfs3::VERSION) => self.nfs(connection, record, &call, in_memory, reply),
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

    /// A client requests TLS (RFC 9289, section 4.1): once, by NULL, with nothing else in the call.
    fn begin_tls(&self, connection: &Connection, call: &Call<'_>, reply: &mut Reply) -> Outcome {
        let null = call.procedure == NFS_PROGRAM::NFSPROC3_NULL as u32;
        // A handshake costs memory and time, so only clients of an export get one.
        let admitted = || self.table().admits(connection.peer());
        let plain = null && call.credential.is_empty();
        let why = if !connection.may_begin_tls() || !plain || !admitted() {
            auth_stat::AUTH_BADCRED
        } else if !call.unverified {
            auth_stat::AUTH_BADVERF
        } else {
            rpc::start_tls(reply, call.xid);
            return Outcome::BeginTls;
        };
        self.metrics.rejected_requests.fetch_add(1, Relaxed);
        rpc::not_authentic(reply, call.xid, why);
        Outcome::Reply
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
        in_memory: bool,
        reply: &mut Reply,
    ) -> Outcome {
        let since = Instant::now();
        let Ok(procedure) = NFS_PROGRAM::try_from(call.procedure) else {
            self.reject(call, reply, accept_stat_data::PROC_UNAVAIL);
            return Outcome::Reply;
        };
        let table = self.table();
        let mut noted = self.watch.begin(&table, connection, call, procedure, since);
        let mut key = None;
        let from = (connection.peer(), connection.security());
        // A call that no export admits changes nothing, so it takes no entry in the cache.
        if once_only(procedure) && procedures::is_admitted(&table, from.0, from.1, call.args) {
            let known = Key::of(from, call.xid, call.procedure, record);
            match self.drc.ask(known, connection, since) {
                Verdict::New => key = Some(known),
                Verdict::Again(known) => {
                    self.metrics.duplicates_answered.fetch_add(1, Relaxed);
                    self.watch.repeated(noted);
                    reply.again(&known);
                    return Outcome::Reply;
                }
                Verdict::InProgress => {
                    self.metrics.duplicates_joined.fetch_add(1, Relaxed);
                    self.watch.repeated(noted);
                    return Outcome::Later;
                }
            }
        }
        let debts = Debts::default();
        let volume = procedures::volume_of(&table, call.args);
        let note = key
            .filter(|_| volume.is_some_and(|volume| volume.keeps_replies()))
            .map(|key| Note::new(kept::encode(&key, None)));
        let mut status = None;
        let client = noted.client.clone();
        let from = (call, client.as_deref());
        let left = (&debts, note.as_ref());
        let mut run = || status = self.run(&table, connection, from, procedure, left, reply);
        match volume.filter(|_| in_memory) {
            Some(volume) if !volume.fs().in_memory(&mut run) => return Outcome::MustWait,
            Some(_) => {}
            None => run(),
        }
        let failed = status != Some(nfsstat3::NFS3_OK);
        match (&note, &key) {
            (Some(note), Some(key)) if !failed => {
                note.replace(kept::encode(key, Some(reply.finish())));
                note.whole();
            }
            (Some(note), _) => note.in_parts(),
            (None, _) => {}
        }
        if let Some(volume) = volume.filter(|volume| key.is_some() && volume.sync_always()) {
            // Also for partial effects of a failed call.
            debts.owe_everything(volume);
        }
        noted.set_outcome(status);
        if let Some((volume, wanted)) = debts.take() {
            let call = Unanswered {
                connection: Arc::clone(connection),
                xid: call.xid,
                procedure,
                since,
                failed,
                key,
                noted,
            };
            let reply = reply.finish().to_vec();
            connection.budget.add(Account::Working, reply.len());
            let waiting = Waiting {
                call,
                wanted,
                reply,
            };
            return Outcome::Owes(volume, waiting);
        }
        self.metrics.asked(procedure, since.elapsed(), failed);
        self.watch.end(noted, None);
        if let Some(key) = key {
            self.remember(key, reply.finish());
        }
        Outcome::Reply
    }

    /// Caches a reply, and sends it to a client that has retransmitted the call meanwhile.
    fn remember(&self, key: Key, record: &[u8]) {
        for waiting in self.drc.done(key, record, Instant::now()) {
            waiting.send_also(record);
        }
    }

    /// Commits the changes of a batch of calls, and answers them. `reply` is the buffer for replies of failed calls.
    pub(crate) fn commit(&self, volume: &Volume, mut batch: Vec<Waiting>, reply: &mut Reply) {
        let mut wanted: Vec<_> = batch
            .iter()
            .flat_map(|w| w.wanted.iter().copied())
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        let synced = volume.sync(&wanted);
        // Replies to one connection leave together.
        batch.sort_by_key(|waiting| waiting.call.connection.token());
        let mut bytes = Vec::new();
        let same = |one: &Waiting, other: &Waiting| {
            Arc::ptr_eq(&one.call.connection, &other.call.connection)
        };
        for calls in batch.chunk_by_mut(same) {
            bytes.clear();
            let mut held = 0;
            for Waiting {
                call,
                reply: record,
                ..
            } in &mut *calls
            {
                held += record.len();
                if let Err(e) = &synced {
                    rpc::accepted(reply, call.xid, accept_stat_data::SUCCESS);
                    procedures::fail_late(call.procedure, convert::status(e), reply);
                    record.clear();
                    record.extend_from_slice(reply.finish());
                } else if call.procedure == NFS_PROGRAM::NFSPROC3_COMMIT && !call.failed {
                    procedures::verify_again(volume, record);
                }
                let failed = call.failed || synced.is_err();
                self.metrics
                    .asked(call.procedure, call.since.elapsed(), failed);
                let noted = std::mem::take(&mut call.noted);
                self.watch
                    .end(noted, synced.as_ref().err().map(convert::status));
                if let Some(key) = call.key {
                    self.remember(key, record);
                }
                bytes.extend_from_slice(record);
            }
            if let [first, ..] = &*calls {
                let connection = &first.call.connection;
                connection.budget.sub(Account::Working, held);
                connection.finish(calls.len() as u32, &bytes, 0);
            }
        }
    }

    /// Runs a procedure of NFS; none if the call did not reach the procedure.
    fn run(
        &self,
        table: &Table,
        connection: &Arc<Connection>,
        (call, client): (&Call<'_>, Option<&Client>),
        procedure: NFS_PROGRAM,
        (debts, note): (&Debts, Option<&Arc<Note>>),
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
            table,
            metrics: &self.metrics,
            peer: connection.peer(),
            security: connection.security(),
            wanted_more: Cell::new(None),
            claimed: &claimed,
            client,
            debts,
            note,
        };
        rpc::accepted(reply, call.xid, accept_stat_data::SUCCESS);
        let mut args = call.args;
        let ran = procedures::run(procedure, &cx, &mut args, reply);
        if let Some(wanted) = cx.wanted_more.get() {
            self.too_weak(connection, call, wanted, reply);
            return None;
        }
        match ran {
            Ok(status) => Some(status),
            Err(_) => {
                self.reject(call, reply, accept_stat_data::GARBAGE_ARGS);
                None
            }
        }
    }

    /// Refuses a call because the connection is less protected than the export requires.
    fn too_weak(
        &self,
        connection: &Connection,
        call: &Call<'_>,
        (export, security): (&Export, Security),
        reply: &mut Reply,
    ) {
        self.metrics.refused_insecure.fetch_add(1, Relaxed);
        rpc::not_authentic(reply, call.xid, auth_stat::AUTH_TOOWEAK);
        let (what, option) = match security {
            Security::Mtls => ("TLS with the client's certificate", "xprtsec=mtls"),
            _ => ("TLS", "xprtsec=tls"),
        };
        let (client, path) = (connection.peer().ip().to_canonical(), &export.path);
        self.log.say(format!(
            "{client} was refused: export '{path}' wants {what}; mount it with -o {option}"
        ));
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
        let (table, peer, mut args) = (self.table(), connection.peer(), call.args);
        match mountd::run(procedure, &table, &self.mounts, peer, &mut args, reply) {
            Ok(status) => self
                .watch
                .mount(&table, connection, call, procedure, status),
            Err(_) => self.reject(call, reply, accept_stat_data::GARBAGE_ARGS),
        }
    }
}
