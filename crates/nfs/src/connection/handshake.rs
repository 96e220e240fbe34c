//! Start of TLS on a connection (RFC 9289), and end of the handshake.
//!
//! Invariants: between the call that may begin TLS and its answer no thread reads, and plaintext is never taken for
//! TLS data; each handshake ends exactly once: it succeeds or is abandoned.

use super::*;

/// Memory of a TLS session, and of a handshake.
const TLS_BYTES: usize = 14 << 10;
const HANDSHAKE_BYTES: usize = 32 << 10;

impl Connection {
    /// Protection of the connection.
    pub(crate) fn security(&self) -> Security {
        self.tls.get().map_or(Security::None, Session::security)
    }

    /// Whether TLS is offered, and has not begun.
    pub(crate) fn may_begin_tls(&self) -> bool {
        !self.guest && self.reactor.tls.is_some() && self.tls.get().is_none()
    }

    /// Called when it is known whether TLS begins.
    pub(crate) fn read_on(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.tls_pending) {
            self.unpause(&mut state);
            self.settle(&mut state);
        }
    }

    /// Ends a call with a reply after which TLS begins. No thread reads meanwhile. If the client has sent more bytes after the
    /// call, or has calls in progress, those are plaintext and must not be answered over TLS: the connection is closed.
    pub(crate) fn begin_tls(&self, reply: &[u8]) {
        let now = Instant::now();
        let limits = self.reactor.limits.handshakes;
        let may = self.budget.peer.begin_handshake(now, limits);
        let session = self.reactor.tls.as_ref().and_then(|tls| tls.session());
        let session = session.filter(|_| may && self.reserve(HANDSHAKE_BYTES));
        let idle = self.input().is_idle();
        let mut state = self.state();
        state.in_flight -= 1;
        if may {
            // From now on, closing the connection also ends the handshake.
            state.handshake_since = Some(now);
        }
        if state.closed {
            return self.abandon_handshake(&mut state);
        }
        if !idle || state.ended || state.in_flight > 0 || !state.queue.is_empty() {
            return self.close_with(&mut state, Ending::Garbage);
        }
        let Some(session) = session else {
            return self.close_with(&mut state, Ending::Crowded);
        };
        state.used_at = now;
        // From now on replies are sealed; this one is sent before them, unsealed.
        if self.tls.set(session).is_err() {
            return self.close_with(&mut state, Ending::Garbage);
        }
        self.transmit(state, reply);
    }

    /// The handshake has succeeded.
    pub(super) fn established(&self) {
        let mut state = self.state();
        if state.closed || state.handshake_since.take().is_none() {
            return;
        }
        let metrics = &self.reactor.metrics;
        metrics.tls_connections_accepted.fetch_add(1, Relaxed);
        metrics.tls_connections_now.fetch_add(1, Relaxed);
        self.budget.add(Account::Base, TLS_BYTES);
        self.budget.sub(Account::Arriving, HANDSHAKE_BYTES);
        self.budget.peer.end_handshake();
    }

    pub(super) fn abandon_handshake(&self, state: &mut State) {
        if state.handshake_since.take().is_some() {
            let metrics = &self.reactor.metrics;
            metrics.tls_handshakes_failed.fetch_add(1, Relaxed);
            self.budget.peer.end_handshake();
        }
    }

    /// The input is not TLS, or not a supported kind: sends an alert to the client, if possible.
    pub(super) fn refuse_tls(&self, tls: &Session, why: &crate::tls::Error) -> Ending {
        let handshake = tls.security() == Security::None;
        self.finish(0, &[], 0);
        if handshake {
            let client = self.peer.ip().to_canonical();
            let log = &self.reactor.log;
            log.say(format!(
                "{client}: its TLS handshake failed ({why}); compare certificates and authorities of both sides"
            ));
        }
        Ending::Garbage
    }
}
