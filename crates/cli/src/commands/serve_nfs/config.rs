//! What is to be served: the command line and a TOML file, made one plan.
//!
//! The file says for all exports what the command line says for those it names; where both speak of
//! the server, the command line holds. The help of the command shows the file.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use steadfast_nfs::{
    Access, Anonymous, Export, ExportError, IpNet, Security, Squash, Streams, Tls, everybody,
    this_host,
};

use crate::failure::Failure;

/// Where NFS is looked for.
const DEFAULT_LISTEN: &str = "127.0.0.1:2049";

/// Whose word is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SquashName {
    /// Everybody is who they say
    None,
    /// Root becomes the anonymous user
    #[default]
    Root,
    /// Everybody becomes the anonymous user
    All,
}

/// Whose order operations join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StreamsName {
    /// The content of a file is a stream, all else of a client is one
    #[default]
    File,
    /// All of a client is one
    Client,
    /// All of a user is one
    User,
    /// All of the export is one
    Export,
}

/// How a connection may be protected, in the words of Linux's exports and mounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SecurityName {
    /// Not at all
    None,
    /// By TLS
    Tls,
    /// By TLS, with a certificate of the client
    Mtls,
}

impl SecurityName {
    fn security(self) -> Security {
        match self {
            SecurityName::None => Security::None,
            SecurityName::Tls => Security::Tls,
            SecurityName::Mtls => Security::Mtls,
        }
    }
}

/// Files in PEM that TLS takes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TlsArgs {
    /// Certificate of the server, and those between it and its authority: clients may use TLS (xprtsec=tls)
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Its private key, without a password
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Certificates of those who certify clients: they may show one (xprtsec=mtls)
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// What was given, with what the file says where nothing was.
    fn or(&self, file: TlsArgs) -> TlsArgs {
        TlsArgs {
            tls_cert: self.tls_cert.clone().or(file.tls_cert),
            tls_key: self.tls_key.clone().or(file.tls_key),
            tls_ca: self.tls_ca.clone().or(file.tls_ca),
        }
    }

    /// What clients that want TLS get, with what exports allow.
    fn load(&self, exports: &[Allowed]) -> Result<Option<Tls>, Failure> {
        let (cert, key) = match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (None, None, None) => return Ok(None),
            (Some(cert), Some(key), _) => (cert, key),
            (None, Some(_), _) => {
                return Err(Failure::usage(
                    "a TLS key without its certificate: name it with --tls-cert",
                ));
            }
            (Some(_), None, _) => {
                return Err(Failure::usage(
                    "a TLS certificate without its key: name it with --tls-key",
                ));
            }
            (None, None, Some(_)) => {
                return Err(Failure::usage(
                    "authorities of clients (--tls-ca) without a certificate of the server: name it with --tls-cert and --tls-key",
                ));
            }
        };
        let allows_mtls = |allowed: &Allowed| match allowed {
            Some(names) => names.contains(&SecurityName::Mtls),
            None => true,
        };
        if self.tls_ca.is_some() && !exports.iter().any(allows_mtls) {
            return Err(Failure::usage(
                "authorities of clients (--tls-ca), and no export allows mtls: add it to an export's xprtsec, or leave them out",
            ));
        }
        let tls = Tls::from_files(cert, key, self.tls_ca.as_deref());
        tls.map(Some).map_err(|e| Failure::new(e.to_string()))
    }
}

/// How connections to an export may be protected; all that the server can do if nothing is said.
type Allowed = Option<Vec<SecurityName>>;

/// The least protection that is allowed; none if no connection is.
fn least_of(allowed: Option<&[SecurityName]>) -> Option<Security> {
    let Some(names) = allowed else {
        return Some(Security::None);
    };
    names.iter().map(|name| name.security()).min()
}

/// Of exports on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Network whose hosts may use the exports, such as 10.0.0.0/8, or *; may be repeated [default: this host]
    #[arg(long, value_name = "NETWORK")]
    client: Vec<String>,
    /// Let nobody change anything, and leave the images as they are
    #[arg(long)]
    read_only: bool,
    /// Let clients use ports that every user of theirs may use: 1024 and up
    #[arg(long)]
    insecure: bool,
    /// How connections may be protected: none, tls, mtls; several with commas [default: all that the server can do]
    #[arg(
        long,
        value_name = "HOW",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    xprtsec: Vec<SecurityName>,
    /// Whose word is not taken
    #[arg(long, value_enum, default_value_t)]
    squash: SquashName,
    /// User that others become
    #[arg(long, value_name = "UID", default_value_t = 65534)]
    anon_uid: u32,
    /// Group that others become
    #[arg(long, value_name = "GID", default_value_t = 65534)]
    anon_gid: u32,
    /// Whose order operations join
    #[arg(long, value_enum, default_value_t)]
    streams: StreamsName,
}

/// An export in the file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ExportEntry {
    image: PathBuf,
    #[serde(default = "root")]
    path: String,
    clients: Option<Vec<String>>,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    any_port: bool,
    xprtsec: Allowed,
    #[serde(default)]
    squash: SquashName,
    anon_uid: Option<u32>,
    anon_gid: Option<u32>,
    #[serde(default)]
    streams: StreamsName,
}

fn root() -> String {
    "/".to_owned()
}

/// The file.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    #[serde(default)]
    listen: Vec<SocketAddr>,
    mount_port: Option<u16>,
    threads: Option<u16>,
    control: Option<PathBuf>,
    metrics: Option<SocketAddr>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_ca: Option<PathBuf>,
    #[serde(default)]
    rpcbind: bool,
    #[serde(default)]
    export: Vec<ExportEntry>,
}

/// What the command line asks for.
pub(crate) struct Asked<'a> {
    pub(crate) config: Option<&'a Path>,
    pub(crate) listen: &'a [SocketAddr],
    pub(crate) mount_port: Option<u16>,
    pub(crate) threads: Option<u16>,
    pub(crate) control: Option<&'a Path>,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) rpcbind: bool,
    pub(crate) tls: &'a TlsArgs,
    pub(crate) export: &'a ExportArgs,
    pub(crate) images: &'a [String],
}

/// A volume to open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) image: PathBuf,
    /// No export lets anybody change it.
    pub(crate) read_only: bool,
}

/// What is to be served.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) mount_port: Option<u16>,
    pub(crate) threads: Option<u16>,
    pub(crate) control: Option<PathBuf>,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) rpcbind: bool,
    pub(crate) tls: Option<Tls>,
    pub(crate) volumes: Vec<Wanted>,
    pub(crate) exports: Vec<Export>,
}

impl Plan {
    /// Makes one plan of all that was said.
    ///
    /// # Errors
    /// It makes none.
    pub(crate) fn new(asked: Asked<'_>) -> Result<Plan, Failure> {
        let file = asked.config.map(read).transpose()?.unwrap_or_default();
        let mut plan = Plan {
            listen: match asked.listen {
                [] => file.listen,
                listen => listen.to_vec(),
            },
            mount_port: asked.mount_port.or(file.mount_port),
            threads: asked.threads.or(file.threads),
            control: asked.control.map(Path::to_owned).or(file.control),
            metrics: asked.metrics.or(file.metrics),
            rpcbind: asked.rpcbind || file.rpcbind,
            tls: None,
            volumes: Vec::new(),
            exports: Vec::new(),
        };
        if plan.listen.is_empty() {
            plan.listen.extend(DEFAULT_LISTEN.parse::<SocketAddr>());
        }
        let tls = asked.tls.or(TlsArgs {
            tls_cert: file.tls_cert,
            tls_key: file.tls_key,
            tls_ca: file.tls_ca,
        });
        let mut allowed = Vec::new();
        for entry in file.export {
            allowed.push(entry.xprtsec.clone());
            plan.add(entry)?;
        }
        for image in asked.images {
            let (image, path) = match image.split_once(":/") {
                Some((image, path)) => (image, format!("/{path}")),
                None => (image.as_str(), root()),
            };
            let args = asked.export;
            let xprtsec = (!args.xprtsec.is_empty()).then(|| args.xprtsec.clone());
            allowed.push(xprtsec.clone());
            plan.add(ExportEntry {
                image: image.into(),
                path,
                clients: (!args.client.is_empty()).then(|| args.client.clone()),
                read_only: args.read_only,
                any_port: args.insecure,
                xprtsec,
                squash: args.squash,
                anon_uid: Some(args.anon_uid),
                anon_gid: Some(args.anon_gid),
                streams: args.streams,
            })?;
        }
        if plan.exports.is_empty() {
            return Err(Failure::usage(
                "nothing to serve: name an image, or exports in a file (--config)",
            ));
        }
        plan.tls = tls.load(&allowed)?;
        let best = plan.tls.as_ref().map_or(Security::None, Tls::best);
        let wants = |export: &&Export| export.access.iter().any(|access| access.security > best);
        if let Some(export) = plan.exports.iter().find(wants) {
            let path = export.path.clone();
            let why = match best {
                Security::None => ExportError::NoTls(path),
                _ => ExportError::NoAuthority(path),
            };
            return Err(Failure::usage(why.to_string()));
        }
        Ok(plan)
    }

    fn add(&mut self, entry: ExportEntry) -> Result<(), Failure> {
        let image = entry.image.canonicalize().map_err(|e| match e.kind() {
            ErrorKind::NotFound => Failure::at(&entry.image, "does not exist; check the name"),
            _ => Failure::at(&entry.image, e),
        })?;
        if self.exports.iter().any(|export| export.path == entry.path) {
            return Err(Failure::usage(format!(
                "two exports have the path '{}': give each one of its own (IMAGE:/PATH)",
                entry.path
            )));
        }
        let clients = match entry.clients {
            None => this_host(),
            Some(clients) => {
                let mut networks = Vec::new();
                for client in clients {
                    networks.extend(network(&client).map_err(Failure::usage)?);
                }
                networks
            }
        };
        let security = least_of(entry.xprtsec.as_deref()).ok_or_else(|| {
            Failure::usage(format!(
                "export '{}' allows no connection: name none, tls or mtls in its xprtsec, or leave it out",
                entry.path
            ))
        })?;
        let volume = match self.volumes.iter().position(|wanted| wanted.image == image) {
            Some(volume) => volume,
            None => {
                self.volumes.push(Wanted {
                    image,
                    read_only: true,
                });
                self.volumes.len() - 1
            }
        };
        self.volumes[volume].read_only &= entry.read_only;
        let nobody = Anonymous::default();
        self.exports.push(Export {
            path: entry.path,
            volume,
            access: vec![Access {
                clients,
                read_only: entry.read_only,
                any_port: entry.any_port,
                security,
                squash: match entry.squash {
                    SquashName::None => Squash::None,
                    SquashName::Root => Squash::Root,
                    SquashName::All => Squash::All,
                },
                anonymous: Anonymous {
                    uid: entry.anon_uid.unwrap_or(nobody.uid),
                    gid: entry.anon_gid.unwrap_or(nobody.gid),
                },
            }],
            streams: match entry.streams {
                StreamsName::File => Streams::File,
                StreamsName::Client => Streams::Client,
                StreamsName::User => Streams::User,
                StreamsName::Export => Streams::Export,
            },
        });
        Ok(())
    }
}

/// A network, or a single host.
fn network(text: &str) -> Result<Vec<IpNet>, String> {
    if text == "*" {
        return Ok(everybody());
    }
    let net = text.parse::<IpNet>();
    let host = || text.parse::<IpAddr>().map(IpNet::from);
    match net.or_else(|_| host()) {
        Ok(net) => Ok(vec![net]),
        Err(_) => Err(format!(
            "'{text}' is no network: write 10.0.0.0/8, fd00::/8, the address of a host, or *"
        )),
    }
}

fn read(path: &Path) -> Result<File, Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::at(path, e))?;
    toml::from_str(&text).map_err(|e| Failure::at(path, e.to_string().trim_end()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        export: ExportArgs,
        #[command(flatten)]
        tls: TlsArgs,
        images: Vec<String>,
    }

    fn plan(dir: &Path, file: Option<&str>, line: &[&str]) -> Result<Plan, Failure> {
        let config = dir.join("config.toml");
        if let Some(text) = file {
            std::fs::write(&config, text.replace("DIR", &dir.display().to_string())).unwrap();
        }
        let line = line
            .iter()
            .map(|word| word.replace("DIR", &dir.display().to_string()));
        let line = Line::parse_from(std::iter::once("x".to_owned()).chain(line));
        Plan::new(Asked {
            config: file.map(|_| config.as_path()),
            listen: &[],
            mount_port: None,
            threads: None,
            control: None,
            metrics: None,
            rpcbind: false,
            tls: &line.tls,
            export: &line.export,
            images: &line.images,
        })
    }

    fn place() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for image in ["a.img", "b.img"] {
            std::fs::write(dir.path().join(image), b"").unwrap();
        }
        dir
    }

    #[test]
    fn a_line_and_a_file_make_one_plan() {
        let dir = place();
        let file = "listen = [\"0.0.0.0:1\"]\nthreads = 3\n[[export]]\nimage = \"DIR/a.img\"\npath = \"/look\"\n\
                    read-only = true\nclients = [\"10.1.2.3\", \"fd00::/8\"]\nsquash = \"all\"\nstreams = \"user\"\n";
        let plan = plan(
            dir.path(),
            Some(file),
            &["--insecure", "--client", "*", "DIR/a.img:/a", "DIR/b.img"],
        )
        .unwrap();
        assert_eq!(plan.listen, ["0.0.0.0:1".parse().unwrap()]);
        assert_eq!(plan.threads, Some(3));
        let paths: Vec<_> = plan
            .exports
            .iter()
            .map(|e| (e.path.as_str(), e.volume))
            .collect();
        assert_eq!(paths, [("/look", 0), ("/a", 0), ("/", 1)]);
        assert!(!plan.volumes[0].read_only, "one of its exports writes");
        let look = &plan.exports[0].access[0];
        assert!(look.read_only && !look.any_port);
        assert_eq!(look.squash, Squash::All);
        assert_eq!(plan.exports[0].streams, Streams::User);
        assert_eq!(
            look.clients,
            ["10.1.2.3/32".parse().unwrap(), "fd00::/8".parse().unwrap()]
        );
        assert_eq!(plan.exports[1].access[0].clients, everybody());
        assert!(plan.exports[1].access[0].any_port);
    }

    #[test]
    fn the_weakest_protection_that_is_allowed_is_what_an_export_wants() {
        use SecurityName::{Mtls, None as Plain, Tls};
        let least = |names: &[SecurityName]| least_of(Some(names));
        assert_eq!(least(&[Mtls, Tls]), Some(Security::Tls));
        assert_eq!(least(&[Mtls, Plain]), Some(Security::None));
        assert_eq!(least(&[Mtls]), Some(Security::Mtls));
        assert_eq!(least(&[]), None);
        assert_eq!(least_of(None), Some(Security::None));
        let dir = place();
        let file = "[[export]]\nimage = \"DIR/a.img\"\nxprtsec = [\"none\", \"tls\"]\n";
        let plan = plan(
            dir.path(),
            Some(file),
            &["--xprtsec", "mtls,none", "DIR/b.img:/b"],
        );
        let all = plan.unwrap().exports;
        assert!(
            all.iter()
                .all(|export| export.access[0].security == Security::None)
        );
    }

    #[test]
    fn without_a_word_this_host_alone_is_served() {
        let dir = place();
        let plan = plan(dir.path(), None, &["--read-only", "DIR/a.img"]).unwrap();
        assert_eq!(plan.listen, [DEFAULT_LISTEN.parse().unwrap()]);
        assert_eq!(plan.exports[0].access[0].clients, this_host());
        assert!(plan.volumes[0].read_only);
        assert_eq!(plan.exports[0].access[0].squash, Squash::Root);
    }

    #[test]
    fn what_makes_no_plan_is_refused_with_a_reason() {
        let dir = place();
        for (file, line, said) in [
            (None, &[][..], "nothing to serve"),
            (None, &["DIR/c.img"], "does not exist"),
            (None, &["DIR/a.img", "DIR/b.img"], "IMAGE:/PATH"),
            (
                None,
                &["--client", "10.0.0.0/99", "DIR/a.img"],
                "no network",
            ),
            (Some("listen = 5"), &[], "listen"),
            (Some("frobnicate = 5"), &[], "frobnicate"),
            (Some("[[export]]\npath = \"/a\""), &[], "image"),
            (
                Some("[[export]]\nimage = \"DIR/a.img\"\nsquash = \"some\""),
                &[],
                "squash",
            ),
            (None, &["--xprtsec", "tls", "DIR/a.img"], "--tls-cert"),
            (
                Some("[[export]]\nimage = \"DIR/a.img\"\nxprtsec = [\"mtls\"]"),
                &[],
                "--tls-cert",
            ),
            (None, &["--tls-cert", "DIR/a.img", "DIR/a.img"], "--tls-key"),
            (None, &["--tls-key", "DIR/a.img", "DIR/a.img"], "--tls-cert"),
            (None, &["--tls-ca", "DIR/a.img", "DIR/a.img"], "--tls-cert"),
            (
                None,
                &[
                    "--tls-cert",
                    "DIR/none",
                    "--tls-key",
                    "DIR/none",
                    "DIR/a.img",
                ],
                "DIR/none: ",
            ),
            (
                None,
                &[
                    "--tls-cert",
                    "DIR/a.img",
                    "--tls-key",
                    "DIR/b.img",
                    "DIR/a.img",
                ],
                "a.img: holds no certificate",
            ),
            (
                None,
                &[
                    "--tls-cert",
                    "DIR/a.img",
                    "--tls-key",
                    "DIR/a.img",
                    "--tls-ca",
                    "DIR/a.img",
                    "--xprtsec",
                    "none,tls",
                    "DIR/a.img",
                ],
                "no export allows mtls",
            ),
            (
                Some("[[export]]\nimage = \"DIR/a.img\"\nxprtsec = []"),
                &[],
                "allows no connection",
            ),
        ] {
            let said = said.replace("DIR", &dir.path().display().to_string());
            let refused = plan(dir.path(), file, line).err().unwrap();
            assert!(refused.message.contains(&said), "{}", refused.message);
        }
    }
}
