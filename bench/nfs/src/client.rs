//! The procedures: calls typed by RFC 1813, their results, and what follows from them for writes that are not stable yet.

use std::net::SocketAddr;
use std::time::Duration;

use nfs3_types::mount::{self, MOUNT_PROGRAM, dirpath, mountres3};
use nfs3_types::nfs3::{
    self as n, NFS_PROGRAM, Nfs3Option, Nfs3Result, createhow3, diropargs3, fattr3, filename3,
    nfs_fh3, nfsstat3, sattr3, stable_how, writeverf3,
};
use nfs3_types::portmap::{self, PMAP_PROG, mapping};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack, Void};

use crate::failure::{Failure, wrong};
use crate::rpc::{Connection, Program, Reply, Target};

const NFS: Program = Program {
    number: n::PROGRAM,
    version: n::VERSION,
};
const MOUNT: Program = Program {
    number: mount::PROGRAM,
    version: mount::VERSION,
};
const PORTMAP: Program = Program {
    number: portmap::PROGRAM,
    version: portmap::VERSION,
};

/// Arguments that know their procedure.
pub(crate) trait Call: Pack {
    const PROCEDURE: NFS_PROGRAM;
    type Ok: Unpack;
    type Fail: Unpack;
}

macro_rules! calls {
    ($($args:ty => $procedure:ident, $ok:ty, $fail:ty;)*) => {$(
        impl Call for $args {
            const PROCEDURE: NFS_PROGRAM = NFS_PROGRAM::$procedure;
            type Ok = $ok;
            type Fail = $fail;
        }
    )*};
}

calls! {
    n::GETATTR3args => NFSPROC3_GETATTR, n::GETATTR3resok, Void;
    n::SETATTR3args => NFSPROC3_SETATTR, n::SETATTR3resok, n::SETATTR3resfail;
    n::LOOKUP3args<'_> => NFSPROC3_LOOKUP, n::LOOKUP3resok, n::LOOKUP3resfail;
    n::READ3args => NFSPROC3_READ, n::READ3resok<'static>, n::READ3resfail;
    n::WRITE3args<'_> => NFSPROC3_WRITE, n::WRITE3resok, n::WRITE3resfail;
    n::CREATE3args<'_> => NFSPROC3_CREATE, n::CREATE3resok, n::CREATE3resfail;
    n::MKDIR3args<'_> => NFSPROC3_MKDIR, n::MKDIR3resok, n::MKDIR3resfail;
    n::REMOVE3args<'_> => NFSPROC3_REMOVE, n::REMOVE3resok, n::REMOVE3resfail;
    n::RMDIR3args<'_> => NFSPROC3_RMDIR, n::RMDIR3resok, n::RMDIR3resfail;
    n::RENAME3args<'_, '_> => NFSPROC3_RENAME, n::RENAME3resok, n::RENAME3resfail;
    n::READDIR3args => NFSPROC3_READDIR, n::READDIR3resok<'static>, n::READDIR3resfail;
    n::FSINFO3args => NFSPROC3_FSINFO, n::FSINFO3resok, n::FSINFO3resfail;
    n::COMMIT3args => NFSPROC3_COMMIT, n::COMMIT3resok, n::COMMIT3resfail;
}

/// The result that a reply carries. Bytes behind it are an error: one of the two sides has counted wrongly.
pub(crate) fn decode<C: Call>(body: &[u8]) -> Result<Result<C::Ok, nfsstat3>, Failure> {
    let mut rest = body;
    let (result, _) = Nfs3Result::<C::Ok, C::Fail>::unpack(&mut rest)
        .map_err(|e| Failure::Protocol(format!("{:?}'s result: {e}", C::PROCEDURE)))?;
    if !rest.is_empty() {
        return Err(Failure::Protocol(format!(
            "{:?}'s result has {} bytes too many",
            C::PROCEDURE,
            rest.len()
        )));
    }
    Ok(match result {
        Nfs3Result::Ok(ok) => Ok(ok),
        Nfs3Result::Err((status, _)) => Err(status),
    })
}

/// An export, mounted.
#[derive(Clone, Debug)]
pub(crate) struct Export {
    pub(crate) target: Target,
    pub(crate) root: nfs_fh3,
    pub(crate) read_max: u32,
    pub(crate) write_max: u32,
}

/// Mounts `path`. A port that is not given is asked for at the server's port mapper.
pub(crate) fn mount(
    target: &Target,
    port: Option<u16>,
    mount_port: Option<u16>,
    path: &str,
) -> Result<Export, Failure> {
    let at = |port| Target {
        address: SocketAddr::new(target.address.ip(), port),
        ..target.clone()
    };
    let found = |given: Option<u16>, program: Program| match given {
        Some(port) => Ok(port),
        None => ask_port(&at(portmap::PMAP_PORT), program),
    };
    let mountd = at(found(mount_port, MOUNT)?);
    let mut connection = Connection::open(&mountd, MOUNT)?;
    connection.submit(
        MOUNT_PROGRAM::MOUNTPROC3_MNT as u32,
        &dirpath(Opaque::borrowed(path.as_bytes())),
    )?;
    let reply = connection.receive().map_err(|e| e.during("MNT"))?;
    let (result, _) = mountres3::unpack(&mut reply.body.as_slice())
        .map_err(|e| Failure::Protocol(format!("MNT's result: {e}")))?;
    let root = match result {
        mountres3::Ok(ok) => nfs_fh3 {
            data: Opaque::owned(ok.fhandle.0.into_owned()),
        },
        mountres3::Err(status) => return Err(Failure::Protocol(format!("MNT {path}: {status}"))),
    };
    let target = at(found(port, NFS)?);
    let mut client = Client::connect(&target)?;
    let info = client.expect(
        &n::FSINFO3args {
            fsroot: root.clone(),
        },
        "FSINFO",
    )?;
    if info.rtmax == 0 || info.wtmax == 0 {
        return wrong("FSINFO: a server that neither reads nor writes");
    }
    Ok(Export {
        target,
        root,
        read_max: info.rtmax,
        write_max: info.wtmax,
    })
}

fn ask_port(portmapper: &Target, program: Program) -> Result<u16, Failure> {
    let mut connection = Connection::open(portmapper, PORTMAP)?;
    connection.submit(
        PMAP_PROG::PMAPPROC_GETPORT as u32,
        &mapping {
            prog: program.number,
            vers: program.version,
            prot: portmap::IPPROTO_TCP,
            port: 0,
        },
    )?;
    let reply = connection.receive().map_err(|e| e.during("GETPORT"))?;
    match u32::unpack(&mut reply.body.as_slice()) {
        Ok((port @ 1..=0xffff, _)) => Ok(port as u16),
        _ => Err(Failure::Protocol(format!(
            "the port mapper at {} knows no program {} version {} over TCP",
            portmapper.address, program.number, program.version
        ))),
    }
}

/// A connection to the NFS program.
pub(crate) struct Client {
    connection: Connection,
}

impl Client {
    pub(crate) fn connect(target: &Target) -> Result<Client, Failure> {
        Ok(Client {
            connection: Connection::open(target, NFS)?,
        })
    }

    pub(crate) fn target(&self) -> &Target {
        self.connection.target()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.connection.outstanding()
    }

    pub(crate) fn submit<C: Call>(&mut self, args: &C) -> Result<u32, Failure> {
        self.connection.submit(C::PROCEDURE as u32, args)
    }

    pub(crate) fn receive(&mut self) -> Result<Reply, Failure> {
        self.connection.receive()
    }

    pub(crate) fn abandon(&mut self) {
        self.connection.abandon();
    }

    pub(crate) fn recover(&mut self, patience: Duration) -> Result<(), Failure> {
        self.connection.recover(patience)
    }

    /// One call, with nothing else outstanding.
    pub(crate) fn call<C: Call>(&mut self, args: &C) -> Result<Result<C::Ok, nfsstat3>, Failure> {
        self.submit(args)?;
        let reply = self
            .receive()
            .map_err(|e| e.during(&format!("{:?}", C::PROCEDURE)))?;
        decode::<C>(&reply.body)
    }

    /// One call that must succeed; `what` says what for.
    pub(crate) fn expect<C: Call>(&mut self, args: &C, what: &str) -> Result<C::Ok, Failure> {
        succeeded(self.call(args)?, what)
    }

    pub(crate) fn lookup(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, Failure> {
        let found = self.expect(
            &n::LOOKUP3args {
                what: entry(dir, name),
            },
            name,
        )?;
        Ok(found.object)
    }

    pub(crate) fn attributes(&mut self, object: &nfs_fh3) -> Result<fattr3, Failure> {
        let args = n::GETATTR3args {
            object: object.clone(),
        };
        Ok(self.expect(&args, "GETATTR")?.obj_attributes)
    }

    /// A new directory, or the one that is there.
    pub(crate) fn directory(&mut self, parent: &nfs_fh3, name: &str) -> Result<nfs_fh3, Failure> {
        let args = n::MKDIR3args {
            where_: entry(parent, name),
            attributes: mode(0o755),
        };
        match self.call(&args)? {
            Ok(made) => match made.obj {
                Nfs3Option::Some(handle) => Ok(handle),
                Nfs3Option::None => self.lookup(parent, name),
            },
            Err(nfsstat3::NFS3ERR_EXIST) => self.lookup(parent, name),
            Err(status) => Err(Failure::Status {
                what: format!("MKDIR {name}"),
                status,
            }),
        }
    }

    pub(crate) fn create(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, Failure> {
        let made = self.expect(&unchecked(dir, name, 0o644), name)?;
        match made.obj {
            Nfs3Option::Some(handle) => Ok(handle),
            Nfs3Option::None => self.lookup(dir, name),
        }
    }

    pub(crate) fn remove(&mut self, dir: &nfs_fh3, name: &str) -> Result<(), Failure> {
        self.expect(
            &n::REMOVE3args {
                object: entry(dir, name),
            },
            name,
        )?;
        Ok(())
    }

    /// Every name in a directory but `.` and `..`.
    pub(crate) fn names(&mut self, dir: &nfs_fh3) -> Result<Vec<String>, Failure> {
        let mut names = Vec::new();
        let mut cookie = 0;
        let mut verifier = n::cookieverf3::default();
        loop {
            let args = n::READDIR3args {
                dir: dir.clone(),
                cookie,
                cookieverf: verifier,
                count: 32 << 10,
            };
            let page = self.expect(&args, "READDIR")?;
            verifier = page.cookieverf;
            let before = cookie;
            for entry in page.reply.entries.into_inner() {
                cookie = entry.cookie;
                let name = String::from_utf8_lossy(entry.name.as_ref()).into_owned();
                if name != "." && name != ".." {
                    names.push(name);
                }
            }
            if page.reply.eof {
                return Ok(names);
            }
            if cookie == before {
                return wrong("READDIR: no entry, and not the end");
            }
        }
    }

    /// Bytes of a file, in one READ; `eof` must be right for a file of `size` bytes.
    pub(crate) fn read(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        count: u32,
        size: u64,
    ) -> Result<Vec<u8>, Failure> {
        let args = read_args(file, offset, count);
        let read = self.expect(&args, "READ")?;
        check_read(&read, offset, count, size)?;
        Ok(read.data.into_owned())
    }

    /// COMMIT of a whole file; returns the server's verifier.
    pub(crate) fn commit(&mut self, file: &nfs_fh3) -> Result<writeverf3, Failure> {
        let args = n::COMMIT3args {
            file: file.clone(),
            offset: 0,
            count: 0,
        };
        Ok(self.expect(&args, "COMMIT")?.verf)
    }
}

/// A success, or the status with what was being done.
pub(crate) fn succeeded<T>(result: Result<T, nfsstat3>, what: &str) -> Result<T, Failure> {
    result.map_err(|status| Failure::Status {
        what: what.to_owned(),
        status,
    })
}

/// One piece of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

/// Writes of one file that are on their way or wait for a COMMIT.
#[derive(Default)]
pub(crate) struct Uncommitted {
    sent: Vec<(u32, Piece)>,
    /// What was answered, with the verifier of the answer.
    answered: Vec<(Piece, writeverf3)>,
    /// The rest of writes that were done in part.
    short: Vec<Piece>,
}

impl Uncommitted {
    pub(crate) fn sent(&mut self, xid: u32, piece: Piece) {
        self.sent.push((xid, piece));
    }

    /// Takes the reply to one of the writes.
    pub(crate) fn answered(&mut self, reply: &Reply) -> Result<(), Failure> {
        let Some(at) = self.sent.iter().position(|(xid, _)| *xid == reply.xid) else {
            return Err(Failure::Protocol("a reply to no WRITE".to_owned()));
        };
        let (_, piece) = self.sent.swap_remove(at);
        let what = format!("WRITE at {}", piece.offset);
        let done = succeeded(decode::<n::WRITE3args<'_>>(&reply.body)?, &what)?;
        if done.count == 0 || done.count > piece.len {
            return wrong(format!("{what}: {} of {} bytes", done.count, piece.len));
        }
        let (now, later) = (
            Piece {
                len: done.count,
                ..piece
            },
            Piece {
                offset: piece.offset + u64::from(done.count),
                len: piece.len - done.count,
            },
        );
        if later.len > 0 {
            self.short.push(later);
        }
        if done.committed == stable_how::UNSTABLE {
            self.answered.push((now, done.verf));
        }
        Ok(())
    }

    /// What must be written before a COMMIT makes sense: the rest of short writes.
    pub(crate) fn unwritten(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.short)
    }

    /// What a COMMIT that answered with `verifier` has not made stable: every write that another instance of the server
    /// answered. Those have to be sent again.
    pub(crate) fn committed(&mut self, verifier: writeverf3) -> Vec<Piece> {
        std::mem::take(&mut self.answered)
            .into_iter()
            .filter(|(_, theirs)| *theirs != verifier)
            .map(|(piece, _)| piece)
            .collect()
    }
}

/// A WRITE with FILE_SYNC must be stable when it is answered, and whole.
pub(crate) fn check_stable(done: &n::WRITE3resok, len: usize) -> Result<(), Failure> {
    if done.count as usize != len {
        return wrong(format!("WRITE: {} of {len} bytes", done.count));
    }
    if done.committed != stable_how::FILE_SYNC {
        return wrong(format!(
            "WRITE FILE_SYNC is answered with {}",
            done.committed
        ));
    }
    Ok(())
}

/// The count, the data and the end of the file must agree.
pub(crate) fn check_read(
    read: &n::READ3resok<'_>,
    offset: u64,
    count: u32,
    size: u64,
) -> Result<(), Failure> {
    let expected = u64::from(count).min(size.saturating_sub(offset));
    if u64::from(read.count) != expected || read.data.len() as u64 != expected {
        return wrong(format!(
            "READ of {count} bytes at {offset} in a file of {size}: count {}, {} bytes of data",
            read.count,
            read.data.len()
        ));
    }
    if read.eof != (offset + expected >= size) {
        return wrong(format!(
            "READ of {count} bytes at {offset} in a file of {size}: eof is {}",
            read.eof
        ));
    }
    Ok(())
}

pub(crate) fn entry<'a>(dir: &nfs_fh3, name: &'a str) -> diropargs3<'a> {
    diropargs3 {
        dir: dir.clone(),
        name: filename3::from(name.as_bytes()),
    }
}

pub(crate) fn mode(mode: u32) -> sattr3 {
    sattr3 {
        mode: Nfs3Option::Some(mode),
        ..sattr3::default()
    }
}

/// CREATE as clients send it for `O_CREAT`.
pub(crate) fn unchecked<'a>(dir: &nfs_fh3, name: &'a str, bits: u32) -> n::CREATE3args<'a> {
    n::CREATE3args {
        where_: entry(dir, name),
        how: createhow3::UNCHECKED(mode(bits)),
    }
}

pub(crate) fn read_args(file: &nfs_fh3, offset: u64, count: u32) -> n::READ3args {
    n::READ3args {
        file: file.clone(),
        offset,
        count,
    }
}

pub(crate) fn write_args<'a>(
    file: &nfs_fh3,
    offset: u64,
    stable: stable_how,
    data: &'a [u8],
) -> n::WRITE3args<'a> {
    n::WRITE3args {
        file: file.clone(),
        offset,
        count: data.len() as u32,
        stable,
        data: Opaque::borrowed(data),
    }
}
