//! The contracts: the changes that a crash may lose. A volume is made for one, and its
//! superblock says which.

use std::fmt;
use steadfast_vfs::Stream;

/// Changes that a crash may lose.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Contract {
    /// Of each stream the newest requests: a prefix survives, data included.
    #[default]
    Ordered,
    /// The newest changes of metadata; data that was overwritten since the last `fdatasync` may be old
    /// or new in each sector.
    MetadataPrefix,
    /// Nothing that a call which returned has done.
    Sync,
    /// The newest changes of metadata, as a prefix; a file's content is in that order once the file is closed
    /// or synced. For a front end that keeps written pages (the kernel's write-back cache).
    Relaxed,
}

impl Contract {
    /// All of them.
    pub const ALL: [Contract; 4] = [
        Contract::Ordered,
        Contract::MetadataPrefix,
        Contract::Sync,
        Contract::Relaxed,
    ];

    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Contract::Ordered => "ordered",
            Contract::MetadataPrefix => "metadata-prefix",
            Contract::Sync => "sync",
            Contract::Relaxed => "relaxed",
        }
    }

    /// Guarantee in one sentence, for users.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Contract::Ordered => {
                "For each stream, the newest of its requests: always a prefix survives, data included"
            }
            Contract::MetadataPrefix => {
                "Metadata is a prefix of the requests, data written in place may be torn"
            }
            Contract::Sync => "Nothing: each call is durable when it returns",
            Contract::Relaxed => {
                "Metadata is a prefix; a file's content is in that order once it is closed or synced. The kernel may keep written pages"
            }
        }
    }

    /// The contract of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Contract> {
        Contract::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Number in the superblock.
    pub(crate) fn number(self) -> u32 {
        match self {
            Contract::Ordered => 1,
            Contract::MetadataPrefix => 2,
            Contract::Sync => 3,
            Contract::Relaxed => 4,
        }
    }

    pub(crate) fn from_number(number: u32) -> Option<Contract> {
        Contract::ALL
            .into_iter()
            .find(|contract| contract.number() == number)
    }

    /// The journal's stream of a caller's: only `ordered` distinguishes streams. Pages that a kernel writes back have
    /// no caller, so `relaxed` has one stream.
    pub(crate) fn stream(self, stream: Stream) -> Stream {
        match self {
            Contract::Ordered => stream,
            Contract::MetadataPrefix | Contract::Sync | Contract::Relaxed => Stream::default(),
        }
    }
}

impl Contract {
    /// Whether a front end may keep written data and send it later: until the file is closed or synced.
    #[must_use]
    pub fn allows_write_back(self) -> bool {
        self == Contract::Relaxed
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
