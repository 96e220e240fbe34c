//! The `steadfast` command: makes, mounts, checks and shows volumes.
//!
//! One file per command under `commands`; everything that touches a volume goes
//! through `volume`. Exit codes: 0 done; 1 failed; 2 wrong usage; `fsck` has its own
//! (0 clean, 1 repaired, 4 damage left, 8 could not run), and so have the helpers of mount(8).

mod commands;
mod content;
mod failure;
mod features;
mod host_space;
mod limits;
mod mount_options;
mod private;
mod progress;
mod size;
mod source;
mod syslog;
mod text;
mod volume;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[cfg(not(all(
    feature = "crash",
    feature = "flash",
    feature = "nfs",
    feature = "store"
)))]
use commands::without_feature;
use commands::{
    completions, crash, dump, freeze, fsck, ftl, grow, helper, info, man, metrics, mkfs, mount,
    put, scrub, serve_disk, serve_nfs, shutdown, stat, store, stream, sync, trim, umount,
};
use failure::Failure;
#[cfg(any(
    test,
    not(all(
        feature = "crash",
        feature = "flash",
        feature = "nfs",
        feature = "store"
    ))
))]
use features::Feature;

/// A crash-consistent storage stack: every volume says exactly what a crash may lose.
#[derive(Debug, Parser)]
#[command(
    name = "steadfast",
    version,
    long_version = features::long_version(),
    propagate_version = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a volume in an image file or on a block device
    Mkfs(mkfs::Args),
    /// Mount a volume; returns when the mount answers
    Mount(mount::Args),
    /// Unmount a volume; returns when everything is durable and the image is closed
    Umount(umount::Args),
    /// Check a volume that is not mounted, and repair it if asked to
    Fsck(fsck::Args),
    /// Enlarge a volume that is not mounted
    Grow(grow::Args),
    /// Give back the free space of a volume, mounted or not: holes in an image file, less to move in flash memory
    Trim(trim::Args),
    /// Read everything on the medium of a volume, mounted or not, and compare its checksums
    Scrub(scrub::Args),
    /// Show what a volume is
    Info(info::Args),
    /// Show superblock and log of a volume that is not mounted, or one of its inodes, directories or blocks
    Dump(dump::Args),
    /// Make everything written to a mounted volume durable
    Sync(sync::Args),
    /// Put processes into streams: each keeps its own order across a crash, independent of the others
    #[command(subcommand)]
    Stream(stream::Command),
    /// Show live counters of a mounted volume or of a server
    Stat(stat::Args),
    /// Hold the image of a mounted volume still, to copy it
    Freeze(freeze::Args),
    /// End a freeze
    Thaw(freeze::ThawArgs),
    /// Print counters of mounted volumes for Prometheus, or serve them over HTTP
    Metrics(metrics::Args),
    /// End all access to a mounted volume at once, for tests of crashes
    Shutdown(shutdown::Args),
    /// Replace a file with standard input so that a crash leaves the old content or the new
    Put(put::Args),
    /// Serve volumes and disks to others
    #[command(subcommand)]
    Serve(Serve),
    /// Explore what crashes can do
    #[cfg_attr(feature = "crash", command(subcommand))]
    #[cfg_attr(not(feature = "crash"), command(about = without_feature::about(Feature::Crash, "Explore what crashes can do")))]
    Crash(crash::Command),
    /// Volumes on object stores: try a store, show and check a volume, make snapshots and clones
    #[cfg_attr(feature = "store", command(subcommand))]
    #[cfg_attr(not(feature = "store"), command(about = without_feature::about(Feature::Store, "Volumes on object stores")))]
    Store(store::Command),
    /// Disks in emulated flash memory: make, show, test and measure them
    #[cfg_attr(feature = "flash", command(subcommand))]
    #[cfg_attr(not(feature = "flash"), command(about = without_feature::about(Feature::Flash, "Disks in emulated flash memory")))]
    Ftl(ftl::Command),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Install the names under which mount(8), umount(8) and fstab(5) find this program
    InstallHelper(helper::Args),
    /// Write the manual: a page for each command, steadfast(7) and mount.steadfast(8)
    Man(man::Args),
}

#[derive(Debug, Subcommand)]
enum Serve {
    /// Serve volumes over NFS version 3 until a signal asks for the end
    #[cfg_attr(not(feature = "nfs"), command(about = without_feature::about(Feature::Nfs, "Serve volumes over NFS version 3")))]
    Nfs(Box<serve_nfs::Args>),
    /// Serve the disk in a flash image, over NBD or as a file, until a signal asks for the end
    #[cfg_attr(not(feature = "flash"), command(about = without_feature::about(Feature::Flash, "Serve the disk in a flash image")))]
    Disk(Box<serve_disk::Args>),
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Mkfs(args) => mkfs::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Grow(args) => grow::run(&args),
        Command::Trim(args) => trim::run(&args),
        Command::Scrub(args) => scrub::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Sync(args) => sync::run(&args),
        Command::Stream(command) => stream::run(&command),
        Command::Stat(args) => stat::run(&args),
        Command::Freeze(args) => freeze::run(&args),
        Command::Thaw(args) => freeze::thaw(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Shutdown(args) => shutdown::run(&args),
        Command::Put(args) => put::run(&args),
        Command::Serve(Serve::Nfs(args)) => serve_nfs::run(&args),
        Command::Serve(Serve::Disk(args)) => serve_disk::run(&args),
        Command::Crash(command) => crash::run(&command),
        Command::Store(command) => store::run(&command),
        Command::Ftl(command) => ftl::run(&command),
        Command::Completions(args) => completions::run(&args),
        Command::InstallHelper(args) => helper::install(&args),
        Command::Man(args) => man::run(&args),
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let json = wants_json(std::env::args_os());
    let cli = match arguments.next().and_then(|name| helper::Role::of(&name)) {
        Some(helper::Role::Command(name)) => {
            let line = ["steadfast".into(), name.into()];
            Cli::try_parse_from(line.into_iter().chain(arguments))
        }
        Some(role) => return helper::run(role, arguments),
        None => Cli::try_parse(),
    };
    let done = match cli {
        Ok(cli) => {
            for (old, new) in renamed(std::env::args_os()) {
                failure::notice(&format!(
                    "{old} is called {new} now; the old name will go away"
                ));
            }
            run(cli.command)
        }
        // Help and version are no errors.
        Err(error) if !json || !error.use_stderr() => error.exit(),
        Err(error) => {
            let text = error.render().to_string();
            let line = text.lines().next().unwrap_or_default();
            Err(Failure::usage(line.trim_start_matches("error: ")))
        }
    };
    match done {
        Ok(code) => code,
        Err(failure) => {
            match json {
                true => failure.report_json(),
                false => failure.report(),
            }
            failure.code.into()
        }
    }
}

/// Renamed options. The old name is accepted for one more version.
const RENAMED: [(&str, &str); 3] = [
    ("--first", "--flush"),
    ("--full", "--epoch-full"),
    ("--gone", "--on-disconnect"),
];

/// The old and new names of renamed options on a command line.
fn renamed(
    arguments: impl Iterator<Item = std::ffi::OsString>,
) -> Vec<(&'static str, &'static str)> {
    let options = arguments.take_while(|argument| argument != "--");
    let names = options.filter_map(|argument| {
        let name = argument.to_str()?.split('=').next()?;
        RENAMED.iter().find(|(old, _)| *old == name).copied()
    });
    names.collect()
}

/// Whether results and errors are wanted as JSON, even if the line is otherwise wrong.
fn wants_json(arguments: impl Iterator<Item = std::ffi::OsString>) -> bool {
    let mut options = arguments.take_while(|argument| argument != "--");
    options.any(|argument| argument == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Each old name is still accepted, and is reported with its new one.
    #[test]
    fn renamed_options_are_accepted_with_a_note() {
        for (line, new) in [
            ("steadfast shutdown --first nothing DIR", "--flush"),
            ("steadfast shutdown --first=everything DIR", "--flush"),
            ("steadfast serve disk --full wait IMAGE", "--epoch-full"),
            ("steadfast serve disk --gone flush IMAGE", "--on-disconnect"),
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
            let found = renamed(line.split(' ').map(Into::into));
            assert_eq!(found.len(), 1, "{line}");
            assert_eq!(found[0].1, new);
        }
        let none = renamed(
            ["stream", "run", "--", "--first"]
                .map(Into::into)
                .into_iter(),
        );
        assert!(none.is_empty(), "{none:?}");
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_fixed_forms_are_understood() {
        for line in [
            "steadfast mkfs --size 1G --contract ordered --on block --label L --force IMAGE",
            "steadfast mkfs --size 1G --on flash IMAGE",
            "steadfast mkfs --size 1G --on flash:IMAGE",
            "steadfast mount -o ro,allow_other --foreground IMAGE DIR",
            "steadfast mount IMAGE DIR",
            "steadfast umount DIR",
            "steadfast fsck --repair --json IMAGE",
            "steadfast fsck --progress IMAGE",
            "steadfast fsck -n IMAGE",
            "steadfast fsck -fy IMAGE",
            "steadfast fsck -p IMAGE",
            "steadfast fsck -fa IMAGE",
            "steadfast mkfs -f -L NAME IMAGE",
            "steadfast grow IMAGE",
            "steadfast grow --size 2T --json IMAGE",
            "steadfast trim IMAGE",
            "steadfast trim MOUNTPOINT",
            "steadfast trim --progress --json IMAGE",
            "steadfast scrub MOUNTPOINT",
            "steadfast scrub --data --rate 100M --progress --json IMAGE",
            "steadfast info --json IMAGE",
            "steadfast info --udev IMAGE",
            "steadfast dump --json --log --bytes IMAGE",
            "steadfast dump --block 7 IMAGE",
            "steadfast dump --superblock --json IMAGE",
            "steadfast dump --inode 4711 IMAGE",
            "steadfast dump --directory /a/b --json IMAGE",
            "steadfast sync DIR",
            "steadfast stat --json DIR",
            "steadfast stat --watch 5 --count 2 DIR",
            "steadfast stream run NAME -- COMMAND --option",
            "steadfast stream run NAME --ignore-fsync --commit-interval 0.5 --mount DIR --mount OTHER -- COMMAND",
            "steadfast stream run --detach NAME -- COMMAND",
            "steadfast stream set NAME 17",
            "steadfast stream set NAME 17 --mount DIR --ignore-fsync --user 1000",
            "steadfast stream leave 17",
            "steadfast stream alter NAME --honour-fsync --commit-interval volume",
            "steadfast stream sync NAME",
            "steadfast stream list --json",
            "steadfast stream list DIR",
            "steadfast stream show 17 --mount DIR",
            "steadfast stream stats --json DIR",
            "steadfast stream stats --merges --mount DIR",
            "steadfast stream rules list",
            "steadfast stream rules add NAME --cgroup /a/b",
            "steadfast stream rules add NAME --directory DIR",
            "steadfast stream rules add --environment --mount DIR",
            "steadfast stream rules remove --cgroup /a/b",
            "steadfast freeze --limit 30 DIR",
            "steadfast freeze DIR -- cp img copy",
            "steadfast thaw DIR",
            "steadfast metrics",
            "steadfast metrics --listen 127.0.0.1:9050 DIR OTHER",
            "steadfast shutdown --flush log DIR",
            "steadfast put FILE",
            "steadfast put --recover FILE",
            "steadfast serve nfs IMAGE",
            "steadfast serve nfs --listen 127.0.0.1:2049 --mount-port 20048 --read-only IMAGE:/EXPORT OTHER:/O",
            "steadfast serve nfs --listen [::1]:2049 --config FILE --rpcbind --metrics 127.0.0.1:9049",
            "steadfast serve disk IMAGE",
            "steadfast serve disk --socket PATH --epoch-full wait IMAGE",
            "steadfast serve disk --listen 127.0.0.1:10809 --on-disconnect rollback --json IMAGE",
            "steadfast serve disk --fuse DIR --read-only IMAGE",
            "steadfast serve disk IMAGE -- --tls=require",
            "steadfast crash self --seed 1 --images 10",
            "steadfast crash self --on flash --contract sync --images 10",
            "steadfast crash put --size 8K --tears --json",
            "steadfast crash test --check C -- W --option",
            "steadfast crash test --fs ext4,xfs --setup S --recover R --budget 10m --jobs 2 --json -- W",
            "steadfast crash record -o T --no-stacks -- W",
            "steadfast crash explore --check C --html F --baseline B --fail-on posix --lying-disk T",
            "steadfast crash import --strace LOG --root DIR --from DIR -o T",
            "steadfast crash explain T V1",
            "steadfast crash show T V1 DIR",
            "steadfast crash models ext4",
            "steadfast crash ack TEXT",
            "steadfast mkfs --size 100G --on s3://bucket/prefix --flush store --endpoint http://127.0.0.1:7070",
            "steadfast mount -o take_over,store_timeout=60 s3://bucket/prefix DIR",
            "steadfast serve nfs s3://bucket/prefix:/data",
            "steadfast store probe s3://bucket/prefix --endpoint http://127.0.0.1:7070 --writers 8 --rounds 2 --json",
            "steadfast store info --json s3://bucket/prefix",
            "steadfast store check --progress file:///srv/volume",
            "steadfast store gc --sweep --delete s3://bucket/prefix",
            "steadfast store cost --json s3://bucket/prefix",
            "steadfast store snapshot create s3://bucket/prefix NAME",
            "steadfast store snapshot list s3://bucket/prefix",
            "steadfast store snapshot delete s3://bucket/prefix NAME",
            "steadfast store clone s3://bucket/prefix@NAME s3://bucket/other",
            "steadfast store promote --progress s3://bucket/other",
            "steadfast store copy --to-endpoint http://127.0.0.1:7070 --to-key-file FILE --json IMAGE s3://bucket/other",
            "steadfast store take-over s3://bucket/prefix",
            "steadfast ftl format --size 1G --epoch 8M --force IMAGE",
            "steadfast ftl mkfs --size 1G IMAGE",
            "steadfast ftl info --json IMAGE",
            "steadfast ftl stress --seed 3 --operations 1000000 --progress --json",
            "steadfast ftl bench --interval 1,2048 --json",
            "steadfast completions bash",
            "steadfast man DIR",
            "steadfast install-helper",
            "steadfast install-helper --remove DIR",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        for line in [
            "steadfast mkfs --contract none IMAGE",
            "steadfast stream run NAME",
            "steadfast stream run NAME COMMAND",
            "steadfast stream run NAME --commit-interval 0 -- COMMAND",
            "steadfast stream set NAME -1",
            "steadfast stream set NAME pid",
            "steadfast stream rules add NAME",
            "steadfast stream rules add NAME --environment",
            "steadfast stream rules add --cgroup /a",
            "steadfast stream rules add NAME --cgroup /a --directory DIR",
            "steadfast stream rules add NAME --directory DIR --mount DIR",
            "steadfast stream stats --mount DIR DIR",
            "steadfast mount IMAGE",
            "steadfast dump --log --block 7 IMAGE",
            "steadfast dump --bytes IMAGE",
            "steadfast serve nfs --threads 0 IMAGE",
            "steadfast serve nfs --listen here IMAGE",
            "steadfast serve disk --epoch-full never IMAGE",
            "steadfast serve disk --socket PATH --fuse DIR IMAGE",
            "steadfast serve disk --fuse DIR --on-disconnect flush IMAGE",
            "steadfast crash test -- W",
            "steadfast crash test --check C",
            "steadfast crash test --check C W",
            "steadfast crash record -- W",
            "steadfast dump --inode a/b IMAGE",
            "steadfast dump --inode 7 --directory 7 IMAGE",
            "steadfast",
        ] {
            // A stand-in takes any arguments.
            let missing = Feature::missing_for(&line.replace(' ', "-")).is_some();
            let wrong = Cli::try_parse_from(line.split(' ')).is_err();
            assert_eq!(wrong, !missing, "{line}");
        }
    }

    /// The units that are shipped start commands that this program has.
    #[test]
    fn the_units_command_lines_are_understood() {
        let units = [
            include_str!("../../../docs/systemd/steadfast@.service"),
            include_str!("../../../docs/systemd/steadfast-nfs@.service"),
        ];
        for unit in units {
            let line = unit.lines().find_map(|l| l.strip_prefix("ExecStart="));
            let line = line.unwrap_or_default().replace("%i", "NAME");
            let (_, line) = line.rsplit_once("/bin/").unwrap_or_default();
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }
}
