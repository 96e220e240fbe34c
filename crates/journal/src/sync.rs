//! Threads, locks and atomics, in one place: `std`'s normally, `shuttle`'s under the
//! feature of that name, so that the real threads run under explored schedules.
//!
//! A poisoned lock is entered all the same: the journal marks itself failed on any
//! error, and its invariants are re-established before a lock is let go.

#[cfg(not(feature = "shuttle"))]
use std::sync as imp;
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::thread;

#[cfg(feature = "shuttle")]
use shuttle::sync as imp;
#[cfg(feature = "shuttle")]
pub(crate) use shuttle::thread;

pub(crate) use imp::{Condvar, MutexGuard};

use std::time::Duration;

/// A mutex without poisoning.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(imp::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The lock, if no thread holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}

/// Waits on `condvar`, giving the guard up meanwhile.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar
        .wait(guard)
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The same, at most for `timeout`.
pub(crate) fn wait_timeout<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    timeout: Duration,
) -> MutexGuard<'a, T> {
    match condvar.wait_timeout(guard, timeout) {
        Ok((guard, _)) => guard,
        Err(poisoned) => poisoned.into_inner().0,
    }
}
