//! A connection under TLS: how it begins, reads, and ends. Sending differs by one call ([`Session::seal`]).
//!
//! What is read is opened and taken at once, so that memory is bounded as it is without TLS: small reads until somebody has
//! reserved the record's room. A handshake reserves memory, and has its own time.
//!
//! Invariants: between the call that may begin TLS and its answer nobody reads; nothing that came in plain is taken
//! for what came through TLS; a session that has begun is counted once, when its handshake or the connection ends.

use super::*;
use crate::tls::{Broken, HANDSHAKE_BYTES, Security};

/// Bytes that one read takes at most over TLS where memory was reserved, and what they may be beyond the record's.
const SEALED_READ_BYTES: usize = 64 << 10;
const SEALED_EXTRA_BYTES: usize = 2 << 10;
/// Reads over TLS that bring no whole record, before others get their turn.
const SEALED_READS: usize = 64;

impl Connection {
    /// How far it is protected.
    pub(crate) fn security(&self) -> Security {
        self.tls.get().map_or(Security::None, Session::security)
    }

    /// Whether TLS is offered, and has not begun.
    pub(crate) fn may_begin_tls(&self) -> bool {
        self.hub.tls.is_some() && self.tls.get().is_none()
    }

    /// It is known whether TLS begins.
    pub(crate) fn read_on(&self) {
        let mut state = self.state();
        if !state.closed && state.reading == Reading::Turning {
            state.reading = Reading::Paused;
            self.unpause(&mut state);
            self.settle(&mut state);
            if !state.closed {
                self.arm(&state);
            }
        }
    }

    /// Ends a call with a reply behind which TLS begins. Nobody reads meanwhile. What the client has sent behind the
    /// call, or has in progress, was said in plain and cannot be answered so: it is hung up on.
    pub(crate) fn begin_tls(&self, reply: &[u8]) {
        let session = self.hub.tls.as_ref().and_then(|tls| tls.session());
        let idle = self.assembler().is_idle();
        let mut state = self.state();
        state.in_flight -= 1;
        if state.closed {
            return;
        }
        if !idle || state.ended || state.in_flight > 0 || !state.queue.is_empty() {
            return self.close_with(&mut state, Ending::Garbage);
        }
        let Some(session) = session.filter(|_| self.hub.reserve(HANDSHAKE_BYTES)) else {
            return self.close_with(&mut state, Ending::Crowded);
        };
        state.used_at = Instant::now();
        state.handshake_since = Some(state.used_at);
        // From now on others' replies are sealed; this one goes before them.
        if self.tls.set(session).is_err() {
            return self.close_with(&mut state, Ending::Garbage);
        }
        self.transmit(state, reply);
    }

    /// The same through TLS: all that was read is opened and taken before more is.
    pub(super) fn receive_sealed(&self, tls: &Session, buffer: &mut Vec<u8>) -> Received<'static> {
        let mut assembler = self.assembler();
        let mut large_buffer = Vec::new();
        let mut idle = None;
        for _ in 0..SEALED_READS {
            let held = assembler.held();
            let wire = if held > UNRESERVED_BYTES {
                if !self.reserve(held) {
                    return Received::Starved;
                }
                let left = assembler.left();
                assembler.make_room();
                let room = (left + SEALED_EXTRA_BYTES).min(SEALED_READ_BYTES);
                large_buffer.clear();
                large_buffer.shrink_to(room);
                large_buffer.reserve_exact(room);
                &mut large_buffer
            } else {
                buffer.clear();
                &mut *buffer
            };
            match recv(&self.stream, spare_capacity(wire), RecvFlags::empty()) {
                Ok((_, 0)) => return self.end_of(&assembler),
                Ok(_) => {}
                Err(Errno::AGAIN) => return self.sealed_part(idle),
                Err(Errno::INTR) => continue,
                Err(_) => return Received::Close(Ending::Gone),
            }
            let mut records = VecDeque::new();
            let opened = tls.open(wire, |mut bytes| {
                while let Some(record) = assembler.feed(&mut bytes).map_err(|_| Ending::Garbage)? {
                    records.push_back(record);
                }
                Ok(())
            });
            let opened = match opened {
                Ok(opened) => opened,
                Err(Broken::Inside(ending)) => return Received::Close(ending),
                Err(Broken::Tls(why)) => return self.refuse_tls(tls, &why),
            };
            if opened.established {
                self.established();
            }
            if opened.answers {
                self.finish(0, &[]);
            }
            let alone = assembler.is_idle() && opened.whole;
            if let Some(record) = records.pop_front() {
                self.arrived(alone);
                let record = Record::Own(record);
                return match opened.closed {
                    true => Received::Last(record, records),
                    false => Received::Record(record, records),
                };
            }
            idle = Some(alone);
            if opened.closed {
                return self.end_of(&assembler);
            }
        }
        self.sealed_part(idle)
    }

    /// Nothing more is taken for now; whether nothing is held of what follows, if something came.
    fn sealed_part(&self, idle: Option<bool>) -> Received<'static> {
        let mut state = self.state();
        match idle {
            // What came was TLS's own.
            Some(true) => state.arriving_since = None,
            Some(false) => drop(state.arriving_since.get_or_insert_with(Instant::now)),
            None => {}
        }
        Received::Part
    }

    /// What came is no TLS, or none that this server takes: the client is told, if it can be.
    fn refuse_tls(&self, tls: &Session, why: &rustls::Error) -> Received<'static> {
        let handshake = tls.security() == Security::None;
        self.finish(0, &[]);
        if handshake {
            let client = self.peer.ip().to_canonical();
            let log = &self.hub.log;
            log.say(format!(
                "{client}: its TLS handshake failed ({why}); compare certificates and authorities of both sides"
            ));
        }
        Received::Close(Ending::Garbage)
    }

    /// The handshake has ended well.
    fn established(&self) {
        let mut state = self.state();
        if state.closed || state.handshake_since.take().is_none() {
            return;
        }
        let metrics = &self.hub.metrics;
        metrics.tls_connections_accepted.fetch_add(1, Relaxed);
        metrics.tls_connections_now.fetch_add(1, Relaxed);
        drop(state);
        self.hub.give_back(HANDSHAKE_BYTES);
    }

    /// Ends TLS: nobody seals anything behind it.
    pub(super) fn leave_tls(&self, state: &mut State, tls: &Session) {
        let metrics = &self.hub.metrics;
        if state.handshake_since.take().is_some() {
            metrics.tls_handshakes_failed.fetch_add(1, Relaxed);
            self.hub.unreserve(HANDSHAKE_BYTES);
            return;
        }
        if tls.security() == Security::None {
            return;
        }
        metrics.tls_connections_now.fetch_sub(1, Relaxed);
        // What tells the client that nothing was cut off; it may be gone, or slow, and is not waited for.
        if state.unsent_bytes() == 0 && !state.sending {
            let _ = self.write(&tls.farewell());
        }
    }
}
