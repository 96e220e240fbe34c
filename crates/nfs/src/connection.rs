//! One client's connection: records in, replies out. No worker blocks on it.
//!
//! One worker at a time reads: the worker with the event takes one record and serves it. If there may be more to read, it
//! posts an event for another worker first, so that calls of one connection run concurrently. One worker at a time writes
//! replies, without blocking; bytes that the client does not take are kept. A connection is not read while too many of its
//! calls, or too many bytes of its replies, are in progress.
//!
//! *Memory*: see `memory` and `input`. *Time*: a record has one deadline, from its first byte to its last. A TLS handshake has
//! one, too, and so has every [`STALL_BYTES`] of waiting replies.
//!
//! *TLS*: see `handshake`. Replies are sealed under the lock of the state, so the order of sealing is the order of sending.
//!
//! Invariants: a closed connection is removed from the registry, its socket is shut down, and its memory is given back except
//! that of its calls; `Reading::Busy` belongs to one worker; no thread holds a connection's lock while it closes another one.

mod handshake;
mod input;

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::ending::Ending;
use crate::memory::{Account, Budget, Waiter};
use crate::reactor::Reactor;
use crate::record::Assembler;
use crate::rpc;
use crate::security::Security;
use crate::tls::Session;
use input::{Input, Received};

/// Bytes of a worker's buffer: a WRITE of 64 KiB fits.
pub(crate) const BUFFER_BYTES: usize = 72 << 10;
/// Bytes of replies that a client has to take within the stall time, unless it takes all.
const STALL_BYTES: usize = 64 << 10;
/// Memory of an idle connection.
const BASE_BYTES: usize = 2 << 10;
/// Limits of a client that no export admits.
const GUEST_RECORD_BYTES: usize = 4 << 10;
const GUEST_CALLS: u32 = 16;

/// A record that was read.
#[derive(Debug)]
pub(crate) enum Record<'w> {
    /// In the worker's buffer.
    Here(&'w [u8]),
    /// In a buffer of its own.
    Own(Vec<u8>),
}

impl AsRef<[u8]> for Record<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Record::Here(bytes) => bytes,
            Record::Own(bytes) => bytes,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    /// Any worker may take the next event.
    Idle,
    /// A worker reads.
    Busy,
    /// Reading is paused until replies are taken, calls are done, or memory is given back.
    Paused,
}

#[derive(Debug)]
struct State {
    reading: Reading,
    /// An event came while a worker was reading.
    again: bool,
    /// The client has shut down its side of the stream: read all that is left.
    hangup: bool,
    /// The client's stream was read to its end.
    ended: bool,
    closed: bool,
    /// A call may begin TLS: do not read before its answer.
    tls_pending: bool,
    in_flight: u32,
    /// Upper bound on the bytes of replies in progress.
    reply_bytes: usize,
    /// Complete records that were read together with another.
    queue: VecDeque<Vec<u8>>,
    /// Unsent replies; of the first, `sent` bytes are sent.
    unsent: VecDeque<Vec<u8>>,
    sent: usize,
    unsent_bytes: usize,
    /// A worker writes to the socket: others append to `unsent`.
    sending: bool,
    /// Arrival time of the first byte of the present record, moved by the time without reading.
    record_since: Option<Instant>,
    paused_since: Instant,
    handshake_since: Option<Instant>,
    /// Time since which replies wait, or at which the client last took [`STALL_BYTES`] of them, and bytes taken since.
    stalled_since: Instant,
    taken: usize,
    used_at: Instant,
    calls: u32,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Connection {
    reactor: Arc<Reactor>,
    token: u64,
    stream: TcpStream,
    peer: SocketAddr,
    guest: bool,
    since: Instant,
    pub(crate) budget: Budget,
    /// Input; only the reading worker uses it.
    input: Mutex<Input>,
    state: Mutex<State>,
    /// If set, all bytes pass through it. Locked after the state, never before.
    tls: OnceLock<Session>,
}

/// A call that was taken.
#[derive(Debug)]
pub(crate) struct Taken<'w> {
    pub(crate) record: Record<'w>,
    /// Most bytes of its reply; 0 if they are few.
    pub(crate) reply_bytes: usize,
}

impl Waiter for Connection {
    fn token(&self) -> u64 {
        self.token
    }

    fn post(&self) {
        self.reactor
            .events
            .post(&self.stream, self.token, Connection::EVENTS);
    }
}

impl Connection {
    /// Events for which a connection is registered.
    pub(crate) const EVENTS: EventFlags = EventFlags::IN
        .union(EventFlags::OUT)
        .union(EventFlags::RDHUP)
        .union(EventFlags::ET);

    pub(crate) fn new(
        reactor: Arc<Reactor>,
        token: u64,
        stream: TcpStream,
        (peer, guest): (SocketAddr, bool),
        budget: Budget,
    ) -> Arc<Connection> {
        let now = Instant::now();
        let record_bytes = reactor.limits.record_bytes;
        let record_bytes = if guest {
            record_bytes.min(GUEST_RECORD_BYTES)
        } else {
            record_bytes
        };
        budget.add(Account::Base, BASE_BYTES);
        Arc::new(Connection {
            reactor,
            token,
            stream,
            peer,
            guest,
            since: now,
            budget,
            input: Mutex::new(Input {
                record_bytes,
                assembler: Assembler::new(record_bytes),
                part_of_tls: false,
                counted: 0,
            }),
            state: Mutex::new(State {
                reading: Reading::Idle,
                again: false,
                hangup: false,
                ended: false,
                closed: false,
                tls_pending: false,
                in_flight: 0,
                reply_bytes: 0,
                queue: VecDeque::new(),
                unsent: VecDeque::new(),
                sent: 0,
                unsent_bytes: 0,
                sending: false,
                record_since: None,
                paused_since: now,
                handshake_since: None,
                stalled_since: now,
                taken: 0,
                used_at: now,
                calls: 0,
            }),
            tls: OnceLock::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn input(&self) -> MutexGuard<'_, Input> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The client's address.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// No export admitted the client when it connected.
    pub(crate) fn is_guest(&self) -> bool {
        self.guest
    }

    /// Time of its last use; a connection with work in progress is in use now.
    pub(crate) fn last_used(&self) -> Instant {
        let state = self.state();
        if state.in_flight > 0 {
            Instant::now()
        } else {
            state.used_at
        }
    }

    // ---- records in -----------------------------------------------------------------------

    /// Handles an event. Returns the call that this worker must serve, if there is one.
    pub(crate) fn ready<'w>(
        self: &Arc<Self>,
        flags: EventFlags,
        buffer: &'w mut Vec<u8>,
    ) -> Option<Taken<'w>> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) || !self.flush(&mut state) {
            self.close_with(&mut state, Ending::Gone);
            return None;
        }
        state.hangup |= flags.contains(EventFlags::RDHUP);
        if state.reading == Reading::Busy {
            state.again = true;
            return None;
        }
        if self.must_pause(&state) || self.reactor.is_stopping() {
            pause(&mut state);
            return None;
        }
        resume(&mut state);
        state.reading = Reading::Busy;
        state.again = false;
        let mut received = Received::nothing();
        received.record = state.queue.pop_front().map(Record::Own);
        if received.record.is_none() {
            if state.ended {
                state.reading = Reading::Idle;
                self.settle(&mut state);
                return None;
            }
            let hangup = state.hangup;
            drop(state);
            received = match self.receive(buffer, hangup) {
                Ok(received) => received,
                Err(ending) => {
                    self.end(ending);
                    self.forget_input();
                    return None;
                }
            };
            self.reactor.make_room(0, self);
            state = self.state();
        }
        self.take(state, received)
    }

    /// Starts a call, or leaves it for later; wakes another worker if there is more to do.
    fn take<'w>(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        received: Received<'w>,
    ) -> Option<Taken<'w>> {
        if state.closed {
            drop(state);
            self.forget_input();
            return None;
        }
        state.reading = Reading::Idle;
        state.used_at = Instant::now();
        state.ended |= received.end;
        state.queue.extend(received.more);
        match received.part {
            Some(true) if received.record.is_none() && state.record_since.is_some() => {}
            Some(part) => state.record_since = part.then(Instant::now),
            None => {}
        }
        let taken = received.record.map(|record| {
            let reply_bytes = rpc::reply_bytes_max(record.as_ref());
            if let Record::Own(bytes) = &record {
                self.budget.sub(Account::Arriving, bytes.capacity());
                self.budget.add(Account::Working, bytes.capacity());
            }
            state.in_flight += 1;
            state.calls += 1;
            state.reply_bytes += reply_bytes;
            state.tls_pending = self.may_begin_tls() && rpc::may_begin_tls(record.as_ref());
            Taken {
                record,
                reply_bytes,
            }
        });
        if received.starved {
            pause(&mut state);
            drop(state);
            self.reactor.memory.wait(Arc::<Connection>::clone(self));
            return taken;
        }
        let rest = !received.drained || state.again || state.hangup || !state.queue.is_empty();
        if self.must_pause(&state) {
            pause(&mut state);
        } else if rest && !(state.ended && state.queue.is_empty()) {
            self.post();
        }
        self.settle(&mut state);
        taken
    }

    /// A call has ended: its record is freed.
    pub(crate) fn served(&self, record: Record<'_>) {
        if let Record::Own(bytes) = record {
            let held = bytes.capacity();
            self.reactor.memory.recycle(bytes);
            self.budget.sub(Account::Working, held);
        }
    }

    /// Keeps the record of a call that waits for a worker. None if there is no memory for it: then the call is served later.
    pub(crate) fn keep(
        self: &Arc<Self>,
        record: Record<'_>,
        reply_bytes: usize,
    ) -> Option<Vec<u8>> {
        match record {
            Record::Own(bytes) => Some(bytes),
            Record::Here(bytes) => {
                if self.budget.try_add(Account::Working, bytes.len()) {
                    return Some(bytes.to_vec());
                }
                if self.untake(bytes.to_vec(), reply_bytes) {
                    self.reactor.memory.wait(Arc::<Connection>::clone(self));
                }
                None
            }
        }
    }

    /// Puts a kept call back to be taken again. False if the connection is closed.
    pub(crate) fn put_back(&self, record: Vec<u8>, reply_bytes: usize) -> bool {
        self.budget.sub(Account::Working, record.capacity());
        let open = self.untake(record, reply_bytes);
        if open {
            self.post();
        }
        open
    }

    /// Makes a call the next one to be taken. False if the connection is closed.
    fn untake(&self, record: Vec<u8>, reply_bytes: usize) -> bool {
        let mut state = self.state();
        state.in_flight -= 1;
        state.calls -= 1;
        state.reply_bytes -= reply_bytes;
        if state.closed {
            return false;
        }
        self.budget.add(Account::Arriving, record.capacity());
        state.queue.push_front(record);
        // Its event is posted now, or when there is memory.
        resume(&mut state);
        true
    }

    fn must_pause(&self, state: &State) -> bool {
        let replies = state.reply_bytes + state.unsent_bytes;
        let in_flight_max = match self.guest {
            true => 1,
            false => self.reactor.limits.in_flight,
        };
        state.tls_pending
            || state.in_flight >= in_flight_max
            || replies > self.reactor.limits.reply_bytes
            || (self.guest && state.calls >= GUEST_CALLS)
    }

    /// Resumes reading if there is room again.
    fn unpause(&self, state: &mut State) {
        if state.reading == Reading::Paused && !self.must_pause(state) && !state.closed {
            resume(state);
            self.post();
        }
    }

    /// Closes the connection if it has nothing more to do.
    fn settle(&self, state: &mut State) {
        let all_read = state.ended && state.queue.is_empty() && state.reading != Reading::Busy;
        let done = all_read || (self.guest && state.calls >= GUEST_CALLS);
        if done && state.in_flight == 0 && state.unsent_bytes == 0 && !state.sending {
            self.close_with(state, Ending::Gone);
        }
    }

    // ---- replies out ----------------------------------------------------------------------

    /// Ends this number of calls, with their replies if they have any. `reply_bytes` is the value in [`Taken`].
    pub(crate) fn finish(&self, calls: u32, replies: &[u8], reply_bytes: usize) {
        if !replies.is_empty() && !self.reactor.may_answer() {
            self.close();
        }
        // A long reply may have to be kept: its memory is reserved and allocated before.
        let counted = match replies.len() > STALL_BYTES {
            true => self.reactor.memory.buffer_bytes,
            false => 0,
        };
        if counted > 0 {
            self.budget.add(Account::Working, counted);
            self.reactor.make_room(0, self);
        }
        self.end_calls(calls, replies, reply_bytes);
        self.budget.sub(Account::Working, counted);
    }

    fn end_calls(&self, calls: u32, replies: &[u8], reply_bytes: usize) {
        let mut state = self.state();
        state.in_flight -= calls;
        state.reply_bytes -= reply_bytes;
        if state.closed {
            return;
        }
        state.used_at = Instant::now();
        self.send(state, replies);
    }

    /// Sends a reply to a retransmitted call, with the answer of the original one.
    pub(crate) fn send_also(&self, reply: &[u8]) {
        if !self.reactor.may_answer() {
            return self.close();
        }
        let state = self.state();
        if !state.closed {
            self.send(state, reply);
        }
    }

    /// Sends, through TLS if it has begun.
    fn send<'a>(&'a self, mut state: MutexGuard<'a, State>, reply: &[u8]) {
        if self.reactor.is_aborted() {
            return self.close_with(&mut state, Ending::Gone);
        }
        match self.tls.get().map(|tls| tls.seal(reply)) {
            None => self.transmit(state, reply),
            Some(Some(wire)) => self.transmit(state, &wire),
            Some(None) => self.close_with(&mut state, Ending::Garbage),
        }
    }

    /// Writes, and keeps the bytes that the client does not take. The lock is not held meanwhile: the next call may arrive
    /// before the kernel is done with the reply.
    fn transmit<'a>(&'a self, mut state: MutexGuard<'a, State>, reply: &[u8]) {
        let mut rest = reply;
        let first = !state.sending && state.unsent_bytes == 0;
        if !reply.is_empty() && first {
            state.sending = true;
            drop(state);
            let written = self.write(reply);
            state = self.state();
            state.sending = false;
            if state.closed {
                return;
            }
            match written {
                Ok(len) => rest = &reply[len..],
                Err(_) => return self.close_with(&mut state, Ending::Gone),
            }
        }
        if !rest.is_empty() {
            if state.unsent_bytes == 0 {
                (state.stalled_since, state.taken) = (Instant::now(), 0);
            }
            let mut kept = match rest.len() > STALL_BYTES {
                true => self.reactor.memory.buffer(),
                false => Vec::with_capacity(rest.len()),
            };
            kept.extend_from_slice(rest);
            state.unsent_bytes += rest.len();
            self.budget.add(Account::Unsent, kept.capacity());
            // Bytes that others left meanwhile come after it.
            match first {
                true => state.unsent.push_front(kept),
                false => state.unsent.push_back(kept),
            }
        }
        // The last writer writes the bytes that others left. Room that appeared before they were left made no event, so
        // try once more.
        if first && !self.flush(&mut state) {
            return self.close_with(&mut state, Ending::Gone);
        }
        self.unpause(&mut state);
        self.settle(&mut state);
        drop(state);
        if !rest.is_empty() {
            self.reactor.make_room(0, self);
        }
    }

    /// Writes as much as the kernel takes.
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut written = 0;
        while written < bytes.len() {
            match send(
                &self.stream,
                &bytes[written..],
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            ) {
                Ok(len) => written += len,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(written)
    }

    /// Writes kept replies. False if the connection is broken.
    fn flush(&self, state: &mut State) -> bool {
        if state.sending {
            return true;
        }
        while let Some(first) = state.unsent.front() {
            let len = first.len();
            let Ok(written) = self.write(&first[state.sent..]) else {
                return false;
            };
            state.sent += written;
            state.unsent_bytes -= written;
            state.taken += written;
            if state.sent < len {
                break;
            }
            state.sent = 0;
            if let Some(taken) = state.unsent.pop_front() {
                let held = taken.capacity();
                self.reactor.memory.recycle(taken);
                self.budget.sub(Account::Unsent, held);
            }
        }
        if state.taken >= STALL_BYTES {
            (state.stalled_since, state.taken) = (Instant::now(), 0);
        }
        true
    }

    // ---- the end --------------------------------------------------------------------------

    /// Closes it if a deadline has passed: of a record, a handshake, the taking of replies, or a guest's stay.
    pub(crate) fn look_after(&self, now: Instant) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let limits = &self.reactor.limits;
        let over = |since: Instant, time: Duration| now.saturating_duration_since(since) > time;
        // While nothing is read, nothing arrives.
        let idle = state.reading == Reading::Idle;
        let record = state
            .record_since
            .is_some_and(|since| idle && over(since, limits.record_time));
        let handshake = state
            .handshake_since
            .is_some_and(|since| over(since, limits.handshake_time));
        let stalled = state.unsent_bytes > 0 && over(state.stalled_since, limits.stall_time);
        let guest = self.guest && over(self.since, limits.guest_time);
        if record || handshake || stalled || guest {
            self.close_with(&mut state, Ending::Slow);
        }
    }

    /// Whether all replies are sent, after another attempt.
    pub(crate) fn drained(&self) -> bool {
        let mut state = self.state();
        if !state.closed && !self.flush(&mut state) {
            self.close_with(&mut state, Ending::Gone);
        }
        state.closed || (state.unsent_bytes == 0 && !state.sending)
    }

    /// Ends it.
    pub(crate) fn end(&self, ending: Ending) {
        let mut state = self.state();
        self.close_with(&mut state, ending);
    }

    /// Closes it.
    pub(crate) fn close(&self) {
        self.end(Ending::Gone);
    }

    fn close_with(&self, state: &mut State, ending: Ending) {
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        let metrics = &self.reactor.metrics;
        match ending {
            Ending::Gone => {}
            Ending::Garbage => drop(metrics.connections_closed_garbage.fetch_add(1, Relaxed)),
            Ending::Slow => drop(metrics.connections_closed_slow.fetch_add(1, Relaxed)),
            Ending::Crowded => drop(metrics.connections_closed_crowded.fetch_add(1, Relaxed)),
        }
        let established = state.handshake_since.is_none() && self.security() != Security::None;
        self.abandon_handshake(state);
        if established {
            metrics.tls_connections_now.fetch_sub(1, Relaxed);
            // The close_notify shows the client that nothing was cut off. The server does not wait for the client.
            if let Some(tls) = self.tls.get()
                && state.unsent_bytes == 0
                && !state.sending
            {
                let _ = self.write(&tls.farewell());
            }
        }
        self.reactor.events.forget(&self.stream);
        self.reactor.remove(self);
        let _ = self.stream.shutdown(Shutdown::Both);
        let unsent = std::mem::take(&mut state.unsent);
        (state.sent, state.unsent_bytes) = (0, 0);
        let queue = std::mem::take(&mut state.queue);
        let memory = &self.reactor.memory;
        unsent
            .into_iter()
            .chain(queue)
            .for_each(|buffer| memory.recycle(buffer));
        // A reading worker frees the input itself. Until then it is counted, because each worker may hold a whole record.
        if state.reading != Reading::Busy
            && let Ok(mut input) = self.input.try_lock()
        {
            memory.recycle(input.clear());
            self.budget.clear(Account::Arriving);
        }
        self.budget.clear(Account::Base);
        self.budget.clear(Account::Unsent);
    }

    /// A connection without a client.
    #[cfg(any(test, feature = "fuzz"))]
    #[allow(clippy::unwrap_used)]
    pub(crate) fn for_tests() -> Arc<Connection> {
        use crate::memory::{HandshakeLimits, Peers};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let address = stream.local_addr().unwrap();
        let limits = crate::reactor::Limits {
            record_bytes: 1,
            memory_bytes: 1,
            reply_bytes: 1,
            connections: 1,
            connections_per_address: 1,
            in_flight: 1,
            record_time: Duration::ZERO,
            handshakes: HandshakeLimits {
                now: 1,
                per_second: 1,
            },
            handshake_time: Duration::ZERO,
            stall_time: Duration::ZERO,
            guest_time: Duration::ZERO,
        };
        let reactor =
            Arc::new(Reactor::new(limits, Arc::default(), Arc::default(), None, None).unwrap());
        let peer = Peers::default().join(address.ip(), Instant::now());
        let budget = Budget::new(Arc::clone(&reactor.memory), peer);
        Connection::new(reactor, 1, stream, (address, false), budget)
    }
}

/// Stops reading.
fn pause(state: &mut State) {
    if state.reading != Reading::Paused {
        state.reading = Reading::Paused;
        state.paused_since = Instant::now();
    }
}

/// Excludes the time without reading from the record's deadline.
fn resume(state: &mut State) {
    if state.reading == Reading::Paused {
        state.reading = Reading::Idle;
        let paused = state.paused_since.elapsed();
        state.record_since = state.record_since.map(|since| since + paused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixteen workers were reading when their connections were closed to make room. The memory of their sixteen records was no
    /// longer counted and was given to others, while the workers still held it. The server then held more than its limit.
    #[test]
    fn the_input_of_a_reading_worker_counts_until_it_is_freed() {
        let connection = Connection::for_tests();
        let counted = || connection.reactor.metrics.memory_bytes_now.load(Relaxed);
        connection.state().reading = Reading::Busy;
        connection.budget.add(Account::Arriving, 1000);
        connection.end(Ending::Crowded);
        assert_eq!(counted(), 1000);
        connection.forget_input();
        assert_eq!(counted(), 0);
    }
}
