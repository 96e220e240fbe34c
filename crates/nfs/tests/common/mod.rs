//! A server over a file system, the model or the real one, and a client that fails the test at an unexpected error.
#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use nfs3_types::mount::{self, dirpath, mountres3, mountstat3};
pub(crate) use nfs3_types::nfs3::*;
use nfs3_types::rpc::*;
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack, Void};
use steadfast_block::MemDevice;
use steadfast_fs::{Contract, Fs, MkfsOptions, MountOptions, mkfs};
use steadfast_model::memfs::MemFs;
use steadfast_nfs::{Access, Export, ExportedVolume, Options, Server, Squash, everybody};
pub(crate) use steadfast_nfs_client::calls::{Call, entry, mode};
pub(crate) use steadfast_nfs_client::wire::credential as user;
use steadfast_nfs_client::wire::{self, Program, Refusal};
use steadfast_vfs::FileSystem;

/// The kind of file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Model,
    Real,
}

/// A new real file system in memory.
pub(crate) fn real() -> Arc<Fs> {
    let device = Arc::new(MemDevice::new(8192));
    format(&*device);
    let mut options = MountOptions::default();
    options.keep_data = true;
    Fs::mount(device, &options).unwrap().0
}

pub(crate) fn format(device: &dyn steadfast_block::BlockDevice) {
    format_for(device, Contract::Ordered);
}

pub(crate) fn format_for(device: &dyn steadfast_block::BlockDevice, contract: Contract) {
    let options = MkfsOptions {
        root_perm: 0o777,
        contract,
        ..MkfsOptions::default()
    };
    mkfs(device, &options, &mut |_, _| {}).unwrap();
}

pub(crate) fn file_system(kind: Kind) -> Arc<dyn FileSystem> {
    match kind {
        Kind::Model => Arc::new(MemFs::default()),
        Kind::Real => real(),
    }
}

/// An export without restrictions, so that tests can act as any user.
pub(crate) fn export() -> Export {
    Export::new().with_access(access())
}

/// Its rights for all clients.
pub(crate) fn access() -> Access {
    Access {
        any_port: true,
        squash: Squash::None,
        clients: everybody(),
        ..Access::new()
    }
}

pub(crate) fn options() -> Options {
    let mut options = Options::default();
    options.listen = vec!["127.0.0.1:0".parse().unwrap()];
    options.threads = 16;
    options
}

/// A server and its file system.
pub(crate) struct Site {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) server: Server,
    pub(crate) address: SocketAddr,
}

impl Site {
    pub(crate) fn new(kind: Kind) -> Site {
        Site::with(file_system(kind), vec![export()])
    }

    pub(crate) fn with(fs: Arc<dyn FileSystem>, exports: Vec<Export>) -> Site {
        Site::opt(fs, exports, &options())
    }

    pub(crate) fn opt(fs: Arc<dyn FileSystem>, exports: Vec<Export>, options: &Options) -> Site {
        Site::serving(ExportedVolume::new(fs, "test"), exports, options)
    }

    pub(crate) fn serving(served: ExportedVolume, exports: Vec<Export>, options: &Options) -> Site {
        let fs = Arc::clone(&served.fs);
        let server = Server::start(vec![served], exports, options).unwrap();
        let address = server.addresses()[0];
        Site {
            fs,
            server,
            address,
        }
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// A client and the root's handle.
    pub(crate) fn mounted(&self) -> (Client, nfs_fh3) {
        let mut client = self.client();
        let root = client.mnt("/").unwrap();
        (client, root)
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let list = self.server.counters().list();
        list.iter().find(|(n, _)| n == name).map_or(0, |(_, v)| *v)
    }
}

/// Reasons why a call has no result.
#[derive(Debug)]
pub(crate) enum Refused {
    Accepted(accept_stat_data),
    Denied(rejected_reply),
    Closed(std::io::ErrorKind),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        match refusal {
            Refusal::Accepted(why) => Refused::Accepted(why),
            Refusal::Denied(why) => Refused::Denied(why),
        }
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) xid: u32,
    pub(crate) credential: opaque_auth<'static>,
}

pub(crate) fn connect_from(own: SocketAddr, address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &own).unwrap();
    connect(&socket, &address).unwrap();
    let stream = TcpStream::from(socket);
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream
}

/// A record of one fragment.
pub(crate) fn record(body: &[u8]) -> Vec<u8> {
    let mark = body.len() as u32 | 1 << 31;
    [&mark.to_be_bytes()[..], body].concat()
}

pub(crate) fn pack(value: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.pack(&mut bytes).unwrap();
    bytes
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Client {
            stream,
            xid: 1,
            credential: user(0, 0, &[]),
        }
    }

    /// A client with an address of its own on this host, so that no other program has its port.
    pub(crate) fn connect_alone(address: SocketAddr) -> Client {
        let [high, low] = address.port().to_be_bytes();
        let own = SocketAddr::from(([127, 1, high, low], 0));
        let mut client = Client::connect(address);
        client.stream = connect_from(own, address);
        client
    }

    /// Resets the connection and opens a new one from the same port.
    pub(crate) fn reconnect(&mut self, address: SocketAddr) {
        let own = self.stream.local_addr().unwrap();
        // Closed by a reset, so that the pair of ports is free at once.
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
        self.stream = TcpStream::connect(address).unwrap();
        self.stream = connect_from(own, address);
    }

    pub(crate) fn is(&mut self, uid: u32, gid: u32, gids: &[u32]) -> &mut Client {
        self.credential = user(uid, gid, gids);
        self
    }

    /// The bytes of a call, without a mark.
    pub(crate) fn call_bytes(
        &mut self,
        program: u32,
        version: u32,
        procedure: u32,
        args: &impl Pack,
    ) -> Vec<u8> {
        self.xid += 1;
        let mut bytes = Vec::new();
        let program = Program {
            number: program,
            version,
        };
        wire::message(
            &mut bytes,
            self.xid,
            &self.credential,
            program,
            procedure,
            args,
        )
        .unwrap();
        bytes
    }

    /// The next reply.
    pub(crate) fn reply(&mut self) -> Result<Vec<u8>, Refused> {
        let closed = |e: std::io::Error| Refused::Closed(e.kind());
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).map_err(closed)?;
        let len = u32::from_be_bytes(mark);
        assert!(len & 1 << 31 != 0, "replies have one fragment");
        let mut reply = vec![0; (len & (u32::MAX >> 1)) as usize];
        self.stream.read_exact(&mut reply).map_err(closed)?;
        Ok(reply)
    }

    /// The number and the result of a reply.
    pub(crate) fn decode<R: Unpack>(reply: &[u8]) -> (u32, Result<R, Refused>) {
        let (xid, body) = wire::reply(reply).unwrap();
        let result = body.map_err(Refused::from).map(|mut rest| {
            let (result, _) = R::unpack(&mut rest).unwrap();
            assert!(rest.is_empty(), "{} bytes after the result", rest.len());
            result
        });
        (xid, result)
    }

    pub(crate) fn send(&mut self, body: &[u8]) {
        let _ = self.stream.write_all(&record(body));
    }

    pub(crate) fn raw<R: Unpack>(
        &mut self,
        program: u32,
        version: u32,
        procedure: u32,
        args: &impl Pack,
    ) -> Result<R, Refused> {
        let call = self.call_bytes(program, version, procedure, args);
        self.send(&call);
        let (xid, result) = Client::decode(&self.reply()?);
        assert_eq!(xid, self.xid);
        result
    }

    pub(crate) fn nfs<R: Unpack>(&mut self, procedure: NFS_PROGRAM, args: &impl Pack) -> R {
        self.raw(PROGRAM, VERSION, procedure as u32, args).unwrap()
    }

    /// A call and its whole result.
    pub(crate) fn result<C: Call>(&mut self, args: &C) -> Nfs3Result<C::Ok, C::Fail> {
        self.nfs(C::PROCEDURE, args)
    }

    pub(crate) fn call<C: Call>(&mut self, args: &C) -> Result<C::Ok, nfsstat3> {
        status_of(self.result(args))
    }

    pub(crate) fn mnt(&mut self, path: &str) -> Result<nfs_fh3, mountstat3> {
        let args = dirpath(Opaque::borrowed(path.as_bytes()));
        let result: mountres3<'static> = self.raw(mount::PROGRAM, 3, 1, &args).unwrap();
        match result {
            mountres3::Ok(ok) => Ok(nfs_fh3 { data: ok.fhandle.0 }),
            mountres3::Err(status) => Err(status),
        }
    }

    pub(crate) fn null(&mut self) {
        self.nfs::<Void>(NFS_PROGRAM::NFSPROC3_NULL, &Void);
    }

    pub(crate) fn getattr(&mut self, object: &nfs_fh3) -> Result<fattr3, nfsstat3> {
        let args = GETATTR3args {
            object: object.clone(),
        };
        self.call(&args).map(|ok| ok.obj_attributes)
    }

    pub(crate) fn setattr(
        &mut self,
        object: &nfs_fh3,
        set: sattr3,
        guard: Option<nfstime3>,
    ) -> SETATTR3res {
        let args = SETATTR3args {
            object: object.clone(),
            new_attributes: set,
            guard: guard.map_or(Nfs3Option::None, Nfs3Option::Some),
        };
        self.result(&args)
    }

    pub(crate) fn lookup(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        self.lookup_bytes(dir, name.as_bytes()).map(|ok| ok.object)
    }

    pub(crate) fn lookup_bytes(
        &mut self,
        dir: &nfs_fh3,
        name: &[u8],
    ) -> Result<LOOKUP3resok, nfsstat3> {
        let args = LOOKUP3args {
            what: entry(dir, name),
        };
        self.call(&args)
    }

    pub(crate) fn access(&mut self, object: &nfs_fh3, access: u32) -> Result<u32, nfsstat3> {
        let args = ACCESS3args {
            object: object.clone(),
            access,
        };
        self.call(&args).map(|ok| ok.access)
    }

    pub(crate) fn readlink(&mut self, symlink: &nfs_fh3) -> Result<Vec<u8>, nfsstat3> {
        let res: READLINK3res<'static> = self.nfs(NFS_PROGRAM::NFSPROC3_READLINK, symlink);
        status_of(res).map(|ok| ok.data.as_ref().to_vec())
    }

    pub(crate) fn read(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), nfsstat3> {
        let args = READ3args {
            file: file.clone(),
            offset,
            count,
        };
        self.call(&args).map(|ok| {
            assert_eq!(ok.count as usize, ok.data.len());
            assert!(ok.file_attributes.is_some());
            (ok.data.to_vec(), ok.eof)
        })
    }

    pub(crate) fn write_res(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> WRITE3res {
        let args = WRITE3args {
            file: file.clone(),
            offset,
            count: data.len() as u32,
            stable,
            data: Opaque::borrowed(data),
        };
        self.result(&args)
    }

    pub(crate) fn write(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        data: &[u8],
        stable: stable_how,
    ) -> Result<WRITE3resok, nfsstat3> {
        status_of(self.write_res(file, offset, data, stable))
    }

    pub(crate) fn create_res(&mut self, dir: &nfs_fh3, name: &str, how: createhow3) -> CREATE3res {
        let args = CREATE3args {
            where_: entry(dir, name),
            how,
        };
        self.result(&args)
    }

    pub(crate) fn create_how(
        &mut self,
        dir: &nfs_fh3,
        name: &str,
        how: createhow3,
    ) -> Result<nfs_fh3, nfsstat3> {
        status_of(self.create_res(dir, name, how)).map(|ok| ok.obj.unwrap())
    }

    pub(crate) fn create(&mut self, dir: &nfs_fh3, name: &str) -> nfs_fh3 {
        self.create_how(dir, name, createhow3::GUARDED(mode(0o644)))
            .unwrap()
    }

    pub(crate) fn mkdir_res(&mut self, dir: &nfs_fh3, name: &str) -> MKDIR3res {
        let args = MKDIR3args {
            where_: entry(dir, name),
            attributes: mode(0o755),
        };
        self.result(&args)
    }

    pub(crate) fn mkdir(&mut self, dir: &nfs_fh3, name: &str) -> Result<nfs_fh3, nfsstat3> {
        status_of(self.mkdir_res(dir, name)).map(|ok| ok.obj.unwrap())
    }

    pub(crate) fn symlink(
        &mut self,
        dir: &nfs_fh3,
        name: &str,
        target: &[u8],
    ) -> Result<nfs_fh3, nfsstat3> {
        let args = SYMLINK3args {
            where_: entry(dir, name),
            symlink: symlinkdata3 {
                symlink_attributes: mode(0o777),
                symlink_data: target.into(),
            },
        };
        self.call(&args).map(|ok| ok.obj.unwrap())
    }

    pub(crate) fn mknod(
        &mut self,
        dir: &nfs_fh3,
        name: &str,
        what: mknoddata3,
    ) -> Result<nfs_fh3, nfsstat3> {
        let args = MKNOD3args {
            where_: entry(dir, name),
            what,
        };
        self.call(&args).map(|ok| ok.obj.unwrap())
    }

    pub(crate) fn remove_res(&mut self, dir: &nfs_fh3, name: &str) -> REMOVE3res {
        let args = REMOVE3args {
            object: entry(dir, name),
        };
        self.result(&args)
    }

    pub(crate) fn remove(&mut self, dir: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
        status_of(self.remove_res(dir, name)).map(drop)
    }

    pub(crate) fn rmdir(&mut self, dir: &nfs_fh3, name: &str) -> Result<(), nfsstat3> {
        let args = RMDIR3args {
            object: entry(dir, name),
        };
        self.call(&args).map(drop)
    }

    pub(crate) fn rename(
        &mut self,
        from: (&nfs_fh3, &str),
        to: (&nfs_fh3, &str),
    ) -> Result<RENAME3resok, nfsstat3> {
        let args = RENAME3args {
            from: entry(from.0, from.1),
            to: entry(to.0, to.1),
        };
        self.call(&args)
    }

    pub(crate) fn link(
        &mut self,
        file: &nfs_fh3,
        dir: &nfs_fh3,
        name: &str,
    ) -> Result<LINK3resok, nfsstat3> {
        let args = LINK3args {
            file: file.clone(),
            link: entry(dir, name),
        };
        self.call(&args)
    }

    pub(crate) fn readdir(
        &mut self,
        dir: &nfs_fh3,
        cookie: u64,
        verifier: cookieverf3,
        count: u32,
    ) -> Result<READDIR3resok<'static>, nfsstat3> {
        let args = READDIR3args {
            dir: dir.clone(),
            cookie,
            cookieverf: verifier,
            count,
        };
        let call = self.call_bytes(PROGRAM, VERSION, 16, &args);
        self.send(&call);
        let reply = self.reply().unwrap();
        let res: READDIR3res<'static> = Client::decode(&reply).1.unwrap();
        // Header: number, reply, accepted, verifier of two words, success.
        assert!(
            reply.len() - 24 <= count.max(100) as usize,
            "{} of {count}",
            reply.len()
        );
        status_of(res)
    }

    /// All names of a directory, read in pieces of `count` bytes.
    pub(crate) fn names(&mut self, dir: &nfs_fh3, count: u32) -> Vec<String> {
        let (mut names, mut cookie, mut verifier) = (Vec::new(), 0, cookieverf3::default());
        loop {
            let ok = self.readdir(dir, cookie, verifier, count).unwrap();
            verifier = ok.cookieverf;
            for entry in &ok.reply.entries.0 {
                cookie = entry.cookie;
                names.push(String::from_utf8_lossy(entry.name.as_ref()).into_owned());
            }
            if ok.reply.eof {
                return names;
            }
        }
    }

    pub(crate) fn readdirplus(
        &mut self,
        dir: &nfs_fh3,
        cookie: u64,
        verifier: cookieverf3,
        (dircount, maxcount): (u32, u32),
    ) -> Result<READDIRPLUS3resok<'static>, nfsstat3> {
        let args = READDIRPLUS3args {
            dir: dir.clone(),
            cookie,
            cookieverf: verifier,
            dircount,
            maxcount,
        };
        let call = self.call_bytes(PROGRAM, VERSION, 17, &args);
        self.send(&call);
        let reply = self.reply().unwrap();
        let res: READDIRPLUS3res<'static> = Client::decode(&reply).1.unwrap();
        assert!(
            reply.len() - 24 <= maxcount.max(100) as usize,
            "{} of {maxcount}",
            reply.len()
        );
        status_of(res)
    }

    pub(crate) fn commit(
        &mut self,
        file: &nfs_fh3,
        offset: u64,
        count: u32,
    ) -> Result<COMMIT3resok, nfsstat3> {
        let args = COMMIT3args {
            file: file.clone(),
            offset,
            count,
        };
        self.call(&args)
    }
}

pub(crate) fn status_of<T, E>(result: Nfs3Result<T, E>) -> Result<T, nfsstat3> {
    match result {
        Nfs3Result::Ok(ok) => Ok(ok),
        Nfs3Result::Err((status, _)) => Err(status),
    }
}

pub(crate) fn size(size: u64) -> sattr3 {
    sattr3 {
        size: Nfs3Option::Some(size),
        ..sattr3::default()
    }
}

/// Two tests of one body: on the model, and on the real file system.
macro_rules! on_both {
    ($($(#[doc = $doc:literal])* fn $name:ident($site:ident: &Site) $body:block)*) => {
        $($(#[doc = $doc])* mod $name {
            use super::*;
            fn body($site: &Site) $body
            #[test]
            fn on_the_model() { body(&Site::new(Kind::Model)); }
            #[test]
            fn on_the_real_one() { body(&Site::new(Kind::Real)); }
        })*
    };
}
pub(crate) use on_both;
