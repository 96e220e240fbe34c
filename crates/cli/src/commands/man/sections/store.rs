//! The pages of `steadfast store`.

use super::{Sections, usual};

pub(super) const SECTIONS: &[Sections] = &[
    usual(
        "steadfast-store",
        &[(
            "steadfast store info s3://bucket/prefix",
            "Show what a volume is, which process has it, and what it holds.",
        )],
    ),
    Sections {
        name: "steadfast-store-probe",
        exit: "0 the store keeps the rules; 1 it breaks one, or the probe failed; 2 the command line is wrong.",
        examples: &[
            (
                "steadfast store probe s3://bucket/prefix",
                "Try the store of the environment's endpoint.",
            ),
            (
                "steadfast store probe --endpoint http://10.0.0.1:7070 --endpoint http://10.0.0.2:7070 s3://bucket/prefix",
                "Let writers race over two endpoints of one store.",
            ),
        ],
    },
    usual(
        "steadfast-store-info",
        &[(
            "steadfast store info --json s3://bucket/prefix",
            "Show the same as JSON.",
        )],
    ),
    Sections {
        name: "steadfast-store-check",
        exit: "0 clean; 2 the command line is wrong; 4 objects are missing or damaged; 8 could not run.",
        examples: &[(
            "steadfast store check --progress s3://bucket/prefix",
            "Read all objects and compare their hashes.",
        )],
    },
    usual(
        "steadfast-store-gc",
        &[
            (
                "steadfast store gc s3://bucket/prefix",
                "Move live blocks together, and delete the objects that are due.",
            ),
            (
                "steadfast store gc --sweep --delete s3://bucket/prefix",
                "Also delete objects that nothing names.",
            ),
        ],
    ),
    usual(
        "steadfast-store-cost",
        &[(
            "steadfast store cost --price gib-month=0.01,puts=0.005,gets=0 s3://bucket/prefix",
            "Show the costs of the volume at these prices.",
        )],
    ),
    usual(
        "steadfast-store-snapshot",
        &[(
            "steadfast store snapshot list s3://bucket/prefix",
            "List snapshots and clones.",
        )],
    ),
    usual(
        "steadfast-store-snapshot-create",
        &[(
            "steadfast store snapshot create s3://bucket/prefix monday",
            "Keep the last checkpoint; an unmounted volume is whole in it.",
        )],
    ),
    usual(
        "steadfast-store-snapshot-list",
        &[(
            "steadfast store snapshot list --json s3://bucket/prefix",
            "List snapshots and clones for scripts.",
        )],
    ),
    usual(
        "steadfast-store-snapshot-delete",
        &[(
            "steadfast store snapshot delete s3://bucket/prefix monday",
            "Delete a snapshot; the next writer frees what it alone needs.",
        )],
    ),
    usual(
        "steadfast-store-clone",
        &[(
            "steadfast store clone s3://bucket/prefix@monday s3://bucket/test",
            "Make a writable volume that begins with the content of the snapshot.",
        )],
    ),
    usual(
        "steadfast-store-promote",
        &[(
            "steadfast store promote s3://bucket/test",
            "Copy what the clone reads from its parent, which may then be deleted.",
        )],
    ),
    usual(
        "steadfast-store-copy",
        &[
            (
                "steadfast store copy disk.img s3://bucket/prefix",
                "Move a volume from an image to an object store, where mkfs has made an empty one.",
            ),
            (
                "steadfast store copy s3://bucket/prefix@monday backup.img",
                "Copy a snapshot to an image that mkfs made.",
            ),
        ],
    ),
    usual(
        "steadfast-store-take-over",
        &[(
            "steadfast store take-over s3://bucket/prefix",
            "Fence the owner: it acknowledges nothing more. Any machine may then mount the volume.",
        )],
    ),
    usual(
        "steadfast-store-salvage",
        &[(
            "steadfast store salvage --cache /dev/nvme0n1p3 s3://bucket/prefix s3://bucket/saved",
            "Make a volume with the flushes that only the cache has, beside the volume that another machine took over.",
        )],
    ),
    usual(
        "steadfast-store-rekey",
        &[(
            "steadfast store rekey --key-file old --new-key-file new s3://bucket/prefix",
            "From now on the file 'new' opens the volume, and 'old' does not.",
        )],
    ),
];
