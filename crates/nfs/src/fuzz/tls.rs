//! Any bytes from a client to which TLS was offered: as they are, or mixed into the bytes of a real client.
//!
//! Properties: no panic; the session outputs nothing before the handshake has ended, then only the client's own bytes in order,
//! and nothing after the server's close_notify; there is always an answer to send or none, never a failure.

use std::io::{Read, Write};
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::take;
use crate::ending::Ending;
use crate::security::Security;
use crate::tls::{Broken, Session, Tls};

/// Steps of one client.
const STEPS_MAX: usize = 48;
/// Consecutive key updates that a client may request before the server takes them for an attack.
const KEY_UPDATES_MAX: usize = 16;

/// The server's certificate, and the client's trusted roots.
struct Papers {
    tls: Tls,
    client: Arc<ClientConfig>,
}

/// Made once.
fn papers() -> Option<&'static Papers> {
    static PAPERS: OnceLock<Option<Papers>> = OnceLock::new();
    fn make() -> Option<Papers> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).ok()?;
        let dir = tempfile::tempdir().ok()?;
        let (cert, key) = (dir.path().join("crt"), dir.path().join("key"));
        std::fs::write(&cert, made.cert.pem()).ok()?;
        std::fs::write(&key, made.signing_key.serialize_pem()).ok()?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::clone(made.cert.der())).ok()?;
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .ok()?
            .with_root_certificates(roots);
        let mut client = client.with_no_client_auth();
        client.alpn_protocols = vec![b"sunrpc".to_vec()];
        Some(Papers {
            // It requests certificates of clients, too.
            tls: Tls::from_files(&cert, &key, Some(&cert)).ok()?,
            client: Arc::new(client),
        })
    }
    PAPERS.get_or_init(make).as_ref()
}

/// The server's side of a connection.
struct Side {
    session: Session,
    /// The session's output.
    opened: Vec<u8>,
    broken: bool,
}

impl Side {
    /// Takes bytes of the client. Returns the bytes that the server sends.
    fn take(&mut self, wire: &[u8]) -> Vec<u8> {
        if self.broken {
            return Vec::new(); // the server has closed the connection
        }
        let opened = &mut self.opened;
        let result = self.session.open(wire, |bytes| {
            opened.extend_from_slice(bytes);
            Ok(())
        });
        match &result {
            Ok(_) => {}
            Err(Broken::Inside(_)) => unreachable!("everything was taken"),
            Err(Broken::Tls(_)) => self.broken = true,
        }
        if self.session.security() == Security::None {
            assert!(
                self.opened.is_empty() || self.broken,
                "nothing before the handshake"
            );
        }
        let said = self.session.seal(&[]);
        assert!(said.is_some(), "what there is to say can be said");
        said.unwrap_or_default()
    }

    /// The client has sent all its bytes.
    fn end(&self, sent: &[u8]) {
        let opened = &self.opened;
        assert!(sent.starts_with(opened), "what it sent, or less");
        self.session.farewell();
        // A client that has not read the close_notify sends a record that cannot be opened.
        let record = [23, 3, 3, 0, 2, 1, 2];
        let opened = self.session.open(&record, |_| Err(Ending::Garbage));
        assert!(opened.is_ok_and(|opened| opened.closed), "it is over");
    }
}

/// Bytes as they are, in pieces.
fn raw(side: &mut Side, input: &[u8], piece: usize) {
    for wire in input.chunks(piece) {
        side.take(wire);
    }
    // No side has the keys.
    side.end(&[]);
}

/// Gives the server's bytes to a client. False if the client rejects them: a correct client does not.
fn hears(client: &mut ClientConnection, mut said: &[u8], honest: bool) -> bool {
    while !said.is_empty() {
        let read = client.read_tls(&mut said);
        let understood = client.process_new_packets().map(drop);
        if !matches!(read, Ok(1..)) || understood.is_err() {
            let context = (read, understood);
            assert!(!honest, "an honest client understands: {context:?}");
            return false;
        }
        let mut reply = Vec::new();
        // There may be more to come.
        let _ = client.reader().read_to_end(&mut reply);
    }
    true
}

/// A client whose bytes are changed, dropped or mixed with others in transit.
fn client(side: &mut Side, mut client: ClientConnection, input: &mut &[u8]) {
    let (mut sent, mut intact) = (Vec::new(), true);
    let mut key_updates = 0;
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        let [step, number] = take(input);
        let mut wire = Vec::new();
        match step % 8 {
            5 => {
                let text = vec![number; usize::from(number) * 64];
                let len = client.writer().write(&text).unwrap_or(0);
                sent.extend_from_slice(&text[..len]);
            }
            6 => {
                // Plaintext, where the server expects sealed bytes.
                intact &= !client.is_handshaking();
                client.send_close_notify();
            }
            7 => {
                drop(client.refresh_traffic_keys());
                key_updates += 1;
                intact &= key_updates <= KEY_UPDATES_MAX;
            }
            _ => {}
        }
        while client.wants_write() && client.write_tls(&mut wire).is_ok() {}
        match step % 8 {
            1 if !wire.is_empty() => {
                let [place, change] = take(input);
                let at = (usize::from(number) << 8 | usize::from(place)) % wire.len();
                wire[at] ^= change;
                intact &= change == 0;
            }
            2 => {
                let kept = wire.len() * usize::from(number) / 256;
                intact &= kept == wire.len();
                wire.truncate(kept);
            }
            3 => {
                // A record of any type and length before the client's bytes.
                let [kind, high, low] = take(input);
                let body = &input[..usize::from(number).min(input.len())];
                let record = [&[20 + kind % 6, 3, 3, high, low], body].concat();
                *input = &input[body.len()..];
                wire.splice(..0, record);
                intact = false;
            }
            _ => {}
        }
        let piece = if step < 128 { wire.len() } else { 7 };
        for wire in wire.chunks(piece.max(1)) {
            let said = side.take(wire);
            // After its close_notify, a client does not read.
            if step % 8 != 6 && !hears(&mut client, &said, intact) {
                return side.end(&sent);
            }
        }
        if step % 8 == 6 {
            break;
        }
        if step % 8 == 4 && side.session.security() != Security::None && !side.broken {
            let reply = vec![number; usize::from(number) * 64];
            let sealed = side.session.seal(&reply).unwrap_or_default();
            assert!(sealed.len() >= reply.len());
            if !hears(&mut client, &sealed, intact) {
                return side.end(&sent);
            }
        }
    }
    assert!(!intact || !side.broken, "an honest client is understood");
    side.end(&sent);
}

/// Any bytes from a client that was offered TLS.
pub(super) fn serve(mut input: &[u8]) {
    let Some(papers) = papers() else {
        unreachable!("the papers are made here");
    };
    let Some(session) = papers.tls.session() else {
        return;
    };
    let mut side = Side {
        session,
        opened: Vec::new(),
        broken: false,
    };
    let [mode] = take(&mut input);
    if mode % 2 == 0 {
        return raw(&mut side, input, usize::from(mode / 2) + 1);
    }
    let name = ServerName::try_from("localhost");
    let config = Arc::clone(&papers.client);
    if let Ok(Ok(connection)) = name.map(|name| ClientConnection::new(config, name)) {
        client(&mut side, connection, &mut input);
    }
}
