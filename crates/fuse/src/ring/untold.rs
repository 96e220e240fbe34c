//! Additions to the protocol crate of the rings: ioctl(2), fields of requests that it does not pass on, and requests
//! that another thread serves. All of it reads the request's bytes in its buffer.

use fractal_fuse::Request;
use fractal_fuse::abi::{
    FUSE_CREATE, FUSE_FSYNC, FUSE_FSYNCDIR, FUSE_GETXATTR, FUSE_IOCTL, FUSE_MKDIR, FUSE_MKNOD,
    FUSE_READ, FUSE_SETXATTR, fuse_uring_req_header,
};
use fractal_fuse::ring::RingEntry;
use fuser::{Errno, INodeNo};

use super::serve::Ring;
use crate::counters::RequestKind;
use crate::readers::For;
use crate::server::Server;

/// All attributes of the server itself begin like this.
const OWN_ATTRIBUTES: &[u8] = b"system.steadfast.";

/// A field of an operation's arguments.
fn field(header: &fuse_uring_req_header, at: usize) -> u32 {
    let bytes = header.op_in.get(at..at + 4);
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
    u32::from_ne_bytes(bytes.unwrap_or_default())
}

/// The field that the protocol crate does not pass on: the umask of a new inode, the open file's flags of a read.
pub(super) fn untold(header: &fuse_uring_req_header) -> u32 {
    match header.in_header().opcode {
        // fuse_mkdir_in: mode, umask.
        FUSE_MKDIR => field(header, 4),
        // fuse_mknod_in: mode, rdev, umask. fuse_create_in: flags, mode, umask.
        FUSE_MKNOD | FUSE_CREATE => field(header, 8),
        // fuse_read_in: fh, offset, size, read_flags, lock_owner, flags.
        FUSE_READ => field(header, 32),
        _ => 0,
    }
}

/// Whether another thread serves this request, and the queue goes on.
pub(super) fn gives_away(server: &Server, entry: &RingEntry) -> bool {
    let sleeps = |what| server.readers.sleeps(what);
    let waits = match entry.header().in_header().opcode {
        FUSE_READ => sleeps(For::Content),
        FUSE_FSYNC | FUSE_FSYNCDIR => sleeps(For::Commit),
        FUSE_IOCTL => true,
        FUSE_GETXATTR | FUSE_SETXATTR if entry.payload().starts_with(OWN_ATTRIBUTES) => true,
        _ => (server.policy.sync || server.policy.dir_sync) && sleeps(For::Commit),
    };
    // A change of a frozen volume waits for the thaw, which may come through the same queue.
    waits || server.frozen()
}

/// Serves the request if the protocol crate would not.
pub(super) fn serve_untold(ring: &Ring, entry: &mut RingEntry) -> bool {
    let header = entry.header();
    let about = *header.in_header();
    if about.opcode != FUSE_IOCTL {
        return false;
    }
    let request = Request {
        unique: about.unique,
        uid: about.uid,
        gid: about.gid,
        pid: about.pid,
    };
    let node = INodeNo(about.nodeid);
    // fuse_ioctl_in: fh, flags, cmd, arg, in_size, out_size.
    let (command, in_size) = (field(header, 12), field(header, 24) as usize);
    let argument = entry.payload();
    let argument = &argument[..in_size.min(argument.len())];
    let answer = ring.ioctl(request, node, command, argument);
    let (error, length) = match answer {
        Ok(answer) => {
            // fuse_ioctl_out (result and three numbers that only unrestricted calls use), and the argument.
            const HEAD: usize = 16;
            let payload = entry.payload_mut();
            match payload.get_mut(HEAD..HEAD + answer.len()) {
                Some(there) => {
                    there.copy_from_slice(&answer);
                    payload[..HEAD].fill(0);
                    (0, HEAD + answer.len())
                }
                None => (Errno::EIO.code(), 0),
            }
        }
        Err(errno) => (errno.code(), 0),
    };
    let header = entry.header_mut();
    header.ring_ent_in_out.payload_sz = length as u32;
    let out = header.out_header_mut();
    // As the protocol crate has it: the length without the header's.
    out.len = length as u32;
    out.error = -error;
    out.unique = about.unique;
    true
}

impl Ring {
    fn ioctl(
        &self,
        request: Request,
        node: INodeNo,
        command: u32,
        argument: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let on = fractal_fuse::InodeId(node.0);
        let asker = self.begin(request, RequestKind::Ioctl, on, None);
        self.server.own_command(&asker, node, command, argument)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fractal_fuse::abi::FUSE_WRITE;

    #[test]
    fn fields_that_the_protocol_crate_leaves_out_are_found_in_the_arguments() {
        let mut header = fuse_uring_req_header::default();
        for (i, word) in header.op_in.chunks_exact_mut(4).enumerate() {
            word.copy_from_slice(&(i as u32).to_ne_bytes());
        }
        for (opcode, word) in [
            (FUSE_MKDIR, 1),
            (FUSE_MKNOD, 2),
            (FUSE_CREATE, 2),
            (FUSE_READ, 8),
            (FUSE_WRITE, 0),
        ] {
            // fuse_in_header: len, opcode.
            header.in_out[4..8].copy_from_slice(&opcode.to_ne_bytes());
            assert_eq!(untold(&header), word, "{opcode}");
        }
        assert_eq!(field(&header, 126), 0, "past the end");
    }
}
