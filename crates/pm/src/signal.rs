//! SIGBUS: a file that shrinks under its mapping, or a medium that fails, must not kill the process.
//!
//! The first region in a file installs a handler for the whole process. When an access to a region faults, the handler puts
//! zeroed memory of the process in place of the faulting page and marks the region as failed; the access then succeeds, and
//! its caller finds out by [`Region::failed`](crate::Region::failed). Faults outside of regions go to the handler that was
//! installed before. A handler that another library installs later, without forwarding, takes these faults away from this one.
//!
//! The table of regions has a fixed size, because a signal handler can neither allocate nor lock.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

/// Most regions in files that a process has at a time.
pub(crate) const REGIONS_MAX: usize = 256;

/// Value of [`Slot::start`] while the slot is being filled in. No mapping starts there.
const CLAIMED: usize = 1;

/// A registered range of addresses.
struct Slot {
    /// First address; 0 if the slot is free. Written last, so that a fault never sees half a registration.
    start: AtomicUsize,
    end: AtomicUsize,
    /// Bytes of the pages that the mapping consists of.
    unit: AtomicUsize,
    /// `PROT_…` of the mapping.
    protection: AtomicI32,
    failed: AtomicBool,
}

static SLOTS: [Slot; REGIONS_MAX] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        unit: AtomicUsize::new(0),
        protection: AtomicI32::new(0),
        failed: AtomicBool::new(false),
    }
}; REGIONS_MAX];

/// Handler that was installed before.
static FORMER: OnceLock<libc::sigaction> = OnceLock::new();

/// A range whose faults are caught, until it is dropped. The range must stay mapped as long.
pub(crate) struct Registration {
    slot: &'static Slot,
}

impl Registration {
    /// Catches faults in `range`, which consists of pages of `unit` bytes. None if there are too many regions.
    pub(crate) fn new(
        range: Range<usize>,
        unit: usize,
        writable: bool,
    ) -> io::Result<Registration> {
        install()?;
        let claim = |slot: &&Slot| {
            let claimed =
                slot.start
                    .compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
            claimed.is_ok()
        };
        let Some(slot) = SLOTS.iter().find(claim) else {
            return Err(io::Error::other(format!(
                "the process has {REGIONS_MAX} regions open, the most that it can have"
            )));
        };
        let write = if writable { libc::PROT_WRITE } else { 0 };
        slot.failed.store(false, Ordering::Relaxed);
        slot.end.store(range.end, Ordering::Relaxed);
        slot.unit.store(unit, Ordering::Relaxed);
        slot.protection
            .store(libc::PROT_READ | write, Ordering::Relaxed);
        slot.start.store(range.start, Ordering::Release);
        Ok(Registration { slot })
    }

    /// Whether a fault was caught.
    #[inline]
    pub(crate) fn failed(&self) -> bool {
        self.slot.failed.load(Ordering::Acquire)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.slot.start.store(0, Ordering::Release);
    }
}

/// Installs the handler, once for the process.
fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        let failure = || {
            Err(io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EINVAL))
        };
        let mut former = MaybeUninit::uninit();
        // SAFETY: asks for the present handler only; `former` has room for it.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), former.as_mut_ptr()) } != 0 {
            return failure();
        }
        // SAFETY: the call succeeded, so it filled `former` in. It is kept before the new handler can run.
        let _ = FORMER.set(unsafe { former.assume_init() });
        // SAFETY: zeros are a valid `sigaction`.
        let mut ours: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_sigbus;
        ours.sa_sigaction = handler as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for, and does only actions that a handler may do.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, ptr::null_mut()) } != 0 {
            return failure();
        }
        Ok(())
    });
    installed.map_err(io::Error::from_raw_os_error)
}

extern "C" fn on_sigbus(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid description. `si_addr` is meaningful for the codes below only, and only then used.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let a_page_is_gone = matches!(
        code,
        libc::BUS_ADRERR | libc::BUS_MCEERR_AR | libc::BUS_MCEERR_AO
    );
    if !(a_page_is_gone && replace(address)) {
        forward(signal, code, info, context);
    }
}

/// Puts zeros in place of the page at `address`, if that lies in a region.
fn replace(address: usize) -> bool {
    let range = |slot: &Slot| slot.start.load(Ordering::Acquire)..slot.end.load(Ordering::Relaxed);
    let found = SLOTS.iter().find(|slot| {
        let range = range(slot);
        range.start > CLAIMED && range.contains(&address)
    });
    let Some(slot) = found else { return false };
    // Before the page is replaced: no other thread may see zeros in a region that has not failed.
    slot.failed.store(true, Ordering::SeqCst);
    let Range { start, end } = range(slot);
    let unit = slot.unit.load(Ordering::Relaxed);
    let protection = slot.protection.load(Ordering::Relaxed);
    let page = start + (address - start) / unit * unit;
    // The number of mappings is limited. Where one more is too many, the region as a whole makes it one less.
    zeros(page, unit, protection) || zeros(start, end - start, protection)
}

/// Puts zeroed memory of the process at an address of a region.
fn zeros(start: usize, bytes: usize, protection: c_int) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: errno belongs to this thread.
    let errno = unsafe { &mut *libc::__errno_location() };
    let before = *errno;
    let at = ptr::without_provenance_mut::<c_void>(start);
    // SAFETY: the range lies in a region that is registered, so it is mapped, and the thread that faulted keeps it so. Its
    // words may change at any time as far as the program can tell, because they are atomic.
    let mapped = unsafe { libc::mmap(at, bytes, protection, flags, -1, 0) };
    *errno = before;
    mapped != libc::MAP_FAILED
}

/// Does the same as without this module.
fn forward(signal: c_int, code: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let (handler, flags) = match FORMER.get() {
        Some(former) => (former.sa_sigaction, former.sa_flags),
        None => (libc::SIG_DFL, 0),
    };
    match handler {
        // The kernel does not let a fault be ignored, a signal from a process it does.
        libc::SIG_IGN if code <= 0 => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: zeros are a valid `sigaction`: the default. The signal is delivered once this handler has returned, and
            // ends the process.
            unsafe {
                let default: libc::sigaction = MaybeUninit::zeroed().assume_init();
                libc::sigaction(signal, &raw const default, ptr::null_mut());
                libc::raise(signal);
            }
        }
        handler if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed as a handler of this kind, and gets the kernel's arguments.
            unsafe {
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    std::mem::transmute::<usize, _>(handler);
                handler(signal, info, context);
            }
        }
        handler => {
            // SAFETY: as above; without SA_SIGINFO a handler takes the signal alone.
            unsafe {
                let handler: extern "C" fn(c_int) = std::mem::transmute::<usize, _>(handler);
                handler(signal);
            }
        }
    }
}
