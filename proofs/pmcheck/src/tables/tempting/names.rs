//! Names: links, removals, renames and exchanges; the tags of slots.

use super::*;

pub(super) fn of_names() -> Vec<Tempting> {
    let (n, line, word) = (RECOMMENDED, Model::Line, Model::Word);
    let links = |links| Layout { links, ..n };
    let two = [Create(A), Create(B), Chmod(B, 0x8600)];
    let again = vec![Link(B, C), Exchange(A, C)];
    let target = Layout {
        bump: Bump::Target,
        ..n
    };
    let alive = Layout { kills: false, ..n };
    vec![
        tempt(
            "link: stored count in the fence of the name, count trusted",
            links(Links::Trusted),
            line,
            &[Create(A)],
            Link(A, B),
            "inode.nlink dentry.body dentry.ino |",
        ),
        Tempting {
            sound: true,
            ..tempt(
                "link: stored count in the fence of the name, recounted at mount",
                links(Links::Recounted),
                line,
                &[Create(A)],
                Link(A, B),
                "inode.nlink dentry.body dentry.ino |",
            )
        },
        tempt(
            "mkdir: parent's count in the fence of the name, count trusted",
            links(Links::Trusted),
            line,
            &[],
            Mkdir(D),
            "inode.body inode.birth parent.nlink dentry.body dentry.ino |",
        ),
        tempt(
            "unlink: count in the fence of the name, count trusted",
            links(Links::Trusted),
            line,
            &[Create(A), Link(A, B)],
            Unlink(A),
            "dentry.ino inode.nlink |",
        ),
        tempt(
            "unlink, free = all zero: inode zeroed in the fence of the name",
            PUBLISHED,
            line,
            &[Create(A)],
            Unlink(A),
            "dentry.ino inode.zero desc.zero dentry.zero |",
        ),
        tempt(
            "rename: one fence",
            n,
            line,
            &[Create(A)],
            Rename(A, B),
            "D.body D.rptr D.ino S.ino |",
        ),
        tempt(
            "rename: commit word before the pointer",
            n,
            line,
            &[Create(A)],
            Rename(A, B),
            "D.body D.ino D.rptr | S.ino |",
        ),
        tempt(
            "rename: pointer and commit word as free words in one fence",
            n,
            word,
            &[Create(A)],
            Rename(A, B),
            "D.body D.rptr D.ino | S.ino |",
        ),
        tempt(
            "rename: the old name cleared first",
            n,
            line,
            &[Create(A)],
            Rename(A, B),
            "D.body S.ino | D.rptr D.ino |",
        ),
        tempt(
            "rename over: one fence",
            n,
            line,
            &two,
            Rename(A, B),
            "D.rptr D.ino S.ino |",
        ),
        tempt(
            "rename over: the old pointer not cleared before its second word changes",
            Layout {
                clear_first: false,
                ..n
            },
            line,
            &mixed().0,
            mixed().1,
            "",
        ),
        tempt(
            "rename: the old name's clearing left to the next call's fence",
            n,
            line,
            &[Create(A)],
            Rename(A, B),
            "D.body D.rptr D.ino | S.ino",
        ),
        Tempting {
            sound: true,
            also: vec![
                ("unlink", "fence | dentry.ino |"),
                ("rename", "fence | dirpage D.body D.rptr D.ino | S.ino |"),
                ("exchange", "fence | D.rptr D.ino | S.ino S.tag |"),
                (
                    "whiteout",
                    "fence | page.zero inode.body inode.birth | dirpage D.body D.rptr D.ino | S.ino S.tag |",
                ),
            ],
            ..tempt(
                "the same, where a call that removes or replaces a name fences first",
                n,
                line,
                &[Create(A)],
                Rename(A, B),
                "D.body D.rptr D.ino | S.ino",
            )
        },
        tempt(
            "rename, no tags: pointer never cleared, slot reused by a link of the same file",
            Layout { tags: false, ..n },
            line,
            &[Create(A)],
            Rename(A, B),
            "D.body D.rptr D.ino | S.ino |",
        ),
        tempt(
            "rename, no tags: pointer cleared in the fence of the old name",
            Layout { tags: false, ..n },
            line,
            &[Create(A)],
            Rename(A, B),
            "D.body D.rptr D.ino | S.ino D.unptr |",
        ),
        Tempting {
            then: vec![Unlink(A), Link(B, A)],
            ..tempt(
                "tags start above the own tags of live slots alone",
                Layout {
                    above: TagsAbove::LiveOwn,
                    ..n
                },
                line,
                &[Create(B), Create(A)],
                Rename(A, B),
                "",
            )
        },
        Tempting {
            then: again.clone(),
            ..tempt(
                "tags start above the pointers' tags of live slots alone",
                Layout {
                    above: TagsAbove::LivePointers,
                    ..n
                },
                line,
                &[
                    Create(C),
                    Rename(C, E),
                    Create(A),
                    Unlink(E),
                    Create(B),
                    Chmod(B, 0x8600),
                ],
                Exchange(A, B),
                "",
            )
        },
        tempt(
            "exchange: one fence",
            n,
            line,
            &two,
            Exchange(A, B),
            "D.rptr D.ino S.ino S.tag |",
        ),
        Tempting {
            then: again.clone(),
            ..tempt(
                "exchange: no slot gets a new tag",
                Layout {
                    bump: Bump::Never,
                    ..n
                },
                line,
                &two,
                Exchange(A, B),
                "",
            )
        },
        Tempting {
            then: again.clone(),
            ..tempt(
                "exchange: the target gets a new tag, not the source",
                target,
                line,
                &two,
                Exchange(A, B),
                "",
            )
        },
        tempt(
            "exchange: the source's new tag before its commit word",
            n,
            line,
            &two,
            Exchange(A, B),
            "D.rptr D.ino | S.tag S.ino |",
        ),
        tempt(
            "exchange: the source's new tag a fence earlier",
            n,
            line,
            &two,
            Exchange(A, B),
            "D.rptr D.ino S.tag | S.ino |",
        ),
        tempt(
            "whiteout: its birth in the fence of the new name",
            n,
            line,
            &[Create(A), Create(B), Unlink(B)],
            Whiteout(A, B),
            "inode.body inode.birth D.body D.rptr D.ino | S.ino S.tag |",
        ),
        tempt(
            "whiteout: its birth in the fence of the old name",
            n,
            line,
            &[Create(A), Create(B), Unlink(B)],
            Whiteout(A, B),
            "D.body D.rptr D.ino | inode.body inode.birth S.ino S.tag |",
        ),
        tempt(
            "rmdir: its pages do not die with the name; a file takes one",
            alive,
            line,
            &forged().0,
            forged().1,
            "",
        ),
        Tempting {
            sound: true,
            ..tempt(
                "the same, pointers count only in directories that the root leads to",
                Layout {
                    from_root: true,
                    ..alive
                },
                line,
                &forged().0,
                forged().1,
                "",
            )
        },
        Tempting {
            sound: true,
            ..tempt(
                "rmdir: pages of the directory die a fence after the name",
                n,
                line,
                &forged_before(),
                Rmdir(D),
                "dentry.ino | olddir.die |",
            )
        },
        Tempting {
            sound: true,
            ..tempt(
                "exchange: the target keeps its tag, the source its own pointer",
                Layout {
                    bump: Bump::Source,
                    swap_clears: false,
                    ..n
                },
                line,
                &two,
                Exchange(A, B),
                "",
            )
        },
    ]
}
