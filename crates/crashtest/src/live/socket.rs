//! The socket of a live mount: a request and its answer are a line of JSON each.
//!
//! Its path follows from that of the mount, so that clients need no other information: a file that is named by a
//! hash, in a directory that only its user can enter.

use super::{Answer, Request, Session};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest line that is read.
const LINE_MAX: u64 = 1 << 20;
/// Time limit of an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// Time that a mount that was unmounted has to end, and the interval of looks for that.
const END_LIMIT: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time for which a client may be silent.
const IDLE_LIMIT: Duration = Duration::from_secs(600);

/// The socket of a mount.
///
/// # Errors
/// If the directory above the mount does not exist, or the directory of sockets belongs to somebody else.
pub fn path_of(mount: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(mount)?;
    // The mount itself may not answer any more.
    let path = match (absolute.parent(), absolute.file_name()) {
        (Some(above), Some(name)) => above.canonicalize()?.join(name),
        _ => absolute,
    };
    let uid = rustix::process::geteuid().as_raw();
    let dir = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if Path::new(&dir).is_dir() => PathBuf::from(dir).join("steadfast-crash"),
        _ => std::env::temp_dir().join(format!("steadfast-crash-{uid}")),
    };
    match std::fs::DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let meta = std::fs::symlink_metadata(&dir)?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o077 != 0 {
        let why = format!("{}: not a directory that is yours alone", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let hash = xxhash_rust::xxh3::xxh3_64(path.as_os_str().as_bytes());
    Ok(dir.join(format!("{hash:016x}.sock")))
}

/// Listens for requests; dropping it removes the socket.
pub struct Listener(Arc<Socket>);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// The socket of a mount. It is removed once: afterwards another mount may have one in its place.
struct Socket {
    path: PathBuf,
    is_there: AtomicBool,
}

impl Socket {
    fn remove(&self) {
        if self.is_there.swap(false, Ordering::AcqRel) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// Serves requests to a mount on threads of their own. One that was unmounted there before has a moment to end.
    ///
    /// # Errors
    /// If the socket cannot be made, or another mount answers on it.
    pub fn new(mount: &Path, session: &Arc<Session>) -> io::Result<Listener> {
        let path = path_of(mount)?;
        let until = Instant::now() + END_LIMIT;
        while UnixStream::connect(&path).is_ok() {
            if Instant::now() < until {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            let why = format!("{}: another mount answers there", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
        }
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        let session = Arc::clone(session);
        let socket = Arc::new(Socket {
            path,
            is_there: AtomicBool::new(true),
        });
        let shared = Arc::clone(&socket);
        std::thread::Builder::new()
            .name("crash-socket".to_owned())
            .spawn(move || {
                for stream in listener.incoming() {
                    let Ok(stream) = stream else {
                        break;
                    };
                    let (session, socket) = (Arc::clone(&session), Arc::clone(&shared));
                    let thread = std::thread::Builder::new().name("crash-client".to_owned());
                    // A client that disconnects, or sends too much, ends only its own connection.
                    let _ = thread.spawn(move || serve(&stream, &session, &socket));
                }
            })?;
        Ok(Listener(socket))
    }
}

fn serve(stream: &UnixStream, session: &Session, socket: &Socket) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_LIMIT))?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.by_ref().take(LINE_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let send = |answer: &Answer| {
            let mut text = serde_json::to_string(answer).map_err(io::Error::other)?;
            text.push('\n');
            let mut out = stream;
            out.write_all(text.as_bytes())
        };
        match serde_json::from_str::<Request>(&line) {
            Ok(request) => {
                let ends = matches!(request, Request::Stop);
                session.serve(request, |answer| {
                    // After the answer another mount may begin there.
                    if ends {
                        socket.remove();
                    }
                    send(answer)
                })?;
            }
            Err(e) => send(&Answer {
                error: Some(format!("not understood: {e}")),
                ..Answer::default()
            })?,
        }
    }
}

/// Asks a mount, and waits for the answer.
///
/// # Errors
/// If no live mount is there, or it does not answer.
pub fn ask(mount: &Path, request: &Request) -> io::Result<Answer> {
    let path = path_of(mount)?;
    let mut stream = UnixStream::connect(&path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => io::Error::new(
            io::ErrorKind::NotFound,
            "no live mount is there; 'steadfast crash mount DIR MNT' makes one",
        ),
        _ => e,
    })?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut text = serde_json::to_string(request).map_err(io::Error::other)?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    let mut line = String::new();
    BufReader::new(&stream)
        .take(LINE_MAX)
        .read_line(&mut line)?;
    serde_json::from_str(&line).map_err(io::Error::other)
}
