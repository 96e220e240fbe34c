//! One client's connection: records in, replies out, and nobody waits for it.
//!
//! One worker at a time reads: who gets the event takes one record, arms the connection again, and then
//! serves the record, so that calls of one connection run side by side and none changes hands.
//! Replies are written by one worker at a time without blocking; what the client does not take is kept, and while
//! that is much, or too many of its calls are in progress, the connection is not read.
//!
//! What differs under TLS is in `sealed`.
//!
//! Invariants: a closed connection is out of the registry, its socket shut down, its share of
//! the memory given back; `Reading::Busy` belongs to one worker; whoever changes what the connection is
//! armed for does so under the lock of its state.

mod sealed;

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::hub::Hub;
use crate::record::{Assembler, exactly_one};
use crate::rpc;
use crate::tls::Session;

/// Bytes that one read takes at most where nothing was reserved.
pub(crate) const SMALL_READ_BYTES: usize = 8 << 10;
/// Bytes of a record that may be held without being reserved.
const UNRESERVED_BYTES: usize = 2 * SMALL_READ_BYTES;
/// Bytes of replies that were not taken, from which on the connection is not read.
const UNSENT_BYTES_PAUSE: usize = 64 << 10;

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

/// Why a connection is ended by this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// The client has ended it, or it broke.
    Gone,
    /// It carries no RPC.
    Garbage,
    /// The client sends or takes nothing for too long.
    Slow,
    /// Others need the room.
    Crowded,
}

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reading {
    /// Whoever gets the next event.
    Open,
    /// A worker.
    Busy,
    /// Nobody, until replies were taken or calls are done.
    Paused,
    /// Nobody, until it is known whether TLS begins: what comes is read as what it is.
    Turning,
    /// Nobody, until there is memory.
    Starved,
    /// Nobody any more: the client has sent all.
    Ended,
}

#[derive(Debug)]
struct State {
    reading: Reading,
    /// The client has sent all.
    ended: bool,
    closed: bool,
    in_flight: u32,
    /// Whole records that were read together with another.
    queue: VecDeque<Vec<u8>>,
    /// Replies that were not taken, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
    /// A worker writes to the socket: all that others send goes behind it.
    sending: bool,
    /// Bytes reserved for the record that is arriving.
    reserved: usize,
    /// When the record that is arriving began to.
    arriving_since: Option<Instant>,
    /// When the handshake of TLS began; memory is reserved for it until it has ended.
    handshake_since: Option<Instant>,
    /// When the client last took a byte of what is kept for it.
    taken_at: Instant,
    used_at: Instant,
}

impl State {
    fn unsent_bytes(&self) -> usize {
        self.unsent.len() - self.sent
    }
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Connection {
    hub: Arc<Hub>,
    token: u64,
    stream: TcpStream,
    peer: SocketAddr,
    /// Of the worker that reads.
    assembler: Mutex<Assembler>,
    state: Mutex<State>,
    /// Once there is one, nothing is read or sent but through it. Locked after the state, never before.
    tls: OnceLock<Session>,
}

/// What reading came to.
enum Received<'w> {
    /// A record, and those that were read behind it.
    Record(Record<'w>, VecDeque<Vec<u8>>),
    /// The same, and the client has said that no more comes.
    Last(Record<'w>, VecDeque<Vec<u8>>),
    /// No whole record yet.
    Part,
    Starved,
    End,
    Close(Ending),
}

impl Connection {
    pub(crate) fn new(
        hub: Arc<Hub>,
        token: u64,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Arc<Connection> {
        let now = Instant::now();
        let assembler = Mutex::new(Assembler::new(hub.limits.record_bytes));
        Arc::new(Connection {
            hub,
            token,
            stream,
            peer,
            assembler,
            state: Mutex::new(State {
                reading: Reading::Open,
                ended: false,
                closed: false,
                in_flight: 0,
                queue: VecDeque::new(),
                unsent: Vec::new(),
                sent: 0,
                sending: false,
                reserved: 0,
                arriving_since: None,
                handshake_since: None,
                taken_at: now,
                used_at: now,
            }),
            tls: OnceLock::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Its number among all.
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// The client's address.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// When it was last used; those with something in progress are in use now.
    pub(crate) fn last_used(&self) -> Instant {
        let state = self.state();
        if state.in_flight > 0 {
            Instant::now()
        } else {
            state.used_at
        }
    }

    /// Arms it for what can be done next.
    fn arm(&self, state: &State) {
        let mut flags = EventFlags::empty();
        let open = state.reading == Reading::Open;
        if open && !state.ended {
            flags |= EventFlags::IN;
        }
        // Records that were read already wait for any worker: a socket that can be written calls one.
        let unsent = state.unsent_bytes() > 0 && !state.sending;
        if unsent || (open && !state.queue.is_empty()) {
            flags |= EventFlags::OUT;
        }
        self.hub.arm(&self.stream, self.token, flags);
    }

    /// Handles an event: the record that this worker is to serve, if there is one.
    pub(crate) fn ready<'w>(
        self: &Arc<Self>,
        flags: EventFlags,
        buffer: &'w mut Vec<u8>,
    ) -> Option<Record<'w>> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        if flags.intersects(EventFlags::ERR | EventFlags::HUP) || !self.flush(&mut state) {
            self.close_with(&mut state, Ending::Gone);
            return None;
        }
        self.unpause(&mut state);
        if state.reading != Reading::Open || self.hub.is_stopping() {
            self.settle(&mut state);
            self.arm(&state);
            return None;
        }
        if let Some(record) = state.queue.pop_front() {
            self.admit(&mut state, &record);
            return Some(Record::Own(record));
        }
        if state.ended || !flags.contains(EventFlags::IN) {
            self.settle(&mut state);
            self.arm(&state);
            return None;
        }
        state.reading = Reading::Busy;
        drop(state);
        let received = match self.tls.get() {
            None => self.receive(buffer),
            Some(tls) => self.receive_sealed(tls, buffer),
        };
        let mut state = self.state();
        if state.closed {
            return None;
        }
        state.reading = Reading::Open;
        state.used_at = Instant::now();
        state.ended |= matches!(received, Received::Last(..));
        match received {
            Received::Record(record, more) | Received::Last(record, more) => {
                state.queue.extend(more);
                self.admit(&mut state, record.as_ref());
                return Some(record);
            }
            Received::Part => {}
            Received::Starved => {
                state.reading = Reading::Starved;
                drop(state);
                self.hub.starve(self);
                return None;
            }
            Received::End => {
                state.ended = true;
                self.settle(&mut state);
            }
            Received::Close(ending) => {
                self.close_with(&mut state, ending);
                return None;
            }
        }
        self.arm(&state);
        None
    }

    /// A record was taken: others may take the next.
    fn admit(&self, state: &mut State, record: &[u8]) {
        state.in_flight += 1;
        if self.may_begin_tls() && rpc::may_begin_tls(record) {
            state.reading = Reading::Turning;
        } else if self.is_full(state) {
            state.reading = Reading::Paused;
        }
        self.arm(state);
    }

    fn assembler(&self) -> MutexGuard<'_, Assembler> {
        self.assembler
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn is_full(&self, state: &State) -> bool {
        state.in_flight >= self.hub.limits.in_flight || state.unsent_bytes() > UNSENT_BYTES_PAUSE
    }

    /// Reads on if there is room again. Returns whether that has changed.
    fn unpause(&self, state: &mut State) -> bool {
        let may = state.reading == Reading::Paused && !self.is_full(state);
        if may {
            state.reading = Reading::Open;
        }
        may
    }

    /// Ends what has nothing more to do.
    fn settle(&self, state: &mut State) {
        if state.ended && state.queue.is_empty() {
            state.reading = Reading::Ended;
            if state.in_flight == 0 && state.unsent_bytes() == 0 && !state.sending {
                self.close_with(state, Ending::Gone);
            }
        }
    }

    /// Reads until a record is whole or nothing is there.
    fn receive<'w>(&self, buffer: &'w mut Vec<u8>) -> Received<'w> {
        let mut assembler = self.assembler();
        loop {
            let held = assembler.held();
            let large = held > UNRESERVED_BYTES;
            if large && !self.reserve(held) {
                return Received::Starved;
            }
            let received = if large && assembler.left() > 0 {
                match recv(
                    &self.stream,
                    spare_capacity(assembler.make_room()),
                    RecvFlags::empty(),
                ) {
                    Ok((_, 0)) => return self.end_of(&assembler),
                    Ok((_, len)) => {
                        let (record, rest) = assembler.filled(len);
                        take_all(&mut assembler, record, &rest)
                    }
                    Err(Errno::AGAIN) => return self.part(assembler.is_idle()),
                    Err(Errno::INTR) => continue,
                    Err(_) => return Received::Close(Ending::Gone),
                }
            } else {
                buffer.clear();
                match recv(&self.stream, spare_capacity(buffer), RecvFlags::empty()) {
                    Ok((_, 0)) => return self.end_of(&assembler),
                    Ok(_) => {}
                    Err(Errno::AGAIN) => return self.part(assembler.is_idle()),
                    Err(Errno::INTR) => continue,
                    Err(_) => return Received::Close(Ending::Gone),
                }
                if assembler.is_idle()
                    && exactly_one(buffer, self.hub.limits.record_bytes).is_some()
                {
                    break;
                }
                take_all(&mut assembler, None, buffer)
            };
            match received {
                Err(ending) => return Received::Close(ending),
                Ok(None) => {}
                Ok(Some((record, more))) => {
                    self.arrived(assembler.is_idle());
                    return Received::Record(Record::Own(record), more.into());
                }
            }
        }
        self.arrived(true);
        match exactly_one(buffer, self.hub.limits.record_bytes) {
            Some(record) => Received::Record(Record::Here(record), VecDeque::new()),
            None => Received::Close(Ending::Garbage),
        }
    }

    /// Nothing more is there for now; whether nothing is held of what follows.
    fn part(&self, idle: bool) -> Received<'static> {
        let mut state = self.state();
        if !idle {
            state.arriving_since.get_or_insert_with(Instant::now);
        }
        Received::Part
    }

    /// The client has sent all: a part of a record never becomes one.
    fn end_of(&self, assembler: &Assembler) -> Received<'static> {
        if assembler.is_idle() {
            Received::End
        } else {
            Received::Close(Ending::Gone)
        }
    }

    /// Reserves memory for a record of `held` bytes.
    fn reserve(&self, held: usize) -> bool {
        let mut state = self.state();
        let missing = held.saturating_sub(state.reserved);
        if state.closed || !self.hub.reserve(missing) {
            // It is not the client that it waits for.
            state.arriving_since = None;
            return false;
        }
        if missing > 0 {
            state.reserved += missing;
            state.arriving_since = Some(Instant::now());
        }
        true
    }

    /// A record is whole; whether nothing of the next is here.
    fn arrived(&self, alone: bool) {
        let mut state = self.state();
        state.arriving_since = (!alone).then(Instant::now);
        let reserved = std::mem::take(&mut state.reserved);
        drop(state);
        self.hub.give_back(reserved);
    }

    /// There is memory again, perhaps.
    pub(crate) fn resume(&self) {
        let mut state = self.state();
        if !state.closed && state.reading == Reading::Starved {
            state.reading = Reading::Open;
            self.arm(&state);
        }
    }

    /// Ends so many calls, with their replies if they have any.
    pub(crate) fn finish(&self, calls: u32, replies: &[u8]) {
        let mut state = self.state();
        state.in_flight -= calls;
        if state.closed {
            return;
        }
        state.used_at = Instant::now();
        self.send(state, replies);
    }

    /// Sends a reply to a call that another one has answered.
    pub(crate) fn send_also(&self, reply: &[u8]) {
        let state = self.state();
        if !state.closed {
            self.send(state, reply);
        }
    }

    /// Sends, through TLS if it has begun.
    fn send<'a>(&'a self, mut state: MutexGuard<'a, State>, reply: &[u8]) {
        let Some(tls) = self.tls.get() else {
            return self.transmit(state, reply);
        };
        match tls.seal(reply) {
            Some(wire) => self.transmit(state, &wire),
            None => self.close_with(&mut state, Ending::Garbage),
        }
    }

    /// Writes, or keeps what the client does not take. The lock is not held meanwhile: the next call may be here before
    /// the kernel is done with the reply.
    fn transmit<'a>(&'a self, mut state: MutexGuard<'a, State>, reply: &[u8]) {
        let mut rest = reply;
        if !reply.is_empty() && !state.sending && state.unsent_bytes() == 0 {
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
            // What others left meanwhile comes behind it.
            if !rest.is_empty() {
                state.unsent.splice(0..0, rest.iter().copied());
            } else if !self.flush(&mut state) {
                return self.close_with(&mut state, Ending::Gone);
            }
        } else {
            state.unsent.extend_from_slice(reply);
        }
        if !rest.is_empty() {
            if state.unsent_bytes() == rest.len() {
                state.taken_at = Instant::now();
            }
            if !self.hub.keep_unsent(rest.len()) {
                return self.close_with(&mut state, Ending::Crowded);
            }
        }
        let rearm = self.unpause(&mut state) || (state.unsent_bytes() > 0 && !state.sending);
        self.settle(&mut state);
        if rearm && !state.closed {
            self.arm(&state);
        }
    }

    /// Writes what the kernel takes.
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

    /// Writes what is kept. False if the connection is broken.
    fn flush(&self, state: &mut State) -> bool {
        if state.unsent_bytes() == 0 || state.sending {
            return true;
        }
        let Ok(len) = self.write(&state.unsent[state.sent..]) else {
            return false;
        };
        if len > 0 {
            state.taken_at = Instant::now();
            state.sent += len;
            self.hub.unsent_gone(len);
        }
        if state.unsent_bytes() == 0 {
            (state.unsent, state.sent) = (Vec::new(), 0);
        } else if state.sent > state.unsent.len() / 2 {
            state.unsent.drain(..state.sent);
            state.sent = 0;
        }
        true
    }

    /// Ends it if the client is too slow: for a record, for one whose memory others wait for, or to take a reply.
    pub(crate) fn look_after(
        &self,
        now: Instant,
        (record_time, reserved_time): (Duration, Duration),
        handshake_time: Duration,
        stall_time: Duration,
    ) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let over = |since: Instant, time: Duration| now.saturating_duration_since(since) > time;
        // Who waits for memory or is being read is not slow.
        let idle = state.reading == Reading::Open;
        let record_time = if state.reserved > 0 {
            reserved_time
        } else {
            record_time
        };
        let arriving = idle
            && state
                .arriving_since
                .is_some_and(|since| over(since, record_time));
        let shaking = idle
            && state
                .handshake_since
                .is_some_and(|since| over(since, handshake_time));
        let stalled = state.unsent_bytes() > 0 && over(state.taken_at, stall_time);
        if arriving || shaking || stalled {
            self.close_with(&mut state, Ending::Slow);
        }
    }

    /// Whether all replies were taken, after another try.
    pub(crate) fn drained(&self) -> bool {
        let mut state = self.state();
        if !state.closed && !self.flush(&mut state) {
            self.close_with(&mut state, Ending::Gone);
        }
        state.closed || (state.unsent_bytes() == 0 && !state.sending)
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
        let metrics = &self.hub.metrics;
        match ending {
            Ending::Gone => {}
            Ending::Garbage => drop(metrics.connections_closed_garbage.fetch_add(1, Relaxed)),
            Ending::Slow => drop(metrics.connections_closed_slow.fetch_add(1, Relaxed)),
            Ending::Crowded => drop(metrics.connections_closed_crowded.fetch_add(1, Relaxed)),
        }
        if let Some(tls) = self.tls.get() {
            self.leave_tls(state, tls);
        }
        self.hub.unsent_gone(state.unsent_bytes());
        (state.unsent, state.sent) = (Vec::new(), 0);
        state.queue = VecDeque::new();
        let reserved = std::mem::take(&mut state.reserved);
        self.hub.forget(&self.stream);
        self.hub.remove(self.token);
        let _ = self.stream.shutdown(Shutdown::Both);
        state.reading = Reading::Ended;
        // Who waits for it is called by the next look: no two connections' locks are held at a time.
        self.hub.unreserve(reserved);
    }

    /// A connection to nobody.
    #[cfg(any(test, feature = "fuzz"))]
    #[allow(clippy::unwrap_used)]
    pub(crate) fn for_tests() -> Arc<Connection> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = stream.local_addr().unwrap();
        let limits = crate::hub::Limits {
            record_bytes: 1,
            arriving_bytes: 1,
            unsent_bytes: 1,
            connections: 1,
            in_flight: 1,
            record_time: Duration::ZERO,
            handshake_time: Duration::ZERO,
            stall_time: Duration::ZERO,
        };
        let hub = Arc::new(Hub::new(limits, Arc::default(), Arc::default(), None).unwrap());
        Connection::new(hub, 1, stream, peer)
    }
}

/// What is left of bytes that were fed: the first whole record, and those behind it.
type Whole = Option<(Vec<u8>, Vec<Vec<u8>>)>;

fn take_all(
    assembler: &mut Assembler,
    first: Option<Vec<u8>>,
    mut bytes: &[u8],
) -> Result<Whole, Ending> {
    let mut first = first;
    let mut more = Vec::new();
    loop {
        match assembler.feed(&mut bytes) {
            Err(_) => return Err(Ending::Garbage),
            Ok(None) => break,
            Ok(Some(record)) if first.is_none() => first = Some(record),
            Ok(Some(record)) => more.push(record),
        }
    }
    Ok(first.map(|first| (first, more)))
}
