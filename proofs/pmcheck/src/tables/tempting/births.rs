//! Births, and names of new inodes.

use super::*;

pub(super) fn of_births() -> Vec<Tempting> {
    let (n, line, word) = (RECOMMENDED, Model::Line, Model::Word);
    let past = [Create(A), Unlink(A)];
    let old = [Create(A), Unlink(A), Create(A), w(A, 0, &[1]), Unlink(A)];
    let one = "inode.extra inode.body inode.birth dentry.body dentry.ino |";
    let needed = Layout {
        second_line: SecondLine::Needed,
        above_both: true,
        ..n
    };
    let again = vec![Symlink(B, vec![0x32])];
    vec![
        tempt(
            "create: commit word before the name in its line",
            n,
            line,
            &past,
            Create(B),
            "inode.body inode.birth dentry.ino dentry.body |",
        ),
        tempt(
            "create: generation before the rest of the inode",
            n,
            line,
            &old,
            Create(B),
            "inode.birth inode.body dentry.body dentry.ino |",
        ),
        tempt(
            "create: one fence by non-temporal stores (words in any order)",
            n,
            word,
            &old,
            Create(B),
            one,
        ),
        tempt(
            "create: one fence without generations (free = all zero)",
            Layout {
                generations: false,
                ..n
            },
            line,
            &[],
            Create(A),
            one,
        ),
        tempt(
            "create: one fence, 128-byte slot with commit word and name in two lines",
            Layout { wide: true, ..n },
            line,
            &past,
            Create(B),
            one,
        ),
        tempt(
            "create: one fence, name longer than the first slot",
            n,
            line,
            &[Create(LONG), Unlink(LONG)],
            Create(LONG2),
            "inode.body inode.birth dentry.body dentry.cont dentry.ino |",
        ),
        tempt(
            "create: page zeroed in the fence that adopts it",
            n,
            line,
            &forged_names(),
            Create(DX),
            "page.zero dirpage inode.body inode.birth dentry.body dentry.ino |",
        ),
        tempt(
            "create: inherited attributes in the fence of the name",
            n,
            line,
            &past,
            CreateWith(B, vec![0x35]),
            one,
        ),
        Tempting {
            sound: true,
            ..tempt(
                "the same, an inode that lost its second line was never born",
                needed,
                line,
                &past,
                CreateWith(B, vec![0x35]),
                one,
            )
        },
        tempt(
            "symlink: inline target in the fence of the name",
            n,
            line,
            &past,
            Symlink(B, vec![0x31]),
            one,
        ),
        Tempting {
            sound: true,
            ..tempt(
                "the same, an inode that lost its second line was never born",
                needed,
                line,
                &past,
                Symlink(B, vec![0x31]),
                one,
            )
        },
        Tempting {
            then: again.clone(),
            ..tempt(
                "the same, generations above the first line's alone, after an attempt that a crash cut",
                Layout {
                    above_both: false,
                    ..needed
                },
                line,
                &past,
                Symlink(B, vec![0x31]),
                one,
            )
        },
        Tempting {
            then: again,
            ..tempt(
                "the same, and the second line invalidated before it is written",
                Layout {
                    above_both: false,
                    kill_extra: true,
                    ..needed
                },
                line,
                &past,
                Symlink(B, vec![0x31]),
                one,
            )
        },
        tempt(
            "symlink: descriptor in the fence of the name",
            n,
            line,
            &[Create(A)],
            Symlink(B, vec![0x31, 0x32]),
            "data | desc inode.body inode.birth dentry.body dentry.ino |",
        ),
        Tempting {
            then: vec![SetTimes(A), Create(C)],
            ..tempt(
                "times of birth and access: of an attempt to create that a crash cut, generations above the first line's alone",
                Layout { times: true, ..n },
                line,
                &[Create(A)],
                Create(B),
                "",
            )
        },
        Tempting {
            sound: true,
            then: vec![SetTimes(A), Create(C)],
            ..tempt(
                "the same, generations above those of both lines",
                Layout {
                    times: true,
                    above_both: true,
                    ..n
                },
                line,
                &[Create(A)],
                Create(B),
                "",
            )
        },
        Tempting {
            sound: true,
            ..tempt(
                "file without a name: no fence at all, the next call's fence makes it durable",
                n,
                line,
                &past,
                Tmpfile,
                "inode.body inode.birth",
            )
        },
        Tempting {
            then: vec![Create(B), Truncate(B, 3)],
            ..tempt(
                "generations wrap around",
                Layout { wrap: true, ..n },
                line,
                &[
                    Create(A),
                    w(A, 0, &[1, 2, 3]),
                    Unlink(A),
                    aged(&[2], &[3, 4, 5, 6, 7]),
                    Create(A),
                    Unlink(A),
                ],
                Mkdir(D),
                "",
            )
        },
    ]
}
