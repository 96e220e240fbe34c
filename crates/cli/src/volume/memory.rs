//! Volumes in persistent memory: the only place that calls `steadfast_pmfs`, and `steadfast_pm` to open.

pub(crate) mod view;

use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;

use steadfast_pm::OpenOptions;
pub(crate) use steadfast_pm::Region;
use steadfast_pmfs::fsck::{FsckOptions, Problem};
use steadfast_pmfs::mkfs::MkfsOptions;
use steadfast_pmfs::{MountOptions, PmFs, inspect, layout};
use steadfast_vfs::FileSystem;

use super::check::Finding;
use super::{
    Access, Checked, Device, Grown, Held, Identity, LogState, Summary, Unopened, Verdict, in_use,
};
use crate::failure::{Failure, Kind};
use crate::mount_options::Options;

const PAGE: u64 = layout::PAGE_BYTES;

/// Whether an image holds a volume in persistent memory.
pub(crate) fn is_memory(image: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(image) else {
        return false;
    };
    if metadata.file_type().is_char_device() {
        // DAX devices can be mapped, but not read.
        return Region::open(image, &options(Access::Peek))
            .is_ok_and(|region| is_volume(|at| Some(region.load(at).to_le_bytes())));
    }
    if !metadata.is_file() && !metadata.file_type().is_block_device() {
        return false;
    }
    let Ok(file) = std::fs::File::open(image) else {
        return false;
    };
    is_volume(|at| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    })
}

/// Whether the superblock begins as one does, or its copy if nothing known is in the superblock's place.
fn is_volume(word: impl Fn(u64) -> Option<[u8; 8]>) -> bool {
    let begins = |at| word(at).is_some_and(|word| steadfast_pmfs::superblock::is_volume(&word));
    let other = || word(0).is_some_and(|word| matches!(&word, b"STEADFST" | b"STDFLASH"));
    begins(0) || begins(PAGE) && !other()
}

/// A failure of a region.
fn region_failure(image: &Path, error: &steadfast_pm::Error) -> Failure {
    match error {
        steadfast_pm::Error::InUse { .. } => in_use(image),
        // Its messages name the file.
        error => Failure::new(error.to_string()),
    }
}

/// A failure of a volume.
fn failure(image: &Path, error: &steadfast_pmfs::Error) -> Failure {
    let failure = Failure::at(image, error);
    match error {
        steadfast_pmfs::Error::NotAVolume => failure.of_kind(Kind::NotAVolume),
        _ => failure,
    }
}

fn options(access: Access) -> OpenOptions {
    OpenOptions {
        read_only: access != Access::Change,
        lock: access != Access::Peek,
        ..OpenOptions::default()
    }
}

/// Opens an image that holds a volume.
pub(super) fn open(image: &Path, access: Access) -> Result<Device, Unopened> {
    match Region::open(image, &options(access)) {
        Ok(region) => Ok(Device::Memory(region)),
        Err(e @ steadfast_pm::Error::InUse { .. }) => {
            Err(Unopened::InUse(region_failure(image, &e)))
        }
        Err(e) => Err(Unopened::Failed(region_failure(image, &e))),
    }
}

/// Opens an image that is to hold a volume.
pub(crate) fn open_memory(image: &Path) -> Result<Device, Failure> {
    Region::open(image, &options(Access::Change))
        .map(Device::Memory)
        .map_err(|e| region_failure(image, &e))
}

/// Makes an image of this size, or gives an existing one this size, and opens it.
pub(crate) fn create_memory(image: &Path, bytes: u64, overwrite: bool) -> Result<Device, Failure> {
    Region::create(
        image,
        bytes / PAGE * PAGE,
        overwrite,
        &options(Access::Change),
    )
    .map(Device::Memory)
    .map_err(|e| region_failure(image, &e))
}

/// Opens an image again, enlarged.
pub(super) fn enlarge(image: &Path, bytes: u64) -> Result<Device, Failure> {
    Region::enlarge(image, bytes, &options(Access::Change))
        .map(Device::Memory)
        .map_err(|e| region_failure(image, &e))
}

/// A volume that was made.
pub(crate) struct MadeInMemory {
    pub(crate) uuid: [u8; 16],
    pub(crate) label: String,
    pub(crate) bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) inodes: u64,
}

/// Makes a volume that fills a region, owned by this user.
pub(crate) fn make_in_memory(
    image: &Path,
    device: &Device,
    label: &str,
    bytes_per_inode: Option<u64>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<MadeInMemory, Failure> {
    let Device::Memory(region) = device else {
        return Err(Failure::at(image, "is no region of persistent memory"));
    };
    let mut options = MkfsOptions::default();
    label.clone_into(&mut options.label);
    options.root_uid = rustix::process::geteuid().as_raw();
    options.root_gid = rustix::process::getegid().as_raw();
    if let Some(bytes) = bytes_per_inode {
        options.bytes_per_inode = bytes;
    }
    let made =
        steadfast_pmfs::mkfs::mkfs(region, &options, progress).map_err(|e| failure(image, &e))?;
    Ok(MadeInMemory {
        uuid: made.uuid,
        label: made.label,
        bytes: made.geometry.pages * PAGE,
        free_bytes: made.geometry.data_pages_total() * PAGE,
        inodes: u64::from(made.geometry.inodes()),
    })
}

/// Looks for a volume, whole or not.
pub(super) fn held(region: &Region) -> Held {
    match steadfast_pmfs::superblock::load(region) {
        Ok(found) if found.superblock.label.is_empty() => {
            Held::Volume("a Steadfast volume in persistent memory".to_owned())
        }
        Ok(found) => Held::Volume(format!(
            "the Steadfast volume '{}' in persistent memory",
            found.superblock.label
        )),
        Err(steadfast_pmfs::Error::NotAVolume) => Held::Nothing,
        Err(e) => Held::Volume(format!("a Steadfast volume in persistent memory ({e})")),
    }
}

/// Reads the identity of a volume.
pub(super) fn identity(image: &Path, region: &Region) -> Result<Identity, Failure> {
    let found = steadfast_pmfs::superblock::load(region).map_err(|e| failure(image, &e))?;
    if let [Some(why), _] = found.damage {
        return Err(Failure::at(image, format!("the superblock: {why}")));
    }
    Ok(Identity {
        uuid: found.superblock.uuid,
        label: found.superblock.label,
        version: found.superblock.version,
    })
}

/// Reads the summary of a volume by reading everything, even while a process has it open. Beside a mount for writing,
/// the free space is an estimate.
pub(super) fn summary(image: &Path, region: &Region) -> Result<Summary, Failure> {
    let again =
        Region::open(image, &options(Access::Peek)).map_err(|e| region_failure(image, &e))?;
    let info = inspect::info(again, 0, &mut |_, _| {}).map_err(|e| failure(image, &e))?;
    let damage = (info.damage > 0)
        .then(|| format!("{} places are damaged; run 'steadfast fsck'", info.damage));
    let superblock = info.superblock;
    let root = superblock.geometry.inode_at(layout::ROOT);
    Ok(Summary {
        uuid: superblock.uuid,
        label: superblock.label,
        version: superblock.version,
        contract: super::Contract::Sync.name(),
        made: layout::time_parts(region.load(root + layout::inode::BTIME)).0,
        blocks: superblock.geometry.pages,
        log_blocks: 0,
        data_blocks: info.data_pages,
        free_blocks: info.free_pages,
        inodes: Some((info.inodes, info.free_inodes)),
        log: match info.hints.clean {
            true => LogState::Clean,
            false => LogState::NeedsRecovery,
        },
        warning: damage.or(info.superblock_damage.into_iter().flatten().next()),
    })
}

/// Grows a volume to the size of its region.
pub(super) fn grow(
    image: &Path,
    region: Region,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Grown, Failure> {
    let grown = steadfast_pmfs::grow::grow(&region, progress).map_err(|e| failure(image, &e))?;
    let (before, after) = (grown.before.geometry, grown.after.geometry);
    Ok(Grown {
        blocks_before: before.pages,
        blocks: after.pages,
        groups: after.chunks() - before.chunks(),
        replayed: 0,
    })
}

/// Checks a volume, and repairs it if asked to.
pub(super) fn check(
    image: &Path,
    region: Region,
    repair: bool,
    progress: impl Fn(&str, u64, u64),
) -> Result<Checked, Failure> {
    let options = FsckOptions { repair, threads: 0 };
    let (report, _) = steadfast_pmfs::fsck::fsck(region, &options, &mut |done, total| {
        progress("everything", done, total);
    })
    .map_err(|e| failure(image, &e))?;
    let listed = report.findings.len() as u64;
    let shown = |finding: &steadfast_pmfs::fsck::Finding| Finding {
        kind: finding.problem.name(),
        severity: finding.severity().to_string(),
        block: finding.location.page.map(|page| page.0),
        inode: finding.location.inode.map(u64::from),
        path: finding.location.path.clone(),
        detail: finding.detail.clone(),
        repair: finding.problem.repair(),
        text: finding.to_string(),
    };
    let left = |(problem, count): (&Problem, &u64)| Finding {
        kind: problem.name(),
        severity: problem.severity().to_string(),
        block: None,
        inode: None,
        path: None,
        detail: format!("{count} of them"),
        repair: problem.repair(),
        text: format!("{} ({count} of them)", problem.what()),
    };
    Ok(Checked {
        verdict: match (report.is_sound(), repair, report.is_repaired()) {
            (true, ..) => Verdict::Clean,
            (false, true, true) => Verdict::Repaired,
            _ => Verdict::DamageLeft,
        },
        findings: report.findings.iter().map(shown).collect(),
        left: report.left.iter().map(left).collect(),
        left_out: report.counts.values().sum::<u64>().saturating_sub(listed),
        files: report.files,
        directories: report.directories,
        others: report
            .inodes
            .saturating_sub(report.files + report.directories),
        used_blocks: report.pages,
        blocks: report.pages + report.free_pages,
    })
}

/// A mounted volume.
pub(super) struct Memory(Arc<PmFs>);

impl Memory {
    pub(super) fn file_system(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.0) as Arc<dyn FileSystem>
    }

    pub(super) fn read_only(&self) -> bool {
        self.0.health().read_only
    }

    /// Makes everything durable.
    pub(super) fn unmount(&self) -> Result<(), String> {
        self.0.unmount().map_err(|e| e.to_string())
    }

    /// Limits of its files.
    #[cfg(feature = "nfs")]
    #[expect(clippy::unused_self, reason = "they are the same for all")]
    pub(super) fn limits(&self) -> steadfast_nfs::Limits {
        steadfast_nfs::Limits {
            file_bytes_max: steadfast_pmfs::FILE_BYTES_MAX,
            links_max: steadfast_pmfs::LINKS_MAX,
        }
    }
}

/// Recovers and opens a volume. Also returns notes for the user, by lines.
pub(super) fn mount(
    image: &Path,
    region: Region,
    options: &Options,
) -> Result<(Memory, Vec<String>), Failure> {
    let mut wanted = MountOptions::default();
    wanted.read_only = options.read_only();
    wanted.in_place = options.in_place;
    let fs = PmFs::mount(region, &wanted, &mut |_, _| {}).map_err(|e| failure(image, &e))?;
    let report = fs.report();
    let mut told: Vec<String> = report.superblock_damage.iter().flatten().cloned().collect();
    if !report.clean {
        told.push(match report.recovered_words {
            0 => "it was not unmounted; it is what its last call left".to_owned(),
            words => format!("recovered: {words} words brought up to date"),
        });
    }
    for finding in &report.damage {
        told.push(finding.to_string());
    }
    Ok((Memory(Arc::new(fs)), told))
}
