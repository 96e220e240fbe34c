//! An export that is mounted, and a client whose calls must succeed.

use std::net::SocketAddr;
use std::time::Duration;

use nfs3_types::mount::{MOUNT_PROGRAM, dirpath, mountres3};
use nfs3_types::nfs3::{self as n, Nfs3Option, fattr3, nfs_fh3, nfsstat3, stable_how, writeverf3};
use nfs3_types::portmap::{self, PMAP_PROG, mapping};
use nfs3_types::xdr_codec::{Opaque, Unpack};

use crate::calls::{Call, decode, entry, mode, read_args, unchecked};
use crate::failure::{Failure, wrong};
use crate::rpc::{Connection, Reply, Sent, Target};
use crate::wire::{MOUNT, NFS, PORTMAP, Program};

/// An export, mounted.
#[derive(Clone, Debug)]
pub struct Export {
    /// Address of its NFS program.
    pub target: Target,
    /// Its handle.
    pub root: nfs_fh3,
    /// Most bytes of a READ.
    pub read_max: u32,
    /// Most bytes of a WRITE.
    pub write_max: u32,
}

/// Mounts `path`. A port that is not given is asked for at the server's port mapper.
///
/// # Errors
/// No connection, and the server's refusals.
pub fn mount(
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
pub struct Client {
    connection: Connection,
}

impl Client {
    /// Connects to the NFS program.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn connect(target: &Target) -> Result<Client, Failure> {
        Ok(Client {
            connection: Connection::open(target, NFS)?,
        })
    }

    /// Address of the server, and identity of the caller.
    #[must_use]
    pub fn target(&self) -> &Target {
        self.connection.target()
    }

    /// Number of calls without a reply.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.connection.outstanding()
    }

    /// See [`Connection::submit`].
    ///
    /// # Errors
    /// Those of the connection.
    pub fn submit<C: Call>(&mut self, args: &C) -> Result<u32, Failure> {
        self.connection.submit(C::PROCEDURE as u32, args)
    }

    /// See [`Connection::receive`].
    ///
    /// # Errors
    /// Those of the connection.
    pub fn receive(&mut self) -> Result<Reply, Failure> {
        self.connection.receive()
    }

    /// See [`Connection::abandon`].
    pub fn abandon(&mut self) {
        self.connection.abandon();
    }

    /// See [`Connection::recover`].
    ///
    /// # Errors
    /// Those of the connection.
    pub fn recover(&mut self, patience: Duration) -> Result<(), Failure> {
        self.connection.recover(patience)
    }

    /// See [`Connection::keep_port`].
    ///
    /// # Errors
    /// Those of the connection.
    pub fn keep_port(&mut self) -> Result<(), Failure> {
        self.connection.keep_port()
    }

    /// See [`Connection::move_to`].
    ///
    /// # Errors
    /// Those of the connection.
    pub fn move_to(&mut self, address: SocketAddr) -> Result<(), Failure> {
        self.connection.move_to(address)
    }

    /// One call, with nothing else outstanding.
    ///
    /// # Errors
    /// Those of the call; a status that is an error is one, too.
    pub fn call<C: Call>(&mut self, args: &C) -> Result<Result<C::Ok, nfsstat3>, Failure> {
        self.submit(args)?;
        let reply = self
            .receive()
            .map_err(|e| e.during(&format!("{:?}", C::PROCEDURE)))?;
        decode::<C>(&reply.body)
    }

    /// One call, with nothing else outstanding: its result as bytes, and the call as it was sent, for [`Client::repeat`].
    ///
    /// # Errors
    /// Those of the connection.
    pub fn call_kept<C: Call>(&mut self, args: &C) -> Result<(Vec<u8>, Sent), Failure> {
        let xid = self.submit(args)?;
        let sent = self.connection.sent(xid)?;
        Ok((self.receive()?.body, sent))
    }

    /// Sends a call once more that was answered already: the result as bytes.
    ///
    /// # Errors
    /// Those of the connection.
    pub fn repeat(&mut self, sent: &Sent) -> Result<Vec<u8>, Failure> {
        self.connection.send_again(sent)?;
        Ok(self.receive()?.body)
    }

    /// One call that must succeed; `what` names its purpose.
    ///
    /// # Errors
    /// Those of the call; a status that is an error is one, too.
    pub fn expect<C: Call>(&mut self, args: &C, what: &str) -> Result<C::Ok, Failure> {
        succeeded(self.call(args)?, what)
    }

    /// LOOKUP.
    ///
    /// # Errors
    /// Those of the call; a status that is an error is one, too.
    pub fn lookup(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, Failure> {
        let found = self.expect(
            &n::LOOKUP3args {
                what: entry(dir, name),
            },
            name,
        )?;
        Ok(found.object)
    }

    /// GETATTR.
    ///
    /// # Errors
    /// Those of the call; a status that is an error is one, too.
    pub fn attributes(&mut self, object: &nfs_fh3) -> Result<fattr3, Failure> {
        let args = n::GETATTR3args {
            object: object.clone(),
        };
        Ok(self.expect(&args, "GETATTR")?.obj_attributes)
    }

    /// A new directory, or the one that is there.
    ///
    /// # Errors
    /// Those of the call; a status that is an error is one, too.
    pub fn directory(&mut self, parent: &nfs_fh3, name: &str) -> Result<nfs_fh3, Failure> {
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

    /// CREATE of a file, or the one that is there.
    ///
    /// # Errors
    /// Those of the call; a status that is an error is one, too.
    pub fn create(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, Failure> {
        let made = self.expect(&unchecked(dir, name, 0o644), name)?;
        match made.obj {
            Nfs3Option::Some(handle) => Ok(handle),
            Nfs3Option::None => self.lookup(dir, name),
        }
    }

    /// REMOVE.
    ///
    /// # Errors
    /// Those of the call; a status that is an error is one, too.
    pub fn remove(&mut self, dir: &nfs_fh3, name: &str) -> Result<(), Failure> {
        self.expect(
            &n::REMOVE3args {
                object: entry(dir, name),
            },
            name,
        )?;
        Ok(())
    }

    /// Every name in a directory but `.` and `..`.
    ///
    /// # Errors
    /// Those of the call; a status that is an error is one, too.
    pub fn names(&mut self, dir: &nfs_fh3) -> Result<Vec<String>, Failure> {
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
    ///
    /// # Errors
    /// Those of the call; a status that is an error is one, too.
    pub fn read(
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
    ///
    /// # Errors
    /// Those of the call; a status that is an error is one, too.
    pub fn commit(&mut self, file: &nfs_fh3) -> Result<writeverf3, Failure> {
        let args = n::COMMIT3args {
            file: file.clone(),
            offset: 0,
            count: 0,
        };
        Ok(self.expect(&args, "COMMIT")?.verf)
    }
}

/// A success, or the status with the operation that failed.
///
/// # Errors
/// [`Failure::Status`].
pub fn succeeded<T>(result: Result<T, nfsstat3>, what: &str) -> Result<T, Failure> {
    result.map_err(|status| Failure::Status {
        what: what.to_owned(),
        status,
    })
}

/// A WRITE with FILE_SYNC must be stable when it is answered, and whole.
///
/// # Errors
/// [`Failure::Wrong`].
pub fn check_stable(done: &n::WRITE3resok, len: usize) -> Result<(), Failure> {
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
///
/// # Errors
/// [`Failure::Wrong`].
pub fn check_read(
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
