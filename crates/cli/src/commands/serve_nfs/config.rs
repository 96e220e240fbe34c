//! The plan of what is served, made of the command line and a TOML file.
//!
//! Each option is declared once, for both: [`Settings`] are options of the server, [`ExportOptions`] those of an
//! export. Options of exports on the command line apply to its images, those in the file to the file's exports. For
//! options of the server, the command line takes precedence. The help of the command shows the file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use steadfast_nfs::{
    Access, Anonymous, Export, ExportError, Security, Squash, Streams, Tls, this_host,
};

use super::clients::networks;
use super::values::{CacheBytes, ListenAt, Time, least_of, nearest};
use crate::failure::{Code, Failure, notice};
use crate::features::Feature;
use crate::private;

/// Default address of NFS.
const DEFAULT_LISTEN: &str = "127.0.0.1:2049";

/// Options of the server.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, clap::Args)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// Address to listen on, IPv4 or IPv6, with port 2049 unless another is given; may be repeated [default: 127.0.0.1]
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    listen: Vec<ListenAt>,
    /// Offer the MOUNT program at this port, too
    #[arg(long, value_name = "PORT")]
    pub(crate) mount_port: Option<u16>,
    /// Certificate of the server, and those between it and its authority: with them, clients may use TLS
    /// (xprtsec=tls)
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, without a password
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Certificates of the authorities that certify clients: with them, clients may show a certificate (xprtsec=mtls)
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Maximum number of calls in progress, 1 to 1024 [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Memory for cached blocks of each volume, at least 1M [default: an eighth of the memory, shared by the volumes]
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache: Option<CacheBytes>,
    /// Socket where 'steadfast stat' reads the counters [default: steadfast-nfs-PORT.sock in /run or XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Offer counters to Prometheus at this address of this host, as http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Append a line for each call and each mount to this file, or to standard output (-); SIGHUP opens the file anew
    #[arg(long, value_name = "FILE|-")]
    pub(crate) access_log: Option<PathBuf>,
    /// Maximum number of connections of one address; an IPv6 network (/64) is one address [default: 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections_per_address: Option<u32>,
    /// Maximum number of TLS handshakes in progress of one address [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) handshakes_per_address: Option<u32>,
    /// Key of file handles for volumes that hold none, as they are served read-only; the file is made, with mode 0600, if it
    /// does not exist, and servers that take turns share it
    #[arg(long, value_name = "FILE")]
    pub(crate) handle_key: Option<PathBuf>,
    /// Register with rpcbind, for clients that do not name the ports (as root)
    #[arg(long)]
    pub(crate) rpcbind: bool,
    /// Wait until the server at --peer is gone, then take over and serve its volumes, which lie on an object store
    #[arg(long)]
    pub(crate) standby: bool,
    /// Address of the other server's --heartbeat
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) peer: Option<String>,
    /// Address of this host at which the other server learns whether this one serves
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) heartbeat: Option<SocketAddr>,
    /// Time of silence after which the peer counts as gone [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub(crate) gone_after: Option<Time>,
    /// Answer only while the store has confirmed within this time that no other machine took over; a successor waits
    /// as long [default with the other options of fail-over: 5s]
    #[arg(long, value_name = "TIME")]
    pub(crate) lease: Option<Time>,
    /// Take the volumes over at once, after the lease of their owner: for cluster managers
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Exports of the file.
    #[arg(skip)]
    export: Vec<ExportOptions>,
}

impl Settings {
    /// These settings, with those of the file where none is given.
    fn over(self, file: Settings) -> Settings {
        let Settings {
            listen,
            mount_port,
            tls_cert,
            tls_key,
            tls_ca,
            threads,
            cache,
            control,
            metrics,
            access_log,
            connections_per_address,
            handshakes_per_address,
            handle_key,
            rpcbind,
            standby,
            peer,
            heartbeat,
            gone_after,
            lease,
            take_over,
            export,
        } = self;
        Settings {
            listen: match listen[..] {
                [] => file.listen,
                _ => listen,
            },
            mount_port: mount_port.or(file.mount_port),
            tls_cert: tls_cert.or(file.tls_cert),
            tls_key: tls_key.or(file.tls_key),
            tls_ca: tls_ca.or(file.tls_ca),
            threads: threads.or(file.threads),
            cache: cache.or(file.cache),
            control: control.or(file.control),
            metrics: metrics.or(file.metrics),
            access_log: access_log.or(file.access_log),
            connections_per_address: connections_per_address.or(file.connections_per_address),
            handshakes_per_address: handshakes_per_address.or(file.handshakes_per_address),
            handle_key: handle_key.or(file.handle_key),
            rpcbind: rpcbind || file.rpcbind,
            standby: standby || file.standby,
            peer: peer.or(file.peer),
            heartbeat: heartbeat.or(file.heartbeat),
            gone_after: gone_after.or(file.gone_after),
            lease: lease.or(file.lease),
            take_over: take_over || file.take_over,
            export: [file.export, export].concat(),
        }
    }

    /// The TLS of the server; `allows_mtls`: an export allows client certificates.
    fn load_tls(&self, allows_mtls: bool) -> Result<Option<Tls>, Failure> {
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
        if self.tls_ca.is_some() && !allows_mtls {
            return Err(Failure::usage(
                "authorities of clients (--tls-ca), and no export allows mtls: add it to an export's xprtsec, or leave them out",
            ));
        }
        Feature::Tls.require("--tls-cert, --tls-key")?;
        if let Some(line) = private::warning(key, "the name of this server") {
            notice(&line);
        }
        let tls = Tls::from_files(cert, key, self.tls_ca.as_deref());
        tls.map(Some).map_err(|e| Failure::usage(e.to_string()))
    }
}

/// Options of an export: on the command line, in the file, and for some of its clients.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, clap::Args)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct ExportOptions {
    #[arg(skip)]
    image: Option<PathBuf>,
    #[arg(skip)]
    path: Option<String>,
    #[arg(skip)]
    directory: Option<String>,
    /// Host or network that may use the exports, such as 10.0.0.0/8, server.example.org, or * for all; may be
    /// repeated [default: this host]
    #[arg(long = "client", value_name = "CLIENT")]
    clients: Option<Vec<String>>,
    /// Refuse all changes, and leave the images unchanged
    #[arg(long, num_args = 0, default_missing_value = "true")]
    read_only: Option<bool>,
    /// Let clients use ports of 1024 and up, which any user of theirs may use
    #[arg(long = "insecure", num_args = 0, default_missing_value = "true")]
    any_port: Option<bool>,
    /// Allowed protection of connections: none, tls, mtls; several with commas [default: all that the server
    /// supports]
    #[arg(
        long,
        value_name = "HOW",
        value_enum,
        value_delimiter = ',',
        hide_possible_values = true
    )]
    xprtsec: Option<Vec<Security>>,
    /// Users that become the anonymous user [default: root]
    #[arg(long, value_enum)]
    squash: Option<Squash>,
    /// Number of the anonymous user [default: 65534]
    #[arg(long, value_name = "UID")]
    anon_uid: Option<u32>,
    /// Number of the anonymous group [default: 65534]
    #[arg(long, value_name = "GID")]
    anon_gid: Option<u32>,
    /// Operations that form a stream, which keeps its order across a crash [default: file]
    #[arg(long, value_enum)]
    streams: Option<Streams>,
    /// Clients with other rights; the first entry that matches a client decides.
    #[arg(skip)]
    access: Vec<ExportOptions>,
}

impl ExportOptions {
    /// These options, with those of the export where none is given for these clients.
    fn within(&self, export: &ExportOptions) -> ExportOptions {
        ExportOptions {
            clients: self.clients.clone(),
            read_only: self.read_only.or(export.read_only),
            any_port: self.any_port.or(export.any_port),
            xprtsec: self.xprtsec.clone().or_else(|| export.xprtsec.clone()),
            squash: self.squash.or(export.squash),
            anon_uid: self.anon_uid.or(export.anon_uid),
            anon_gid: self.anon_gid.or(export.anon_gid),
            ..ExportOptions::default()
        }
    }

    /// The access that it allows, and its clients.
    fn to_access(&self, path: &str) -> Result<Access, Failure> {
        let clients = match &self.clients {
            None => this_host(),
            Some(clients) if clients.is_empty() => {
                return Err(Failure::usage(format!(
                    "export '{path}': 'clients' is empty, so that nobody could use it: name hosts or networks, \
                     \"*\" for all, or leave it out for this host alone"
                )));
            }
            Some(clients) => networks(clients).map_err(Failure::usage)?,
        };
        let security = least_of(self.xprtsec.as_deref()).ok_or_else(|| {
            Failure::usage(format!(
                "export '{path}' allows no connection: name none, tls or mtls in its xprtsec, or leave it out"
            ))
        })?;
        let nobody = Anonymous::default();
        Ok(Access {
            clients,
            read_only: self.read_only.unwrap_or_default(),
            any_port: self.any_port.unwrap_or_default(),
            security,
            squash: self.squash.unwrap_or_default(),
            anonymous: Anonymous {
                uid: self.anon_uid.unwrap_or(nobody.uid),
                gid: self.anon_gid.unwrap_or(nobody.gid),
            },
        })
    }

    fn allows_mtls(&self) -> bool {
        let names = self.xprtsec.as_ref();
        names.is_none_or(|names| names.contains(&Security::Mtls))
            || self.access.iter().any(ExportOptions::allows_mtls)
    }
}

/// Options and images of the command line.
pub(crate) struct CommandLine<'a> {
    pub(crate) config: Option<&'a Path>,
    pub(crate) settings: &'a Settings,
    pub(crate) export: &'a ExportOptions,
    pub(crate) images: &'a [String],
}

/// A volume to open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) image: PathBuf,
    /// Whether no export lets a client change it.
    pub(crate) read_only: bool,
}

/// Everything that a server needs: settings, volumes, exports.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) tls: Option<Tls>,
    pub(crate) volumes: Vec<Wanted>,
    pub(crate) exports: Vec<Export>,
}

impl Plan {
    /// Makes one plan of command line and file.
    ///
    /// # Errors
    /// They make no plan.
    pub(crate) fn new(asked: &CommandLine<'_>) -> Result<Plan, Failure> {
        let (mut plan, allows_mtls) = Plan::read(asked)?;
        plan.tls = plan.settings.load_tls(allows_mtls)?;
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

    /// The same for a running server, which keeps its certificates: they are not read.
    ///
    /// # Errors
    /// As of [`Plan::new`].
    pub(crate) fn again(asked: &CommandLine<'_>) -> Result<Plan, Failure> {
        Plan::read(asked).map(|(plan, _)| plan)
    }

    /// A plan without certificates, and whether its exports allow mtls.
    fn read(asked: &CommandLine<'_>) -> Result<(Plan, bool), Failure> {
        let file = asked.config.map(read).transpose()?.unwrap_or_default();
        let mut settings = asked.settings.clone().over(file);
        let threads_max = steadfast_nfs::THREADS_MAX;
        if settings
            .threads
            .is_some_and(|threads| !(1..=threads_max).contains(&threads.into()))
        {
            return Err(Failure::usage(format!("'threads' is 1 to {threads_max}")));
        }
        let none = Some(0);
        if settings.connections_per_address == none || settings.handshakes_per_address == none {
            return Err(Failure::usage(
                "'connections-per-address' and 'handshakes-per-address' are 1 at least: 0 would refuse every client",
            ));
        }
        if settings.metrics.is_some_and(|at| !at.ip().is_loopback()) {
            return Err(Failure::usage(
                "metrics are offered to this host alone: take an address such as 127.0.0.1:9049",
            ));
        }
        let mut listen: Vec<SocketAddr> = settings.listen.iter().map(|at| at.0).collect();
        if listen.is_empty() {
            listen.extend(DEFAULT_LISTEN.parse::<SocketAddr>());
        }
        let mut exports = std::mem::take(&mut settings.export);
        for image in asked.images {
            let (image, path, directory) = parts_of(image)?;
            exports.push(ExportOptions {
                image: Some(image),
                path,
                directory,
                ..asked.export.clone()
            });
        }
        let mut plan = Plan {
            settings,
            listen,
            tls: None,
            volumes: Vec::new(),
            exports: Vec::new(),
        };
        for export in &exports {
            plan.add(export)?;
        }
        if plan.exports.is_empty() {
            return Err(Failure::usage(
                "nothing to serve: name an image, or exports in a file (--config)",
            ));
        }
        let allows_mtls = exports.iter().any(ExportOptions::allows_mtls);
        Ok((plan, allows_mtls))
    }

    fn add(&mut self, entry: &ExportOptions) -> Result<(), Failure> {
        let Some(image) = &entry.image else {
            return Err(Failure::usage(
                "an [[export]] without its 'image': name the file or block device",
            ));
        };
        let image = crate::volume::canonical(image)?;
        let path = entry.path.as_deref().unwrap_or("/");
        if self.exports.iter().any(|export| export.path == path) {
            return Err(Failure::usage(format!(
                "two exports have the path '{path}': give each one of its own (IMAGE:/PATH)"
            )));
        }
        let mut access = Vec::new();
        for some in &entry.access {
            let other = some.image.is_some()
                || some.path.is_some()
                || some.directory.is_some()
                || some.streams.is_some()
                || !some.access.is_empty();
            if other || some.clients.is_none() {
                return Err(Failure::usage(format!(
                    "export '{path}': an [[export.access]] names its 'clients', and what they may do: \
                     read-only, any-port, xprtsec, squash, anon-uid, anon-gid"
                )));
            }
            access.push(some.within(entry).to_access(path)?);
        }
        access.push(entry.to_access(path)?);
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
        self.volumes[volume].read_only &= access.iter().all(|access| access.read_only);
        self.exports.push(Export {
            path: path.to_owned(),
            volume,
            directory: entry.directory.clone().unwrap_or_else(|| "/".to_owned()),
            access,
            streams: entry.streams.unwrap_or_default(),
        });
        Ok(())
    }
}

/// The parts of `IMAGE[:/PATH[:/DIRECTORY]]`.
fn parts_of(text: &str) -> Result<(PathBuf, Option<String>, Option<String>), Failure> {
    if let Some((scheme, rest)) = text.split_once("://")
        && crate::volume::store::url(Path::new(text)).is_some()
    {
        let (place, path, directory) = parts_of(rest)?;
        return Ok((
            format!("{scheme}://{}", place.display()).into(),
            path,
            directory,
        ));
    }
    if let Some((image, path)) = text.split_once(":/") {
        let (path, directory) = match path.split_once(":/") {
            Some((path, directory)) => (path, Some(format!("/{directory}"))),
            None => (path, None),
        };
        return Ok((image.into(), Some(format!("/{path}")), directory));
    }
    let whole = Path::new(text);
    if let Some((image, path)) = text.rsplit_once(':')
        && !whole.exists()
        && Path::new(image).exists()
    {
        return Err(Failure::usage(format!(
            "'{text}': the path that clients mount begins with '/': write {image}:/{path}"
        )));
    }
    Ok((whole.to_owned(), None, None))
}

fn read(path: &Path) -> Result<Settings, Failure> {
    let text =
        std::fs::read_to_string(path).map_err(|e| Failure::at(path, e).with_code(Code::Usage))?;
    toml::from_str(&text).map_err(|e| {
        let before = e.span().map_or(0, |span| span.start.min(text.len()));
        let line = text[..before].matches('\n').count();
        let key = text.lines().nth(line).and_then(|line| line.split_once('='));
        let mut why = e.message().trim_end().to_owned();
        if let Some((key, _)) = key.filter(|(key, _)| !why.contains(key.trim())) {
            why = format!("{}: {why}", key.trim());
        }
        if let Some(nearest) = nearest(e.message()) {
            why = format!("{why}; did you mean '{nearest}'?");
        }
        Failure::at(path, format!("line {}: {why}", line + 1)).with_code(Code::Usage)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;
    use steadfast_nfs::everybody;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        export: ExportOptions,
        #[command(flatten)]
        settings: Settings,
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
        Plan::new(&CommandLine {
            config: file.map(|_| config.as_path()),
            settings: &line.settings,
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
            &[
                "--insecure",
                "--client",
                "*",
                "DIR/a.img:/a:/home/a",
                "DIR/b.img",
            ],
        )
        .unwrap();
        assert_eq!(plan.listen, ["0.0.0.0:1".parse().unwrap()]);
        assert_eq!(plan.settings.threads, Some(3));
        let paths: Vec<_> = plan
            .exports
            .iter()
            .map(|e| (e.path.as_str(), e.volume))
            .collect();
        assert_eq!(paths, [("/look", 0), ("/a", 0), ("/", 1)]);
        let directories = plan.exports.iter().map(|e| e.directory.as_str());
        assert!(directories.eq(["/", "/home/a", "/"]));
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
        use Security::{Mtls, None as Plain, Tls};
        let least = |names: &[Security]| least_of(Some(names));
        assert_eq!(least(&[Mtls, Tls]), Some(Tls));
        assert_eq!(least(&[Mtls, Plain]), Some(Plain));
        assert_eq!(least(&[Mtls]), Some(Mtls));
        assert_eq!(least(&[]), None);
        assert_eq!(least_of(None), Some(Plain));
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
    fn by_default_this_host_alone_is_served() {
        let dir = place();
        let plan = plan(dir.path(), None, &["--read-only", "DIR/a.img"]).unwrap();
        assert_eq!(plan.listen, [DEFAULT_LISTEN.parse().unwrap()]);
        assert_eq!(plan.exports[0].access[0].clients, this_host());
        assert!(plan.volumes[0].read_only);
        assert_eq!(plan.exports[0].access[0].squash, Squash::Root);
    }

    #[test]
    #[cfg_attr(not(feature = "tls"), ignore = "needs tls")]
    fn wrong_settings_are_refused_with_a_reason() {
        let dir = place();
        for (file, line, said) in [
            (None, &[][..], "nothing to serve"),
            (None, &["DIR/c.img"], "does not exist"),
            (None, &["DIR/a.img", "DIR/b.img"], "IMAGE:/PATH"),
            (
                None,
                &["--client", "10.0.0.0/99", "DIR/a.img"],
                "is no client",
            ),
            (Some("listen = 5"), &[], "listen"),
            (
                Some("frobnicate = 5"),
                &[],
                "line 1: unknown field `frobnicate`",
            ),
            (
                Some("threads = 3\n[[export]]\nimage = \"DIR/a.img\"\nread_only = true"),
                &[],
                "config.toml: line 4: unknown field `read_only`",
            ),
            (
                Some("[[export]]\nimage = \"DIR/a.img\"\nclinets = [\"*\"]"),
                &[],
                "did you mean 'clients'?",
            ),
            (Some("threads = 0"), &[], "'threads' is 1 to 1024"),
            (Some("connections-per-address = 0"), &[], "1 at least"),
            (
                Some("[[export]]\nimage = \"DIR/a.img\"\nclients = []"),
                &[],
                "export '/': 'clients' is empty",
            ),
            (
                Some("[[export]]\nimage = \"DIR/a.img\"\n[[export.access]]\nread-only = true"),
                &[],
                "names its 'clients'",
            ),
            (
                Some(
                    "[[export]]\nimage = \"DIR/a.img\"\n[[export.access]]\nclients = [\"*\"]\npath = \"/x\"",
                ),
                &[],
                "and what they may do",
            ),
            (
                None,
                &["--client", "10.0.0.1/8", "DIR/a.img"],
                "write 10.0.0.0/8 for the network, or 10.0.0.1 for the host",
            ),
            (None, &["DIR/a.img:a"], "write DIR/a.img:/a"),
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
            let missing = said.contains("does not exist");
            assert_eq!(refused.code == Code::Usage, !missing, "{said}");
        }
    }

    #[test]
    fn some_clients_of_an_export_have_other_rights() {
        let dir = place();
        let file = "[[export]]\nimage = \"DIR/a.img\"\nclients = [\"*\"]\nread-only = true\nsquash = \"all\"\nanon-uid = 7\n\
                    [[export.access]]\nclients = [\"10.1.2.3\", \"localhost\"]\nread-only = false\nsquash = \"none\"\n\
                    [[export.access]]\nclients = [\"10.0.0.0/8\"]\nany-port = true\n";
        let plan = plan(dir.path(), Some(file), &[]).unwrap();
        assert!(!plan.volumes[0].read_only, "some may change it");
        let [own, net, all] = [0, 1, 2].map(|at| &plan.exports[0].access[at]);
        assert!(!own.read_only && own.squash == Squash::None && !own.any_port);
        assert!(own.clients.contains(&"127.0.0.1/32".parse().unwrap()));
        assert_eq!(own.anonymous.uid, 7, "as the export says");
        assert!(net.read_only && net.squash == Squash::All && net.any_port);
        assert!(all.read_only && !all.any_port && all.clients == everybody());
    }

    /// Certificates that could not be read for a moment kept a reload from changing exports.
    #[test]
    fn a_reload_reads_exports_also_while_certificates_cannot_be_read() {
        let dir = place();
        let config = dir.path().join("config.toml");
        let image = dir.path().join("a.img");
        let text =
            format!("tls-cert = \"none\"\ntls-key = \"none\"\n[[export]]\nimage = {image:?}\n");
        std::fs::write(&config, text).unwrap();
        let asked = CommandLine {
            config: Some(&config),
            settings: &Settings::default(),
            export: &ExportOptions::default(),
            images: &[],
        };
        assert!(Plan::new(&asked).is_err());
        assert_eq!(Plan::again(&asked).unwrap().exports.len(), 1);
    }

    #[test]
    fn the_file_takes_the_same_forms_as_the_command_line() {
        let dir = place();
        let file = "listen = [\"0.0.0.0\", \"::1\", \"[::2]:7\"]\ncache = \"2M\"\n[[export]]\nimage = \"DIR/a.img\"\n";
        let plan = plan(dir.path(), Some(file), &["--mount-port", "5"]).unwrap();
        let listen = ["0.0.0.0:2049", "[::1]:2049", "[::2]:7"];
        assert_eq!(plan.listen, listen.map(|at| at.parse().unwrap()));
        assert_eq!(plan.settings.cache, Some(CacheBytes(2 << 20)));
        assert_eq!(plan.settings.mount_port, Some(5));
    }
}
