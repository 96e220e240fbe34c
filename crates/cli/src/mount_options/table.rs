//! The mount options, each declared once: its words, their effect, the texts of help and manual. Users bring their
//! fstab along: options of other file systems are here, too, and work, do no harm, or are refused with the reason.

use std::ops::RangeInclusive;
use std::time::Duration;

use steadfast_fuse::THREADS_MAX;

use super::Options;
use crate::size;
use crate::volume::Contract;

/// Longest commit interval.
const COMMIT_SECONDS_MAX: u64 = 3600;
/// Longest time limit for answers of a store.
const STORE_SECONDS_MAX: u64 = 24 * 3600;
/// Smallest page cache.
const CACHE_BYTES_MIN: u64 = 1 << 20;
/// Smallest budget of uncommitted data.
const DIRTY_BYTES_MIN: u64 = 1 << 20;

/// Effect of a word.
#[derive(Clone, Copy)]
pub(super) enum Effect {
    Flag(fn(&mut Options)),
    /// Takes a value of this form.
    Value(&'static str, fn(&mut Options, &str) -> Result<(), String>),
    /// No effect, with any value or none; the text says why.
    Nothing,
    /// No effect; some values are refused.
    Judged(fn(&str) -> Result<(), String>),
    /// The text says why.
    Refused,
}

/// A word; one that ends with `*` matches all that begin with it.
pub(super) struct Word {
    pub(super) name: &'static str,
    pub(super) effect: Effect,
    /// The form of a value that has no effect.
    shown: &'static str,
}

impl Word {
    /// As users write it.
    pub(super) fn form(&self) -> String {
        match (self.effect, self.shown) {
            (Effect::Value(form, _), _) => format!("{}={form}", self.name),
            (_, "") => self.name.to_owned(),
            (_, form) => format!("{}={form}", self.name),
        }
    }
}

/// Words that are explained together: all work, none has an effect, or all are refused.
pub(super) struct Row {
    pub(super) words: &'static [Word],
    /// One line, a phrase.
    pub(super) help: &'static str,
    /// In roff; empty if the phrase says all.
    pub(super) manual: &'static str,
}

const fn flag(name: &'static str, set: fn(&mut Options)) -> Word {
    Word {
        name,
        effect: Effect::Flag(set),
        shown: "",
    }
}

const fn value(
    name: &'static str,
    form: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
) -> Word {
    Word {
        name,
        effect: Effect::Value(form, set),
        shown: form,
    }
}

const fn nothing(name: &'static str, shown: &'static str) -> Word {
    Word {
        name,
        effect: Effect::Nothing,
        shown,
    }
}

const fn refused(name: &'static str, shown: &'static str) -> Word {
    Word {
        name,
        effect: Effect::Refused,
        shown,
    }
}

pub(super) const ROWS: &[Row] = &[
    Row {
        words: &[flag("ro", |o| o.set_read_only(true))],
        help: "change nothing, not even replay the log on the image",
        manual: "Nothing is changed, not even the log replayed on the image: it is applied in memory.",
    },
    Row {
        words: &[flag("rw", |o| o.set_read_only(false))],
        help: "allow changes (default)",
        manual: "",
    },
    Row {
        words: &[flag("allow_other", |o| o.mount.allow_other = true)],
        help: "let other users in; the kernel then checks permissions",
        manual: "Users other than the one who mounts are let in; the kernel checks permissions.
For users other than root,
.I /etc/fuse.conf
must allow it.",
    },
    Row {
        words: &[value("contract", "NAME", contract)],
        help: "refuse a volume under another contract than NAME",
        manual: "Refuse to mount a volume that runs under another contract than
.IR NAME :
.BR ordered \", \" metadata-prefix \", \" sync \" or \" relaxed ;
see
.BR steadfast (7).
A volume's contract is chosen when it is made.",
    },
    Row {
        words: &[flag("take_over", |o| o.store.take_over = true)],
        help: "on an object store: fence an owner that has not released the volume",
        manual: "For a volume on an object store.
An owner that has not released the volume, on another machine or in a process that runs, is fenced: its writes and flushes
fail from then on, and it acknowledges nothing.
Without this option such a volume is refused, unless its owner is a process of this machine that has ended.",
    },
    Row {
        words: &[value("store_timeout", "SECONDS", |o, text| {
            let seconds = number(text, 1, STORE_SECONDS_MAX)?;
            o.store.timeout = Some(Duration::from_secs(seconds));
            Ok(())
        })],
        help: "on an object store: fail when it has not answered for this time (default: wait)",
        manual: "For a volume on an object store.
When the store has not answered for this time, the volume fails with EIO and becomes read-only.
By default, calls wait for the end of an outage.",
    },
    Row {
        words: &[value("follow", "SECONDS", |o, text| {
            let seconds = number(text.strip_suffix('s').unwrap_or(text), 1, STORE_SECONDS_MAX)?;
            o.follow = Some(Duration::from_secs(seconds));
            Ok(())
        })],
        help: "on an object store, with ro: show another machine's flushes; ask the store every SECONDS seconds",
        manual: "For a volume on an object store that another machine has mounted; needs
.BR ro .
Asks the store for new flushes every SECONDS seconds: two requests if there are none.
The mount always shows the volume after a whole flush, and never an earlier flush than before.
A file that is open and was removed gives ESTALE.
When the store has not answered for ten minutes, every call gives ESTALE until it answers: objects of the last state may have
been collected by then.",
    },
    Row {
        words: &[value("endpoint", "URL", |o, text| {
            o.store.endpoint = Some(text.to_owned());
            Ok(())
        })],
        help: "the address of a server that speaks the store's protocol (by default, from the environment)",
        manual: "For a volume on an object store.
The address of a server that speaks the protocol of its scheme; by default that of
.B AWS_ENDPOINT_URL,
.B AZURE_STORAGE_ENDPOINT
or
.B GOOGLE_BASE_URL
in the environment.",
    },
    Row {
        words: &[value("key_file", "FILE", |o, text| {
            o.store.key_file = Some(text.into());
            Ok(())
        })],
        help: "on an object store: the key file of an encrypted volume (default: STEADFAST_KEY_FILE)",
        manual: "For an encrypted volume on an object store.
The file that wraps its key; by default the one that
.B STEADFAST_KEY_FILE
in the environment names.",
    },
    Row {
        words: &[value("cache", "SIZE|FILE", |o, text| {
            if text.contains('/') {
                let path = std::path::absolute(text);
                o.store.cache = Some(path.map_err(|e| e.to_string())?);
                return Ok(());
            }
            let bytes = size::parse(text)?;
            if bytes < CACHE_BYTES_MIN {
                return Err("1M is the least".to_owned());
            }
            o.volume.cache_bytes = bytes;
            Ok(())
        })],
        help: "a size: memory for clean cached blocks, 1M at least (default 64M); a path: a cache device or file, on an object store",
        manual: "A size is the memory for clean cached blocks.
A path, with a slash in it, is a cache device or file for a volume on an object store: it keeps what was read across restarts, and with
.B flush=cache
flushes are durable there first.
A missing file is made, with a size of 1 GiB or
.BR cache_size .
No other mount can use the cache meanwhile.
The blocks of an encrypted volume are encrypted there, too.",
    },
    Row {
        words: &[value("flush", "CONTRACT", |o, text| {
            o.store.flush_cache = match text {
                "store" => false,
                "cache" => true,
                _ => return Err(format!("'{text}' is neither 'store' nor 'cache'")),
            };
            Ok(())
        })],
        help: "on an object store: when a flush is durable: store (default), or cache, which needs cache=FILE",
        manual: "For a volume on an object store;
.B cache
for one made by
.B mkfs \\-\\-flush cache.
.RS
.TP
.B store
What a flush acknowledged survives the loss of the machine; after any crash the disk is a flush that includes it.
.TP
.B cache
A flush is durable on the cache device.
If process or power fails, the disk is exactly the last flush.
If machine or cache is lost, or another machine takes over, the disk is exactly
.I some
earlier flush, at most
.B lag
behind.
.RE
.IP
The next mount with the cache sends the flushes that only the cache has.
If another machine took the volume over meanwhile, the mount is refused, so that nothing is mixed, and
.B steadfast store salvage
makes a clone of the volume with the lost flushes.
.B steadfast sync \\-\\-store
waits until the store has everything;
.B steadfast stat
shows the lag;
.B umount
waits.",
    },
    Row {
        words: &[
            value("lag", "TIME", |o, text| {
                o.store.lag = Some(time(text)?);
                Ok(())
            }),
            value("lag_size", "SIZE", |o, text| {
                o.store.lag_bytes = Some(lag_size(text)?);
                Ok(())
            }),
        ],
        help: "with flush=cache: maximum lag of the store, in time (default 5s) and in bytes (default and maximum 256M)",
        manual: "With
.BR flush=cache :
flushes wait while the store lacks a flush that is older than this, or more bytes than this.
So at most this is lost with the machine, and a fenced machine acknowledges no longer than this.",
    },
    Row {
        words: &[value("cache_size", "SIZE", |o, text| {
            o.store.cache_size = Some(size::parse(text)?);
            Ok(())
        })],
        help: "with cache=FILE: the size of a cache file that is made, 64M at least (default 1G)",
        manual: "",
    },
    Row {
        words: &[flag("discard_cache", |o| o.store.discard_cache = true)],
        help: "with flush=cache: drop the flushes that only the cache has, if another machine took the volume over",
        manual: "",
    },
    Row {
        words: &[value("dirty", "SIZE", |o, text| {
            let bytes = size::parse(text)?;
            if bytes < DIRTY_BYTES_MIN {
                return Err("1M is the least".to_owned());
            }
            o.volume.uncommitted_bytes = bytes;
            Ok(())
        })],
        help: "memory for data that is not committed yet, 1M at least (default an eighth of the memory, 1G at most)",
        manual: "Memory for data that was written and is not committed yet.
Data that is overwritten, truncated or deleted before its commit never reaches the device; a larger budget avoids more writes.
Writers wait when it is used up; its last eighth is for streams that hold little.
The default is an eighth of the machine's memory, and 1 GiB at most.
The commit interval and
.BR fsync (2)
commit as always.",
    },
    Row {
        words: &[flag("in_place", |o| o.in_place = true)],
        help: "in persistent memory: overwrites go to their place, faster and not atomic",
        manual: "For volumes in persistent memory.
Overwrites of written pages store into them, with one fence and without a free page; after a crash any 8 bytes of such a
write may be old.
Without this option each write that the kernel sends, of at most 1 MiB, is there whole or not at all.",
    },
    Row {
        words: &[value("commit", "SECONDS", |o, text| {
            o.volume.commit_interval = Duration::from_secs(number(text, 1, COMMIT_SECONDS_MAX)?);
            Ok(())
        })],
        help: "maximum age of uncommitted changes, 1 to 3600 seconds (default 5)",
        manual: "",
    },
    Row {
        words: &[value("commit_gap", "TIME", |o, text| {
            o.volume.commit_gap = gap(text)?;
            Ok(())
        })],
        help: "least time between two commits for which callers wait (default 0)",
        manual: "For a volume on an object store, where each commit is a request that costs money.
A sync that comes sooner after the last commit waits, and shares the next one with all others that come meanwhile.
So a program that calls
.BR fsync (2)
in a loop makes at most one request in this time, instead of as many as the store answers.
At most 10 seconds, such as
.BR commit_gap=100ms .
A sync after a longer break does not wait.
One that waits keeps a thread of the mount busy
.RB ( threads=N ).",
    },
    Row {
        words: &[flag("stream_environment", |o| o.mount.stream_environment = true)],
        help: "STEADFAST_STREAM in a process's environment names its stream, unless one was set",
        manual: "The variable
.B STEADFAST_STREAM
in the environment of a process names its stream, from its first change on, also while no stream has been set on this mount.
Without this option it does so only after somebody has set a stream or added a rule; see
.BR steadfast\\-stream (1).
The first change of each process costs a look at its environment.",
    },
    Row {
        words: &[
            flag("sync", |o| (o.mount.sync, o.mount.dir_sync) = (true, true)),
            flag("async", |o| (o.mount.sync, o.mount.dir_sync) = (false, false)),
        ],
        help: "every change is durable before the call that made it returns; or when a sync or commit comes (default)",
        manual: "With
.BR sync ,
every change is durable before the call that made it returns, as if a program called
.BR fsync (2)
each time.
Stores through
.BR mmap (2)
still need
.BR msync (2).
A volume under the contract
.B sync
always does this, at a lower cost.
.B async
is the default: the volume's contract says what is durable when.",
    },
    Row {
        words: &[flag("dirsync", |o| o.mount.dir_sync = true)],
        help: "every change of names is durable before the call that made it returns",
        manual: "Making, removing, linking and renaming a file or directory is durable before the call returns, with what was
done before it in the same stream, as if a program called
.BR fsync (2)
on the directory each time.",
    },
    Row {
        words: &[value("threads", "N", |o, text| {
            o.threads = Some(number(text, 1, THREADS_MAX as u64)? as usize);
            Ok(())
        })],
        help: "requests that may be in progress at a time, 1 to 64 (default 16, on an object store 64)",
        manual: "",
    },
    Row {
        words: &[
            flag("direct", |o| o.direct = Some(true)),
            flag("buffered", |o| o.direct = Some(false)),
        ],
        help: "bypass the host's page cache, or use it (default: bypass it where possible)",
        manual: "Bypass the host's page cache, or use it.
The default is to bypass it where that is possible
.RI ( \\fBdirect\\fR
insists).",
    },
    Row {
        words: &[
            flag("io_uring", |o| o.mount.io_uring = Some(true)),
            flag("noio_uring", |o| o.mount.io_uring = Some(false)),
        ],
        help: "requests come over io_uring, or through /dev/fuse (default: io_uring where the kernel offers it)",
        manual: "Requests come over io_uring, a queue for each processor, or through
.IR /dev/fuse .
By default over io_uring where the kernel offers it
.RB ( io_uring
insists): since Linux 6.14, if root has allowed it in
.IR /sys/module/fuse/parameters/enable_uring .
It is quicker for several programs at a time, and no slower for one.",
    },
    Row {
        words: &[
            flag("poll", |o| o.mount.poll = true),
            flag("nopoll", |o| o.mount.poll = false),
        ],
        help: "keep idle processors from halting while one program sends requests in quick succession (default: yes)",
        manual: "While requests of one program follow one another closely, threads of the lowest priority keep idle processors from halting,
because waking one up takes longer than serving a request, above all on virtual machines.
They rest one millisecond after the last request.
On by default; the server's processor time includes them.",
    },
    Row {
        words: &[
            flag("noatime", |o| o.mount.relatime = false),
            flag("norelatime", |o| o.mount.relatime = false),
        ],
        help: "reading changes no access times (default)",
        manual: "",
    },
    Row {
        words: &[
            flag("relatime", |o| o.mount.relatime = true),
            flag("atime", |o| o.mount.relatime = true),
        ],
        help: "the first read after a change, and one a day, changes the access time",
        manual: "The first read after a change, and one a day, changes the access time.
The kernel then reports every open, and drops its cache of a file when it is opened,
which costs speed.
Reads that it still answers by itself are not seen: a read through the same open file that has just been
written, and reads of several programs from a file that none has opened anew.",
    },
    Row {
        words: &[
            flag("nodiratime", |o| o.mount.no_dir_atime = true),
            flag("diratime", |o| o.mount.no_dir_atime = false),
        ],
        help: "with relatime, whether reading a directory changes its access time (default: yes)",
        manual: "",
    },
    Row {
        words: &[
            flag("acl", |o| o.mount.acl = Some(true)),
            flag("noacl", |o| o.mount.acl = Some(false)),
        ],
        help: "whether POSIX ACLs can be read and set, and the kernel enforces them (default: as allow_other)",
        manual: "Whether POSIX access control lists can be read and set, and the kernel enforces them.
The default is yes with
.BR allow_other ,
without which all callers are one user or root.
With
.B acl
the kernel then checks permissions all the same, and asks for a directory's attributes once after each change of it.
A list takes up to 500 users and groups; through the kernel it can have 510 entries.
With
.B noacl
setting one fails with
.BR EOPNOTSUPP ,
existing lists are kept but not shown, and the kernel uses the permission bits alone, where the
bits of the group are those of the list's mask.
The first list on a volume marks its superblock: programs that know nothing of lists refuse the volume from then on.",
    },
    Row {
        words: &[
            flag("dev", |o| o.mount.devices = true),
            flag("nodev", |o| o.mount.devices = false),
        ],
        help: "whether device nodes work (default: no; mounted by mount(8) for root: yes)",
        manual: "Whether device nodes work.
.B steadfast mount
lets them work only if asked to; mounted by
.BR mount (8)
for root they work unless
.B nodev
is given, as on other file systems.",
    },
    Row {
        words: &[
            flag("suid", |o| o.mount.set_id = true),
            flag("nosuid", |o| o.mount.set_id = false),
        ],
        help: "whether set-id bits work (default: no; mounted by mount(8) for root: yes)",
        manual: "Whether set-id bits and file capabilities work, with the same defaults.
A write by another user takes the bits away, as everywhere.",
    },
    Row {
        words: &[
            flag("exec", |o| o.mount.no_exec = false),
            flag("noexec", |o| o.mount.no_exec = true),
        ],
        help: "whether programs are executed (default: yes)",
        manual: "",
    },
    Row {
        words: &[
            flag("nosymfollow", |o| o.mount.no_symlinks = true),
            flag("symfollow", |o| o.mount.no_symlinks = false),
        ],
        help: "symbolic links can be made and read, but paths through them fail; or they are followed (default)",
        manual: "",
    },
    Row {
        words: &[flag("upper", |o| o.mount.upper_layer = true)],
        help: "for an upper layer of overlayfs whose set-id bits work: writes through it clear them, too",
        manual: "For an upper layer of overlayfs, container storage among it, in which set-id bits work.
overlayfs writes with the identity of its mount's owner, and the kernel then does not ask a server that clears set-id
bits on writes, as this one does, to clear them: a set-id program that another user writes to would keep its privilege.
With this option the kernel clears them itself, at the cost of one more request for each write.",
    },
    Row {
        words: &[flag("over", |o| o.mount.over = true)],
        help: "the mount point may be covered by another mount already",
        manual: "",
    },
    Row {
        words: &[flag("auto_unmount", |o| o.auto_unmount = true)],
        help: "in the background: unmount when something kills the server",
        manual: "In the background: when something kills the server, the mount is taken out of the tree at once.
Without it, the mount stays and answers with errors, so that programs do not write into the directory below.",
    },
    Row {
        words: &[value("log", "FILE", |o, text| {
            o.log = Some(file(text)?.into());
            Ok(())
        })],
        help: "append the server's messages to FILE",
        manual: "The server appends its messages to
.IR FILE
instead of sending them to the system's log.",
    },
    Row {
        words: &[value("trace", "FILE", |o, text| {
            o.trace = Some(file(text)?.into());
            Ok(())
        })],
        help: "append a line to FILE for each request of the kernel",
        manual: "The server appends a line to
.I FILE
for each request of the kernel: seconds since the mount, what is asked for, the number of the inode, a name, the thread.",
    },
    Row {
        words: &[Word {
            name: "errors",
            effect: Effect::Judged(|text| match text {
                "remount-ro" => Ok(()),
                _ => Err("after an error of the device, a volume is always read-only until it is mounted anew".to_owned()),
            }),
            shown: "remount-ro",
        }],
        help: "always in effect: after an error of the device, the volume is read-only",
        manual: "After an error of its device, a volume answers changes with errors and only reads, until it is mounted anew.
Other values than
.B remount-ro
are refused.",
    },
    Row {
        words: &[flag("defaults", |_| {})],
        help: "nothing beside the defaults",
        manual: "",
    },
    Row {
        words: &[
            nothing("auto", ""),
            nothing("noauto", ""),
            nothing("user", ""),
            nothing("nouser", ""),
            nothing("users", ""),
            nothing("owner", ""),
            nothing("group", ""),
        ],
        help: "mount(8) decides which users may mount, and when",
        manual: "",
    },
    Row {
        words: &[
            nothing("nofail", ""),
            nothing("_netdev", ""),
            nothing("comment", "TEXT"),
            nothing("uhelper", "NAME"),
            nothing("x-*", ""),
        ],
        help: "meant for mount(8) and systemd(1)",
        manual: "",
    },
    Row {
        words: &[nothing("lazytime", ""), nothing("nolazytime", "")],
        help: "changed times are written with the next commit in any case",
        manual: "",
    },
    Row {
        words: &[nothing("discard", ""), nothing("nodiscard", "")],
        help: "free space is given back by fstrim(8) and 'steadfast trim', at a time of your choice",
        manual: "",
    },
    Row {
        words: &[
            nothing("silent", ""),
            nothing("loud", ""),
            nothing("iversion", ""),
            nothing("noiversion", ""),
            nothing("nomand", ""),
        ],
        help: "they change nothing on a FUSE mount",
        manual: "",
    },
    Row {
        words: &[nothing("default_permissions", "")],
        help: "permissions are checked in any case",
        manual: "",
    },
    Row {
        words: &[nothing("fsname", "NAME"), nothing("subtype", "NAME")],
        help: "the source shown is the image and the type is fuse.steadfast: umount(8) finds the server by them",
        manual: "",
    },
    Row {
        words: &[nothing("nonempty", "")],
        help: "the mount point need not be empty",
        manual: "",
    },
    Row {
        words: &[nothing("user_xattr", "")],
        help: "extended attributes always work",
        manual: "",
    },
    Row {
        words: &[
            nothing("big_writes", ""),
            nothing("kernel_cache", ""),
            nothing("max_read", "BYTES"),
            nothing("max_write", "BYTES"),
        ],
        help: "requests are as large as the kernel makes them, and its page cache is kept in any case",
        manual: "",
    },
    Row {
        words: &[refused("uid", "NUMBER"), refused("gid", "NUMBER")],
        help: "owners are stored with each file; 'chown' changes them",
        manual: "",
    },
    Row {
        words: &[
            refused("umask", "MODE"),
            refused("fmask", "MODE"),
            refused("dmask", "MODE"),
        ],
        help: "modes are stored with each file; 'chmod' changes them, and a program's umask applies to its new files",
        manual: "",
    },
    Row {
        words: &[refused("allow_root", "")],
        help: "root is let in with allow_other, and when it is root that mounts",
        manual: "",
    },
    Row {
        words: &[refused("strictatime", "")],
        help: "every read would be a write; 'relatime' notes the first read after a change, and one a day",
        manual: "",
    },
    Row {
        words: &[refused("mand", "")],
        help: "Linux has had no mandatory locks since 5.15",
        manual: "",
    },
    Row {
        words: &[refused("direct_io", "")],
        help: "it would make mmap(2) fail; programs open files with O_DIRECT",
        manual: "",
    },
    Row {
        words: &[refused("nouser_xattr", "")],
        help: "extended attributes are part of the volume",
        manual: "",
    },
];

fn contract(options: &mut Options, name: &str) -> Result<(), String> {
    if Contract::from_name(name).is_none() {
        let names = Contract::ALL.map(Contract::name).join(", ");
        return Err(format!("'{name}' is none of {names}"));
    }
    options.contract = Some(name.to_owned());
    Ok(())
}

fn file(text: &str) -> Result<&str, String> {
    match text {
        "" => Err("needs the name of a file".to_owned()),
        path => Ok(path),
    }
}

fn number(value: &str, min: u64, max: u64) -> Result<u64, String> {
    value
        .parse()
        .ok()
        .filter(|n| (min..=max).contains(n))
        .ok_or_else(|| format!("'{value}' is no number from {min} to {max}"))
}

/// A time such as `5s`, `500ms` or `5` (seconds), from 100 ms to an hour.
fn time(text: &str) -> Result<Duration, String> {
    time_within(text, 100..=3_600_000)
        .ok_or_else(|| format!("'{text}' is no time from 100ms to 3600s"))
}

/// From 0 to 10 s.
fn gap(text: &str) -> Result<Duration, String> {
    time_within(text, 0..=10_000).ok_or_else(|| format!("'{text}' is no time from 0ms to 10s"))
}

/// A time in milliseconds or seconds.
fn time_within(text: &str, ms_range: RangeInclusive<u64>) -> Option<Duration> {
    let (number, ms) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').unwrap_or(text), 1000),
    };
    let time = number.parse::<u64>().ok().and_then(|n| n.checked_mul(ms));
    time.filter(|ms| ms_range.contains(ms))
        .map(Duration::from_millis)
}

/// From 1 MiB to 256 MiB.
fn lag_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text)?;
    match (1 << 20..=256 << 20).contains(&bytes) {
        true => Ok(bytes),
        false => Err("1M is the least, and 256M the most".to_owned()),
    }
}
