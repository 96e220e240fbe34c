//! Requests to the server itself, made on any file or directory of a mount.
//!
//! `sync(2)` and `syncfs(2)` do not reach a FUSE server, so the server offers its
//! own: an ioctl without data, for C programs, and the same as an extended
//! attribute, which a program without `ioctl` (or without `unsafe`) can ask for.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use steadfast_vfs::{Health, Shutdown};

/// `_IO('S', 1)`: commits every stream of the volume; returns when that is durable.
pub const IOCTL_SYNC: u32 = 0x5301;

/// Reading this attribute commits every stream of the volume; its value is empty.
pub const XATTR_SYNC: &str = "system.steadfast.sync";

/// Reading this attribute does the same, and returns when an object store has it; its value is empty.
pub const XATTR_SYNC_STORE: &str = "system.steadfast.sync-store";

/// `FS_IOC_SHUTDOWN` as ext4 and XFS have it, with a pointer to a 32-bit number: 0 makes
/// everything durable first, 1 in the log, 2 nothing more.
pub const IOCTL_SHUTDOWN: u32 = 0x8004_587d;

/// Setting this attribute shuts down; its value is `everything`, `log` or `nothing`: the
/// part that is made durable first.
pub const XATTR_SHUTDOWN: &str = "system.steadfast.shutdown";

/// `FITRIM`, as fstrim(8) asks for it: a pointer to three 64-bit numbers, the first byte, how many, and the shortest run;
/// the second becomes how many bytes were trimmed.
pub const IOCTL_TRIM: u32 = 0xc018_5879;

/// Reading this attribute trims all free space; its value is the number of bytes.
pub const XATTR_TRIM: &str = "system.steadfast.trim";

/// Its value is the counters since the mount, by line: name, space, value.
pub const XATTR_STATS: &str = "system.steadfast.stats";

/// Setting this attribute to a number of seconds freezes the volume, at most for so long.
pub const XATTR_FREEZE: &str = "system.steadfast.freeze";

/// Reading this attribute thaws it; its value is empty. Not a setting: the kernel locks the inode for those, and a change in
/// the same directory may have that lock, and wait for the thaw.
pub const XATTR_THAW: &str = "system.steadfast.thaw";

/// Its value is the volume's health: `ok`, `read-only`, `shut-down`, or `failed`, a space, and why.
pub const XATTR_HEALTH: &str = "system.steadfast.health";

/// Its value is `on` if the kernel keeps programs' writes and sends them later, else `off`.
pub const XATTR_WRITE_BACK: &str = "system.steadfast.write-back";

/// Its value is the decimal process id of the server, as the server sees itself.
pub const XATTR_SERVER: &str = "system.steadfast.server";

/// Commits every stream of the volume mounted at (or above) `path`; returns when
/// that is durable. The kernel's cached pages of open files are included after [`send_kept`](crate::send_kept).
///
/// # Errors
/// EOPNOTSUPP or ENODATA if `path` is on no Steadfast mount; else the volume's error.
pub fn sync(path: &Path) -> io::Result<()> {
    let mut buf = [0u8; 8];
    rustix::fs::getxattr(path, XATTR_SYNC, &mut buf)?;
    Ok(())
}

/// The same as [`sync`]; of a volume whose commits are durable on a cache first, returns when the object store has them.
///
/// # Errors
/// Those of [`sync`].
pub fn sync_store(path: &Path) -> io::Result<()> {
    let mut buf = [0u8; 8];
    rustix::fs::getxattr(path, XATTR_SYNC_STORE, &mut buf)?;
    Ok(())
}

/// Arguments of a `FITRIM` request: a range of bytes, and the shortest run.
pub(crate) fn trim_of(argument: &[u8]) -> Option<(Range<u64>, u64)> {
    let (numbers, rest) = argument.as_chunks::<8>();
    let &[start, len, min] = numbers else {
        return None;
    };
    let [start, len, min] = [start, len, min].map(u64::from_ne_bytes);
    rest.is_empty()
        .then(|| (start..start.saturating_add(len), min))
}

/// Tells the device of all free space of the volume mounted at (or above) `path`, while others work.
/// Returns how many bytes that was.
///
/// # Errors
/// EPERM if the caller is neither root nor the user that mounted; else as for [`sync`].
pub fn trim(path: &Path) -> io::Result<u64> {
    number_in(path, XATTR_TRIM)
}

/// The flags of `FS_IOC_SHUTDOWN`: `FSOP_GOING_FLAGS_DEFAULT`, `_LOGFLUSH`, `_NOLOGFLUSH`.
#[must_use]
pub(crate) fn shutdown_of(flags: u32) -> Option<Shutdown> {
    match flags {
        0 => Some(Shutdown::Everything),
        1 => Some(Shutdown::Log),
        2 => Some(Shutdown::Nothing),
        _ => None,
    }
}

const SHUTDOWN_NAMES: [(&str, Shutdown); 3] = [
    ("everything", Shutdown::Everything),
    ("log", Shutdown::Log),
    ("nothing", Shutdown::Nothing),
];

pub(crate) fn shutdown_named(name: &[u8]) -> Option<Shutdown> {
    let mut names = SHUTDOWN_NAMES.iter();
    names
        .find(|(known, _)| known.as_bytes() == name)
        .map(|(_, how)| *how)
}

/// Ends all access to the volume mounted at (or above) `path`, at once.
///
/// # Errors
/// EPERM if the caller is neither root nor the user that mounted; else as for [`sync`].
pub fn shut_down(path: &Path, how: Shutdown) -> io::Result<()> {
    let name = SHUTDOWN_NAMES.iter().find(|(_, known)| *known == how);
    let name = name.map_or("", |(name, _)| name);
    let flags = rustix::fs::XattrFlags::empty();
    Ok(rustix::fs::setxattr(
        path,
        XATTR_SHUTDOWN,
        name.as_bytes(),
        flags,
    )?)
}

/// Most bytes of counters.
const STATS_BYTES_MAX: usize = 64 << 10;

/// Counters of the server of the mount at (or above) `path`, by name, since the mount.
/// Counters that end in `_now` go up and down; `shut_down_now` is 1 after [`shut_down`].
///
/// # Errors
/// As for [`sync`].
pub fn stats(path: &Path) -> io::Result<Vec<(String, u64)>> {
    let mut buf = vec![0u8; STATS_BYTES_MAX];
    let len = rustix::fs::getxattr(path, XATTR_STATS, &mut buf[..])?;
    let text = String::from_utf8_lossy(&buf[..len]);
    let pairs = text.lines().map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    pairs
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no counters"))
}

/// Value of [`XATTR_HEALTH`] after [`shut_down`].
pub(crate) const SHUT_DOWN: &str = "shut-down";
/// Longest such value.
const HEALTH_BYTES_MAX: usize = 4 << 10;

/// The value of [`XATTR_HEALTH`] for a volume.
pub(crate) fn health_text(health: &Health) -> String {
    match (&health.failed, health.read_only) {
        (Some(why), _) => {
            let text = format!("failed {}", why.replace('\n', " "));
            text.chars().take(HEALTH_BYTES_MAX / 4).collect()
        }
        (None, true) => "read-only".to_owned(),
        (None, false) => "ok".to_owned(),
    }
}

/// Makes everything durable that was written to the volume mounted at (or above) `path`, then holds its image still until
/// [`thaw`], for at most `seconds`: calls that would write to it wait, reads go on.
///
/// # Errors
/// EBUSY if it is frozen already; EPERM if the caller is neither root nor the user that mounted; else as for [`sync`].
pub fn freeze(path: &Path, seconds: u64) -> io::Result<()> {
    let flags = rustix::fs::XattrFlags::empty();
    let value = seconds.max(1).to_string();
    Ok(rustix::fs::setxattr(
        path,
        XATTR_FREEZE,
        value.as_bytes(),
        flags,
    )?)
}

/// Ends a freeze.
///
/// # Errors
/// EINVAL if there is none, or if its time has passed; else as for [`freeze`].
pub fn thaw(path: &Path) -> io::Result<()> {
    let mut buf = [0u8; 8];
    rustix::fs::getxattr(path, XATTR_THAW, &mut buf)?;
    Ok(())
}

/// Longest freeze, in seconds.
pub const FREEZE_SECONDS_MAX: u64 = 3600;

/// The seconds of a freeze that is asked for.
pub(crate) fn freeze_of(value: &[u8]) -> Option<u64> {
    let seconds = std::str::from_utf8(value).ok()?.parse().ok()?;
    (1..=FREEZE_SECONDS_MAX)
        .contains(&seconds)
        .then_some(seconds)
}

/// Health of the volume mounted at (or above) `path`.
///
/// # Errors
/// As for [`sync`]; ENOTCONN if its server is gone.
pub fn health(path: &Path) -> io::Result<Health> {
    let mut buf = vec![0u8; HEALTH_BYTES_MAX];
    let len = rustix::fs::getxattr(path, XATTR_HEALTH, &mut buf[..])?;
    let text = String::from_utf8_lossy(&buf[..len]);
    let (word, why) = text.split_once(' ').unwrap_or((&text, ""));
    let failed = match word {
        "failed" => Some(why.to_owned()),
        SHUT_DOWN => Some("it was shut down on purpose; unmount, then mount again".to_owned()),
        _ => None,
    };
    Ok(Health {
        read_only: word != "ok",
        failed,
    })
}

/// Process id of the server of the mount at (or above) `path`.
///
/// # Errors
/// As for [`sync`].
pub fn server_pid(path: &Path) -> io::Result<u32> {
    number_in(path, XATTR_SERVER)
}

/// The decimal number that is an attribute's value.
fn number_in<T: FromStr>(path: &Path, name: &str) -> io::Result<T> {
    let mut buf = [0u8; 24];
    let len = rustix::fs::getxattr(path, name, &mut buf)?;
    (std::str::from_utf8(&buf[..len]).ok())
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{name}: no number")))
}
