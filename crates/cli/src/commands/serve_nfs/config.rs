//! What is to be served: the command line and a TOML file, made one plan.
//!
//! The file says for all exports what the command line says for those it names; where both speak of
//! the server, the command line holds. The help of the command shows the file.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use steadfast_nfs::{Anonymous, Export, IpNet, Squash, Streams, everybody, this_host};

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
            volumes: Vec::new(),
            exports: Vec::new(),
        };
        if plan.listen.is_empty() {
            plan.listen.extend(DEFAULT_LISTEN.parse::<SocketAddr>());
        }
        for entry in file.export {
            plan.add(entry)?;
        }
        for image in asked.images {
            let (image, path) = match image.split_once(":/") {
                Some((image, path)) => (image, format!("/{path}")),
                None => (image.as_str(), root()),
            };
            let args = asked.export;
            plan.add(ExportEntry {
                image: image.into(),
                path,
                clients: (!args.client.is_empty()).then(|| args.client.clone()),
                read_only: args.read_only,
                any_port: args.insecure,
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
            clients,
            read_only: entry.read_only,
            any_port: entry.any_port,
            squash: match entry.squash {
                SquashName::None => Squash::None,
                SquashName::Root => Squash::Root,
                SquashName::All => Squash::All,
            },
            anonymous: Anonymous {
                uid: entry.anon_uid.unwrap_or(nobody.uid),
                gid: entry.anon_gid.unwrap_or(nobody.gid),
            },
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
        let look = &plan.exports[0];
        assert!(look.read_only && !look.any_port);
        assert_eq!((look.squash, look.streams), (Squash::All, Streams::User));
        assert_eq!(
            look.clients,
            ["10.1.2.3/32".parse().unwrap(), "fd00::/8".parse().unwrap()]
        );
        assert_eq!(plan.exports[1].clients, everybody());
        assert!(plan.exports[1].any_port);
    }

    #[test]
    fn without_a_word_this_host_alone_is_served() {
        let dir = place();
        let plan = plan(dir.path(), None, &["--read-only", "DIR/a.img"]).unwrap();
        assert_eq!(plan.listen, [DEFAULT_LISTEN.parse().unwrap()]);
        assert_eq!(plan.exports[0].clients, this_host());
        assert!(plan.volumes[0].read_only);
        assert_eq!(plan.exports[0].squash, Squash::Root);
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
        ] {
            let refused = plan(dir.path(), file, line).err().unwrap();
            assert!(refused.message.contains(said), "{}", refused.message);
        }
    }
}
