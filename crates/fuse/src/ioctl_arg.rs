//! Reads the memory that the argument of a caller's ioctl(2) points to.
//!
//! `FS_IOC_SHUTDOWN` is defined as a command that *reads* a number, though it takes one: the kernel
//! passes on no byte of it to a server in user space. But the caller waits in its system call until
//! it is answered, so a server that may look at its registers and its memory (root may) finds the
//! number there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Maximum number of looks at the caller before it has come to rest.
const LOOKS_MAX: usize = 200;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// The 32-bit number that the argument of the ioctl `command` points to; `thread` waits in that call.
pub(crate) fn number(thread: u32, command: u32) -> io::Result<u32> {
    let refuse = |why: &str| io::Error::new(io::ErrorKind::Unsupported, why.to_owned());
    if thread == 0 {
        return Err(refuse("the caller is in another process namespace"));
    }
    for _ in 0..LOOKS_MAX {
        // The call's number, then its arguments; or "running".
        let call = std::fs::read_to_string(format!("/proc/{thread}/syscall"))?;
        if let Some(address) = argument(&call, command) {
            let mut bytes = [0; 4];
            File::open(format!("/proc/{thread}/mem"))?.read_exact_at(&mut bytes, address)?;
            return Ok(u32::from_ne_bytes(bytes));
        }
        std::thread::sleep(PAUSE);
    }
    Err(refuse("the caller is not where it should be"))
}

/// The third argument of a system call whose second is `command`.
fn argument(call: &str, command: u32) -> Option<u64> {
    let hexadecimal = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let mut fields = call.split_ascii_whitespace().skip(2);
    // The kernel looks at 32 bits of a command.
    let asked = hexadecimal(fields.next()?)? & u64::from(u32::MAX);
    let address = hexadecimal(fields.next()?)?;
    (asked == u64::from(command)).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::argument;

    #[test]
    fn the_third_argument_is_found_after_the_command() {
        let call = "16 0x3 0x8004587d 0x7ffc12345678 0x0 0x1 0x0 0x7ffc0 0x7f000\n";
        assert_eq!(argument(call, 0x8004_587d), Some(0x7ffc_1234_5678));
        let signed = "16 0x3 0xffffffff8004587d 0x10 0x0 0x1 0x0 0x7ffc0 0x7f000\n";
        assert_eq!(argument(signed, 0x8004_587d), Some(0x10));
        for other in ["running\n", "16 0x3 0x5301 0x10 0x0\n", "-1 0x1 0x2\n", ""] {
            assert_eq!(argument(other, 0x8004_587d), None);
        }
    }
}
