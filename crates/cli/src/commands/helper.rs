//! The program under its other names: `mount.steadfast` and `umount.steadfast`, which mount(8)
//! and umount(8) run for volumes, `mkfs.steadfast` and `fsck.steadfast`, which mkfs(8) and fsck(8) run and which
//! take the arguments of `steadfast mkfs` and `steadfast fsck`; and `steadfast install-helper`, which makes those names.
//!
//! mount(8) calls `mount.TYPE SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`, umount(8)
//! `umount.TYPE DIR [-flnrv] [-N NAMESPACE] [-t TYPE]`; exit codes are those of mount(8).

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::commands::{mount, remount, umount};
use crate::failure::Failure;
use crate::text;

/// The names, and what they do.
const NAMES: [(&str, Role); 8] = [
    ("mount.steadfast", Role::Mount),
    ("mount.fuse.steadfast", Role::Mount),
    ("umount.steadfast", Role::Unmount),
    ("umount.fuse.steadfast", Role::Unmount),
    ("mkfs.steadfast", Role::Command("mkfs")),
    ("mkfs.fuse.steadfast", Role::Command("mkfs")),
    ("fsck.steadfast", Role::Command("fsck")),
    ("fsck.fuse.steadfast", Role::Command("fsck")),
];

/// The name of a copy of the program in the directory of the links.
const COPY: &str = "steadfast-helper";
/// Marks of a build directory: the cache tag at its top, unless the directory was there before Cargo, and Cargo's
/// lock beside the program.
const OF_BUILDS: [&str; 2] = ["CACHEDIR.TAG", ".cargo-lock"];

/// mount(8): wrong usage or permissions.
const USAGE: u8 = 1;
/// mount(8): the mount failed.
const FAILED: u8 = 32;

/// Role of a helper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Mount,
    Unmount,
    /// A command of the program.
    Command(&'static str),
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
    /// `-v` of both.
    verbose: bool,
}

/// Does what mount(8) or umount(8) asks for.
pub(crate) fn run(role: Role, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let done = read(arguments).and_then(|call| match role {
        Role::Mount => do_mount(&call),
        Role::Unmount => do_unmount(&call),
        Role::Command(name) => Err(Failure::usage(format!("'{name}' is no kind of mount"))),
    });
    match done {
        Ok(code) if code == ExitCode::SUCCESS => code,
        // The reason is already printed.
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
                'v' => call.verbose = true,
                // Sloppy, no entry in mtab, read-only if busy: nothing to do.
                's' | 'n' | 'r' => {}
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

/// The options, word by word.
fn words(options: &[String]) -> Vec<String> {
    let words = options.iter().flat_map(|options| options.split(','));
    words.map(str::to_owned).collect()
}

/// mount(8) leaves out the defaults `dev` and `suid`: only root has them.
pub(super) fn with_defaults(mut options: Vec<String>) -> Vec<String> {
    if rustix::process::geteuid().is_root() {
        options.insert(0, "dev,suid".to_owned());
    }
    options
}

fn do_mount(call: &Call) -> Result<ExitCode, Failure> {
    let [image, dir] = &call.names[..] else {
        return Err(Failure::usage("give an image and a directory"));
    };
    let options = words(&call.options);
    if options.iter().any(|word| word == "remount") {
        return remount::run(Path::new(dir), &options);
    }
    let mut args = mount::Args::new(with_defaults(options), image.into(), dir.into());
    if !call.verbose {
        args = args.quiet();
    }
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
    // mount(8) means "fake" by the letter, umount(8) "force".
    umount::run(&umount::Args::new(dir.into(), call.lazy, call.fake))
}

/// `steadfast install-helper`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Remove the links
    #[arg(long)]
    remove: bool,
    /// Directory for the links; mount(8), mkfs(8) and fsck(8) look in /sbin. A program in a build directory, or one that others
    /// can change, is copied there first
    #[arg(default_value = "/sbin")]
    dir: PathBuf,
}

/// Makes the links, or removes them. A file under one of these names that is no such link is left alone.
pub(crate) fn install(args: &Args) -> Result<ExitCode, Failure> {
    let program =
        std::env::current_exe().map_err(|e| Failure::new(format!("finding this program: {e}")))?;
    let copy = args.dir.join(COPY);
    for (name, _) in NAMES {
        let link = args.dir.join(name);
        let ours = |target: &Path| {
            [Some("steadfast".as_ref()), Some(COPY.as_ref())].contains(&target.file_name())
        };
        match std::fs::read_link(&link) {
            Ok(target) if ours(&target) => {
                std::fs::remove_file(&link).map_err(|e| Failure::at(&link, e))?;
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            _ => return Err(Failure::at(&link, "is there, and is not ours: left alone")),
        }
    }
    match std::fs::remove_file(&copy) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(Failure::at(&copy, e)),
        _ => {}
    }
    if args.remove {
        return Ok(ExitCode::SUCCESS);
    }
    let target = match passing(&program) {
        None => program,
        Some(why) => {
            let failed = |e| Failure::at(&copy, format!("copying this program: {e}"));
            std::fs::copy(&program, &copy).map_err(failed)?;
            text::print(&format!(
                "{} is a copy of this program: {} {why}",
                copy.display(),
                program.display()
            ))?;
            COPY.into()
        }
    };
    for (name, _) in NAMES {
        let link = args.dir.join(name);
        std::os::unix::fs::symlink(&target, &link).map_err(|e| Failure::at(&link, e))?;
        text::print(&format!("{} -> {}", link.display(), target.display()))?;
    }
    if let Some(how) = switch_on(steadfast_fuse::kernel_offers_io_uring()) {
        text::print(how)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Instructions for FUSE over io_uring, if the kernel has it and does not offer it.
fn switch_on(offered: Option<bool>) -> Option<&'static str> {
    (offered == Some(false)).then_some(
        "This kernel can pass requests over io_uring, which is faster for several programs at a time, but this is disabled. To enable it, as root:
  echo 1 > /sys/module/fuse/parameters/enable_uring
and for every boot 'fuse.enable_uring=1' on the kernel's command line, or, where fuse is a module:
  echo 'options fuse enable_uring=1' > /etc/modprobe.d/fuse.conf",
    )
}

/// The reason why mount(8) must not run a program as root, if there is one.
fn passing(program: &Path) -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt;
    let built = |dir: &Path| OF_BUILDS.iter().any(|mark| dir.join(mark).exists());
    if program.ancestors().any(built) {
        return Some("lies in a build directory");
    }
    let me = rustix::process::geteuid().as_raw();
    // In a directory that all users may write to, the sticky bit protects the files.
    let safe = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| {
            [0, me].contains(&found.uid())
                && (found.mode() & 0o022 == 0 || found.mode() & 0o1000 != 0)
        })
    };
    let changeable = !program.ancestors().all(safe);
    changeable.then_some("can be changed by others")
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
            verbose: true,
        };
        let line = "/srv/i.img /mnt -sfnv -N 7 -o rw,noauto -t fuse.steadfast";
        assert_eq!(call(line), Some(expected));
        assert_eq!(call("/mnt -l").map(|call| call.lazy), Some(true));
        assert_eq!(call("/mnt -x"), None);
    }

    #[test]
    fn only_the_helpers_names_make_a_helper() {
        assert_eq!(
            Role::of("/sbin/mount.fuse.steadfast".as_ref()),
            Some(Role::Mount)
        );
        assert_eq!(Role::of("umount.steadfast".as_ref()), Some(Role::Unmount));
        assert_eq!(
            Role::of("fsck.steadfast".as_ref()),
            Some(Role::Command("fsck"))
        );
        assert_eq!(Role::of("/usr/bin/steadfast".as_ref()), None);
    }
}
