//! The pages of `steadfast stream`.

use super::{Sections, usual};

pub(super) const SECTIONS: &[Sections] = &[
    usual(
        "steadfast-stream",
        &[
            (
                "steadfast stream run build -- make -j4",
                "Run a build in a stream of its own.",
            ),
            (
                "steadfast stream stats /mnt",
                "Show what each stream did, and what it cost others.",
            ),
        ],
    ),
    Sections {
        name: "steadfast-stream-run",
        exit: "The exit code of the command; if a signal ended it, this program ends by the same signal. 1 the command was not started, and \
            standard error says why: the name breaks the rule, there is no mount with streams, or the command cannot be run; 2 the command line \
            is wrong. With --detach: 0 the command runs.",
        examples: &[
            (
                "steadfast stream run build -- make -j4",
                "Run a build apart from all others on the volume of the current directory.",
            ),
            (
                "steadfast stream run mail --ignore-fsync --commit-interval 30 --mount /mnt -- importer",
                "Run a program that syncs too often; its changes are durable after 30 seconds, in their order.",
            ),
            (
                "steadfast stream run jobs --detach -- worker --daemon",
                "Start a daemon, and return at once.",
            ),
        ],
    },
    usual(
        "steadfast-stream-set",
        &[
            (
                "steadfast stream set database 4711",
                "Move a process; its earlier changes stay in the old stream.",
            ),
            (
                "steadfast stream set database 4711 --mount /mnt --user 1000",
                "On one volume, into the stream of a user (for root).",
            ),
        ],
    ),
    usual(
        "steadfast-stream-leave",
        &[(
            "steadfast stream leave 4711",
            "Move a process into the default stream.",
        )],
    ),
    usual(
        "steadfast-stream-alter",
        &[
            (
                "steadfast stream alter mail --honour-fsync",
                "Let fsync commit again.",
            ),
            (
                "steadfast stream alter mail --commit-interval volume",
                "Commit as often as the volume's other streams.",
            ),
        ],
    ),
    Sections {
        name: "steadfast-stream-sync",
        exit: "0 all that the stream did until now is durable; 1 it may not be; 2 the command line is wrong.",
        examples: &[(
            "steadfast stream sync mail",
            "Make all changes of a stream durable, even if it ignores fsync.",
        )],
    },
    usual(
        "steadfast-stream-list",
        &[
            (
                "steadfast stream list",
                "List the streams of the volume of the current directory.",
            ),
            (
                "steadfast stream list --json /mnt",
                "List those of another volume as JSON.",
            ),
        ],
    ),
    usual(
        "steadfast-stream-show",
        &[(
            "steadfast stream show 4711 --mount /mnt",
            "Show the stream of a process, and why it is there.",
        )],
    ),
    usual(
        "steadfast-stream-stats",
        &[
            (
                "steadfast stream stats /mnt",
                "Show operations, commits, and bytes that were written for others.",
            ),
            (
                "steadfast stream stats --merges /mnt",
                "Show which streams became one order, and by which file.",
            ),
        ],
    ),
    usual(
        "steadfast-stream-rules",
        &[(
            "steadfast stream rules list /mnt",
            "List the rules of a volume.",
        )],
    ),
    usual(
        "steadfast-stream-rules-list",
        &[(
            "steadfast stream rules list --json /mnt",
            "List the rules of a volume as JSON.",
        )],
    ),
    usual(
        "steadfast-stream-rules-add",
        &[
            (
                "steadfast stream rules add database --cgroup /system.slice/postgresql.service",
                "Put a service into a stream.",
            ),
            (
                "steadfast stream rules add mail --directory /mnt/mail",
                "Put each process that changes something below a directory into a stream.",
            ),
            (
                "steadfast stream rules add --environment --mount /mnt",
                "Let STEADFAST_STREAM in the environment of a process name its stream.",
            ),
        ],
    ),
    usual(
        "steadfast-stream-rules-remove",
        &[(
            "steadfast stream rules remove --directory /mnt/mail",
            "Remove a rule.",
        )],
    ),
];
