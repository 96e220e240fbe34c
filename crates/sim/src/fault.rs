//! The plan of failures of a simulated device.

use rustix::io::Errno;
use steadfast_block::{BlockNo, DeviceOp};

/// A failure to come: when, of which operation, and whether it lasts. By default, it happens
/// once and the system's error is `EIO`.
///
/// * A failed read leaves garbage in the buffer.
/// * A failed write leaves each sector old or new, as the device's seed has it.
/// * A failed flush makes nothing durable, then or later: see [`sim`](super).
#[derive(Clone, Debug)]
pub struct Fault {
    op: DeviceOp,
    trigger: Trigger,
    sticky: bool,
    error: i32,
}

#[derive(Clone, Debug)]
enum Trigger {
    /// At the first request after this many others.
    After(u64),
    /// At requests that touch this block.
    Block(BlockNo),
}

impl Fault {
    /// The `n`-th request of the kind `op` from now on fails; the next one is number 1.
    #[must_use]
    pub fn nth(op: DeviceOp, n: u64) -> Fault {
        let trigger = Trigger::After(n.saturating_sub(1));
        Fault {
            op,
            trigger,
            sticky: false,
            error: Errno::IO.raw_os_error(),
        }
    }

    /// The next request of the kind `op` (not a flush) that touches block `at` fails.
    #[must_use]
    pub fn at(op: DeviceOp, at: BlockNo) -> Fault {
        Fault {
            op,
            trigger: Trigger::Block(at),
            sticky: false,
            error: Errno::IO.raw_os_error(),
        }
    }

    /// The failure lasts: every later such request fails as well.
    #[must_use]
    pub fn sticky(mut self) -> Fault {
        self.sticky = true;
        self
    }

    /// The system's error number to report instead of `EIO`.
    #[must_use]
    pub fn with_errno(mut self, raw: i32) -> Fault {
        self.error = raw;
        self
    }

    /// Whether a request of `count` blocks from `at` on fails, counting it.
    fn strikes(&mut self, op: DeviceOp, at: BlockNo, count: u64) -> bool {
        if op != self.op {
            return false;
        }
        match &mut self.trigger {
            Trigger::After(0) => true,
            Trigger::After(others) => {
                *others -= 1;
                false
            }
            Trigger::Block(block) => *block >= at && block.0 - at.0 < count,
        }
    }
}

/// The faults that are still to come.
#[derive(Default)]
pub(crate) struct Plan(Vec<Fault>);

impl Plan {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The error of this request, if it is to fail. Every fault counts the request.
    pub(crate) fn strike(&mut self, op: DeviceOp, at: BlockNo, count: u64) -> Option<i32> {
        let mut error = None;
        self.0.retain_mut(|fault| {
            let strikes = fault.strikes(op, at, count);
            if strikes {
                error.get_or_insert(fault.error);
            }
            !strikes || fault.sticky
        });
        error
    }
}
