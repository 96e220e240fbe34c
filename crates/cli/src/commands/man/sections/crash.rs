//! The pages of `steadfast crash`.

use super::{Sections, USUAL, usual};

/// Exit codes of commands that judge programs.
const JUDGES: &str = "0 nothing was found; 1 findings that count; 2 the command line, or a file that it names for its options, is wrong; 3 it \
    could not run, and standard error says why; 4 the budget ended, or a signal came, before all states with one lost effect were judged, and \
    nothing was found until then.";
/// Exit codes of steps that find nothing by themselves.
const STEPS: &str = "0 done; 1 failed; 2 the command line is wrong; 3 it could not run, and standard error says why.";

pub(super) const SECTIONS: &[Sections] = &[
    Sections {
        name: "steadfast-crash",
        exit: USUAL,
        examples: &[
            (
                "steadfast crash test --check ./check.sh -- ./save.sh",
                "Find out what a power cut can do to a program.",
            ),
            (
                "steadfast crash self --images 1000",
                "Explore a thousand crash images of this stack.",
            ),
        ],
    },
    Sections {
        name: "steadfast-crash-test",
        exit: JUDGES,
        examples: &[
            (
                "steadfast crash test --check ./check.sh -- ./save.sh",
                "Record save.sh in an empty directory, and run check.sh in each state that a power cut could leave.",
            ),
            (
                "steadfast crash test --fs ext4,ordered --from seed --recover ./repair --check ./check.sh --html report.html -- ./save.sh",
                "Begin with a copy of a directory, run a recovery before the check, and write an HTML report.",
            ),
            (
                "steadfast crash test --check ./check.sh --baseline known.json --fail-on ext4 --junit out.xml -- ./save.sh",
                "In a test suite: only new findings count, and only those on ext4.",
            ),
        ],
    },
    Sections {
        name: "steadfast-crash-record",
        exit: STEPS,
        examples: &[(
            "steadfast crash record -o trace -- ./save.sh",
            "Record a program; the trace can be explored many times.",
        )],
    },
    Sections {
        name: "steadfast-crash-import",
        exit: STEPS,
        examples: &[(
            "steadfast crash import --strace log --root /srv/data -o trace",
            "Make a trace of what a program did in /srv/data, from a log of 'strace -f -y -xx -ttt -s 10000000 -o log'.",
        )],
    },
    Sections {
        name: "steadfast-crash-explore",
        exit: JUDGES,
        examples: &[(
            "steadfast crash explore --fs xfs --check ./check.sh trace",
            "Judge the states that xfs allows.",
        )],
    },
    Sections {
        name: "steadfast-crash-explain",
        exit: STEPS,
        examples: &[(
            "steadfast crash explain trace V1",
            "Show all that the check said, and the cause and the repair on each model.",
        )],
    },
    Sections {
        name: "steadfast-crash-show",
        exit: STEPS,
        examples: &[(
            "steadfast crash show trace V1 state",
            "Make the directory state with the files as a power cut could leave them.",
        )],
    },
    usual(
        "steadfast-crash-models",
        &[
            ("steadfast crash models", "List the models of file systems."),
            (
                "steadfast crash models ext4",
                "Print one, as a start for your own.",
            ),
        ],
    ),
    Sections {
        name: "steadfast-crash-confirm",
        exit: "0 not seen; 1 confirmed, or failed; 2 the command line is wrong; 3 it could not run (root, FUSE, loop devices, this file system).",
        examples: &[(
            "steadfast crash confirm trace V1 --fs xfs --check ./check.sh",
            "Repeat the recorded run on a real XFS, cut the power 400 times, and look for the finding.",
        )],
    },
    Sections {
        name: "steadfast-crash-calibrate",
        exit: "0 the model allows every tree that was seen; 1 it does not, or failed; 2 the command line is wrong; 3 it could not run (root, \
            FUSE, loop devices, this file system).",
        examples: &[
            (
                "steadfast crash calibrate ext4 --cuts 5000",
                "Compare the model of ext4 with this kernel's ext4.",
            ),
            (
                "steadfast crash calibrate ext4 -o data=journal --write ext4-journal.toml",
                "With other mount options; write the model with the result.",
            ),
        ],
    },
    Sections {
        name: "steadfast-crash-mount",
        exit: STEPS,
        examples: &[(
            "steadfast crash mount --fs xfs seed /mnt/test",
            "Mount a copy of the directory seed whose power can be cut.",
        )],
    },
    Sections {
        name: "steadfast-crash-cut",
        exit: STEPS,
        examples: &[(
            "steadfast crash cut /mnt/test --policy random --seed 7",
            "Cut the power: what is durable survives, and a random part of the rest.",
        )],
    },
    Sections {
        name: "steadfast-crash-power-on",
        exit: STEPS,
        examples: &[("steadfast crash power-on /mnt/test", "Mount what survived.")],
    },
    Sections {
        name: "steadfast-crash-fail",
        exit: STEPS,
        examples: &[
            (
                "steadfast crash fail /mnt/test --call fsync --path 'wal/*' --errno EIO --nth 3 --then drop",
                "The third fsync in wal fails, and its data is dropped, as Linux does.",
            ),
            (
                "steadfast crash fail /mnt/test --errno ENOSPC --after 10M",
                "The disk is full after 10 MiB.",
            ),
            (
                "steadfast crash fail /mnt/test --call fsync --how slow --time 2s",
                "Each fsync takes two seconds.",
            ),
        ],
    },
    Sections {
        name: "steadfast-crash-heal",
        exit: STEPS,
        examples: &[(
            "steadfast crash heal /mnt/test",
            "End all faults of 'crash fail'.",
        )],
    },
    Sections {
        name: "steadfast-crash-stop",
        exit: STEPS,
        examples: &[(
            "steadfast crash stop /mnt/test",
            "Unmount; what the mount held is gone.",
        )],
    },
    Sections {
        name: "steadfast-crash-status",
        exit: STEPS,
        examples: &[(
            "steadfast crash status /mnt/test",
            "List what a power cut could still lose.",
        )],
    },
    usual(
        "steadfast-crash-ack",
        &[(
            "steadfast crash ack order-17",
            "Say, in a program under test, that order-17 is done and must survive.",
        )],
    ),
    Sections {
        name: "steadfast-crash-self",
        exit: "0 no violation; 1 a contract was broken, or failed; 2 the command line is wrong.",
        examples: &[
            (
                "steadfast crash self --seed 7 --images 10000",
                "Explore crashes; the seed repeats a run.",
            ),
            (
                "steadfast crash self --on flash --contract sync --json",
                "The same on flash, under another contract.",
            ),
        ],
    },
    Sections {
        name: "steadfast-crash-put",
        exit: "0 replacing a file is safe; 1 it is not, or failed; 2 the command line is wrong.",
        examples: &[(
            "steadfast crash put --size 8K --tears",
            "Explore how a file of 8 KiB is replaced, with torn blocks.",
        )],
    },
];
