//! nbdkit with our plugin in it, as a child that ends with this process.
//!
//! The plugin reports through a pipe that clients can connect, and at the end how the disk was closed. Another pipe
//! asks the plugin to end: it then finishes the requests in progress, flushes and closes the disk, and ends nbdkit,
//! which by itself would wait for idle clients. Signals of the terminal do not reach nbdkit, so that this is the only
//! way.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, ErrorKind, PipeReader, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use steadfast_disk::Settings;

use super::{IN_USE_PATIENCE, LOOK_AGAIN_AFTER};
use crate::failure::Failure;

/// NBD's port, for this host alone.
pub(super) const DEFAULT: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 10809));

/// Names of the plugin: the one that nbdkit expects, and the one that cargo builds.
const PLUGINS: [&str; 2] = ["nbdkit-steadfast-plugin.so", "libsteadfast_nbdkit.so"];

/// Address for clients.
pub(super) enum Place {
    /// A Unix socket; the path is absolute.
    Socket(PathBuf),
    /// An address.
    Address(SocketAddr),
}

impl Place {
    /// A socket at this path. The socket of a killed server is removed as soon as its nbdkit has noticed and ended:
    /// this waits for that as for the image.
    pub(super) fn socket(path: &Path) -> Result<Place, Failure> {
        let path = std::path::absolute(path).map_err(|e| Failure::at(path, e))?;
        // A number of attempts, not a time: a busy machine gets all of them.
        let mut looks = IN_USE_PATIENCE.as_millis() / LOOK_AGAIN_AFTER.as_millis();
        while !is_free(&path)? {
            if looks == 0 {
                return Err(Failure::at(&path, "another server listens there"));
            }
            looks -= 1;
            std::thread::sleep(LOOK_AGAIN_AFTER);
        }
        Ok(Place::Socket(path))
    }

    /// The URI, as NBD clients write it.
    pub(super) fn uri(&self) -> String {
        match self {
            Place::Socket(path) => format!("nbd+unix:///?socket={}", escaped(path.as_os_str())),
            Place::Address(address) => format!("nbd://{address}"),
        }
    }

    /// Commands for clients.
    pub(super) fn clients(&self) -> Vec<String> {
        let uri = self.uri();
        let kernel = match self {
            Place::Socket(path) => format!("nbd-client -unix {} /dev/nbd0", path.display()),
            Place::Address(address) => {
                format!("nbd-client {} {} /dev/nbd0", address.ip(), address.port())
            }
        };
        vec![
            format!("nbdinfo '{uri}'"),
            format!("nbdcopy '{uri}' copy.img"),
            format!("qemu-system-x86_64 -drive 'file={uri},format=raw,if=virtio' ..."),
            kernel,
        ]
    }

    fn options(&self) -> Vec<OsString> {
        match self {
            Place::Socket(path) => vec!["--unix".into(), path.into()],
            Place::Address(address) => vec![
                "--ipaddr".into(),
                address.ip().to_string().into(),
                "--port".into(),
                address.port().to_string().into(),
            ],
        }
    }
}

/// Whether a server can listen at this path: removes a socket without a listener.
fn is_free(path: &Path) -> Result<bool, Failure> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(true),
        Err(e) => return Err(Failure::at(path, e)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Failure::at(path, "is there already, and is no socket"));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Ok(false),
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|e| Failure::at(path, e))?;
            Ok(true)
        }
        // The server ended, and removed its socket.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(true),
        Err(e) => Err(Failure::at(path, e)),
    }
}

/// A path as part of a URI.
fn escaped(path: &OsStr) -> String {
    let mut text = String::new();
    for &byte in path.as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Settings for the start of nbdkit.
pub(super) struct Options<'a> {
    /// Path of the plugin, if one is given.
    pub(super) plugin: Option<&'a Path>,
    pub(super) threads: Option<u16>,
    /// Options that are passed on unchanged.
    pub(super) more: &'a [OsString],
}

fn missing(error: &std::io::Error) -> Failure {
    Failure::new(match error.kind() {
        ErrorKind::NotFound => {
            "nbdkit is missing: install it (the package 'nbdkit'), or serve the disk as a file with --fuse DIR".to_owned()
        }
        _ => format!("starting nbdkit: {error}"),
    })
}

/// Directory of nbdkit's own plugins.
fn plugin_dir() -> Result<Option<PathBuf>, Failure> {
    let output = Command::new("nbdkit").arg("--dump-config").output();
    let output = output.map_err(|e| missing(&e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let dir = text
        .lines()
        .find_map(|line| line.strip_prefix("plugindir="));
    Ok(dir.map(PathBuf::from))
}

fn find_plugin() -> Result<PathBuf, Failure> {
    let own = plugin_dir()?;
    let program = std::env::current_exe().map_err(|e| Failure::new(e.to_string()))?;
    let program = program.canonicalize().unwrap_or(program);
    let beside = program.parent().unwrap_or(Path::new("/"));
    let dirs = [
        Some(beside.to_owned()),
        Some(beside.join("../lib/nbdkit/plugins")),
        own,
    ];
    let files = (dirs.iter().flatten()).flat_map(|dir| PLUGINS.map(|name| dir.join(name)));
    files.into_iter().find(|file| file.is_file()).ok_or_else(|| {
        Failure::new(format!(
            "there is no {} in {}: build it ('cargo build --release -p steadfast-nbdkit') and put it there, or name it with --plugin",
            PLUGINS[0],
            beside.display()
        ))
    })
}

/// Serves until a signal asks for the end. `ready` gets the number of bytes that can be written from one flush to the next.
pub(super) fn serve(
    image: &Path,
    place: &Place,
    mut settings: Settings,
    options: &Options<'_>,
    ready: impl FnOnce(u64) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    if image.to_str().is_none() {
        return Err(Failure::at(
            image,
            "nbdkit's plugins take names of UTF-8 alone",
        ));
    }
    let plugin = match options.plugin {
        Some(path) => path.canonicalize().map_err(|e| Failure::at(path, e))?,
        None => find_plugin()?,
    };
    let no_pipe = |e: std::io::Error| Failure::new(format!("a pipe: {e}"));
    let (status, told) = std::io::pipe().map_err(no_pipe)?;
    let (heard, mut control) = std::io::pipe().map_err(no_pipe)?;
    // nbdkit inherits these ends; the plugin opens them by their names.
    for end in [told.as_fd(), heard.as_fd()] {
        rustix::io::fcntl_setfd(end, rustix::io::FdFlags::empty())
            .map_err(|e| no_pipe(e.into()))?;
    }
    settings.status = Some(format!("/proc/self/fd/{}", told.as_raw_fd()).into());
    settings.control = Some(format!("/proc/self/fd/{}", heard.as_raw_fd()).into());

    // From here on a signal must not cut the closing short.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Failure::new(format!("catching signals: {e}")))?;
    let mut command = Command::new("nbdkit");
    command
        .args(["--foreground", "--exit-with-parent"])
        .args(place.options())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if let Some(threads) = options.threads {
        command.arg("--threads").arg(threads.to_string());
    }
    if settings.read_only {
        command.arg("--readonly");
    }
    command
        .args(options.more)
        .arg(&plugin)
        .args(settings.words());
    let mut child = command.spawn().map_err(|e| missing(&e))?;
    drop((told, heard));
    let handle = signals.handle();
    let spawned = std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if signals.forever().next().is_some() {
                let _ = control.write_all(&[0]);
                // The pipe stays open until nbdkit has ended: closing it asks for the end, too.
                signals.forever().for_each(drop);
            }
            drop(control);
        });
    let watched = match spawned {
        Ok(thread) => {
            let watched = watch(image, status, ready, || {
                // As if a signal had come.
                let _ = signal_hook::low_level::raise(SIGTERM);
            });
            handle.close();
            let _ = thread.join();
            watched
        }
        // The pipe's end was dropped with the thread.
        Err(e) => Err(Failure::new(format!("starting a thread: {e}"))),
    };
    // Its reports say how it ended.
    let ended = child.wait();
    let ended = ended.map_err(|e| Failure::new(format!("waiting for nbdkit: {e}")));
    if let Place::Socket(path) = place {
        // nbdkit leaves the socket. Another process may have removed it: best effort.
        let _ = std::fs::remove_file(path);
    }
    watched.and(ended).map(|_| ExitCode::SUCCESS)
}

/// Reads the plugin's reports until its pipe closes.
fn watch(
    image: &Path,
    status: PipeReader,
    ready: impl FnOnce(u64) -> Result<(), Failure>,
    stop: impl FnOnce(),
) -> Result<(), Failure> {
    let mut lines = BufReader::new(status).lines().map_while(Result::ok);
    let Some(first) = lines.next() else {
        return Err(Failure::at(
            image,
            "nbdkit did not start; it says why above",
        ));
    };
    let ready_with = first.strip_prefix("ready ").and_then(|rest| {
        let (_, epoch) = rest.split_once(' ')?;
        epoch.parse().ok()
    });
    let Some(epoch_bytes) = ready_with else {
        let why =
            format!("nbdkit said '{first}'; is the plugin of another version than this program?");
        return Err(Failure::at(image, why));
    };
    let announced = ready(epoch_bytes);
    if announced.is_err() {
        // The process that asked for it is gone: no user would know of it.
        stop();
    }
    let last = lines.last();
    match last
        .as_deref()
        .map(|l| l.split_once(' ').unwrap_or((l, "")))
    {
        Some(("closed", _)) => announced,
        Some((_, why)) => Err(super::not_flushed(image, why)),
        None => Err(Failure::at(
            image,
            "nbdkit ended without closing the disk; it is as it was at its last flush",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_written_as_clients_want_them() {
        let socket = Place::Socket("/run/a b/100%.sock".into());
        assert_eq!(socket.uri(), "nbd+unix:///?socket=/run/a%20b/100%25.sock");
        assert_eq!(Place::Address(DEFAULT).uri(), "nbd://127.0.0.1:10809");
        let six = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 1));
        assert_eq!(Place::Address(six).uri(), "nbd://[::1]:1");
    }
}
