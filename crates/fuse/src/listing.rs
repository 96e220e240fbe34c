//! Listings with attributes (`READDIRPLUS`): entries are copied out of the directory in
//! batches, and their attributes fetched when the directory is no longer held.
//!
//! Invariant: exactly the entries that a reply holds carry a reference, `.` and `..` none.

use steadfast_fuse_wire::{Errno, abi};
use steadfast_vfs::{Caller, FileKind, FileSystem, Ino};

use crate::identity::Requester;
use crate::server::Server;
use crate::values::Node;

/// Entries fetched at a time.
const LISTING_BATCH: usize = 64;

/// One entry of a listing, copied out so that the directory is not held while
/// attributes are fetched.
struct Listed {
    ino: Ino,
    kind: FileKind,
    next: u64,
    name: Vec<u8>,
}

/// One entry with the attributes of its inode.
pub(crate) struct WithAttributes<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) next: u64,
    /// Number 0 for a name that gives no reference.
    pub(crate) entry: abi::EntryOut,
}

impl Server {
    /// Lists a directory with attributes, from `cookie` on, until `take` refuses an entry.
    pub(crate) fn listed_with_attributes(
        &self,
        request: &Requester,
        node: Node,
        cookie: u64,
        take: &mut dyn FnMut(&WithAttributes<'_>) -> bool,
    ) -> Result<(), Errno> {
        let (caller, ino) = (self.identity.reader(request), self.ino(node));
        self.shared.call("readdirplus", |fs| {
            self.list_with_attributes(fs, &caller, ino, cookie, take)
        })?;
        self.directory_accessed(&caller, ino);
        Ok(())
    }

    fn list_with_attributes(
        &self,
        fs: &dyn FileSystem,
        caller: &Caller,
        dir: Ino,
        mut cookie: u64,
        take: &mut dyn FnMut(&WithAttributes<'_>) -> bool,
    ) -> steadfast_vfs::Result<()> {
        let mut replied = false;
        loop {
            let mut batch = Vec::with_capacity(LISTING_BATCH);
            let listed = fs.readdir(caller, dir, cookie, &mut |entry| {
                if batch.len() == LISTING_BATCH {
                    return false;
                }
                let (ino, kind, next) = (entry.ino, entry.kind, entry.next);
                batch.push(Listed {
                    ino,
                    kind,
                    next,
                    name: entry.name.to_vec(),
                });
                true
            });
            // The entries in the reply already carry references: it is sent, and the
            // error comes with the next request.
            match listed {
                Err(error) if !replied => return Err(error),
                Err(_) => return Ok(()),
                Ok(()) => {}
            }
            let last = batch.len() < LISTING_BATCH;
            for entry in batch {
                // Also past an entry that is left out: a batch of such entries must not be looked at again.
                cookie = entry.next;
                let own = entry.name == b"." || entry.name == b"..";
                let reply = if own {
                    // The kernel takes no reference to these two, only number and kind.
                    abi::EntryOut {
                        attr: abi::Attr {
                            ino: self.numbers.node(entry.ino).0,
                            mode: entry.kind.mode_bits(),
                            ..abi::Attr::default()
                        },
                        ..abi::EntryOut::default()
                    }
                } else {
                    let found = fs.getattr(caller, entry.ino).and_then(|attr| {
                        self.shared.nodes.remember(fs, caller, &attr, dir)?;
                        Ok(attr)
                    });
                    match found {
                        Ok(attr) => self.entry(&attr),
                        Err(error) if error == steadfast_vfs::Errno::Stale => continue, // just removed, or never there
                        Err(error) if !replied => return Err(error),
                        Err(_) => return Ok(()),
                    }
                };
                let whole = WithAttributes {
                    name: &entry.name,
                    next: entry.next,
                    entry: reply,
                };
                if !take(&whole) {
                    if !own {
                        self.shared.nodes.forget(fs, entry.ino, 1);
                    }
                    return Ok(());
                }
                replied = true;
            }
            if last {
                return Ok(());
            }
        }
    }
}
