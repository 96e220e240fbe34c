//! Serves a small read-only file system of one's own over NFS, reads it as a client, and stops the server.
//!
//! The nine calls without a default are all that such a file system has. On a fixed port, `mount -t nfs -o
//! vers=3,port=2049,mountport=2049,nolock 127.0.0.1:/ DIR` mounts it.
//!
//! Run it with `cargo run -p steadfast-nfs --example read_only`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nfs3_types::nfs3::READ3args;
use steadfast_nfs::{Access, Ended, Export, ExportedVolume, HandleKey, Options, Server};
use steadfast_nfs_client::Failure;
use steadfast_nfs_client::client::{self, Client};
use steadfast_nfs_client::rpc::Target;
use steadfast_vfs::{
    Attr, Caller, Cookie, DirEntry, Errno, FileKind, FileSystem, Ino, NAME_MAX, Result, StatFs,
    Time,
};

/// One directory with files, each a name and a text. The first file has the inode number 2.
struct Texts(&'static [(&'static str, &'static str)]);

const ROOT: Ino = 1;

impl Texts {
    fn text(&self, ino: Ino) -> Result<&'static [u8]> {
        let index = usize::try_from(ino).ok().and_then(|ino| ino.checked_sub(2));
        let file = index.and_then(|index| self.0.get(index));
        file.map(|(_, text)| text.as_bytes())
            .ok_or(Errno::Stale.into())
    }
}

impl FileSystem for Texts {
    fn root(&self) -> Ino {
        ROOT
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &[u8]) -> Result<Attr> {
        if parent != ROOT {
            return Err(Errno::NotDir.into());
        }
        if name == b"." || name == b".." {
            return self.getattr(caller, ROOT);
        }
        let mut files = self.0.iter().zip(2..);
        match files.find(|((known, _), _)| known.as_bytes() == name) {
            Some((_, ino)) => self.getattr(caller, ino),
            None => Err(Errno::NoEnt.into()),
        }
    }

    fn getattr(&self, _: &Caller, ino: Ino) -> Result<Attr> {
        let (kind, perm, nlink, size) = match ino {
            ROOT => (FileKind::Directory, 0o555, 2, 0),
            ino => (FileKind::Regular, 0o444, 1, self.text(ino)?.len() as u64),
        };
        let [atime, mtime, ctime, btime] = [Time::default(); 4];
        Ok(Attr {
            ino,
            generation: 0, // No number is ever used for another file.
            kind,
            perm,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: size.div_ceil(512),
            atime,
            mtime,
            ctime,
            btime,
        })
    }

    /// Everybody may read and search, and nobody write.
    fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Result<()> {
        self.getattr(caller, ino)?;
        match mask & steadfast_vfs::policy::WRITE {
            0 => Ok(()),
            _ => Err(Errno::RoFs.into()),
        }
    }

    fn readlink(&self, _: &Caller, _: Ino) -> Result<Vec<u8>> {
        Err(Errno::Inval.into())
    }

    fn read(&self, _: &Caller, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if ino == ROOT {
            return Err(Errno::IsDir.into());
        }
        let text = self.text(ino)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let rest = text.get(from..).unwrap_or_default();
        let len = rest.len().min(buf.len());
        buf[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn readdir(
        &self,
        _: &Caller,
        dir: Ino,
        cookie: Cookie,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if dir != ROOT {
            return Err(Errno::NotDir.into());
        }
        let dots = [".", ".."].map(|name| (ROOT, FileKind::Directory, name));
        let files = (2..).zip(self.0);
        let files = files.map(|(ino, (name, _))| (ino, FileKind::Regular, *name));
        for ((ino, kind, name), next) in dots.into_iter().chain(files).zip(1..) {
            let name = name.as_bytes();
            let entry = DirEntry {
                ino,
                kind,
                next,
                name,
            };
            if next > cookie && !sink(entry) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs {
            block_size: 4096,
            inodes: 1 + self.0.len() as u64,
            name_max: NAME_MAX as u32,
            ..StatFs::default()
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let texts = Texts(&[("greeting", "Hello."), ("farewell", "Goodbye.")]);
    let mut served = ExportedVolume::new(Arc::new(texts), "texts");
    served.read_only = true;
    let mut options = Options::default();
    options.listen = vec!["127.0.0.1:0".parse()?];
    // The file system cannot keep the key of its file handles. With HandleKey::from_file, clients keep their handles
    // when the server starts again.
    options.handle_key = Some(HandleKey::random()?);
    // By default an export admits this host, and ports below 1024 alone.
    let access = Access {
        any_port: true,
        read_only: true,
        ..Access::new()
    };
    let exports = vec![Export::new().with_access(access)];
    let server = Server::start(vec![served], exports, &options)?;
    let address = server.addresses()[0];
    println!("serving at {address}");

    let read = read_as_a_client(address);
    let ended = server.stop();
    read.map_err(|e| e.to_string())?;
    assert_eq!(ended, Ended::Stopped);
    Ok(())
}

fn read_as_a_client(address: SocketAddr) -> std::result::Result<(), Failure> {
    let target = Target {
        address,
        uid: 1000,
        gid: 1000,
        reserved_port: false,
        timeout: Duration::from_secs(60),
    };
    let port = Some(address.port());
    let export = client::mount(&target, port, port, "/")?;
    let mut client = Client::connect(&export.target)?;
    let names = client.names(&export.root)?;
    println!("{}", names.join(" "));
    assert_eq!(names, ["greeting", "farewell"]);

    let file = client.lookup(&export.root, "greeting")?;
    let read = READ3args {
        file,
        offset: 0,
        count: 100,
    };
    let read = client.expect(&read, "READ")?;
    println!("{}", String::from_utf8_lossy(&read.data));
    assert_eq!(&*read.data, b"Hello.");

    assert!(client.create(&export.root, "new").is_err(), "read-only");
    Ok(())
}

#[test]
fn the_example_does_what_it_says() -> std::result::Result<(), Box<dyn Error>> {
    main()
}
