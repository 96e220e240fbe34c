//! Options of `steadfast mkfs` for volumes on object stores.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::size;

/// When a flush is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Flush {
    /// When the store has acknowledged it: what a flush acknowledged survives the loss of the machine; after any crash the disk
    /// is a flush that includes it
    Store,
    /// When it is durable on the cache device that a mount names ('-o cache=FILE,flush=cache'). If process or power
    /// fails, the disk is exactly the last flush. If machine or cache is lost, or another machine takes over, the
    /// disk is exactly some earlier flush, at most 'lag' behind. A mount without a cache keeps the promise of 'store'
    Cache,
}

/// Compression of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compress {
    /// Not at all
    None,
    /// Zstandard, at level 1; data that does not shrink stays as it is
    Zstd,
}

/// Encoding of objects.
#[derive(Debug, clap::Args)]
pub(crate) struct Coding {
    /// On an object store: compress all data
    #[arg(long, value_enum, value_name = "METHOD", default_value = "none")]
    pub(super) compress: Compress,
    /// On an object store: encrypt all data (AES-256-GCM), with a key that the key file wraps
    #[arg(long)]
    pub(super) encrypt: bool,
    /// With --encrypt: a file with 32 random bytes or more (by default STEADFAST_KEY_FILE). Without the file no
    /// program can read the volume: keep a copy elsewhere
    #[arg(long, value_name = "FILE", requires = "encrypt")]
    pub(super) key_file: Option<PathBuf>,
    /// On an object store: size of the unit that is read, compressed and encrypted, 4K to 256K [default: 64K]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) unit: Option<u64>,
}

impl Coding {
    /// Whether one of the options for object stores is given.
    pub(super) fn is_given(&self) -> bool {
        self.compress != Compress::None || self.encrypt || self.unit.is_some()
    }
}
