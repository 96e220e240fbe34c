//! Contents and attributes, and recovery.

use super::*;

pub(super) fn of_contents() -> Vec<Tempting> {
    let (n, line, word) = (RECOMMENDED, Model::Line, Model::Word);
    let file = [Create(A), w(A, 0, &[0x21, 0x22, 0x23])];
    let short = [file[0].clone(), file[1].clone(), Truncate(A, 1)];
    let busy = [
        Create(B),
        w(B, 0, &[1, 2]),
        w(B, 0, &[3, 4]),
        w(B, 0, &[5, 6]),
        w(B, 0, &[7, 8]),
        Create(A),
    ];
    let inline = [Create(A), SetAttributes(A, vec![0x81])];
    let paged = [Create(A), SetAttributes(A, vec![0x81, 0x82])];
    let by_mode = Layout {
        attributes_by_mode: true,
        ..n
    };
    vec![
        tempt(
            "append: size in the fence of the data",
            n,
            line,
            &file,
            w(A, 3, &[0x44]),
            "data inode.slot inode.commit |",
        ),
        tempt(
            "append: descriptor in the fence of the size",
            n,
            line,
            &file[..1],
            w(A, 0, &[0x41, 0x42]),
            "data | desc inode.slot inode.commit |",
        ),
        tempt(
            "allocation: descriptor not neutralised before its new words",
            n,
            line,
            &busy,
            w(A, 0, &[0x41, 0x42]),
            "data desc.body desc.life | inode.slot inode.commit |",
        ),
        tempt(
            "allocation: the three descriptor words free in one fence",
            n,
            word,
            &busy,
            w(A, 0, &[0x41, 0x42]),
            "data desc.kill desc.body desc.life inode.slot | inode.commit |",
        ),
        tempt(
            "overwrite: marks in the fence of the commit",
            n,
            line,
            &file,
            w(A, 0, &[0x51, 0x52, 0x53]),
            "data desc | old.die inode.slot inode.commit |",
        ),
        tempt(
            "overwrite: no marks, the later page wins, then punch",
            Layout {
                later_wins: true,
                ..n
            },
            line,
            &file,
            w(A, 0, &[0x51, 0x52]),
            "",
        ),
        tempt(
            "punch: marks in the fence of the commit",
            n,
            line,
            &file,
            Punch(A, 0, 2),
            "old.die inode.slot inode.commit |",
        ),
        tempt(
            "zero: marks in the fence of the commit",
            n,
            line,
            &file,
            Zero(A, 0, 2),
            "old.clear inode.slot inode.commit |",
        ),
        tempt(
            "truncate: marks in the fence of the size, pages past the end not free by rule",
            Layout {
                past_end: false,
                ..n
            },
            line,
            &file,
            Truncate(A, 1),
            "old.die inode.slot inode.commit |",
        ),
        tempt(
            "truncate: marks left to the next call's fence, which grows the file",
            n,
            line,
            &file,
            Truncate(A, 2),
            "inode.slot inode.commit | old.die",
        ),
        tempt(
            "truncate up: tail not cleared",
            n,
            line,
            &short,
            Truncate(A, 4),
            "inode.slot inode.commit |",
        ),
        tempt(
            "truncate up: tail cleared in the fence of the size",
            n,
            line,
            &short,
            Truncate(A, 4),
            "data inode.slot inode.commit |",
        ),
        tempt(
            "chmod + chown: commit before the slot",
            n,
            line,
            &file,
            Chmod(A, 0x9600),
            "inode.commit inode.slot |",
        ),
        tempt(
            "chmod + chown: one fence, free words",
            n,
            word,
            &file,
            Chmod(A, 0x9600),
            "inode.slot inode.commit |",
        ),
        tempt(
            "attributes, inline: in the fence of the commit",
            n,
            line,
            &file[..1],
            SetAttributes(A, vec![0x81]),
            "inode.inline inode.slot inode.commit |",
        ),
        tempt(
            "attributes, page to page: marks in the fence of the commit",
            n,
            line,
            &paged,
            SetAttributes(A, vec![0x83, 0x84]),
            "data desc | old.die inode.slot inode.commit |",
        ),
        tempt(
            "attributes, page to inline: marks in the fence of the commit",
            n,
            line,
            &paged,
            SetAttributes(A, vec![0x83]),
            "inode.inline | old.die inode.slot inode.commit |",
        ),
        Tempting {
            sound: true,
            ..tempt(
                "the same, pages of attributes count only if the mode says so",
                by_mode,
                line,
                &paged,
                SetAttributes(A, vec![0x83]),
                "inode.inline | old.die inode.slot inode.commit |",
            )
        },
        Tempting {
            sound: true,
            ..tempt(
                "attributes, page to none: one fence, pages of attributes count only if the mode says so",
                by_mode,
                line,
                &paged,
                SetAttributes(A, vec![]),
                "old.die inode.slot inode.commit |",
            )
        },
        tempt(
            "attributes, inline to page: descriptor in the fence of the commit",
            n,
            line,
            &inline,
            SetAttributes(A, vec![0x83, 0x84]),
            "data | desc inode.slot inode.commit |",
        ),
        tempt(
            "eADR: data by non-temporal stores, no fence before the size",
            n,
            Model::Eadr,
            &file,
            w(A, 3, &[0x44]),
            "data inode.slot inode.commit |",
        ),
    ]
}

pub(super) fn of_recovery() -> Vec<Tempting> {
    let line = Model::Line;
    let r = |recovery| Layout {
        recovery,
        ..RECOMMENDED
    };
    let two = [Create(A), Create(B), Chmod(B, 0x8600)];
    let file = [Create(A), w(A, 0, &[0x21, 0x22, 0x23])];
    let dead = forged_before();
    vec![
        tempt(
            "recovery: renames finished and pointers cleared in one fence",
            r(Recovery::ClearsInOneFence),
            line,
            &[Create(A)],
            Rename(A, B),
            "",
        ),
        tempt(
            "recovery: pointers cleared before renames are finished",
            r(Recovery::ClearsFirst),
            line,
            &[Create(A)],
            Rename(A, B),
            "",
        ),
        Tempting {
            then: vec![Link(B, C), Exchange(A, C)],
            ..tempt(
                "recovery: leaves the source of an exchange its tag",
                r(Recovery::KeepsTags),
                line,
                &two,
                Exchange(A, B),
                "",
            )
        },
        tempt(
            "recovery: keeps names of inodes with another generation",
            r(Recovery::KeepsDangling),
            line,
            &[],
            Create(A),
            "",
        ),
        tempt(
            "recovery: keeps marks of a write that did not commit",
            r(Recovery::KeepsMarks),
            line,
            &file,
            w(A, 0, &[0x51, 0x52, 0x53]),
            "",
        ),
        Tempting {
            then: vec![Create(C), Truncate(C, 3)],
            ..tempt(
                "recovery: keeps descriptors of an inode that was never born",
                r(Recovery::KeepsFuture),
                line,
                &[Create(A)],
                Symlink(B, vec![0x31, 0x32]),
                "",
            )
        },
        Tempting {
            then: forged_write(),
            ..tempt(
                "recovery: keeps the pages of a removed directory, whose removal was cut after the name",
                r(Recovery::KeepsDirPages),
                line,
                &dead,
                Rmdir(D),
                "",
            )
        },
    ]
}
