//! The server of a mount: opens the volume, mounts it, serves it, and closes it cleanly when it is unmounted or a
//! signal asks for the end.
//!
//! Invariants: the volume is closed (everything durable, the image unlocked) after the last request and before this
//! process ends; after a panic in a request, nothing in memory is committed: the next mount recovers.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use steadfast_fuse::{Ended, MountOptions, Session};

use crate::failure::{Failure, notice};
use crate::mount_options::Options;
use crate::volume::{self, Access, Volume};
use crate::{host_space, limits};

/// Line that the background server prints when the mount answers.
pub(crate) const READY: &str = "ready";

/// Time that programs still using the mount have after a signal.
const GRACE: Duration = Duration::from_secs(5);
/// Causes of the end of serving.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A signal asks for it.
    Signal,
    /// The mount is gone.
    Gone,
}

pub(crate) fn run(
    image: &Path,
    dir: &Path,
    options: &Options,
    background: bool,
) -> Result<ExitCode, Failure> {
    for message in limits::lift() {
        notice(&message);
    }
    let log = options.log.as_deref().map(append_to).transpose()?;
    // Cheap checks come first: nothing is opened for a mount point that cannot be used.
    let dir = steadfast_fuse::check_mount_point(dir, options.mount.over)
        .map_err(|e| Failure::new(e.to_string()))?;
    let image = volume::canonical(image)?;
    let access = if options.read_only() {
        Access::Look
    } else {
        if let Ok(file) = std::fs::metadata(&image)
            && file.is_file()
            && let Some(why) = limits::forbids(file.len())
        {
            return Err(Failure::at(&image, why));
        }
        Access::Change
    };
    let opened = match (options.follow, volume::store::url(&image)) {
        (Some(interval), _) => {
            let (follower, device) = volume::store::follow(&image, access, &options.store)?;
            (device, Some((follower, interval)))
        }
        (None, Some(url)) => {
            let device = volume::store::open_for_mount(&url, access, &options.store)?;
            (device, None)
        }
        (None, None) => (volume::open_device(&image, access, options.direct)?, None),
    };
    // From here on a signal must not cut the closing short.
    let (tell, told) = channel();
    let signals = catch_signals(tell.clone())?;

    let (volume, mut told_of_volume) = match opened {
        (device, Some((follower, interval))) => {
            let tell = logger(&image);
            let tell = move |line: &str| tell(line);
            let volume = volume::mount_replica(&image, follower, &device, interval, options, tell)?;
            (volume, Vec::new())
        }
        (device, None) => volume::mount(&image, device, options)?,
    };
    told_of_volume.extend(host_space::warning(&image).filter(|_| access == Access::Change));
    let mounted = mount(&volume, &image, &dir, options);
    let session = match mounted {
        Ok(session) => session,
        Err(failure) => {
            let _ = volume.close();
            return Err(failure);
        }
    };
    if let Some(replica) = volume.replica() {
        let kernel = session.invalidator();
        let first = kernel.clone();
        replica.on_replace(move || kernel.invalidate());
        // A state may have been replaced before the hook was set.
        first.invalidate();
    }
    note_for_umount(&image, session.mount_point());
    let announced = announce(&image, &session, &told_of_volume, background, log);
    if announced.is_ok()
        && let Some(why) = session.why_not_io_uring()
    {
        logger(&image)(&format!("requests come through /dev/fuse: {why}"));
    }
    let (serving, end) = channel();
    if access == Access::Change {
        let tell = logger(&image);
        host_space::watch(image.clone(), move |line| tell(line), end);
    }
    let ended = match announced {
        Ok(()) => serve(session, tell, &told),
        // The process that asked for the mount is gone: no user would know of it.
        Err(_) => session.shutdown(GRACE),
    };
    signals.close();
    drop(serving);
    close(&image, volume, &ended)
}

fn mount(volume: &Volume, image: &Path, dir: &Path, options: &Options) -> Result<Session, Failure> {
    let mut fuse = MountOptions {
        source: image.to_owned(),
        ..options.mount.clone()
    };
    if let Some(threads) = options.threads {
        fuse.threads = threads;
    } else if volume::store::url(image).is_some() {
        // They wait for the store, and only flushes that wait at the same time share a request.
        fuse.threads = steadfast_fuse::THREADS_MAX;
    }
    fuse.read_only |= volume.read_only();
    fuse.write_back = volume.allows_write_back() && !fuse.read_only;
    if volume.replica().is_some() {
        // The kernel does not know of changes by others.
        (fuse.entry_timeout, fuse.attr_timeout) = (Duration::ZERO, Duration::ZERO);
    }
    fuse.log = Some(logger(image));
    fuse.trace = options.trace.as_deref().map(tracer).transpose()?;
    steadfast_fuse::mount(volume.file_system(), dir, &fuse).map_err(|e| Failure::new(e.to_string()))
}

/// umount(8) asks the kernel what is mounted at a directory, hears "fuse", and does not find our helper, which waits
/// until the image is closed, unless mount(8) has left it a note. If that fails, umount(8) works but does not wait.
fn note_for_umount(image: &Path, dir: &Path) {
    if !rustix::process::geteuid().is_root() || !Path::new("/sbin/umount.steadfast").exists() {
        return;
    }
    let mut command = Command::new("mount");
    command
        .args([
            "--fake",
            "--internal-only",
            "-t",
            steadfast_fuse::mountinfo::FS_TYPE,
        ])
        .args(["-o", "uhelper=steadfast", "--"])
        .args([image, dir]);
    let _ = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

/// Opens a log. Only its owner can read a new one: its lines name files.
fn append_to(path: &Path) -> Result<File, Failure> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    let opened = options.append(true).create(true).mode(0o600).open(path);
    opened.map_err(|e| Failure::at(path, e))
}

/// Writes a line for each request; drops lines that cannot be written.
fn tracer(path: &Path) -> Result<steadfast_fuse::LogHook, Failure> {
    let file = append_to(path)?;
    Ok(Arc::new(move |line: &str| {
        let _ = (&file).write_all(format!("{line}\n").as_bytes());
    }))
}

/// Writes messages of the server, but none twice in a row.
pub(crate) fn logger(image: &Path) -> steadfast_fuse::LogHook {
    let image = image.display().to_string();
    let last = std::sync::Mutex::new(String::new());
    Arc::new(move |message: &str| {
        let mut last = last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if *last != message {
            message.clone_into(&mut last);
            notice(&format!("{image}: {message}"));
        }
    })
}

/// Reports that the mount answers. A background server then detaches from its starter.
fn announce(
    image: &Path,
    session: &Session,
    messages: &[String],
    background: bool,
    log: Option<File>,
) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    for message in messages {
        writeln!(out, "{}: {message}", image.display())?;
    }
    if !background {
        writeln!(
            out,
            "{} mounted at {}",
            image.display(),
            session.mount_point().display()
        )?;
        tell_service_manager();
        return out.flush();
    }
    writeln!(out, "{READY}")?;
    out.flush()?;
    // The watcher reads the server's messages from there.
    let messages = rustix::io::dup(std::io::stdin())?;
    let_go(Some(log.map_or(messages, OwnedFd::from)))?;
    let nothing = File::open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdin(&nothing)?)
}

/// Detaches from the terminal, the starter's pipes and its directory; messages go to `log`.
pub(crate) fn let_go(log: Option<OwnedFd>) -> std::io::Result<()> {
    let nothing = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    match log {
        Some(log) => rustix::stdio::dup2_stderr(&log)?,
        None => rustix::stdio::dup2_stderr(&nothing)?,
    }
    std::env::set_current_dir("/")
}

/// Notifies systemd (`Type=notify`), if it has started this process, that the mount answers.
pub(crate) fn tell_service_manager() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let told =
        address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address));
    if let Err(e) = told {
        notice(&format!("telling systemd that the mount answers: {e}"));
    }
}

pub(crate) fn catch_signals(tell: Sender<Event>) -> Result<signal_hook::iterator::Handle, Failure> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|e| Failure::new(format!("catching signals: {e}")))?;
    let handle = signals.handle();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for _signal in signals.forever() {
                let _ = tell.send(Event::Signal);
            }
        })
        .map_err(|e| Failure::new(format!("starting a thread: {e}")))?;
    Ok(handle)
}

/// Serves until the mount is gone or a signal comes.
pub(crate) fn serve(session: Session, tell: Sender<Event>, told: &Receiver<Event>) -> Ended {
    let watch = session.watch();
    let watching = thread::Builder::new()
        .name("watch".to_owned())
        .spawn(move || {
            watch.wait();
            let _ = tell.send(Event::Gone);
        });
    match watching.is_ok().then(|| told.recv()) {
        Some(Ok(Event::Signal)) => session.shutdown(GRACE),
        // Without a watching thread, a signal takes effect only when the mount is gone.
        Some(Ok(Event::Gone) | Err(_)) | None => session.join(),
    }
}

fn close(image: &Path, volume: Volume, ended: &Ended) -> Result<ExitCode, Failure> {
    if let Ended::Failed(said) = ended {
        return Err(Failure::at(
            image,
            format!(
                "a request failed inside the server ({said}); the volume was not closed, the next mount recovers it"
            ),
        ));
    }
    for message in volume.close()? {
        notice(&format!("{}: {message}", image.display()));
    }
    match ended {
        Ended::Broken(said) => Err(Failure::at(
            image,
            format!("the kernel's connection broke: {said}; the volume was closed cleanly"),
        )),
        _ => Ok(ExitCode::SUCCESS),
    }
}
