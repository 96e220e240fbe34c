//! `mount -o remount`, for the helper: changes what the kernel alone decides while a volume is mounted, that is `ro`,
//! `rw` and whether devices, set-id bits and programs work. mount(8) passes all words, also those of the mount and of
//! fstab(5), but leaves out its defaults (`dev`, `suid`, `exec`). The settings that the server was started with stay,
//! whatever the words say.
//!
//! Before a mount becomes read-only, everything on it is made durable. A server that was
//! started read-only has its image open for reading, and has not replayed its log there: to become
//! writable, a volume that is not in use is unmounted and mounted anew.

use std::path::Path;
use std::process::ExitCode;

use rustix::fs::{StatVfsMountFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use steadfast_fuse::mountinfo::{self, MountEntry};

use crate::commands::{helper, mount, sync, umount};
use crate::failure::Failure;
use crate::mount_options;

/// Words that the kernel shows of a FUSE mount, beside those of users.
const OF_THE_KERNEL: [&str; 7] = [
    "user_id",
    "group_id",
    "rootmode",
    "default_permissions",
    "max_read",
    "blksize",
    "remount",
];

/// `ST_NOSYMFOLLOW`.
const NO_SYMLINKS: u64 = 0x2000;

/// A name that no attribute has.
const NO_ATTRIBUTE: &str = "user.steadfast.no-such-attribute";

pub(crate) fn run(dir: &Path, words: &[String]) -> Result<ExitCode, Failure> {
    let of_the_kernel = |word: &&String| {
        let name = word.split('=').next().unwrap_or(word);
        OF_THE_KERNEL.contains(&name)
    };
    let words: Vec<String> = words
        .iter()
        .filter(|w| !of_the_kernel(w))
        .cloned()
        .collect();
    // Unknown words are refused here, too.
    mount_options::parse(&words).map_err(Failure::usage)?;
    let dir = mountinfo::resolve(dir).map_err(|e| Failure::at(dir, e))?;
    let mount = umount::find(&dir)?;
    let failed = |what: &str, e: Errno| Failure::at(&dir, format!("{what}: {e}"));
    let now = rustix::fs::statvfs(&dir).map_err(|e| failed("its server does not answer", e))?;
    let before = flags_of(now.f_flag);
    let synced = words
        .iter()
        .rev()
        .find(|word| ["sync", "async"].contains(&word.as_str()));
    if let Some(word) = synced
        && (word == "sync") != before.contains(MountFlags::SYNCHRONOUS)
    {
        return Err(Failure::at(
            &dir,
            format!("'{word}' is chosen at the mount: unmount it, then mount it again"),
        ));
    }
    let after = apply(before, &words);
    if after.contains(MountFlags::RDONLY) {
        sync::send_kept(&dir, "remount")?;
        steadfast_fuse::sync(&dir).map_err(|e| Failure::at(&dir, format!("sync failed: {e}")))?;
    }
    let change = |flags| rustix::mount::mount_remount(&dir, flags, c"");
    change(after).map_err(|e| match e {
        Errno::PERM => Failure::at(&dir, "only root can remount"),
        e => failed("remounting failed", e),
    })?;
    // The kernel agrees to anything; the server may not.
    if !after.contains(MountFlags::RDONLY) {
        let asked = rustix::fs::setxattr(&dir, NO_ATTRIBUTE, b"", XattrFlags::REPLACE);
        if asked == Err(Errno::ROFS) {
            change(before).map_err(|e| failed("remounting failed", e))?;
            return anew(&mount, &dir, words);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Unmounts a volume that was mounted read-only, and mounts it with these words. If that fails, it is mounted read-only again.
fn anew(mount: &MountEntry, dir: &Path, mut words: Vec<String>) -> Result<ExitCode, Failure> {
    umount::run(&umount::Args::new(dir.to_owned(), false, false)).map_err(|failure| {
        let why = "was mounted read-only, with its image open for reading: to be written to, it is mounted anew, when it is not in use";
        Failure::new(format!("{}; {}: {why}", failure.message, dir.display()))
    })?;
    let start = |words: &[String]| {
        let words = helper::with_defaults(words.to_vec());
        mount::run(&mount::Args::new(words, mount.source.clone(), dir.to_owned()).quiet())
    };
    match start(&words) {
        Ok(code) if code == ExitCode::SUCCESS => Ok(code),
        failed => {
            words.push("ro".to_owned());
            let _ = start(&words);
            failed
        }
    }
}

/// The flags of a mount, for `mount(2)`.
fn flags_of(shown: StatVfsMountFlags) -> MountFlags {
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::SYNCHRONOUS, MountFlags::SYNCHRONOUS),
        (
            StatVfsMountFlags::from_bits_retain(NO_SYMLINKS),
            MountFlags::NOSYMFOLLOW,
        ),
    ];
    let set = pairs.iter().filter(|(seen, _)| shown.contains(*seen));
    set.fold(MountFlags::empty(), |all, (_, flag)| all | *flag)
}

/// The flags that the words set; of two that contradict each other, the later holds. Access times stay as they are.
fn apply(before: MountFlags, words: &[String]) -> MountFlags {
    let stays = MountFlags::NOATIME | MountFlags::NODIRATIME | MountFlags::SYNCHRONOUS;
    let mut flags = before & stays;
    for word in words {
        let (flag, on) = match word.as_str() {
            "ro" => (MountFlags::RDONLY, true),
            "rw" => (MountFlags::RDONLY, false),
            "nodev" => (MountFlags::NODEV, true),
            "dev" => (MountFlags::NODEV, false),
            "nosuid" => (MountFlags::NOSUID, true),
            "suid" => (MountFlags::NOSUID, false),
            "noexec" => (MountFlags::NOEXEC, true),
            "exec" => (MountFlags::NOEXEC, false),
            "nosymfollow" => (MountFlags::NOSYMFOLLOW, true),
            "symfollow" => (MountFlags::NOSYMFOLLOW, false),
            _ => continue,
        };
        flags.set(flag, on);
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_kernel_decides_changes_and_the_later_word_holds() {
        let words = |text: &str| -> Vec<String> { text.split(',').map(str::to_owned).collect() };
        let before = MountFlags::NODEV | MountFlags::NOATIME;
        assert_eq!(
            apply(before, &words("rw,cache=8M,relatime")),
            MountFlags::NOATIME
        );
        assert_eq!(
            apply(before, &words("rw,nodev,ro,noexec")),
            before | MountFlags::RDONLY | MountFlags::NOEXEC
        );
        assert_eq!(
            apply(MountFlags::NOSUID, &words("ro,rw,nodev,dev")),
            MountFlags::empty()
        );
    }
}
