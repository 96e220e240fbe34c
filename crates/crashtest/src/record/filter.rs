//! System calls of a program that wait for an answer: a seccomp filter with user notification.
//!
//! The filter is set for the calling thread and is inherited by all that it starts from then on: there is no tracer,
//! and all other calls run at full speed. All `unsafe` of the crate is in this file.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_ulong, seccomp_notif, seccomp_notif_resp, sock_filter, sock_fprog};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: u32 = 0;

/// Only a signal that ends the process ends its wait for an answer: the call is not seen twice. Since Linux 5.19.
const WAIT_KILLABLE: c_ulong = 1 << 5;

/// Offsets in `seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

/// A call that waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notice {
    id: u64,
    /// The thread that calls.
    pub(super) thread: u32,
    /// The number of the call.
    pub(super) call: i64,
    /// Its arguments.
    pub(super) args: [u64; 6],
}

/// The descriptor on which calls are received.
#[derive(Debug)]
pub(super) struct Listener(OwnedFd);

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

fn jump(k: u32, jt: usize, jf: usize) -> sock_filter {
    sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: jt as u8,
        jf: jf as u8,
        k,
    }
}

/// The filter: these calls of the native architecture wait, all others go on.
fn program(calls: &[i64]) -> Vec<sock_filter> {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let give = libc::BPF_RET | libc::BPF_K;
    let n = calls.len();
    let mut program = vec![
        statement(load, ARCH),
        jump(ARCHITECTURE, 0, n + 1),
        statement(load, NUMBER),
    ];
    for (i, call) in calls.iter().enumerate() {
        program.push(jump(*call as u32, n - i, 0));
    }
    program.push(statement(give, libc::SECCOMP_RET_ALLOW));
    program.push(statement(give, libc::SECCOMP_RET_USER_NOTIF));
    program
}

/// Makes these calls of this thread, and of all that it starts, wait for the listener.
pub(super) fn listen(calls: &[i64]) -> io::Result<Listener> {
    if ARCHITECTURE == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut filter = program(calls);
    let program = sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let install = |flags: c_ulong| {
        // SAFETY: `program` points to `len` instructions that live until the call has returned; the kernel copies them.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | flags,
                &raw const program,
            )
        };
        match fd {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            // SAFETY: the kernel has just made the descriptor for us, and nothing else knows it.
            fd => Ok(Listener(unsafe { OwnedFd::from_raw_fd(fd as c_int) })),
        }
    };
    let either = || match install(WAIT_KILLABLE) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => install(0),
        other => other,
    };
    match either() {
        // Without CAP_SYS_ADMIN the program must not gain privileges.
        Err(e) if e.raw_os_error() == Some(libc::EACCES) => {
            rustix::thread::set_no_new_privs(true)?;
            either()
        }
        other => other,
    }
}

impl Listener {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.0.as_fd()
    }

    /// The next waiting call; `None` if it does not wait any more.
    pub(super) fn receive(&self) -> io::Result<Option<Notice>> {
        // SAFETY: all zeros is a value of this structure of integers; the kernel asks for zeros.
        let mut notif: seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is a listener, and the kernel writes one structure of this type.
        let done = unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_RECV as _,
                &raw mut notif,
            )
        };
        if done < 0 {
            let e = io::Error::last_os_error();
            return match e.raw_os_error() {
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => Ok(None),
                _ => Err(e),
            };
        }
        Ok(Some(Notice {
            id: notif.id,
            thread: notif.pid,
            call: i64::from(notif.data.nr),
            args: notif.data.args,
        }))
    }

    /// Lets a call continue as if there were no filter.
    pub(super) fn go_on(&self, notice: &Notice) {
        let answer = seccomp_notif_resp {
            id: notice.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // SAFETY: the descriptor is a listener, and the kernel reads one structure of this type. It fails if the caller has
        // gone, which needs no answer.
        unsafe {
            libc::ioctl(
                self.0.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND as _,
                &raw const answer,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict of the filter on a call, by a small interpreter.
    fn verdict(program: &[sock_filter], arch: u32, number: u32) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let one = program[at];
            at += 1;
            match u32::from(one.code) & 7 {
                libc::BPF_LD => value = if one.k == ARCH { arch } else { number },
                libc::BPF_RET => return one.k,
                _ if value == one.k => at += usize::from(one.jt),
                _ => at += usize::from(one.jf),
            }
        }
    }

    #[test]
    fn only_the_calls_that_are_watched_wait() {
        let filter = program(&[162, 306, 277]);
        for (arch, number, waits) in [
            (ARCHITECTURE, 162, true),
            (ARCHITECTURE, 306, true),
            (ARCHITECTURE, 277, true),
            (ARCHITECTURE, 1, false),
            (ARCHITECTURE, 74, false),
            (0x4000_0003, 162, false),
        ] {
            let expected = if waits {
                libc::SECCOMP_RET_USER_NOTIF
            } else {
                libc::SECCOMP_RET_ALLOW
            };
            assert_eq!(verdict(&filter, arch, number), expected, "{number}");
        }
    }
}
