//! Exports: the path that clients mount, its volume, and the rights of each client.
//!
//! A [`Table`] is immutable: a reload makes a new one, and a call uses the table with which it began.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

use crate::auth::{Anonymous, Squash};
use crate::security::Security;
use crate::subtree::Subtree;
use crate::tls::Tls;
use crate::volume::Volume;

/// Only privileged programs of a client may use ports below this one.
const RESERVED_PORTS: u16 = 1024;

/// Operations that form a stream. A sync makes its stream durable up to itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(
    feature = "options",
    derive(clap::ValueEnum, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Streams {
    /// One stream for the content of each file, and one for all other changes of a client
    #[default]
    File,
    /// One stream for each client
    Client,
    /// One stream for each user
    User,
    /// One stream for the whole export
    Export,
}

/// Rights of some clients on an export.
#[derive(Clone, Debug)]
pub struct Access {
    /// Networks of the clients.
    pub clients: Vec<IpNet>,
    /// They may not change anything.
    pub read_only: bool,
    /// They may use unprivileged ports.
    pub any_port: bool,
    /// Required protection of a connection.
    pub security: Security,
    /// Users that become the anonymous user.
    pub squash: Squash,
    /// The anonymous user.
    pub anonymous: Anonymous,
}

impl Access {
    /// Access for privileged programs of this host, with root squashed.
    #[must_use]
    pub fn new() -> Access {
        Access {
            clients: this_host(),
            read_only: false,
            any_port: false,
            security: Security::None,
            squash: Squash::default(),
            anonymous: Anonymous::default(),
        }
    }

    fn holds(&self, ip: IpAddr) -> bool {
        self.clients.iter().any(|network| network.contains(&ip))
    }

    fn takes_port_of(&self, peer: SocketAddr) -> bool {
        self.any_port || peer.port() < RESERVED_PORTS
    }
}

impl Default for Access {
    fn default() -> Access {
        Access::new()
    }
}

/// An export.
#[derive(Clone, Debug)]
pub struct Export {
    /// The path that clients mount, beginning with `/`.
    pub path: String,
    /// Index of the volume.
    pub volume: usize,
    /// The exported directory, as a path from the root of the volume. Clients reach nothing outside of it.
    pub directory: String,
    /// Rights of clients: the first entry with a client's address decides. A client without an entry is refused.
    pub access: Vec<Access>,
    /// Division of operations into streams.
    pub streams: Streams,
}

impl Export {
    /// An export of the first volume as `/`, only to this host.
    #[must_use]
    pub fn new() -> Export {
        Export {
            path: "/".to_owned(),
            volume: 0,
            directory: "/".to_owned(),
            access: vec![Access::new()],
            streams: Streams::default(),
        }
    }

    /// The same with other rights.
    #[must_use]
    pub fn with_access(self, access: Access) -> Export {
        Export {
            access: vec![access],
            ..self
        }
    }

    /// A number that does not change with restarts or changes of other exports.
    pub(crate) fn id(&self) -> u32 {
        let mut hasher = SipHasher24::new();
        hasher.write(self.path.as_bytes());
        hasher.finish() as u32
    }

    /// Rights of a client; none if it is not admitted.
    pub(crate) fn access_of(&self, peer: SocketAddr) -> Option<&Access> {
        let ip = peer.ip().to_canonical();
        let mut access = self.access.iter();
        access
            .find(|access| access.holds(ip))
            .filter(|access| access.takes_port_of(peer))
    }

    /// The strongest protection that it requires of any client.
    fn security(&self) -> Security {
        let wanted = self.access.iter().map(|access| access.security);
        wanted.max().unwrap_or_default()
    }
}

impl Default for Export {
    fn default() -> Export {
        Export::new()
    }
}

/// The loopback networks.
#[must_use]
pub fn this_host() -> Vec<IpNet> {
    let net = |ip: IpAddr, len| IpNet::new(ip, len).ok();
    [
        net([127, 0, 0, 0].into(), 8),
        net(std::net::Ipv6Addr::LOCALHOST.into(), 128),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// All networks.
#[must_use]
pub fn everybody() -> Vec<IpNet> {
    vec![
        IpNet::V4(ipnet::Ipv4Net::default()),
        IpNet::V6(ipnet::Ipv6Net::default()),
    ]
}

/// Reasons why exports cannot be served.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExportError {
    /// A path is malformed.
    #[error("export path '{0}': it must begin with '/' and hold no empty part, '.' or '..'")]
    Path(String),
    /// Two exports have the same path.
    #[error("two exports have the path '{0}': give each one of its own (IMAGE:/PATH)")]
    Twice(String),
    /// An export requires TLS, and the server has no certificate.
    #[error("export '{0}' wants TLS, and the server has no certificate (--tls-cert, --tls-key)")]
    NoTls(String),
    /// An export requires client certificates, and no authority for clients is given.
    #[error(
        "export '{0}' requires client certificates (mtls), but no certificate authority for clients is given (--tls-ca)"
    )]
    NoAuthority(String),
    /// The exported directory cannot be opened.
    #[error("export '{export}': the directory '{directory}' of its volume: {why}")]
    Directory {
        /// Path of the export.
        export: String,
        /// Exported directory.
        directory: String,
        /// Cause.
        why: String,
    },
    /// An export names an unknown volume.
    #[error("export '{0}' names a volume that is not served")]
    Volume(String),
}

/// Whether each part of a path from `/` on is a name.
fn is_path(path: &str) -> bool {
    let parts = path.strip_prefix('/').map(|rest| rest.split('/'));
    path == "/" || parts.is_some_and(|mut parts| parts.all(|part| !matches!(part, "" | "." | "..")))
}

/// Exports with their volumes.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) volumes: Vec<Arc<Volume>>,
    exports: Vec<(u32, Export)>,
    /// Subtrees of exports of a directory, by number of the export.
    subtrees: Vec<(u32, Subtree)>,
}

impl Table {
    /// Makes a table of these exports.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub(crate) fn new(
        volumes: Vec<Arc<Volume>>,
        exports: Vec<Export>,
    ) -> Result<Table, ExportError> {
        let mut numbered: Vec<(u32, Export)> = Vec::new();
        let mut subtrees = Vec::new();
        for export in exports {
            if !is_path(&export.path) || export.path.len() > crate::mountd::PATH_BYTES_MAX {
                return Err(ExportError::Path(export.path));
            }
            if export.volume >= volumes.len() {
                return Err(ExportError::Volume(export.path));
            }
            let id = export.id();
            // Different paths practically never have equal numbers; if they do, they are refused as well.
            if numbered.iter().any(|(other, _)| *other == id) {
                return Err(ExportError::Twice(export.path));
            }
            let fs = volumes[export.volume].fs();
            let found = is_path(&export.directory)
                .then(|| Subtree::find(fs, &export.directory))
                .ok_or_else(|| {
                    "it must begin with '/' and hold no empty part, '.' or '..'".to_owned()
                })
                .and_then(|found| found.map_err(|e| e.to_string()));
            let subtree = found.map_err(|why| ExportError::Directory {
                export: export.path.clone(),
                directory: export.directory.clone(),
                why,
            })?;
            subtrees.extend(subtree.map(|subtree| (id, subtree)));
            numbered.push((id, export));
        }
        Ok(Table {
            volumes,
            exports: numbered,
            subtrees,
        })
    }

    /// Checks that the server can provide the protection that the exports require.
    ///
    /// # Errors
    /// [`ExportError::NoTls`], [`ExportError::NoAuthority`].
    pub(crate) fn check_security(&self, tls: Option<&Tls>) -> Result<(), ExportError> {
        let best = tls.map_or(Security::None, Tls::best);
        match self.all().find(|export| export.security() > best) {
            None => Ok(()),
            Some(export) if best == Security::None => Err(ExportError::NoTls(export.path.clone())),
            Some(export) => Err(ExportError::NoAuthority(export.path.clone())),
        }
    }

    /// The export with this number, and its volume.
    pub(crate) fn by_id(&self, id: u32) -> Option<(&Export, &Arc<Volume>)> {
        let (_, export) = self.exports.iter().find(|(other, _)| *other == id)?;
        Some((export, &self.volumes[export.volume]))
    }

    /// The root directory of the export with this number, if it is not a volume's root.
    pub(crate) fn subtree(&self, id: u32) -> Option<Subtree> {
        let mut subtrees = self.subtrees.iter();
        subtrees
            .find(|(other, _)| *other == id)
            .map(|(_, subtree)| *subtree)
    }

    /// The export that contains a path, and the rest of the path.
    pub(crate) fn by_path<'p>(&self, path: &'p [u8]) -> Option<(u32, &'p [u8])> {
        let holds = |export: &Export| -> Option<&'p [u8]> {
            if export.path == "/" {
                return path.strip_prefix(b"/");
            }
            let rest = path.strip_prefix(export.path.as_bytes())?;
            (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
        };
        self.exports
            .iter()
            .filter_map(|(id, export)| holds(export).map(|rest| (*id, rest)))
            .min_by_key(|(_, rest)| rest.len())
    }

    /// Whether any export admits a client. Other clients deserve neither memory nor time.
    pub(crate) fn admits(&self, peer: SocketAddr) -> bool {
        self.all().any(|export| export.access_of(peer).is_some())
    }

    /// All exports, with their volumes.
    pub(crate) fn served(&self) -> impl Iterator<Item = (&Export, &Arc<Volume>)> {
        self.all()
            .map(|export| (export, &self.volumes[export.volume]))
    }

    /// All exports.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Export> {
        self.exports.iter().map(|(_, export)| export)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_client_is_admitted_by_address_and_port() {
        let mut access = Access {
            clients: vec!["10.1.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()],
            ..Access::new()
        };
        let admits = |access: &Access, peer: &str| {
            let export = Export::new().with_access(access.clone());
            export.access_of(peer.parse().unwrap()).is_some()
        };
        assert!(admits(&access, "10.1.2.3:700"));
        assert!(
            admits(&access, "[::ffff:10.1.2.3]:700"),
            "IPv4 through an IPv6 socket"
        );
        assert!(admits(&access, "[fd01::1]:1023"));
        assert!(!admits(&access, "10.1.2.3:1024"));
        assert!(!admits(&access, "10.2.2.3:700"));
        access.any_port = true;
        assert!(admits(&access, "10.1.2.3:1024"));
        access.clients = this_host();
        assert!(admits(&access, "127.0.0.1:9"));
        assert!(!admits(&access, "10.1.2.3:9"));
        access.clients = everybody();
        assert!(admits(&access, "10.1.2.3:9"));
        assert!(admits(&access, "[2001:db8::1]:9"));
    }

    #[test]
    fn the_first_entry_that_holds_a_client_decides() {
        let entry = |clients: &str, read_only, any_port| Access {
            clients: vec![clients.parse().unwrap()],
            read_only,
            any_port,
            ..Access::new()
        };
        let export = Export {
            access: vec![
                entry("10.1.2.3/32", false, false),
                entry("10.1.0.0/16", true, true),
            ],
            ..Export::new()
        };
        let read_only = |peer: &str| {
            let access = export.access_of(peer.parse().unwrap());
            access.map(|access| access.read_only)
        };
        assert_eq!(read_only("10.1.2.3:700"), Some(false));
        assert_eq!(read_only("10.1.2.4:700"), Some(true));
        assert_eq!(read_only("10.1.2.4:7000"), Some(true));
        // A later entry does not grant what the first one refuses.
        assert_eq!(read_only("10.1.2.3:7000"), None);
        assert_eq!(read_only("10.2.0.1:700"), None);
        let table = Table::new(vec![Arc::new(Volume::for_tests())], vec![export]).unwrap();
        assert!(table.admits("10.1.9.9:7000".parse().unwrap()));
        assert!(!table.admits("10.1.2.3:7000".parse().unwrap()));
        assert!(!table.admits("10.2.0.1:7".parse().unwrap()));
    }

    #[test]
    fn paths_are_told_apart_and_checked() {
        let named = |path: &str| Export {
            path: path.to_owned(),
            ..Export::new()
        };
        let table = |paths: &[&str]| {
            let volume = Volume::for_tests();
            Table::new(
                vec![Arc::new(volume)],
                paths.iter().map(|p| named(p)).collect(),
            )
        };
        for wrong in ["", "a", "/a/", "//", "/a/../b", "/."] {
            assert!(table(&[wrong]).is_err(), "{wrong:?}");
        }
        assert_eq!(
            table(&["/a", "/a"]).unwrap_err(),
            ExportError::Twice("/a".into())
        );
        let table = table(&["/", "/a", "/a/b"]).unwrap();
        let found = |path: &str| {
            let (id, rest) = table.by_path(path.as_bytes()).unwrap();
            let (export, _) = table.by_id(id).unwrap();
            (
                export.path.clone(),
                String::from_utf8_lossy(rest).into_owned(),
            )
        };
        assert_eq!(found("/"), ("/".into(), "".into()));
        assert_eq!(found("/x"), ("/".into(), "x".into()));
        assert_eq!(found("/ab"), ("/".into(), "ab".into()));
        assert_eq!(found("/a/c"), ("/a".into(), "/c".into()));
        assert_eq!(found("/a/b/c"), ("/a/b".into(), "/c".into()));
        assert!(table.by_path(b"a").is_none());
    }
}
