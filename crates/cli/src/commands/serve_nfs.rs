//! `steadfast serve nfs`: serves volumes over NFS version 3 until a signal asks for the end.
//!
//! Invariants: the volumes are closed (everything durable, the images unlocked) after the last
//! call and before this process ends; after a call that panicked, nothing of what is in memory is
//! committed: the next mount recovers.

mod config;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use steadfast_nfs::{Admin, Ended, Export, Options, Registration, Security, Server, Stopper};

use crate::commands::serve::tell_service_manager;
use crate::failure::{Failure, notice};
use crate::volume::{self, Access, Volume};
use config::{Asked, Plan};

/// Connections where the system allows as many descriptors.
const CONNECTIONS_MAX: u64 = 16_384;
/// How long an image may be in use yet, by a server that was killed just now.
const IN_USE_PATIENCE: Duration = Duration::from_secs(3);
/// Memory for cached blocks that a volume has on the smallest machine.
const CACHE_BYTES_LEAST: u64 = 64 << 20;
/// Descriptors that are no connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// The file behind `--config`, for `--help` and the manual.
const CONFIG_HELP: &str = "\
A file for --config; all but 'image' may be left out:

  listen = [\"127.0.0.1:2049\", \"[::1]:2049\"]
  mount-port = 20048
  threads = 64
  control = \"/run/steadfast-nfs.sock\"
  metrics = \"127.0.0.1:9049\"
  rpcbind = false
  tls-cert = \"/etc/ssl/nfs.crt\"
  tls-key = \"/etc/ssl/nfs.key\"
  tls-ca = \"/etc/ssl/clients.crt\"

  [[export]]
  image = \"/srv/data.img\"
  path = \"/data\"
  clients = [\"10.0.0.0/8\", \"fd00::/8\"]
  read-only = false
  any-port = false
  xprtsec = [\"none\", \"tls\", \"mtls\"]
  squash = \"root\"
  anon-uid = 65534
  anon-gid = 65534
  streams = \"file\"

One image may have several exports. What is answered is durable, but for unstable writes, which clients commit
themselves. With a certificate, clients may use TLS (mount -o xprtsec=tls); what an export's xprtsec leaves out is
refused. The MOUNT program answers in plain, as Linux's clients ask it. NFS believes what a client says of its users: name only networks that you trust, and leave ports
below 1024 to root there (no --insecure).";

#[derive(Debug, clap::Args)]
#[command(after_long_help = CONFIG_HELP)]
pub(crate) struct Args {
    /// Address and port to listen on, IPv4 or IPv6; may be repeated [default: 127.0.0.1:2049]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// Offer the MOUNT program at this port, too
    #[arg(long, value_name = "PORT")]
    mount_port: Option<u16>,
    /// Read listeners and exports from a TOML file, explained below
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    tls: config::TlsArgs,
    #[command(flatten)]
    export: config::ExportArgs,
    /// Calls that may be in progress at a time, 1 to 1024 [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Memory for cached blocks of each volume, 1M at least [default: an eighth of all, shared by the volumes]
    #[arg(long, value_name = "SIZE", value_parser = cache_size)]
    cache: Option<u64>,
    /// Socket where 'steadfast stat' reads the counters [default: steadfast-nfs-PORT.sock in /run or XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Offer counters to Prometheus at this address of this host, as http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Register with rpcbind, for clients that do not name the ports (as root)
    #[arg(long)]
    rpcbind: bool,
    /// Image files or block devices, each with the path that clients mount [default path: /]
    #[arg(value_name = "IMAGE[:/PATH]")]
    images: Vec<String>,
}

fn cache_size(text: &str) -> Result<u64, String> {
    match crate::size::parse(text) {
        Ok(bytes) if bytes >= 1 << 20 => Ok(bytes),
        Ok(_) => Err("1M is the least".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let plan = Plan::new(Asked {
        config: args.config.as_deref(),
        listen: &args.listen,
        mount_port: args.mount_port,
        threads: args.threads,
        control: args.control.as_deref(),
        metrics: args.metrics,
        rpcbind: args.rpcbind,
        tls: &args.tls,
        export: &args.export,
        images: &args.images,
    })?;
    let (stopper, signals) = catch_signals()?;
    let opened = open(&plan, args.cache)?;
    let served = serve(&plan, &opened, stopper);
    signals.close();
    match served {
        Ok(Ended::Stopped) => close(opened).map(|()| ExitCode::SUCCESS),
        Ok(Ended::Failed(said)) => Err(Failure::new(format!(
            "a call failed inside the server ({said}); the volumes were not closed, the next mount recovers them"
        ))),
        Err(failure) => {
            // What made the start fail is what is told.
            let _ = close(opened);
            Err(failure)
        }
    }
}

/// A volume that is open.
struct Opened {
    image: PathBuf,
    volume: Volume,
}

fn open(plan: &Plan, cache_bytes: Option<u64>) -> Result<Vec<Opened>, Failure> {
    let mut opened = Vec::new();
    let cache_bytes = cache_bytes.unwrap_or_else(|| default_cache(plan.volumes.len()));
    for wanted in &plan.volumes {
        match open_one(&wanted.image, wanted.read_only, cache_bytes) {
            Ok(one) => opened.push(one),
            Err(failure) => {
                let _ = close(opened);
                return Err(failure);
            }
        }
    }
    Ok(opened)
}

/// An eighth of the memory, over all volumes.
fn default_cache(volumes: usize) -> u64 {
    let system = rustix::system::sysinfo();
    let memory = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit));
    (memory / 8 / volumes.max(1) as u64).max(CACHE_BYTES_LEAST)
}

fn open_one(image: &Path, read_only: bool, cache_bytes: u64) -> Result<Opened, Failure> {
    let access = if read_only {
        Access::Look
    } else {
        Access::Change
    };
    let device = volume::open_device_within(image, access, None, IN_USE_PATIENCE)?;
    let options = crate::mount_options::Options {
        read_only,
        cache_bytes: Some(cache_bytes),
        keep_data: true,
        ..Default::default()
    };
    let (volume, messages) = volume::mount(image, device, &options)?;
    for message in messages {
        notice(&format!("{}: {message}", image.display()));
    }
    Ok(Opened {
        image: image.to_owned(),
        volume,
    })
}

fn close(opened: Vec<Opened>) -> Result<(), Failure> {
    let mut result = Ok(());
    for Opened { image, volume } in opened {
        match volume.close() {
            Ok(messages) => {
                for message in messages {
                    notice(&format!("{}: {message}", image.display()));
                }
            }
            // Every volume is closed; the first failure is the command's.
            Err(failure) if result.is_ok() => result = Err(failure),
            Err(failure) => failure.report(),
        }
    }
    result
}

type Told = std::sync::mpsc::Receiver<()>;

fn catch_signals() -> Result<(Told, signal_hook::iterator::Handle), Failure> {
    let (tell, told) = std::sync::mpsc::channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Failure::new(format!("catching signals: {e}")))?;
    let handle = signals.handle();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for _signal in signals.forever() {
                let _ = tell.send(());
            }
        })
        .map_err(|e| Failure::new(format!("starting a thread: {e}")))?;
    Ok((told, handle))
}

/// As many descriptors as the system allows, and how many connections that makes.
fn connections() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    let _ = setrlimit(Resource::Nofile, wanted);
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let connections = descriptors
        .saturating_sub(OTHER_DESCRIPTORS)
        .min(CONNECTIONS_MAX);
    usize::try_from(connections).unwrap_or(1)
}

fn serve(plan: &Plan, opened: &[Opened], told: Told) -> Result<Ended, Failure> {
    let mut options = Options::default();
    options.listen = plan.listen.clone();
    if let Some(port) = plan.mount_port {
        let more = plan
            .listen
            .iter()
            .map(|address| SocketAddr::new(address.ip(), port));
        options
            .listen
            .extend(more.filter(|address| !plan.listen.contains(address)));
    }
    if let Some(threads) = plan.threads {
        options.threads = threads.into();
    }
    options.connections_max = connections();
    options.tls = plan.tls.clone();
    options.tell = Some(notice);
    let served = opened
        .iter()
        .map(|one| one.volume.served(&one.image))
        .collect();
    let server = Server::start(served, plan.exports.clone(), &options)
        .map_err(|e| Failure::new(e.to_string()))?;
    let addresses = &server.addresses()[..plan.listen.len()];
    let port = addresses.first().map_or(0, SocketAddr::port);
    let _admin = offer_counters(plan, &server, port)?;
    let registration = plan
        .rpcbind
        .then(|| Registration::new(addresses, plan.mount_port));
    let _registration = registration.transpose().map_err(|e| {
        Failure::new(format!(
            "registering with rpcbind: {e}; is rpcbind running?"
        ))
    })?;
    announce(plan, &server, addresses)?;
    let stopper = server.stopper();
    thread::Builder::new()
        .name("stop".to_owned())
        .spawn(move || stop_when(&told, &stopper))
        .map_err(|e| Failure::new(format!("starting a thread: {e}")))?;
    server.wait();
    Ok(server.stop())
}

fn stop_when(told: &Told, stopper: &Stopper) {
    if told.recv().is_ok() {
        stopper.stop();
    }
}

/// Where the counters are found by default.
fn default_control(port: u16) -> PathBuf {
    let root = rustix::process::geteuid().is_root();
    let dir = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !root => PathBuf::from(dir),
        _ if root => PathBuf::from("/run"),
        _ => std::env::temp_dir(),
    };
    dir.join(format!("steadfast-nfs-{port}.sock"))
}

fn offer_counters(plan: &Plan, server: &Server, port: u16) -> Result<Admin, Failure> {
    let counters = || server.counters();
    let metrics_failed = |e: std::io::Error| Failure::new(format!("offering metrics: {e}"));
    let Some(path) = &plan.control else {
        let path = default_control(port);
        return match Admin::start(counters(), Some(&path), plan.metrics) {
            Ok(admin) => {
                notice(&format!("counters: steadfast stat {}", path.display()));
                Ok(admin)
            }
            Err(e) => {
                let admin = Admin::start(counters(), None, plan.metrics).map_err(metrics_failed)?;
                notice(&format!(
                    "no counters for 'steadfast stat': {}: {e}; name a place with --control",
                    path.display()
                ));
                Ok(admin)
            }
        };
    };
    // Which of the two failed is found out by leaving one out.
    Admin::start(counters(), Some(path), plan.metrics).map_err(|e| {
        match Admin::start(counters(), None, plan.metrics) {
            Ok(_) => Failure::at(path, format!("offering counters: {e}")),
            Err(e) => metrics_failed(e),
        }
    })
}

/// Says that clients can come, and how.
fn announce(plan: &Plan, server: &Server, addresses: &[SocketAddr]) -> Result<(), Failure> {
    for note in server.notes() {
        notice(note);
    }
    let mut text = String::new();
    for export in &plan.exports {
        let image = plan.volumes[export.volume].image.display();
        let path = &export.path;
        for address in addresses {
            text.push_str(&format!(
                "{image} served as {path} at {address}; on a Linux client:\n"
            ));
            text.push_str(&format!("  {}\n", mount_command(plan, export, *address)));
        }
    }
    let mut out = std::io::stdout();
    let told = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    told.map_err(|e| Failure::new(format!("standard output: {e}")))?;
    tell_service_manager();
    Ok(())
}

/// What a Linux client types to mount an export.
fn mount_command(plan: &Plan, export: &Export, address: SocketAddr) -> String {
    let host = match address.ip() {
        ip if ip.is_unspecified() => "HOST".to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let port = address.port();
    let mount_port = plan.mount_port.unwrap_or(port);
    let proto = if address.is_ipv6() { "tcp6" } else { "tcp" };
    let wanted = export.access.iter().map(|access| access.security).max();
    let security = match wanted.unwrap_or_default() {
        Security::None => "",
        Security::Tls => ",xprtsec=tls",
        Security::Mtls => ",xprtsec=mtls",
    };
    format!(
        "mount -t nfs -o vers=3,proto={proto},port={port},mountproto={proto},mountport={mount_port},nolock,hard{security} {host}:{} /mnt",
        export.path
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use steadfast_nfs::Access;

    #[test]
    fn the_mount_command_names_the_protection_that_an_export_wants() {
        let plan = Plan {
            listen: Vec::new(),
            mount_port: None,
            threads: None,
            control: None,
            metrics: None,
            rpcbind: false,
            tls: None,
            volumes: Vec::new(),
            exports: Vec::new(),
        };
        let command = |security: Security| {
            let export = Export::new().with_access(Access {
                security,
                ..Access::new()
            });
            mount_command(&plan, &export, "10.1.2.3:2049".parse().unwrap())
        };
        assert!(!command(Security::None).contains("xprtsec"));
        let tls = command(Security::Tls);
        assert!(tls.ends_with(",hard,xprtsec=tls 10.1.2.3:/ /mnt"), "{tls}");
        assert!(command(Security::Mtls).contains(",xprtsec=mtls "));
    }
}
