//! `steadfast serve nfs`: serves volumes over NFS version 3 until a signal asks for the end.
//!
//! Invariants: the volumes are closed (everything durable, the images unlocked) after the last
//! call and before this process ends; after a panic in a call, nothing in memory is committed: the next mount
//! recovers. SIGHUP reads exports and certificates again; those that cannot be read stay as they are.

mod clients;
mod config;
#[cfg(feature = "store")]
mod failover;
#[cfg(not(feature = "store"))]
#[path = "serve_nfs/without_failover.rs"]
mod failover;
#[cfg(feature = "store")]
mod heartbeat;
#[cfg(feature = "store")]
mod shadow;
mod values;
mod volumes;

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use steadfast_nfs::{
    AccessLog, Admin, Ended, Error, Export, Gate, HandleKey, HandleKeyError, Options, Registration,
    Reloader, Security, Server, Target, Tls,
};

use crate::commands::serve::tell_service_manager;
use crate::failure::{Code, Failure, Kind, notice};
use crate::volume::store::{Failed, Serving};
use config::{CommandLine, Plan};
use failover::{Failover, Guard, Leases};
use volumes::Opened;

/// Connections, if the system allows as many descriptors.
const CONNECTIONS_MAX: u64 = 16_384;
/// Descriptors other than connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// The explanation of the file for `--config`, for `--help` and the manual.
const CONFIG_HELP: &str = "\
A file for --config; all but 'image' may be left out:

  listen = [\"127.0.0.1\", \"[::1]:2049\"]
  mount-port = 20048
  threads = 64
  cache = \"256M\"
  control = \"/run/steadfast-nfs.sock\"
  metrics = \"127.0.0.1:9049\"
  access-log = \"/var/log/steadfast-nfs.log\"
  connections-per-address = 4096
  handshakes-per-address = 64
  handle-key = \"/var/lib/steadfast/nfs.key\"
  rpcbind = false
  standby = true
  peer = \"10.0.0.2:2050\"
  heartbeat = \"10.0.0.1:2050\"
  gone-after = \"2s\"
  lease = \"5s\"
  tls-cert = \"/etc/ssl/nfs.crt\"
  tls-key = \"/etc/ssl/nfs.key\"
  tls-ca = \"/etc/ssl/clients.crt\"

  [[export]]
  image = \"/srv/data.img\"
  path = \"/data\"
  directory = \"/\"
  clients = [\"10.0.0.0/8\", \"fd00::/8\"]
  read-only = false
  any-port = false
  xprtsec = [\"none\", \"tls\", \"mtls\"]
  squash = \"root\"
  anon-uid = 65534
  anon-gid = 65534
  streams = \"file\"

One image may have several exports. An [[export.access]] gives some clients of the export above it other rights; the first
that names a client decides, and what it leaves out is as the export says:

  [[export.access]]
  clients = [\"10.0.0.7\", \"build.example.org\"]
  read-only = true
  squash = \"all\"

With a 'directory', clients see that directory of the volume as the export's root, and reach nothing outside of it: its '..' is
itself, handles of other exports and of directories that were moved out are refused. A file that was moved out stays open for
clients that have its handle.

Names of hosts are looked up when the file is read: your DNS then decides which address may use the
export. Signal SIGHUP reads file and certificates again; if they cannot be read, the exports stay. Clients of exports that stay
notice nothing, handles of an export that is gone are stale. Options of the server, and write access to an image that was served
read-only, need a restart.

Two servers with --standby, each the other's --peer, serve volumes on an object store in turn: one serves, the other waits until
it is gone. The waiting server listens at its --heartbeat alone. A server whose volumes another one took over answers no more
calls, and ends with exit code 5.

An answered call is durable, except an unstable write, which clients commit themselves. With a certificate, clients may use TLS
(mount -o xprtsec=tls); a protection that an export's xprtsec leaves out is refused. The MOUNT program answers in plain text, as
Linux's clients ask it. NFS trusts what a client says of its users: name only networks that you trust, and leave ports below 1024
to root there (no --insecure).";

#[derive(Debug, clap::Args)]
#[command(after_long_help = CONFIG_HELP)]
pub(crate) struct Args {
    /// Read options of the server and exports from a TOML file, explained below; SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: config::Settings,
    #[command(flatten)]
    export: config::ExportOptions,
    /// Image files or block devices, each with the path that clients mount [default: /], and the directory of the
    /// volume that they see there and cannot leave [default: /, all of it]
    #[arg(value_name = "IMAGE[:/PATH[:/DIRECTORY]]")]
    images: Vec<String>,
}

impl Args {
    fn asked(&self) -> CommandLine<'_> {
        CommandLine {
            config: self.config.as_deref(),
            settings: &self.settings,
            export: &self.export,
            images: &self.images,
        }
    }
}

/// Events for the main thread.
enum Event {
    /// A signal asks for the end.
    Stop,
    /// A signal asks for a reload.
    Reload,
    /// The server has ended.
    Ended,
    /// A volume is lost: no more calls may be answered.
    #[cfg_attr(
        not(feature = "store"),
        allow(dead_code, reason = "files are not lost")
    )]
    Lost(Failed),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let plan = Plan::new(&args.asked())?;
    let failover = Failover::new(&plan)?;
    let (events, tell, signals) = catch_signals()?;
    let (mut opened, guard) = match &failover {
        None => (Opened::open(&plan, None)?, None),
        Some(failover) => match failover::open(failover, &plan, &events, &tell)? {
            Some((opened, guard)) => (opened, Some(guard)),
            None => return Ok(ExitCode::SUCCESS),
        },
    };
    let serving = failover.as_ref().map(Failover::serving);
    let fallible = (serving.as_ref(), guard.as_ref());
    let served = serve(args, plan, &mut opened, fallible, &events, tell);
    signals.close();
    match served {
        Ok(End::Lost(why)) => {
            let (message, fenced) = failover::lost(&why);
            let failure = Failure::new(message);
            Err(match fenced {
                true => failure.of_kind(Kind::InUse).with_code(Code::Fenced),
                false => failure,
            })
        }
        Ok(End::Server(Ended::Stopped)) => {
            opened.close()?;
            if let Some(guard) = &guard {
                guard.has_released();
            }
            Ok(ExitCode::SUCCESS)
        }
        Ok(End::Server(Ended::Failed(said))) => Err(Failure::new(format!(
            "a call failed inside the server ({said}); the volumes were not closed, the next mount recovers them"
        ))),
        Err(failure) => {
            // The report is about the cause of the failed start.
            let _ = opened.close();
            Err(failure)
        }
    }
}

/// Ends of serving.
enum End {
    Server(Ended),
    /// A volume was lost.
    Lost(Failed),
}

type Caught = (
    Receiver<Event>,
    Sender<Event>,
    signal_hook::iterator::Handle,
);

fn catch_signals() -> Result<Caught, Failure> {
    let (tell, events) = std::sync::mpsc::channel();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Failure::new(format!("catching signals: {e}")))?;
    let handle = signals.handle();
    let teller = tell.clone();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                let _ = teller.send(match signal {
                    SIGHUP => Event::Reload,
                    _ => Event::Stop,
                });
            }
        })
        .map_err(|e| Failure::new(format!("starting a thread: {e}")))?;
    Ok((events, tell, handle))
}

/// Raises the limit of descriptors to what the system allows; returns the number of connections that fit.
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

fn options_of(plan: &Plan) -> Result<Options, Failure> {
    let mut options = Options::default();
    options.listen = plan.listen.clone();
    if let Some(port) = plan.settings.mount_port {
        let more = plan
            .listen
            .iter()
            .map(|address| SocketAddr::new(address.ip(), port));
        options
            .listen
            .extend(more.filter(|address| !plan.listen.contains(address)));
    }
    if let Some(threads) = plan.settings.threads {
        options.threads = threads.into();
    }
    options.connections_max = connections();
    if let Some(connections) = plan.settings.connections_per_address {
        options.connections_per_address = usize::try_from(connections).unwrap_or(usize::MAX);
    }
    if let Some(handshakes) = plan.settings.handshakes_per_address {
        options.handshakes_per_address = handshakes;
    }
    options.access_log = open_access_log(plan.settings.access_log.as_deref())?;
    options.tls = plan.tls.clone();
    let handle_key = plan.settings.handle_key.as_deref();
    options.handle_key = handle_key.map(read_handle_key).transpose()?;
    options.tell = Some(notice);
    Ok(options)
}

fn read_handle_key(path: &Path) -> Result<HandleKey, Failure> {
    HandleKey::from_file(path).map_err(|e| match e {
        HandleKeyError::Refused { .. } => Failure::usage(e.to_string()),
        e => Failure::new(e.to_string()),
    })
}

fn open_access_log(path: Option<&Path>) -> Result<Option<AccessLog>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let target = match path == Path::new("-") {
        true => Target::Output,
        false => Target::File(path.to_owned()),
    };
    let log = AccessLog::open(target);
    log.map(Some)
        .map_err(|e| Failure::at(path, format!("opening the access log: {e}")))
}

fn serve(
    args: &Args,
    plan: Plan,
    opened: &mut Opened,
    (serving, guard): (Option<&Serving>, Option<&Guard>),
    events: &Receiver<Event>,
    tell: Sender<Event>,
) -> Result<End, Failure> {
    let mut options = options_of(&plan)?;
    let leases = guard.map(|guard| Arc::clone(&guard.leases));
    options.gate = leases.clone().map(|leases| leases as Arc<dyn Gate>);
    let server = Server::start(opened.served(), plan.exports.clone(), &options);
    let server = server.map_err(|e| match e {
        Error::Exports(e) => Failure::usage(e.to_string()),
        e => Failure::new(e.to_string()),
    })?;
    let addresses = &server.addresses()[..plan.listen.len()];
    let port = addresses.first().map_or(0, SocketAddr::port);
    let _admin = offer_counters(&plan, &server, port)?;
    let mount_port = plan.settings.mount_port;
    let registration = plan
        .settings
        .rpcbind
        .then(|| Registration::new(addresses, mount_port));
    let _registration = registration.transpose().map_err(|e| {
        Failure::new(format!(
            "registering with rpcbind: {e}; is rpcbind running?"
        ))
    })?;
    announce(&plan, &server, addresses)?;
    let reload = Reload {
        args,
        settings: plan.settings.clone(),
        tls: plan.tls.clone(),
        reloader: server.reloader(),
        access_log: options.access_log,
        serving: serving.copied(),
        leases,
    };
    let mut lost = None;
    thread::scope(|scope| {
        scope.spawn(|| {
            server.wait();
            let _ = tell.send(Event::Ended);
        });
        loop {
            match events.recv() {
                Ok(Event::Reload) => reload.run(opened),
                Ok(Event::Stop) => server.stopper().stop(),
                Ok(Event::Lost(why)) => {
                    lost.get_or_insert(why);
                    server.stopper().abort();
                }
                Ok(Event::Ended) | Err(_) => break,
            }
        }
    });
    let ended = server.stop();
    Ok(lost.map_or(End::Server(ended), End::Lost))
}

/// Inputs of a reload.
struct Reload<'a> {
    args: &'a Args,
    /// Settings of the start.
    settings: config::Settings,
    tls: Option<Tls>,
    reloader: Reloader,
    access_log: Option<AccessLog>,
    serving: Option<Serving>,
    leases: Option<Arc<Leases>>,
}

impl Reload<'_> {
    /// Reads certificates and exports again. A part that fails stays as it was, and the next signal tries again.
    fn run(&self, opened: &mut Opened) {
        if let Some(Err(e)) = self.tls.as_ref().map(Tls::reread) {
            notice(&format!("reload: the certificates stay as they were: {e}"));
        }
        if let Some(Err(e)) = self.access_log.as_ref().map(AccessLog::reopen) {
            notice(&format!(
                "reload: the access log goes on in its old file: {e}"
            ));
        }
        match self.exports(opened) {
            Ok(count) => notice(&format!("reload: {count} exports")),
            Err(failure) => notice(&format!(
                "reload: the exports stay as they were: {}",
                failure.message
            )),
        }
    }

    /// Serves the exports that the file has now. Returns their number.
    fn exports(&self, opened: &mut Opened) -> Result<usize, Failure> {
        let plan = Plan::again(&self.args.asked())?;
        if plan.settings != self.settings {
            notice("reload: options of the server have changed: they hold from its next start on");
        }
        if self.serving.is_some() {
            Failover::new(&plan)?;
        }
        let (sources, new) = opened.sources(&plan, self.serving.as_ref())?;
        if let Some(leases) = &self.leases {
            leases.add(new.leases());
        }
        let reloaded = self.reloader.reload(sources, plan.exports.clone());
        let reloaded = match reloaded {
            Ok(reloaded) => reloaded,
            Err(e) => {
                let _ = new.close();
                return Err(Failure::new(e.to_string()));
            }
        };
        for note in &reloaded.notes {
            notice(note);
        }
        opened.take_in(new);
        for retired in reloaded.retired {
            let name = retired.name().to_owned();
            retired.wait();
            if let Some(leases) = &self.leases {
                leases.remove(&name);
            }
            match opened.close_one(&name) {
                Ok(()) => notice(&format!("{name}: is not served any more, and closed")),
                Err(failure) => failure.report(),
            }
        }
        Ok(plan.exports.len())
    }
}

/// Default path of the control socket.
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
    let metrics = plan.settings.metrics;
    let metrics_failed = |e: std::io::Error| Failure::new(format!("offering metrics: {e}"));
    let Some(path) = &plan.settings.control else {
        let path = default_control(port);
        return match Admin::start(counters(), Some(&path), metrics) {
            Ok(admin) => {
                notice(&format!("counters: steadfast stat {}", path.display()));
                Ok(admin)
            }
            Err(e) => {
                let admin = Admin::start(counters(), None, metrics).map_err(metrics_failed)?;
                notice(&format!(
                    "no counters for 'steadfast stat': {}: {e}; name a place with --control",
                    path.display()
                ));
                Ok(admin)
            }
        };
    };
    // Leaving one out shows which of the two failed.
    Admin::start(counters(), Some(path), metrics).map_err(|e| {
        match Admin::start(counters(), None, metrics) {
            Ok(_) => Failure::at(path, format!("offering counters: {e}")),
            Err(e) => metrics_failed(e),
        }
    })
}

/// Reports that clients can connect, and how.
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

/// The command with which a Linux client mounts an export.
fn mount_command(plan: &Plan, export: &Export, address: SocketAddr) -> String {
    let host = match address.ip() {
        ip if ip.is_unspecified() => "HOST".to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let port = address.port();
    let mount_port = plan.settings.mount_port.unwrap_or(port);
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
            settings: config::Settings::default(),
            listen: Vec::new(),
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
