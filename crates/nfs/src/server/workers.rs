//! Workers: a worker takes the call of an event, answers it, and leads commits.
//!
//! A call that may wait for the device takes a slot first ([`crate::slots`]); a reply that needs a commit goes to the volume's
//! queue ([`crate::commits`]). A worker that is about to wait announces it ([`crate::events`]).

use super::Shared;
use crate::connection::{BUFFER_BYTES, Connection, Record, Taken};
use crate::dispatch::Outcome;
use crate::ending::Ending as Closing;
use crate::events::Turn;
use crate::reactor::STOP;
use crate::reply::Reply;
use crate::rpc::{self, Waits};
use crate::volume::Volume;
use rustix::event::epoll::EventFlags;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use steadfast_vfs::Shutdown;

/// A changing call that takes longer than this has waited for the device. The next calls are then expected to wait, too.
const WAITED: Duration = Duration::from_micros(200);
const CALLS_LIKE_IT: u32 = 16;

/// The outcome of a call.
enum Answered {
    Yes,
    /// Its reply waits for a commit, and the worker now leads the commits of this volume.
    Leads(Arc<Volume>),
    /// It cannot be answered from memory. Nothing was done.
    No,
}

/// State of a worker between events.
struct Worker {
    buffer: Vec<u8>,
    reply: Reply,
}

/// A call that waits for a worker. Its record is counted as `Working` memory.
#[derive(Debug)]
pub(super) struct Parked {
    connection: Arc<Connection>,
    record: Vec<u8>,
    reply_bytes: usize,
}

impl Parked {
    /// Lets any worker take the call from its connection again. False if the connection is closed.
    fn again(self) -> bool {
        self.connection.put_back(self.record, self.reply_bytes)
    }
}

impl Shared {
    /// The loop of a worker.
    pub(super) fn work(&self) {
        let mut worker = Worker {
            buffer: Vec::with_capacity(BUFFER_BYTES),
            reply: Reply::default(),
        };
        let mut turn = Turn::default();
        while let Some(event) = self.reactor.events.next(&mut turn) {
            let (token, flags) = (event.data.u64(), event.flags);
            match token {
                STOP => {}
                token => {
                    if let Some(connection) = self.reactor.get(token) {
                        self.serve(&connection, flags, &mut worker);
                    }
                }
            }
        }
    }

    /// Handles an event of a connection.
    fn serve(&self, connection: &Arc<Connection>, flags: EventFlags, worker: &mut Worker) {
        let Some(taken) = connection.ready(flags, &mut worker.buffer) else {
            return;
        };
        let (reply_bytes, reply) = (taken.reply_bytes, &mut worker.reply);
        let call = (taken.record.as_ref(), reply_bytes);
        let waits = rpc::waits(call.0);
        let answered = match waits {
            Waits::Never => self.answer(connection, call, false, reply),
            Waits::Likely => Answered::No,
            Waits::Perhaps if !self.slots.begin_trial() => {
                return self.defer(connection, taken);
            }
            Waits::Perhaps => {
                let answered = self.answer(connection, call, true, reply);
                self.slots.end_trial();
                self.resume();
                answered
            }
        };
        match answered {
            Answered::Yes => return connection.served(taken.record),
            Answered::Leads(volume) => {
                self.lead(&volume, reply);
                return connection.served(taken.record);
            }
            Answered::No => {}
        }
        if self.slots.take() {
            self.answer_with_slot(connection, call, waits, reply);
            connection.served(taken.record);
        } else {
            let parked = self.keep(connection, taken);
            let Some(parked) = parked.and_then(|parked| self.slots.park(parked)) else {
                return;
            };
            self.serve_parked(parked, reply);
        }
        while let Some(parked) = self.slots.next() {
            self.serve_parked(parked, reply);
        }
        self.resume();
    }

    /// Answers a call that may wait for the device.
    fn answer_with_slot(
        &self,
        connection: &Arc<Connection>,
        call: (&[u8], usize),
        waits: Waits,
        reply: &mut Reply,
    ) {
        // A call that could not be answered from memory will wait; other calls probably wait if the last ones did.
        let away = (waits == Waits::Perhaps || self.waits.load(Relaxed) > 0)
            .then(|| self.reactor.events.away());
        if away.is_none() {
            self.reactor.events.covered();
        }
        let since = Instant::now();
        let answered = self.answer(connection, call, false, reply);
        if waits == Waits::Likely {
            let left = match since.elapsed() > WAITED {
                true => CALLS_LIKE_IT,
                false => self.waits.load(Relaxed).saturating_sub(1),
            };
            self.waits.store(left, Relaxed);
        }
        drop(away);
        if let Answered::Leads(volume) = answered {
            self.lead(&volume, reply);
        }
    }

    /// Keeps a call for later; none if there is no memory for it.
    fn keep(&self, connection: &Arc<Connection>, taken: Taken<'_>) -> Option<Parked> {
        Some(Parked {
            connection: Arc::clone(connection),
            record: connection.keep(taken.record, taken.reply_bytes)?,
            reply_bytes: taken.reply_bytes,
        })
    }

    /// Defers a call that no worker may try now.
    fn defer(&self, connection: &Arc<Connection>, taken: Taken<'_>) {
        let parked = self.keep(connection, taken);
        if let Some(parked) = parked.and_then(|parked| self.slots.defer(parked)) {
            parked.again();
        }
    }

    /// Lets a worker try the next deferred call.
    fn resume(&self) {
        while let Some(parked) = self.slots.resume() {
            if parked.again() {
                return;
            }
        }
    }

    fn serve_parked(&self, parked: Parked, reply: &mut Reply) {
        let Parked {
            connection,
            record,
            reply_bytes,
        } = parked;
        let waits = rpc::waits(&record);
        self.answer_with_slot(&connection, (&record, reply_bytes), waits, reply);
        connection.served(Record::Own(record));
    }

    /// Answers a call.
    fn answer(
        &self,
        connection: &Arc<Connection>,
        (record, reply_bytes): (&[u8], usize),
        in_memory: bool,
        reply: &mut Reply,
    ) -> Answered {
        let mut answered = Answered::Yes;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.service.answer(connection, record, in_memory, reply)
        }));
        match outcome {
            Ok(Outcome::MustWait) => return Answered::No,
            Ok(Outcome::Reply) => connection.finish(1, reply.finish(), reply_bytes),
            Ok(Outcome::Owes(volume, waiting)) => {
                // A changing call never has a long reply, so there is no memory to give back.
                if volume.commits.push(waiting) {
                    answered = Answered::Leads(volume);
                }
            }
            Ok(Outcome::BeginTls) => connection.begin_tls(reply.finish()),
            Ok(Outcome::Later) => connection.finish(1, &[], reply_bytes),
            Ok(Outcome::Close) => {
                connection.end(Closing::Garbage);
                connection.finish(1, &[], reply_bytes);
            }
            Err(payload) => {
                self.fail(&*payload);
                connection.close();
                connection.finish(1, &[], reply_bytes);
            }
        }
        if rpc::may_begin_tls(record) {
            connection.read_on();
        }
        answered
    }

    /// Leads the commits of a volume until no reply waits.
    fn lead(&self, volume: &Volume, reply: &mut Reply) {
        let _away = self.reactor.events.away();
        loop {
            let batch = volume.commits.next();
            if batch.is_empty() {
                return;
            }
            let committed = catch_unwind(AssertUnwindSafe(|| {
                self.service.commit(volume, batch, reply);
            }));
            if let Err(payload) = committed {
                self.fail(&*payload);
            }
        }
    }

    /// Ends the server after a panic.
    fn fail(&self, payload: &(dyn std::any::Any + Send)) {
        let said = payload
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        // From now on no reply is sent: results of other calls on the failing volume may be wrong.
        self.reactor.abort();
        // No thread may commit what the call left half done.
        for volume in &self.service.table().volumes {
            let _ = volume.fs().shutdown(Shutdown::Nothing);
        }
        self.want_end(Some(said));
    }
}
