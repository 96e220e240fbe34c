//! The words after `-o`.

use std::path::PathBuf;
use std::time::Duration;

use steadfast_fuse::THREADS_MAX;

use crate::size;

/// Longest commit interval.
const COMMIT_SECONDS_MAX: u64 = 3600;
/// Smallest page cache.
const CACHE_BYTES_MIN: u64 = 1 << 20;

/// Contracts that volumes may have.
const CONTRACTS: [&str; 3] = ["ordered", "metadata-prefix", "sync"];

/// What can be asked for with `-o`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Options {
    /// Nothing is changed, not even the log replayed on the image.
    pub(crate) read_only: bool,
    /// Other users may use the mount.
    pub(crate) allow_other: bool,
    /// Device nodes work.
    pub(crate) devices: bool,
    /// Set-id bits work.
    pub(crate) set_id: bool,
    /// Programs are not executed.
    pub(crate) no_exec: bool,
    /// Reading changes access times, as `relatime` has it.
    pub(crate) relatime: bool,
    /// No POSIX ACLs.
    pub(crate) no_acl: bool,
    /// May cover another mount.
    pub(crate) over: bool,
    /// The mount goes away with its server.
    pub(crate) auto_unmount: bool,
    /// Around the host's page cache (`Some(true)`), through it (`Some(false)`).
    pub(crate) direct: Option<bool>,
    /// Threads that read requests.
    pub(crate) threads: Option<usize>,
    /// Requests come over io_uring.
    pub(crate) io_uring: bool,
    /// Processors may halt between two requests.
    pub(crate) no_poll: bool,
    /// Page cache in bytes.
    pub(crate) cache_bytes: Option<u64>,
    /// Data that is read stays in it, too: nobody else keeps it.
    pub(crate) keep_data: bool,
    /// Under `sync`, the front end commits before it answers.
    pub(crate) defer_commits: bool,
    /// Longest time that a change stays uncommitted.
    pub(crate) commit: Option<Duration>,
    /// The volume must run under this contract.
    pub(crate) contract: Option<String>,
    /// Where the server writes its messages.
    pub(crate) log: Option<PathBuf>,
    /// Where the server writes a line for each request.
    pub(crate) trace: Option<PathBuf>,
}

/// The options, as they are shown to who asked for an unknown one.
pub(crate) const KNOWN: &str = "ro, rw, allow_other, threads=N, cache=SIZE, contract=NAME, commit=SECONDS, direct, buffered, io_uring, poll, nopoll, \
    noatime, relatime, atime, acl, noacl, dev, nodev, suid, nosuid, exec, noexec, over, auto_unmount, log=FILE, trace=FILE, defaults";

/// The options explained, for `--help`; mount.steadfast(8) says more.
pub(crate) const HELP: &str =
    "Mount options, separated by commas; of two that contradict each other, the later holds:

ro, rw            change nothing, not even replay the log on the image; or allow changes (default)
allow_other       let other users in; the kernel then checks permissions
contract=NAME     refuse a volume under another contract than NAME
cache=SIZE        memory for clean cached blocks, 1M at least (default 64M)
commit=SECONDS    everything is durable so soon after it was done, 1 to 3600 (default 5)
threads=N         requests that may be in progress at a time, 1 to 64 (default 16)
direct, buffered  around the host's page cache, or through it (default: around it where possible)
io_uring          requests come over io_uring, a queue for each processor (a build with the feature io-uring)
poll, nopoll      keep idle processors from halting while requests come closely (default: yes)
noatime           reading changes no access times (default)
relatime, atime   the first read after a change, and one a day, changes the access time
acl, noacl        whether POSIX ACLs can be read and set, and are enforced (default: yes)
dev, nodev        whether device nodes work (default: no)
suid, nosuid      whether set-id bits work (default: no)
exec, noexec      whether programs are executed (default: yes)
over              the mount point may be covered by another mount already
auto_unmount      in the background: unmount when something kills the server
log=FILE          append the server's messages to FILE
trace=FILE        append a line to FILE for each request of the kernel
defaults          nothing beside the defaults";

/// Reads the arguments of all `-o`; of two that contradict each other, the later holds.
pub(crate) fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let words = arguments.iter().flat_map(|argument| argument.split(','));
    for word in words.map(str::trim).filter(|word| !word.is_empty()) {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        apply(&mut options, name, value)?;
    }
    Ok(options)
}

fn apply(options: &mut Options, name: &str, value: Option<&str>) -> Result<(), String> {
    let needed = || value.ok_or_else(|| format!("option '{name}' needs a value: {name}=…"));
    match name {
        "threads" => {
            let threads = number(name, needed()?, 1, THREADS_MAX as u64)?;
            options.threads = usize::try_from(threads).ok();
        }
        "commit" => {
            let seconds = number(name, needed()?, 1, COMMIT_SECONDS_MAX)?;
            options.commit = Some(Duration::from_secs(seconds));
        }
        "cache" => {
            let bytes = size::parse(needed()?).map_err(|e| format!("option 'cache': {e}"))?;
            if bytes < CACHE_BYTES_MIN {
                return Err("option 'cache': 1M is the least".to_owned());
            }
            options.cache_bytes = Some(bytes);
        }
        "contract" => {
            let name = needed()?;
            if !CONTRACTS.contains(&name) {
                return Err(format!(
                    "option 'contract': '{name}' is none of {}",
                    CONTRACTS.join(", ")
                ));
            }
            options.contract = Some(name.to_owned());
        }
        "log" => options.log = Some(file(name, needed()?)?),
        "trace" => options.trace = Some(file(name, needed()?)?),
        "strictatime" => {
            return Err(
                "option 'strictatime' is not available: 'relatime' notes the first read after \
                 a change, and one a day"
                    .to_owned(),
            );
        }
        flag => {
            let known = set_flag(options, flag);
            if !known {
                return Err(format!("unknown option '{name}'; known are: {KNOWN}"));
            }
            if value.is_some() {
                return Err(format!("option '{name}' takes no value"));
            }
        }
    }
    Ok(())
}

fn set_flag(options: &mut Options, flag: &str) -> bool {
    match flag {
        "ro" => options.read_only = true,
        "rw" => options.read_only = false,
        "allow_other" => options.allow_other = true,
        "dev" => options.devices = true,
        "nodev" => options.devices = false,
        "suid" => options.set_id = true,
        "nosuid" => options.set_id = false,
        "exec" => options.no_exec = false,
        "noexec" => options.no_exec = true,
        "poll" => options.no_poll = false,
        "nopoll" => options.no_poll = true,
        "over" => options.over = true,
        "auto_unmount" => options.auto_unmount = true,
        "io_uring" => options.io_uring = true,
        "direct" => options.direct = Some(true),
        "buffered" => options.direct = Some(false),
        "acl" => options.no_acl = false,
        "noacl" => options.no_acl = true,
        "relatime" | "atime" => options.relatime = true,
        "noatime" => options.relatime = false,
        "defaults" => {}
        _ => return false,
    }
    true
}

fn file(name: &str, value: &str) -> Result<PathBuf, String> {
    match value {
        "" => Err(format!("option '{name}' needs the name of a file")),
        path => Ok(path.into()),
    }
}

fn number(name: &str, value: &str, min: u64, max: u64) -> Result<u64, String> {
    value
        .parse()
        .ok()
        .filter(|n| (min..=max).contains(n))
        .ok_or_else(|| format!("option '{name}': '{value}' is no number from {min} to {max}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Options, String> {
        parse(&[text.to_owned()])
    }

    #[test]
    fn options_are_understood_and_the_later_one_holds() {
        let options = read("ro,allow_other,threads=4,cache=64M,commit=5,direct,noatime,log=/x/y");
        let expected = Options {
            read_only: true,
            allow_other: true,
            direct: Some(true),
            threads: Some(4),
            cache_bytes: Some(64 << 20),
            commit: Some(Duration::from_secs(5)),
            log: Some("/x/y".into()),
            ..Options::default()
        };
        assert_eq!(options, Ok(expected));
        assert!(read("noatime,relatime").is_ok_and(|options| options.relatime));
        assert_eq!(read("relatime,noatime"), Ok(Options::default()));
        assert_eq!(read("ro,rw,,defaults, noatime"), Ok(Options::default()));
        assert_eq!(
            parse(&["ro".to_owned(), "rw".to_owned()]),
            Ok(Options::default())
        );
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_list_of_known_ones() {
        for text in ["frobnicate", "ro,frobnicate=3", "RO"] {
            let error = read(text).err().unwrap_or_default();
            assert!(
                error.contains("unknown option") && error.contains("allow_other"),
                "{error}"
            );
        }
    }

    #[test]
    fn values_are_checked() {
        for text in [
            "threads",
            "threads=0",
            "threads=65",
            "threads=x",
            "cache=1K",
            "cache=1X",
            "commit=0",
            "contract=none",
            "contract",
            "strictatime",
            "ro=1",
            "log=",
            "trace=",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_list_names_every_option_that_is_understood() {
        for name in KNOWN.split(", ") {
            let word = name
                .replace("=NAME", "=ordered")
                .replace("=N", "=2")
                .replace("=SIZE", "=2M")
                .replace("=SECONDS", "=2")
                .replace("=FILE", "=/x");
            assert!(read(word.trim()).is_ok(), "{name}");
            let explained = HELP.split([' ', ',', '\n']).any(|word| word == name);
            assert!(explained, "{name}");
        }
    }
}
