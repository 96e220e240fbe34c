//! Real file systems: how to make and mount them, and the model of each.

use super::RealError;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use steadfast_model::data::FileData;

/// A file system of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
}

/// Options that choose a model; others do not.
const VARIANTS: &[(Kind, &str, &str)] = &[
    (Kind::Ext4, "data=writeback", "ext4-writeback"),
    (Kind::Ext4, "data=journal", "ext4-journal"),
    (Kind::Ext4, "nodelalloc", "ext4-nodelalloc"),
    (Kind::Ext4, "noauto_da_alloc", "ext4-noauto_da_alloc"),
];

impl Kind {
    /// All.
    pub const ALL: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

    /// By the kernel's name.
    #[must_use]
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }

    /// Its name in the kernel.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }

    pub(super) fn mkfs(self) -> &'static str {
        match self {
            Kind::Ext4 => "mkfs.ext4",
            Kind::Xfs => "mkfs.xfs",
            Kind::Btrfs => "mkfs.btrfs",
        }
    }

    pub(super) fn package(self) -> &'static str {
        match self {
            Kind::Ext4 => "e2fsprogs",
            Kind::Xfs => "xfsprogs",
            Kind::Btrfs => "btrfs-progs",
        }
    }

    /// The model of this file system with these mount options.
    #[must_use]
    pub fn model(self, options: &str) -> &'static str {
        let has = |word: &str| options.split(',').any(|o| o == word);
        let variant = VARIANTS.iter().find(|(k, o, _)| *k == self && has(o));
        variant.map_or(self.name(), |(_, _, model)| model)
    }

    /// The file system and the mount options that a shipped model describes.
    #[must_use]
    pub fn of_model(model: &str) -> Option<(Kind, &'static str)> {
        let variant = VARIANTS.iter().find(|(_, _, m)| *m == model);
        let variant = variant.map(|(k, o, _)| (*k, *o));
        variant.or_else(|| Kind::named(model).map(|k| (k, "")))
    }

    /// Bytes that the disk under it does not tear. Btrfs expects its superblock of 4 KiB to be written whole: after a
    /// torn one it does not mount without a repair.
    pub(super) fn atom(self) -> u64 {
        match self {
            Kind::Ext4 | Kind::Xfs => 512,
            Kind::Btrfs => 4096,
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Kind::Ext4 => 64 << 20,
            // The smallest that its mkfs makes.
            Kind::Xfs => 300 << 20,
            Kind::Btrfs => 128 << 20,
        }
    }

    /// Options of a mount.
    pub(super) fn mount_options(self, options: &str) -> String {
        let mut all: Vec<&str> = options.split(',').filter(|o| !o.is_empty()).collect();
        match self {
            // Only the committing thread writes the journal, at the calls that ask for it, and no timer does.
            Kind::Ext4 => all.push("commit=300"),
            Kind::Btrfs => all.push("commit=300"),
            // Images of one disk have one UUID.
            Kind::Xfs => all.push("nouuid"),
        }
        all.join(",")
    }

    /// A new, empty file system with room for this many bytes.
    pub(super) fn make(self, room: u64) -> Result<FileData, RealError> {
        let bytes = (self.bytes() + room + room / 4).next_multiple_of(1 << 20);
        let failed = |source: io::Error| RealError::System {
            what: self.mkfs().to_owned(),
            source,
        };
        let file = tempfile::NamedTempFile::new().map_err(failed)?;
        file.as_file().set_len(bytes).map_err(failed)?;
        let mut command = Command::new(self.mkfs());
        command.arg("-q");
        match self {
            Kind::Ext4 => command.args([
                "-F",
                "-b",
                "4096",
                "-E",
                "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
            ]),
            Kind::Xfs => command.args(["-f", "-K"]),
            Kind::Btrfs => command.args(["-f", "-K", "-m", "single"]),
        };
        let output = command
            .arg(file.path())
            .stdin(Stdio::null())
            .output()
            .map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(failed(io::Error::other(said)));
        }
        read(file.as_file(), bytes).map_err(failed)
    }
}

/// A file as an image; zeros take no room.
fn read(file: &File, bytes: u64) -> io::Result<FileData> {
    let mut image = FileData::new();
    image.resize(bytes);
    let mut piece = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        let n = (bytes - at).min(piece.len() as u64) as usize;
        file.read_exact_at(&mut piece[..n], at)?;
        for (i, page) in piece[..n].chunks(4096).enumerate() {
            if page.iter().any(|b| *b != 0) {
                image.write(at + i as u64 * 4096, page);
            }
        }
        at += n as u64;
    }
    Ok(image)
}
