//! RPC over TLS (RFC 9289): the server's certificate, and the TLS session of a connection.
//!
//! A session converts bytes of the socket to bytes of records and back; it neither reads nor writes the socket. It passes
//! its input on at once, so it holds at most one unfinished TLS record or handshake message.
//!
//! Only TLS 1.3, no early data, no tickets (a kernel that does TLS itself accepts only data after the
//! handshake). A client that offers application protocols must offer `sunrpc`.

use std::io::{BufRead, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use crate::ending::Ending;
use crate::security::Security;

/// The application protocol (ALPN) of RPC.
const ALPN: &[u8] = b"sunrpc";
/// Most bytes that are sealed at a time, or wait for the end of a handshake.
const SEALED_AT_ONCE: usize = 64 << 10;
/// Bytes of a TLS record's header. The last two are the length of the body.
const HEADER_BYTES: usize = 5;

/// Errors of the TLS settings.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{path}: {source}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: pem::Error,
    },
    /// A file holds no item of the required kind.
    #[error("{path}: holds no {what} in PEM (-----BEGIN {label}-----)")]
    Nothing {
        /// Path of the file.
        path: PathBuf,
        /// Required item.
        what: &'static str,
        /// PEM label of such an item.
        label: &'static str,
    },
    /// Certificate and key do not belong together.
    #[error(
        "{cert} and {key} do not belong together: name the key that the first certificate of the file was made for"
    )]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// A certificate or key cannot be used.
    #[error("{path}: {why}")]
    Unusable {
        /// Its file.
        path: PathBuf,
        /// Cause.
        why: String,
    },
}

/// All certificates of a file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Read {
        path: path.to_owned(),
        source,
    };
    let all: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(failed)?
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    if all.is_empty() {
        return Err(TlsError::Nothing {
            path: path.to_owned(),
            what: "certificate",
            label: "CERTIFICATE",
        });
    }
    Ok(all)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| match source {
        pem::Error::NoItemsFound => TlsError::Nothing {
            path: path.to_owned(),
            what: "private key without a password",
            label: "PRIVATE KEY",
        },
        source => TlsError::Read {
            path: path.to_owned(),
            source,
        },
    })
}

/// TLS settings of a server: its certificate, and the authorities for client certificates. Clones share the settings.
#[derive(Clone, Debug)]
pub struct Tls {
    files: Arc<Files>,
    now: Arc<Mutex<Now>>,
}

/// The files of the settings.
#[derive(Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
    ca: Option<PathBuf>,
}

/// Identity of a file when it was read: inode, size and time. None if there is no such file.
type Stamp = Option<(u64, u64, SystemTime)>;

/// Configuration of new connections.
#[derive(Debug)]
struct Now {
    config: Arc<ServerConfig>,
    stamps: [Stamp; 3],
}

impl Files {
    fn stamps(&self) -> [Stamp; 3] {
        let stamp = |path: &Path| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.ino(), meta.len(), meta.modified().ok()?))
        };
        [
            stamp(&self.cert),
            stamp(&self.key),
            self.ca.as_deref().and_then(stamp),
        ]
    }

    /// Reads the files.
    fn read(&self) -> Result<ServerConfig, TlsError> {
        let Files { cert, key, ca } = self;
        let unusable = |path: &Path, why: String| TlsError::Unusable {
            path: path.to_owned(),
            why,
        };
        let chain = certificates(cert)?;
        let private = private_key(key)?;
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| unusable(cert, e.to_string()))?;
        let config = match ca {
            None => config.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for root in certificates(path)? {
                    roots.add(root).map_err(|e| unusable(path, e.to_string()))?;
                }
                // A client without a certificate has only TLS: each export decides whether that is enough.
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                    .allow_unauthenticated()
                    .build()
                    .map_err(|e| unusable(path, e.to_string()))?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let mut config = config
            .with_single_cert(chain, private)
            .map_err(|e| match e {
                Error::InconsistentKeys(_) => TlsError::Mismatch {
                    cert: cert.to_owned(),
                    key: key.to_owned(),
                },
                Error::InvalidCertificate(_) => unusable(cert, e.to_string()),
                e => unusable(key, e.to_string()),
            })?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

impl Tls {
    /// Reads PEM files: the certificate with its intermediate certificates, its key, and the authorities for client
    /// certificates, if there are any.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn from_files(cert: &Path, key: &Path, ca: Option<&Path>) -> Result<Tls, TlsError> {
        let files = Files {
            cert: cert.to_owned(),
            key: key.to_owned(),
            ca: ca.map(Path::to_owned),
        };
        // Before the files are read, so that a change meanwhile is noticed the next time.
        let stamps = files.stamps();
        let config = Arc::new(files.read()?);
        Ok(Tls {
            files: Arc::new(files),
            now: Arc::new(Mutex::new(Now { config, stamps })),
        })
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the files again if they have changed. Returns whether they have. Present connections keep their settings.
    ///
    /// # Errors
    /// See [`TlsError`]: nothing changes, and the next call tries again.
    pub fn refresh(&self) -> Result<bool, TlsError> {
        if self.files.stamps() == self.now().stamps {
            return Ok(false);
        }
        self.reread().map(|()| true)
    }

    /// Reads the files again, changed or not.
    ///
    /// # Errors
    /// As of [`Tls::refresh`].
    pub fn reread(&self) -> Result<(), TlsError> {
        // Before the files are read, so that a change meanwhile is noticed the next time.
        let stamps = self.files.stamps();
        let config = Arc::new(self.files.read()?);
        *self.now() = Now { config, stamps };
        Ok(())
    }

    /// The strongest protection that these settings can provide.
    #[must_use]
    pub fn best(&self) -> Security {
        if self.files.ca.is_some() {
            Security::Mtls
        } else {
            Security::Tls
        }
    }

    /// A session that waits for its client's handshake; none if there is no memory for it.
    pub(crate) fn session(&self) -> Option<Session> {
        let mut tls = ServerConnection::new(Arc::clone(&self.now().config)).ok()?;
        tls.set_buffer_limit(Some(SEALED_AT_ONCE));
        Some(Session {
            inner: Mutex::new(Inner {
                tls,
                edges: Edges::default(),
                over: false,
            }),
            security: AtomicU8::new(Security::None as u8),
        })
    }
}

/// Finds the ends of TLS records.
#[derive(Debug, Default)]
struct Edges {
    header: [u8; HEADER_BYTES],
    header_len: usize,
    left: usize,
}

impl Edges {
    fn pass(&mut self, mut wire: &[u8]) {
        while !wire.is_empty() {
            let now = if self.header_len < HEADER_BYTES {
                let now = wire.len().min(HEADER_BYTES - self.header_len);
                self.header[self.header_len..][..now].copy_from_slice(&wire[..now]);
                self.header_len += now;
                if self.header_len == HEADER_BYTES {
                    self.left = u16::from_be_bytes([self.header[3], self.header[4]]).into();
                }
                now
            } else {
                let now = wire.len().min(self.left);
                self.left -= now;
                now
            };
            if self.header_len == HEADER_BYTES && self.left == 0 {
                self.header_len = 0;
            }
            wire = &wire[now..];
        }
    }
}

#[derive(Debug)]
struct Inner {
    tls: ServerConnection,
    edges: Edges,
    /// The close_notify was made: nothing is opened any more.
    over: bool,
}

/// The TLS session of a connection. A thread that seals holds the lock of the connection's state, so that bytes are sent in the
/// order of sealing; a thread that opens does not hold it.
#[derive(Debug)]
pub(crate) struct Session {
    inner: Mutex<Inner>,
    security: AtomicU8,
}

/// The result of opening bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opened {
    /// The handshake has succeeded with these bytes.
    pub(crate) established: bool,
    /// The client has said that it sends no more.
    pub(crate) closed: bool,
    /// There are bytes to send: call [`Session::seal`].
    pub(crate) answers: bool,
    /// No part of a TLS record is held.
    pub(crate) whole: bool,
}

/// Reason of the TLS library.
pub(crate) use rustls::Error;

/// Reasons why bytes cannot be opened.
#[derive(Debug)]
pub(crate) enum Broken {
    /// They are not TLS, or not a supported kind; there may be an alert to send.
    Tls(Error),
    /// The receiver refused their contents.
    Inside(Ending),
}

impl Session {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its protection: none before the handshake has ended.
    pub(crate) fn security(&self) -> Security {
        match self.security.load(Ordering::Acquire) {
            0 => Security::None,
            1 => Security::Tls,
            _ => Security::Mtls,
        }
    }

    /// Opens bytes of the socket; `take` gets the contents.
    pub(crate) fn open(
        &self,
        mut wire: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), Ending>,
    ) -> Result<Opened, Broken> {
        let mut inner = self.inner();
        if inner.over {
            return Ok(Opened {
                established: false,
                closed: true,
                answers: false,
                whole: true,
            });
        }
        let Inner { tls, edges, .. } = &mut *inner;
        edges.pass(wire);
        let refused = |e: std::io::Error| Broken::Tls(Error::General(e.to_string()));
        let mut closed = false;
        while !wire.is_empty() && !closed {
            // Nothing is read after the client's close_notify.
            closed = tls.read_tls(&mut wire).map_err(refused)? == 0;
            let state = tls.process_new_packets().map_err(Broken::Tls)?;
            closed |= state.peer_has_closed();
            loop {
                let mut reader = tls.reader();
                match reader.fill_buf() {
                    Ok([]) => break,
                    Ok(chunk) => {
                        let len = chunk.len();
                        take(chunk).map_err(Broken::Inside)?;
                        reader.consume(len);
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) => return Err(refused(e)),
                }
            }
        }
        let established = self.security() == Security::None && !tls.is_handshaking();
        if established {
            let security = match tls.peer_certificates() {
                Some(_) => Security::Mtls,
                None => Security::Tls,
            };
            self.security.store(security as u8, Ordering::Release);
        }
        Ok(Opened {
            established,
            closed,
            answers: tls.wants_write(),
            whole: edges.header_len == 0,
        })
    }

    /// Seals a reply, or none, after all pending TLS messages. Returns bytes for the socket; none on failure.
    pub(crate) fn seal(&self, reply: &[u8]) -> Option<Vec<u8>> {
        let tls = &mut self.inner().tls;
        let mut wire = Vec::with_capacity(reply.len() + reply.len() / 256 + 64);
        let mut rest = reply;
        loop {
            while tls.wants_write() {
                tls.write_tls(&mut wire).ok()?;
            }
            if rest.is_empty() {
                return Some(wire);
            }
            match tls.writer().write(rest) {
                // Too many bytes wait for the end of the handshake.
                Ok(0) | Err(_) => return None,
                Ok(len) => rest = &rest[len..],
            }
        }
    }

    /// The close_notify. A worker may be reading meanwhile; bytes that it opens afterwards are ignored.
    pub(crate) fn farewell(&self) -> Vec<u8> {
        let mut inner = self.inner();
        inner.over = true;
        inner.tls.send_close_notify();
        drop(inner);
        self.seal(&[]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_edges_of_records_are_found_in_whatever_pieces_they_arrive() {
        let stream = [&[23, 3, 3, 0, 4, 1, 2, 3, 4][..], &[20, 3, 3, 0, 0]].concat();
        for piece in 1..=stream.len() {
            let mut edges = Edges::default();
            let mut at = 0;
            for bytes in stream.chunks(piece) {
                edges.pass(bytes);
                at += bytes.len();
                let whole = edges.header_len == 0;
                assert_eq!(whole, [9, 14].contains(&at), "{piece} {at}");
            }
        }
    }
}
