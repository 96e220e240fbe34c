//! Exit codes and examples of each page. Every command has both; a test parses the examples, so that none is out of
//! date.

use crate::features::Feature;

mod crash;
mod store;
mod streams;

/// Exit codes of most commands.
const USUAL: &str = "0 done; 1 failed, and standard error says why; 2 the command line is wrong.";
/// Exit codes of servers, which run until they are asked to end.
const SERVER: &str = "0 a signal or an unmount asked for the end, and everything is durable; 1 failed; 2 the command line, or a file that it \
    names for its options, is wrong.";

const NFS_SERVER: &str = "0 a signal asked for the end, and everything is durable; 1 failed; 2 the command line, or a file that it \
    names for its options, is wrong; 5 another server took the volumes over.";

/// Sections of one command.
pub(super) struct Sections {
    /// Name of its page.
    pub(super) name: &'static str,
    pub(super) exit: &'static str,
    /// Command lines, each with a description.
    pub(super) examples: &'static [(&'static str, &'static str)],
}

const fn usual(name: &'static str, examples: &'static [(&'static str, &'static str)]) -> Sections {
    Sections {
        name,
        exit: USUAL,
        examples,
    }
}

const SECTIONS: &[Sections] = &[
    usual(
        "steadfast",
        &[
            (
                "steadfast mkfs --size 1G data.img",
                "Make a volume in a new file.",
            ),
            (
                "steadfast mount data.img /mnt",
                "Mount it; the server runs in the background.",
            ),
            (
                "steadfast umount /mnt",
                "Unmount it; when this returns, everything is durable.",
            ),
        ],
    ),
    usual(
        "steadfast-mkfs",
        &[
            (
                "steadfast mkfs --size 1G --label data data.img",
                "Make a volume of 1 GiB in a new file.",
            ),
            (
                "steadfast mkfs --contract sync /dev/sdb1",
                "Make a volume on a partition, on which every call is durable when it returns.",
            ),
            (
                "steadfast mkfs --size 1G --contract relaxed data.img",
                "Make a volume for which the kernel caches writes until a file is closed or synced.",
            ),
            (
                "steadfast mkfs --size 100G --on s3://bucket/prefix",
                "Make a volume on an object store, which is tried first.",
            ),
            (
                "steadfast mkfs --size 1G --on pm /dev/shm/volume",
                "Make a volume in persistent memory: a file on tmpfs, or on a file system mounted with DAX.",
            ),
            (
                "steadfast mkfs --size 1G --on flash:flash.img",
                "Make a volume on a disk in emulated flash memory.",
            ),
        ],
    ),
    Sections {
        name: "steadfast-mount",
        exit: "0 the mount answers (with --foreground: it was unmounted, and the volume is closed cleanly); 1 failed; 2 the command line or \
            an option is wrong. In /etc/fstab, and as mount.steadfast, the codes are those of mount(8).",
        examples: &[
            ("steadfast mount data.img /mnt", "Mount a volume."),
            (
                "steadfast mount -o ro,allow_other data.img /mnt",
                "Mount it read-only, for all users.",
            ),
            (
                "steadfast mount --foreground data.img /mnt",
                "Serve it in this process, for a service manager.",
            ),
        ],
    },
    Sections {
        name: "steadfast-umount",
        exit: "0 unmounted, and everything is durable; 1 failed, or the server was dead or could not make everything durable: standard error \
            says which; 2 the command line is wrong.",
        examples: &[
            ("steadfast umount /mnt", "Unmount a volume."),
            (
                "steadfast umount -l /mnt",
                "Take it out of the tree now; it ends when its last file is closed.",
            ),
        ],
    },
    Sections {
        name: "steadfast-fsck",
        exit: "0 clean, or no check was needed (-p); 1 damage was found and repaired; 4 damage is left; 8 the check could not run; \
            2 the command line is wrong.",
        examples: &[
            (
                "steadfast fsck data.img",
                "Check a volume; nothing is written.",
            ),
            (
                "steadfast fsck -y data.img",
                "Check it and repair what is found, as --repair does.",
            ),
            (
                "steadfast fsck --json data.img",
                "Check it, findings as JSON with block, inode and path.",
            ),
        ],
    },
    usual(
        "steadfast-grow",
        &[(
            "steadfast grow --size 2G data.img",
            "Make the image and its volume larger.",
        )],
    ),
    usual(
        "steadfast-trim",
        &[(
            "steadfast trim data.img",
            "Make holes in the image where the volume is free.",
        )],
    ),
    Sections {
        name: "steadfast-scrub",
        exit: "0 nothing wrong; 4 damage was found; 8 the scrub could not run; 2 the command line is wrong.",
        examples: &[
            (
                "steadfast scrub /mnt",
                "Compare the checksums of all metadata of a mounted volume.",
            ),
            (
                "steadfast scrub --data --rate 50M /mnt",
                "Read the content of files, too, at a limited rate.",
            ),
            (
                "steadfast scrub --json data.img",
                "Scrub an image, with the result as JSON.",
            ),
        ],
    },
    Sections {
        name: "steadfast-info",
        exit: "0 shown, whatever the state is; 1 failed, also if the image holds no volume; 2 the command line is wrong.",
        examples: &[
            ("steadfast info data.img", "Show a volume, mounted or not."),
            ("steadfast info --json /mnt", "Show a mounted one as JSON."),
            (
                "steadfast info --udev /dev/sdb1",
                "Show the properties that udev(7) keeps of a volume.",
            ),
        ],
    },
    usual(
        "steadfast-dump",
        &[
            (
                "steadfast dump data.img",
                "Show superblock and log; in persistent memory, the use of all pages.",
            ),
            (
                "steadfast dump --inode /dir/file data.img",
                "Show an inode.",
            ),
            (
                "steadfast dump --log --json data.img",
                "Show all records of the log.",
            ),
        ],
    ),
    Sections {
        name: "steadfast-sync",
        exit: "0 everything is durable; 1 it may not be; 2 the command line is wrong.",
        examples: &[(
            "steadfast sync /mnt",
            "Make everything durable that was written to a mount.",
        )],
    },
    usual(
        "steadfast-stat",
        &[
            ("steadfast stat /mnt", "Show the counters of a mount."),
            (
                "steadfast stat --watch 5 /mnt",
                "Show every five seconds what was done.",
            ),
            (
                "steadfast stat /run/steadfast-nfs-2049.sock",
                "Show the counters of a server over NFS.",
            ),
        ],
    ),
    Sections {
        name: "steadfast-freeze",
        exit: "0 frozen; 1 failed, also if the freeze ended before the command did; 2 the command line is wrong. With a command: its exit \
            code, or 128 and the number of the signal that killed it.",
        examples: &[
            (
                "steadfast freeze /mnt -- cp --sparse=always data.img copy.img",
                "Copy the image of a mounted volume.",
            ),
            (
                "steadfast freeze --limit 10 /mnt",
                "Freeze it until steadfast thaw, at most for ten seconds.",
            ),
        ],
    },
    Sections {
        name: "steadfast-thaw",
        exit: "0 thawed, and it was frozen until now; 1 it was not frozen (any more), or failed; 2 the command line is wrong.",
        examples: &[("steadfast thaw /mnt", "End a freeze.")],
    },
    Sections {
        name: "steadfast-metrics",
        exit: "0 printed; 1 failed; 2 the command line is wrong. With --listen, the command runs until a signal ends it.",
        examples: &[
            (
                "steadfast metrics",
                "Print the counters of all mounts, for the textfile collector of Prometheus' node exporter.",
            ),
            (
                "steadfast metrics --listen 127.0.0.1:9050",
                "Answer Prometheus; steadfast_mount_up is 0 for a mount whose server is gone.",
            ),
        ],
    },
    usual(
        "steadfast-shutdown",
        &[(
            "steadfast shutdown --flush log /mnt",
            "Make everything durable in the log, then end all access.",
        )],
    ),
    Sections {
        name: "steadfast-put",
        exit: "0 the file is replaced, and that is durable; 1 failed, and the file is as it was unless standard error says otherwise; \
            2 the command line is wrong.",
        examples: &[
            (
                "steadfast put config.toml",
                "Replace a file with standard input.",
            ),
            (
                "steadfast put --recover config.toml",
                "Remove what a replacement left behind when the power failed.",
            ),
        ],
    },
    usual(
        "steadfast-serve",
        &[(
            "steadfast serve nfs data.img",
            "Serve a volume over NFS to this host.",
        )],
    ),
    Sections {
        name: "steadfast-serve-nfs",
        exit: NFS_SERVER,
        examples: &[
            (
                "steadfast serve nfs data.img",
                "Serve a volume to this host.",
            ),
            (
                "steadfast serve nfs --config /etc/steadfast/nfs.toml",
                "Serve the exports of a file.",
            ),
            (
                "steadfast serve nfs --client 10.0.0.0/8 --listen 0.0.0.0 data.img:/home:/users/home",
                "Serve the directory /users/home of a volume as /home to a network.",
            ),
            (
                "steadfast serve nfs --metrics 127.0.0.1:9049 data.img:/data",
                "Serve a volume as /data, and counters to Prometheus.",
            ),
            (
                "steadfast serve nfs --standby --peer 10.0.0.2:2050 --heartbeat 10.0.0.1:2050 s3://bucket/prefix:/data",
                "Serve a volume when the server at 10.0.0.2 does not.",
            ),
        ],
    },
    Sections {
        name: "steadfast-serve-disk",
        exit: SERVER,
        examples: &[
            (
                "steadfast serve disk --socket disk.sock flash.img",
                "Serve a disk over NBD at a Unix socket.",
            ),
            (
                "steadfast serve disk --fuse /mnt flash.img",
                "Serve it as the file /mnt/disk.",
            ),
            (
                "steadfast serve disk -o cache=/dev/nvme0n1p3,flush=cache --socket disk.sock s3://bucket/prefix",
                "Serve the disk of a volume on an object store, whose flushes are durable on a cache device first.",
            ),
        ],
    },
    usual(
        "steadfast-ftl",
        &[(
            "steadfast ftl info flash.img",
            "Show what a flash image holds.",
        )],
    ),
    usual(
        "steadfast-ftl-format",
        &[(
            "steadfast ftl format --size 1G --epoch 8M flash.img",
            "Make a disk of 1 GiB that takes 8 MiB from one flush to the next.",
        )],
    ),
    usual(
        "steadfast-ftl-info",
        &[(
            "steadfast ftl info --json flash.img",
            "Show memory, disk and wear as JSON.",
        )],
    ),
    Sections {
        name: "steadfast-ftl-stress",
        exit: "0 no violation; 1 the contract was broken, or failed; 2 the command line is wrong.",
        examples: &[(
            "steadfast ftl stress --seed 3 --operations 100000",
            "Test the layer by random histories.",
        )],
    },
    usual(
        "steadfast-ftl-bench",
        &[(
            "steadfast ftl bench --interval 1,256",
            "Measure random writes, two intervals of flushes.",
        )],
    ),
    usual(
        "steadfast-completions",
        &[(
            "steadfast completions bash",
            "Print the completions for bash.",
        )],
    ),
    usual(
        "steadfast-install-helper",
        &[
            (
                "steadfast install-helper",
                "Let mount(8) and fstab(5) find this program.",
            ),
            ("steadfast install-helper --remove", "Remove the names."),
        ],
    ),
    usual(
        "steadfast-man",
        &[("steadfast man /usr/local/share/man", "Write the manual.")],
    ),
];

/// Sections of all pages.
pub(super) fn all() -> impl Iterator<Item = &'static Sections> {
    SECTIONS
        .iter()
        .chain(streams::SECTIONS)
        .chain(crash::SECTIONS)
        .chain(store::SECTIONS)
}

/// The sections of a page in roff; none if the command has none.
pub(super) fn of(name: &str) -> Option<String> {
    let found = all().find(|sections| sections.name == name)?;
    let mut text = format!(".SH \"EXIT STATUS\"\n{}\n.SH EXAMPLES\n", roff(found.exit));
    for (line, what) in found.examples {
        text.push_str(&format!(".TP\n.B {}\n{}\n", roff(line), roff(what)));
    }
    Some(text)
}

/// The sections of a command that is not in this program.
pub(super) fn of_missing(feature: Feature) -> String {
    let code = feature.lacks("").code as u8;
    let line = format!("cargo install steadfast-cli --features {}", feature.name());
    format!(
        ".SH \"EXIT STATUS\"\n{code} always: this program was built without the feature.\n.SH EXAMPLES\n.TP\n.B {}\n{}\n",
        roff(&line),
        "Build a program with the feature."
    )
}

fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}
