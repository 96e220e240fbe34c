//! Makes a volume: zeroed tables, the root directory, and the superblock last.
//!
//! Order (each step is durable before the next):
//!
//! 1. The content of the first two pages is destroyed. From now on there is no volume.
//! 2. The tables of all chunks are zeroed, by non-temporal stores: no inode of an older volume is alive, and no descriptor or
//!    name of it can come alive, because every generation starts again below any that it names.
//! 3. The root directory is born, with generation 1.
//! 4. The copy of the superblock is stored, then the superblock.
//!
//! So an interrupted run leaves no volume, or a whole one. Pages for data are not touched: nothing refers to their content.

use crate::error::Error;
use crate::layout::{
    AttributePlace, BYTES_PER_INODE, Commit, Geometry, INODE_BYTES, InodeRef, LABEL_BYTES,
    PAGE_BYTES, ROOT, VERSION, birth_word, inode, superblock as field, time_word,
};
use crate::superblock::{self, COPIES, Superblock};
use steadfast_pm::Region;
use steadfast_vfs::{Clock, FileKind, SystemClock, Time};

/// Options for making a volume. The default suits most.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MkfsOptions {
    /// Name of the volume, at most 32 bytes.
    pub label: String,
    /// Identity; random if not given.
    pub uuid: Option<[u8; 16]>,
    /// Bytes of region for each inode: fewer make room for more files.
    pub bytes_per_inode: u64,
    /// Permission bits of the root directory.
    pub root_perm: u16,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// The time that the root directory gets; now if not given.
    pub now: Option<Time>,
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions {
            label: String::new(),
            uuid: None,
            bytes_per_inode: BYTES_PER_INODE,
            root_perm: 0o755,
            root_uid: 0,
            root_gid: 0,
            now: None,
        }
    }
}

/// Makes a volume that fills `region`; its old content is lost. `progress` gets the chunks done so far, and their
/// number.
///
/// # Errors
/// [`Error::Size`], [`Error::Option`] and [`Error::Random`] before anything is stored; [`Error::Memory`].
pub fn mkfs(
    region: &Region,
    options: &MkfsOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Superblock, Error> {
    let bytes = region.len();
    let geometry = Geometry::new(bytes, options.bytes_per_inode).ok_or(Error::Size { bytes })?;
    if options.label.len() > LABEL_BYTES || options.label.contains('\0') {
        let text = "a label has at most 32 bytes and no NUL";
        return Err(Error::Option(text.into()));
    }
    let superblock = Superblock {
        version: VERSION,
        features: 0,
        uuid: identity(options)?,
        label: options.label.clone(),
        geometry,
    };
    region.zero_data(0, COPIES.len() as u64 * PAGE_BYTES);
    region.fence();
    zero_tables(region, &geometry, 0, progress);
    region.fence();
    bear_root(region, &geometry, options);
    let intact = || match region.failed() {
        true => Err(Error::Memory {
            attempt: "writing the new volume",
        }),
        false => Ok(()),
    };
    intact()?;
    // The hints are in the superblock's third line: nothing counts before its first two.
    region.store(field::CLEAN, 1);
    region.write_back(field::CLEAN, 8);
    superblock::store(region, COPIES[1], &superblock);
    superblock::store(region, COPIES[0], &superblock);
    intact()?;
    Ok(superblock)
}

fn identity(options: &MkfsOptions) -> Result<[u8; 16], Error> {
    if let Some(uuid) = options.uuid {
        return Ok(uuid);
    }
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|e| Error::Random(e.to_string()))?;
    Ok(uuid::Builder::from_random_bytes(random)
        .into_uuid()
        .into_bytes())
}

/// Zeroes the tables of the chunks from `first` on. Durable after the caller's fence.
pub(crate) fn zero_tables(
    region: &Region,
    geometry: &Geometry,
    first: u64,
    progress: &mut dyn FnMut(u64, u64),
) {
    let total = geometry.chunks() - first;
    for (done, chunk) in (first..geometry.chunks()).enumerate() {
        progress(done as u64, total);
        let tables = geometry.tables(chunk);
        region.zero_data(tables.start, tables.end - tables.start);
    }
    progress(total, total);
}

fn bear_root(region: &Region, geometry: &Geometry, options: &MkfsOptions) {
    let at = geometry.inode_at(ROOT);
    let time = options.now.unwrap_or_else(|| SystemClock.now());
    let now = time_word(time.secs, time.nanos);
    let commit = Commit {
        sequence: 0,
        perm: options.root_perm,
        attributes: AttributePlace::None,
    };
    let owner = u64::from(options.root_uid) << 32 | u64::from(options.root_gid);
    let root = InodeRef {
        number: ROOT,
        generation: 1,
    };
    for (word, value) in [
        (inode::BTIME, now),
        (inode::ATIME, now),
        (inode::EXTRA, u64::from(root.generation) << 32),
        (inode::COMMIT, commit.word()),
        (inode::OWNER[commit.parity()], owner),
        (inode::MTIME, now),
        (inode::CTIME, now),
        (
            inode::BIRTH,
            birth_word(root.generation, FileKind::Directory),
        ),
    ] {
        region.store(at + word, value);
    }
    region.write_back(at, INODE_BYTES);
    region.fence();
}
