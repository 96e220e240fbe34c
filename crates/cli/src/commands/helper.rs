//! The program under its other names: `mount.steadfast` and `umount.steadfast`, which mount(8)
//! and umount(8) run for volumes; and `steadfast install-helper`, which makes those names.
//!
//! mount(8) calls `mount.TYPE SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`, umount(8)
//! `umount.TYPE DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`; exit codes are those of mount(8).

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use steadfast_fuse::{Unmount, mountinfo, unmount};

use crate::commands::{mount, remount, umount};
use crate::failure::Failure;
use crate::text;

/// The names, and whether they mount.
const NAMES: [(&str, Role); 4] = [
    ("mount.steadfast", Role::Mount),
    ("mount.fuse.steadfast", Role::Mount),
    ("umount.steadfast", Role::Unmount),
    ("umount.fuse.steadfast", Role::Unmount),
];

/// mount(8): wrong usage or permissions.
const USAGE: u8 = 1;
/// mount(8): the mount failed.
const FAILED: u8 = 32;

/// Words of fstab(5) that are for mount(8) and systemd(1).
const OF_FSTAB: [&str; 10] = [
    "auto", "noauto", "user", "users", "nouser", "owner", "group", "nofail", "_netdev", "async",
];

/// What a helper does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Mount,
    Unmount,
}

impl Role {
    /// The role that the program's name gives it.
    pub(crate) fn of(program: &OsStr) -> Option<Role> {
        let name = Path::new(program).file_name()?.to_str()?;
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, role)| *role)
    }
}

/// A call of mount(8) or umount(8).
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    names: Vec<OsString>,
    options: Vec<String>,
    /// `-f` of mount(8): everything but the mount.
    fake: bool,
    /// `-l` of umount(8).
    lazy: bool,
}

/// Does what mount(8) or umount(8) asks for.
pub(crate) fn run(role: Role, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let done = read(arguments).and_then(|call| match role {
        Role::Mount => do_mount(&call),
        Role::Unmount => do_unmount(&call),
    });
    match done {
        Ok(code) if code == ExitCode::SUCCESS => code,
        // It has been said why.
        Ok(_) => FAILED.into(),
        Err(failure) => {
            failure.report();
            match failure.code {
                crate::failure::Code::Usage => USAGE.into(),
                _ => FAILED.into(),
            }
        }
    }
}

fn read(arguments: impl Iterator<Item = OsString>) -> Result<Call, Failure> {
    let mut call = Call::default();
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let Some(letters) = text.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            call.names.push(argument);
            continue;
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                'f' => call.fake = true,
                'l' => call.lazy = true,
                // Sloppy, no entry in mtab, verbose, read-only if busy: nothing to do.
                's' | 'n' | 'v' | 'r' => {}
                'o' | 't' | 'N' => {
                    let rest = &letters[at + 1..];
                    let value = match rest {
                        "" => arguments.next().unwrap_or_default(),
                        rest => rest.into(),
                    };
                    if letter == 'o' {
                        call.options.push(value.to_string_lossy().into_owned());
                    }
                    break;
                }
                _ => return Err(Failure::usage(format!("unknown option '-{letter}'"))),
            }
        }
    }
    Ok(call)
}

/// The options that are for the volume.
fn for_volume(options: &[String]) -> Vec<String> {
    let words = options.iter().flat_map(|options| options.split(','));
    let mut kept = Vec::new();
    for word in words {
        let name = word.split('=').next().unwrap_or(word);
        let other = OF_FSTAB.contains(&name) || name == "comment" || name.starts_with("x-");
        if !other {
            kept.push(word.to_owned());
        }
    }
    kept
}

/// mount(8) leaves out what means its default, `dev` and `suid`: only root has them.
fn with_defaults(mut options: Vec<String>) -> Vec<String> {
    if rustix::process::geteuid().is_root() {
        options.insert(0, "dev,suid".to_owned());
    }
    options
}

fn do_mount(call: &Call) -> Result<ExitCode, Failure> {
    let [image, dir] = &call.names[..] else {
        return Err(Failure::usage("give an image and a directory"));
    };
    let options = for_volume(&call.options);
    if options.iter().any(|word| word == "remount") {
        return remount::run(Path::new(dir), &options);
    }
    let args = mount::Args::new(with_defaults(options), image.into(), dir.into());
    if call.fake {
        return mount::check(&args);
    }
    mount::run(&args)
}

fn do_unmount(call: &Call) -> Result<ExitCode, Failure> {
    let [dir] = &call.names[..] else {
        return Err(Failure::usage(
            "give the directory where a volume is mounted",
        ));
    };
    let dir = PathBuf::from(dir);
    if !call.lazy {
        return umount::run(&umount::Args::new(dir));
    }
    let dir = mountinfo::resolve(&dir).map_err(|e| Failure::at(&dir, e))?;
    umount::find(&dir)?;
    unmount(&dir, Unmount::Detach).map_err(|e| Failure::at(&dir, e))?;
    Ok(ExitCode::SUCCESS)
}

/// `steadfast install-helper`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Remove them instead
    #[arg(long)]
    remove: bool,
    /// Directory for the links; mount(8) looks in /sbin
    #[arg(default_value = "/sbin")]
    dir: PathBuf,
}

/// Makes the links, or removes them. What is there under these names and is no such link
/// is left alone.
pub(crate) fn install(args: &Args) -> Result<ExitCode, Failure> {
    let program =
        std::env::current_exe().map_err(|e| Failure::new(format!("finding this program: {e}")))?;
    for (name, _) in NAMES {
        let link = args.dir.join(name);
        match std::fs::read_link(&link) {
            Ok(target) if target.file_name() == Some("steadfast".as_ref()) => {
                std::fs::remove_file(&link).map_err(|e| Failure::at(&link, e))?;
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            _ => return Err(Failure::at(&link, "is there, and is not ours: left alone")),
        }
        if !args.remove {
            std::os::unix::fs::symlink(&program, &link).map_err(|e| Failure::at(&link, e))?;
            text::print(&format!("{} -> {}", link.display(), program.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(line: &str) -> Option<Call> {
        read(line.split(' ').map(OsString::from)).ok()
    }

    #[test]
    fn the_calls_of_mount_and_umount_are_understood() {
        let expected = Call {
            names: vec!["/srv/i.img".into(), "/mnt".into()],
            options: vec!["rw,noauto".to_owned()],
            fake: true,
            lazy: false,
        };
        let line = "/srv/i.img /mnt -sfnv -N 7 -o rw,noauto -t fuse.steadfast";
        assert_eq!(call(line), Some(expected));
        assert_eq!(call("/mnt -l").map(|call| call.lazy), Some(true));
        assert_eq!(call("/mnt -x"), None);
    }

    #[test]
    fn words_for_others_are_left_to_them() {
        let of = |words: &str| for_volume(&[words.to_owned()]);
        let words = "rw,noauto,x-systemd.automount,user=me,nofail,comment=a,allow_other,cache=8M";
        let kept = ["rw", "allow_other", "cache=8M"]
            .map(str::to_owned)
            .to_vec();
        assert_eq!(of(words), kept);
    }

    #[test]
    fn only_the_helpers_names_make_a_helper() {
        assert_eq!(
            Role::of("/sbin/mount.fuse.steadfast".as_ref()),
            Some(Role::Mount)
        );
        assert_eq!(Role::of("umount.steadfast".as_ref()), Some(Role::Unmount));
        assert_eq!(Role::of("/usr/bin/steadfast".as_ref()), None);
    }
}
