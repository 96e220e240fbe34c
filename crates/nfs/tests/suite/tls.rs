//! RPC over TLS (RFC 9289): how it begins, what it protects, and what is refused.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use crate::common;
use common::*;
use nfs3_types::mount;
use nfs3_types::rpc::{auth_stat, opaque_auth, rejected_reply};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack, Void};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use steadfast_nfs::{Access, Ended, ExportError, ExportedVolume, Security, Server, Tls, TlsError};

/// An authority, a server's certificate and a client's, in files.
struct Papers {
    dir: tempfile::TempDir,
    authority: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Papers {
    fn new() -> Papers {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertifiedIssuer::self_signed(params, key).unwrap();
        let papers = Papers {
            dir: tempfile::tempdir().unwrap(),
            authority,
        };
        std::fs::write(papers.file("ca.crt"), papers.authority.pem()).unwrap();
        for name in ["server", "other"] {
            let (cert, key) = papers.certify();
            std::fs::write(papers.file(&format!("{name}.crt")), cert.pem()).unwrap();
            std::fs::write(papers.file(&format!("{name}.key")), key.serialize_pem()).unwrap();
        }
        papers
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn certify(&self) -> (rcgen::Certificate, rcgen::KeyPair) {
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.authority).unwrap(), key)
    }

    fn tls(&self, mutual: bool) -> Tls {
        let ca = self.file("ca.crt");
        let ca = mutual.then_some(ca.as_path());
        Tls::from_files(&self.file("server.crt"), &self.file("server.key"), ca).unwrap()
    }

    /// Settings of a client: trusted roots, application protocols, and the authority that certifies it.
    fn client(&self, protocols: &[&str], certifier: Option<&Papers>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match certifier {
            None => config.with_no_client_auth(),
            Some(papers) => {
                let (cert, key) = papers.certify();
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                let chain = vec![cert.der().clone()];
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|p| p.as_bytes().to_vec()).collect();
        config
    }
}

fn site(tls: Option<Tls>, security: Security, change: fn(&mut steadfast_nfs::Options)) -> Site {
    let mut options = options();
    options.tls = tls;
    change(&mut options);
    let export = export().with_access(Access {
        security,
        ..access()
    });
    Site::opt(file_system(Kind::Real), vec![export], &options)
}

/// A call of NULL that asks for TLS, with these bytes as its credential.
fn asks_for_tls(client: &mut Client, program: u32, procedure: u32, credential: &[u8]) -> Vec<u8> {
    let own = std::mem::replace(
        &mut client.credential,
        opaque_auth {
            body: Opaque::owned(credential.to_vec()),
            ..opaque_auth::default()
        },
    );
    let mut call = client.call_bytes(program, 3, procedure, &Void);
    client.credential = own;
    call[24..28].copy_from_slice(&7_u32.to_be_bytes());
    call
}

/// Whether a reply offers TLS: accepted, AUTH_NONE with `STARTTLS`, success.
fn offers(reply: &[u8]) -> bool {
    let head = [1_u32, 0, 0, 8].map(u32::to_be_bytes).concat();
    let rest = [&head[..], b"STARTTLS", &[0; 4]].concat();
    reply[4..] == rest
}

/// A client over TLS.
struct Secure {
    plain: Client,
    stream: StreamOwned<ClientConnection, TcpStream>,
}

type Denied = Option<u32>;

impl Secure {
    /// Requests TLS and completes the handshake on this side.
    fn new(site: &Site, config: ClientConfig) -> std::io::Result<Secure> {
        let mut plain = site.client();
        let call = asks_for_tls(&mut plain, PROGRAM, 0, &[]);
        plain.send(&call);
        assert!(offers(&plain.reply().unwrap()), "TLS is offered");
        let name = ServerName::try_from("localhost").unwrap();
        let tls = ClientConnection::new(Arc::new(config), name).unwrap();
        let socket = plain.stream.try_clone().unwrap();
        let mut stream = StreamOwned::new(tls, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Secure { plain, stream })
    }

    fn send(&mut self, call: &[u8]) {
        self.stream.write_all(&record(call)).unwrap();
    }

    fn reply(&mut self) -> std::io::Result<Vec<u8>> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let mut reply = vec![0; (u32::from_be_bytes(mark) & (u32::MAX >> 1)) as usize];
        self.stream.read_exact(&mut reply)?;
        Ok(reply)
    }

    fn call<R: Unpack>(
        &mut self,
        program: u32,
        procedure: u32,
        args: &impl Pack,
    ) -> Result<R, Refused> {
        let call = self.plain.call_bytes(program, 3, procedure, args);
        self.send(&call);
        let (xid, result) = Client::decode(&self.reply().unwrap());
        assert_eq!(xid, self.plain.xid);
        result
    }

    fn nfs<R: Unpack>(&mut self, procedure: NFS_PROGRAM, args: &impl Pack) -> R {
        self.call(PROGRAM, procedure as u32, args).unwrap()
    }

    fn mnt(&mut self) -> nfs_fh3 {
        let args = mount::dirpath(Opaque::borrowed(b"/"));
        let result: mount::mountres3<'static> = self.call(mount::PROGRAM, 1, &args).unwrap();
        match result {
            mount::mountres3::Ok(ok) => nfs_fh3 { data: ok.fhandle.0 },
            mount::mountres3::Err(status) => panic!("{status:?}"),
        }
    }

    /// The reason why GETATTR of a handle is denied.
    fn denied(&mut self, root: &nfs_fh3) -> Denied {
        let result = self.call::<GETATTR3res>(PROGRAM, 1, root);
        denial(result)
    }
}

fn denial<R: std::fmt::Debug>(result: Result<R, Refused>) -> Denied {
    match result {
        Ok(_) => None,
        Err(Refused::Denied(rejected_reply::AUTH_ERROR(why))) => Some(why as u32),
        Err(other) => panic!("{other:?}"),
    }
}

const TOO_WEAK: Denied = Some(auth_stat::AUTH_TOOWEAK as u32);

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the server closes the connection, and ignores its bytes. Returns the time that took.
fn hung_up(mut stream: &TcpStream) -> Duration {
    let start = Instant::now();
    let timeout = Some(Duration::from_secs(20));
    stream.set_read_timeout(timeout).unwrap();
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset, "{e}"),
    }
    start.elapsed()
}

#[test]
fn what_is_written_over_tls_with_eight_calls_outstanding_is_read_back() {
    let papers = Papers::new();
    let site = site(Some(papers.tls(false)), Security::Tls, |_| {});
    let mut c = Secure::new(&site, papers.client(&["sunrpc"], None)).unwrap();
    assert_eq!(c.stream.conn.alpn_protocol(), Some(&b"sunrpc"[..]));
    let root = c.mnt();
    let args = CREATE3args {
        where_: entry(&root, b"f"),
        how: createhow3::GUARDED(mode(0o644)),
    };
    let created: CREATE3res = c.nfs(NFS_PROGRAM::NFSPROC3_CREATE, &args);
    let file = status_of(created).unwrap().obj.unwrap();
    const PART: usize = 128 << 10;
    let data: Vec<u8> = (0..8 * PART as u32)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    for (i, part) in data.chunks(PART).enumerate() {
        let args = WRITE3args {
            file: file.clone(),
            offset: (i * PART) as u64,
            count: PART as u32,
            stable: stable_how::FILE_SYNC,
            data: Opaque::borrowed(part),
        };
        let call = c.plain.call_bytes(PROGRAM, 3, 7, &args);
        c.send(&call);
    }
    for _ in 0..8 {
        let (_, result) = Client::decode::<WRITE3res>(&c.reply().unwrap());
        let written = status_of(result.unwrap()).unwrap();
        assert_eq!(written.count as usize, PART);
    }
    let mut asked = HashMap::new();
    for i in 0..8 {
        let args = READ3args {
            file: file.clone(),
            offset: (i * PART) as u64,
            count: PART as u32,
        };
        let call = c.plain.call_bytes(PROGRAM, 3, 6, &args);
        asked.insert(c.plain.xid, i);
        c.send(&call);
    }
    for _ in 0..8 {
        let (xid, result) = Client::decode::<READ3res<'_>>(&c.reply().unwrap());
        let i = asked.remove(&xid).unwrap();
        let read = status_of(result.unwrap()).unwrap();
        assert!(read.data.as_ref() == &data[i * PART..][..PART], "part {i}");
    }
    // One call of the longest length, and its reply.
    let args = READ3args {
        file: file.clone(),
        offset: 0,
        count: 1 << 20,
    };
    let whole: READ3res<'_> = c.nfs(NFS_PROGRAM::NFSPROC3_READ, &args);
    assert!(status_of(whole).unwrap().data.as_ref() == &data[..]);
    let reversed: Vec<u8> = data.iter().rev().copied().collect();
    let args = WRITE3args {
        file: file.clone(),
        offset: 0,
        count: 1 << 20,
        stable: stable_how::UNSTABLE,
        data: Opaque::borrowed(&reversed),
    };
    let written: WRITE3res = c.nfs(NFS_PROGRAM::NFSPROC3_WRITE, &args);
    assert_eq!(status_of(written).unwrap().count, 1 << 20);
    assert_eq!(site.counter("tls_connections_accepted"), 1);
    assert_eq!(site.counter("tls_connections_now"), 1);
    assert_eq!(site.counter("arriving_bytes_now"), 0, "all is given back");
    // The server sends its close_notify inside TLS.
    let site_fs = Arc::clone(&site.fs);
    assert_eq!(site.server.stop(), Ended::Stopped);
    let mut rest = Vec::new();
    c.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    drop(site_fs);
}

static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn an_export_that_wants_tls_refuses_calls_in_plain_and_says_what_to_do() {
    let papers = Papers::new();
    let tell = |options: &mut steadfast_nfs::Options| {
        options.tell = Some(|line| TOLD.lock().unwrap().push(line.to_owned()));
    };
    let site = site(Some(papers.tls(false)), Security::Tls, tell);
    // Linux calls the MOUNT program without TLS, whatever the mount options: a handle alone grants nothing.
    let (mut plain, root) = site.mounted();
    plain.null();
    let mut secure = Secure::new(&site, papers.client(&[], None)).unwrap();
    assert_eq!(secure.denied(&root), None);
    assert_eq!(site.counter("refused_insecure"), 0);
    for _ in 0..2 {
        let result = plain.raw::<GETATTR3res>(PROGRAM, 3, 1, &root);
        assert_eq!(denial(result), TOO_WEAK);
    }
    let args = CREATE3args {
        where_: entry(&root, b"f"),
        how: createhow3::GUARDED(mode(0o644)),
    };
    let result = plain.raw::<CREATE3res>(PROGRAM, 3, 8, &args);
    assert_eq!(denial(result), TOO_WEAK);
    let args = LOOKUP3args {
        what: entry(&root, b"f"),
    };
    let found: LOOKUP3res = secure.nfs(NFS_PROGRAM::NFSPROC3_LOOKUP, &args);
    assert_eq!(status_of(found).err(), Some(nfsstat3::NFS3ERR_NOENT));
    assert_eq!(site.counter("refused_insecure"), 3);
    let told = TOLD.lock().unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("127.0.0.1") && told[0].contains("-o xprtsec=tls"));
}

#[test]
fn an_export_that_requires_client_certificates_accepts_only_trusted_ones() {
    let papers = Papers::new();
    let site = site(Some(papers.tls(true)), Security::Mtls, |_| {});
    let (_, root) = site.mounted();
    let without = papers.client(&["sunrpc"], None);
    let mut without = Secure::new(&site, without).unwrap();
    assert_eq!(without.denied(&root), TOO_WEAK);
    let with = papers.client(&["sunrpc"], Some(&papers));
    let mut with = Secure::new(&site, with).unwrap();
    assert_eq!(with.denied(&root), None);
    // A client without a trusted certificate is disconnected, with or without an alert before.
    let stranger = papers.client(&["sunrpc"], Some(&Papers::new()));
    if let Ok(mut stranger) = Secure::new(&site, stranger) {
        let call = stranger.plain.call_bytes(PROGRAM, 3, 0, &Void);
        let _ = stranger.stream.write_all(&record(&call));
        assert!(stranger.reply().is_err());
    }
    until("the handshake fails", || {
        site.counter("tls_handshakes_failed") == 1
    });
    assert_eq!(site.counter("tls_connections_accepted"), 2);
}

#[test]
fn a_client_of_another_protocol_is_refused() {
    let papers = Papers::new();
    let site = site(Some(papers.tls(false)), Security::None, |_| {});
    let other = papers.client(&["h2"], None);
    assert!(Secure::new(&site, other).is_err());
    until("it is counted", || {
        site.counter("tls_handshakes_failed") == 1
    });
    let mut both = Secure::new(&site, papers.client(&["h2", "sunrpc"], None)).unwrap();
    both.mnt();
}

#[test]
fn tls_is_asked_for_once_by_null_with_nothing_else() {
    let papers = Papers::new();
    let site = site(Some(papers.tls(false)), Security::None, |_| {});
    let bad = Some(auth_stat::AUTH_BADCRED as u32);
    let mut plain = site.client();
    let wrong = [
        asks_for_tls(&mut plain, PROGRAM, 1, &[]),
        asks_for_tls(&mut plain, mount::PROGRAM, 1, &[]),
        asks_for_tls(&mut plain, PROGRAM, 0, &[1, 2, 3, 4]),
    ];
    for call in wrong {
        plain.send(&call);
        let (_, result) = Client::decode::<Void>(&plain.reply().unwrap());
        assert_eq!(denial(result), bad);
        // The connection continues without TLS.
        plain.null();
    }
    let mut call = asks_for_tls(&mut plain, PROGRAM, 0, &[]);
    call[32..36].copy_from_slice(&1_u32.to_be_bytes());
    plain.send(&call);
    let (_, result) = Client::decode::<Void>(&plain.reply().unwrap());
    assert_eq!(denial(result), Some(auth_stat::AUTH_BADVERF as u32));
    // MOUNT offers it, too.
    let call = asks_for_tls(&mut plain, mount::PROGRAM, 0, &[]);
    plain.send(&call);
    assert!(offers(&plain.reply().unwrap()));
    // Inside TLS it is refused, and TLS goes on.
    let mut secure = Secure::new(&site, papers.client(&["sunrpc"], None)).unwrap();
    let call = asks_for_tls(&mut secure.plain, PROGRAM, 0, &[]);
    secure.send(&call);
    let (_, result) = Client::decode::<Void>(&secure.reply().unwrap());
    assert_eq!(denial(result), bad);
    secure.mnt();
}

#[test]
fn a_server_without_a_certificate_does_not_offer_tls() {
    let site = Site::new(Kind::Model);
    let mut plain = site.client();
    let call = asks_for_tls(&mut plain, PROGRAM, 0, &[]);
    plain.send(&call);
    let (_, result) = Client::decode::<Void>(&plain.reply().unwrap());
    assert_eq!(denial(result), Some(auth_stat::AUTH_BADCRED as u32));
    plain.null();
}

#[test]
fn clients_with_no_handshake_or_an_endless_one_are_disconnected() {
    let papers = Papers::new();
    let shorten = |options: &mut steadfast_nfs::Options| {
        options.handshake_time = Duration::from_secs(1);
    };
    let site = site(Some(papers.tls(false)), Security::None, shorten);
    let (mut honest, root) = site.mounted();
    let begun = || {
        let mut client = site.client();
        let call = asks_for_tls(&mut client, PROGRAM, 0, &[]);
        client.send(&call);
        assert!(offers(&client.reply().unwrap()));
        client
    };
    // Garbage.
    let mut garbage = begun();
    garbage.stream.write_all(&[0xa5; 3000]).unwrap();
    assert!(hung_up(&garbage.stream) < Duration::from_secs(1));
    assert_eq!(site.counter("tls_handshakes_failed"), 1);
    // RPC without TLS.
    let mut plain = begun();
    let call = plain.call_bytes(PROGRAM, 3, 0, &Void);
    plain.send(&call);
    let mut answer = Vec::new();
    let _ = plain.stream.read_to_end(&mut answer);
    assert!(answer.first() != Some(&0x80), "no reply in plain");
    assert_eq!(site.counter("tls_handshakes_failed"), 2);
    // Nothing; a part of a record; a record of an unfinished message, byte by byte.
    let nothing = begun();
    let mut part = begun();
    part.stream.write_all(&[22, 3, 1, 2]).unwrap();
    let mut slow = begun();
    slow.stream
        .write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252])
        .unwrap();
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(100));
        let _ = slow.stream.write_all(&[3]);
        honest.getattr(&root).unwrap();
    }
    assert!(site.counter("arriving_bytes_now") > 0, "it is reserved");
    for client in [&nothing, &part, &slow] {
        assert!(hung_up(&client.stream) < Duration::from_secs(5));
    }
    assert_eq!(site.counter("tls_handshakes_failed"), 5);
    assert_eq!(site.counter("connections_closed_slow"), 3);
    // A client sees the end of its connection before the server has counted all of it.
    until("memory is given back", || {
        site.counter("arriving_bytes_now") == 0 && site.counter("connections_now") == 1
    });
    assert_eq!(site.counter("tls_connections_accepted"), 0);
    honest.getattr(&root).unwrap();
}

#[test]
fn plaintext_after_the_request_for_tls_is_never_answered() {
    // An attacker could have injected it before the client's encrypted data.
    let papers = Papers::new();
    let site = site(Some(papers.tls(false)), Security::None, |_| {});
    for cut in [0, 10] {
        let mut client = site.client();
        let wish = asks_for_tls(&mut client, PROGRAM, 0, &[]);
        let call = client.call_bytes(PROGRAM, 3, 0, &Void);
        let mut bytes = [record(&wish), record(&call)].concat();
        bytes.truncate(bytes.len() - cut);
        client.stream.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        let _ = client.stream.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{cut}: {answer:?}");
    }
    assert_eq!(site.counter("tls_connections_accepted"), 0);
}

#[test]
fn a_client_over_tls_that_takes_nothing_is_not_read_and_harms_nobody() {
    let papers = Papers::new();
    let limit = |options: &mut steadfast_nfs::Options| options.memory_bytes = 16 << 20;
    let site = site(Some(papers.tls(false)), Security::None, limit);
    let (mut honest, root) = site.mounted();
    let file = honest.create(&root, "f");
    let data = vec![7; 1 << 20];
    let stable = stable_how::FILE_SYNC;
    honest.write(&file, 0, &data, stable).unwrap();
    let mut deaf = Secure::new(&site, papers.client(&["sunrpc"], None)).unwrap();
    deaf.stream
        .sock
        .set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let args = READ3args {
        file: file.clone(),
        offset: 0,
        count: 1 << 20,
    };
    // More replies than fit the memory and the kernel's buffers.
    for _ in 0..64 {
        let call = deaf.plain.call_bytes(PROGRAM, 3, 6, &args);
        deaf.send(&call);
    }
    until("replies are kept", || site.counter("unsent_bytes_now") > 0);
    std::thread::sleep(Duration::from_millis(200));
    assert!(site.counter("unsent_bytes_now") <= 16 << 20);
    assert_eq!(honest.read(&file, 0, 10).unwrap().0, data[..10]);
    // When the client reads, all replies arrive: none was lost or mixed up.
    for _ in 0..64 {
        let (_, result) = Client::decode::<READ3res<'_>>(&deaf.reply().unwrap());
        assert!(status_of(result.unwrap()).unwrap().data.as_ref() == &data[..]);
    }
    until("the memory of unsent bytes is given back", || {
        site.counter("unsent_bytes_now") == 0
    });
}

#[test]
fn files_that_make_no_tls_and_exports_that_want_too_much_are_refused_with_a_reason() {
    let papers = Papers::new();
    let file = |name: &str| papers.file(name);
    std::fs::write(file("empty"), b"").unwrap();
    std::fs::write(
        file("bad"),
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    for (cert, key, ca, words) in [
        ("none", "server.key", None, "none: "),
        ("server.crt", "none", None, "none: "),
        ("empty", "server.key", None, "holds no certificate"),
        ("server.key", "server.key", None, "holds no certificate"),
        ("server.crt", "server.crt", None, "holds no private key"),
        ("server.crt", "other.key", None, "do not belong together"),
        ("bad", "server.key", None, "bad: "),
        ("server.crt", "server.key", Some("empty"), "empty: "),
        ("server.crt", "server.key", Some("bad"), "bad: "),
    ] {
        let ca = ca.map(file);
        let error: TlsError = Tls::from_files(&file(cert), &file(key), ca.as_deref())
            .err()
            .unwrap();
        let said = error.to_string();
        assert!(said.contains(words), "{cert} {key} {ca:?}: {said}");
    }
    for (tls, security, words) in [
        (None, Security::Tls, "--tls-cert"),
        (None, Security::Mtls, "--tls-cert"),
        (Some(papers.tls(false)), Security::Mtls, "--tls-ca"),
    ] {
        let mut options = options();
        options.tls = tls;
        let export = export().with_access(Access {
            security,
            ..access()
        });
        let served = ExportedVolume::new(file_system(Kind::Model), "test");
        let error = Server::start(vec![served], vec![export], &options).err();
        let said = error.unwrap();
        assert!(
            matches!(
                said,
                steadfast_nfs::Error::Exports(ExportError::NoTls(_) | ExportError::NoAuthority(_))
            ) && said.to_string().contains(words),
            "{said}"
        );
    }
}

/// New clients get a renewed certificate; an incomplete renewal changes nothing.
#[test]
fn certificates_are_read_again_when_their_files_change() {
    let papers = Papers::new();
    let tls = papers.tls(false);
    let site = site(Some(tls.clone()), Security::Tls, |_| {});
    let shown = || {
        let secure = Secure::new(&site, papers.client(&["sunrpc"], None)).unwrap();
        secure.stream.conn.peer_certificates().unwrap()[0].clone()
    };
    let first = shown();
    let renew = |name: &str, kind: &str| {
        let fresh = papers.file("fresh");
        std::fs::copy(papers.file(&format!("{name}.{kind}")), &fresh).unwrap();
        std::fs::rename(fresh, papers.file(&format!("server.{kind}"))).unwrap();
    };
    renew("other", "crt");
    // It was tried once, and then only when the files changed again: a file that was unreadable for a moment was
    // never read.
    for _ in 0..2 {
        let half = tls.refresh();
        assert!(matches!(half, Err(TlsError::Mismatch { .. })), "{half:?}");
    }
    assert_eq!(shown(), first);
    renew("other", "key");
    let other = CertificateDer::from_pem_file(papers.file("other.crt")).unwrap();
    until("the new one is shown", || shown() == other);
    assert!(!tls.refresh().unwrap());
}
