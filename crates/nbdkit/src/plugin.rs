//! The plugin without pointers: nbdkit's requests, in the order in which they come.
//!
//! Settings come first; then a flash image is opened, alone, while nbdkit can still say that it
//! was not; then it may go to the background, where a volume on an object store is opened (its requests have threads, which do not
//! come along), and clients come and go; at the end, when the last of
//! them has gone, the disk is flushed and closed. A request that panicked has poisoned the layer's lock:
//! nothing is committed afterwards, and the disk is found at its last flush.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};

use steadfast_disk::{Full, Gone, Refusal, ServedDisk, Settings};

/// An error number, and its message.
pub(crate) struct Failed {
    pub(crate) errno: i32,
    pub(crate) text: String,
}

const EINVAL: i32 = 22;
const EIO: i32 = 5;
const ESHUTDOWN: i32 = 108;

/// Time that requests in progress have when the disk is closed.
const REQUESTS_END_WITHIN: Duration = Duration::from_secs(10);

pub(crate) type Result<T> = std::result::Result<T, Failed>;

fn invalid(text: impl Into<String>) -> Failed {
    Failed {
        errno: EINVAL,
        text: text.into(),
    }
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Failed {
        Failed {
            errno: refusal.errno().code(),
            text: refusal.to_string(),
        }
    }
}

impl Failed {
    /// A request panicked.
    pub(crate) fn panicked() -> Failed {
        Failed {
            errno: EIO,
            text: "the request failed inside the plugin; the disk has stopped".to_owned(),
        }
    }
}

static SETTINGS: Mutex<Option<Settings>> = Mutex::new(None);
static SERVED: RwLock<Option<Arc<ServedDisk>>> = RwLock::new(None);
/// Connections that are open. Locked while the end of the last one is handled, so that no connection
/// opens meanwhile.
static CLIENTS: Mutex<u64> = Mutex::new(0);
static STATUS: Mutex<Option<File>> = Mutex::new(None);

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn config(key: &str, value: &str) -> Result<()> {
    let mut settings = held(&SETTINGS);
    let settings = settings.get_or_insert_default();
    #[cfg(feature = "trial")]
    let taken = settings.set_trial(key, value);
    #[cfg(not(feature = "trial"))]
    let taken = settings.set(key, value);
    taken.map_err(invalid)
}

pub(crate) fn config_complete() -> Result<()> {
    match &*held(&SETTINGS) {
        Some(Settings { image: Some(_), .. }) => Ok(()),
        _ => Err(invalid(
            "name the flash image, or the URL of a volume on an object store: image=PATH",
        )),
    }
}

/// Opens the image, before nbdkit leaves its directory and its terminal.
pub(crate) fn get_ready() -> Result<()> {
    let mut settings = held(&SETTINGS);
    let settings = settings.get_or_insert_default();
    if let Some(path) = &settings.status {
        let file = OpenOptions::new().append(true).open(path);
        let file = file.map_err(|e| invalid(format!("{}: {e}", path.display())))?;
        *held(&STATUS) = Some(file);
    }
    match settings.url() {
        Some(_) => Ok(()),
        None => open_disk(settings),
    }
}

fn open_disk(settings: &Settings) -> Result<()> {
    let disk = settings.open_any().map_err(|e| {
        let image = settings.image.clone().unwrap_or_default();
        let text = e.to_string();
        match text.contains(&*image.to_string_lossy()) {
            true => invalid(text),
            false => invalid(format!("{}: {text}", image.display())),
        }
    })?;
    let served = Arc::new(ServedDisk::new(disk));
    *SERVED.write().unwrap_or_else(PoisonError::into_inner) = Some(served);
    Ok(())
}

/// Tells the process that started nbdkit; a missing reader is no reason to stop.
fn tell(line: &str) {
    if let Some(file) = &mut *held(&STATUS) {
        let _ = writeln!(file, "{line}");
    }
}

/// Clients can come.
pub(crate) fn after_fork() -> Result<()> {
    if let Some(settings) = held(&SETTINGS).as_ref().filter(|s| s.url().is_some()) {
        open_disk(settings)?;
    }
    let control = held(&SETTINGS).as_ref().and_then(|s| s.control.clone());
    if let Some(path) = control {
        let file = File::open(&path).map_err(|e| invalid(format!("{}: {e}", path.display())))?;
        std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || end_when_told(file))
            .map_err(|e| invalid(format!("starting a thread: {e}")))?;
    }
    let disk = served()?;
    tell(&format!("ready {} {}", disk.bytes(), disk.epoch_bytes()));
    Ok(())
}

/// Waits until the process that started nbdkit says that it is to end, or is gone; then closes the disk and ends
/// the process. nbdkit itself would wait for its clients to go, for ever.
fn end_when_told(mut control: File) {
    let _ = control.read(&mut [0; 1]);
    // Held to the end, so that nbdkit does not take the plugin away meanwhile.
    let mut served = SERVED.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(served) = served.take() {
        // Requests in progress are let go to their end; those that come now are refused.
        let begun = Instant::now();
        while Arc::strong_count(&served) > 1 && begun.elapsed() < REQUESTS_END_WITHIN {
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Err(failed) = finish(&served) {
            let _ = writeln!(std::io::stderr(), "steadfast: {}", failed.text);
        }
    }
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Flushes and closes the disk. Every client has gone.
pub(crate) fn cleanup() -> Result<()> {
    let mut served = SERVED.write().unwrap_or_else(PoisonError::into_inner);
    match served.take() {
        Some(served) => finish(&served),
        None => Ok(()),
    }
}

/// Carries out the last flush, and returns its result.
fn finish(served: &ServedDisk) -> Result<()> {
    if served.read_only() {
        tell("closed");
        return Ok(());
    }
    match served.flush() {
        Ok(()) => {
            served.finish();
            tell("closed");
            Ok(())
        }
        Err(refusal) => {
            tell(&format!("failed {refusal}"));
            Err(Failed {
                errno: EIO,
                text: format!("the last flush: {refusal}"),
            })
        }
    }
}

/// The disk.
pub(crate) fn served() -> Result<Arc<ServedDisk>> {
    let served = SERVED.read().unwrap_or_else(PoisonError::into_inner);
    served.clone().ok_or_else(|| Failed {
        errno: ESHUTDOWN,
        text: "the disk is being closed".to_owned(),
    })
}

fn gone() -> Gone {
    held(&SETTINGS).as_ref().map_or(Gone::Keep, |s| s.gone)
}

pub(crate) fn open() -> Result<()> {
    let mut clients = held(&CLIENTS);
    served()?;
    *clients += 1;
    Ok(())
}

pub(crate) fn close() -> Result<()> {
    let mut clients = held(&CLIENTS);
    *clients = clients.saturating_sub(1);
    if *clients > 0 {
        return Ok(());
    }
    let Ok(served) = served() else {
        // Closed already.
        return Ok(());
    };
    if served.read_only() {
        return Ok(());
    }
    match gone() {
        Gone::Keep => Ok(()),
        Gone::Flush => Ok(served.flush()?),
        Gone::RollBack => Ok(served.roll_back()?),
    }
}

/// Smallest, preferred and largest request. A request larger than an epoch is refused where the
/// disk does not flush on its own.
pub(crate) fn block_size() -> Result<[u32; 3]> {
    const BLOCK: u32 = 4096;
    /// Clients' default for the largest request.
    const LARGEST: u64 = 32 << 20;
    let epoch = match held(&SETTINGS).as_ref().map(|s| s.full) {
        Some(Full::Wait(_)) => served()?.epoch_bytes(),
        _ => LARGEST,
    };
    let largest = epoch.clamp(BLOCK.into(), LARGEST);
    Ok([1, BLOCK, u32::try_from(largest).unwrap_or(BLOCK)])
}

/// Holes and data in a range, each as (offset, length, whether it is a hole); the first alone if `one`.
pub(crate) fn extents(
    offset: u64,
    count: u64,
    one: bool,
    mut add: impl FnMut(u64, u64, bool) -> Result<()>,
) -> Result<()> {
    let served = served()?;
    let (mut at, end) = (offset, offset + count);
    while at < end {
        let (len, hole) = served.run(at, end)?;
        add(at, len, hole)?;
        at += len.max(1);
        if one {
            break;
        }
    }
    Ok(())
}
