//! Pages of removed directories: their next content must not be read as slots.

use super::*;
use crate::layout::{Page, Pointer, slot};
use crate::mount::mount;
use crate::options::MountOptions;

/// The volume after a power cut, mounted.
fn mounted(content: &[u8]) -> crate::mount::Mount {
    let region = Region::with_content(content);
    mount(region, &MountOptions::default(), &mut |_, _| {}).unwrap()
}

/// Content of a file that looks like a slot which was renamed from `victim`: the owner of a page may write any bytes.
fn forged(lab: &Lab, victim: Place, inode: InodeRef) -> [u64; 8] {
    let tag = crate::layout::Tag::from_word(lab.m.load(victim.at() + slot::TAG));
    let pointer = Pointer {
        from: victim,
        tag: tag.tag,
        exchange: None,
    };
    let (one, two) = pointer.words();
    [
        inode.word(),
        one,
        two,
        (1 << 40) << 16 | 1 << 8,
        u64::from(b'x'),
        0,
        0,
        0,
    ]
}

#[test]
fn content_of_a_removed_directorys_page_is_not_read_as_names() {
    let lab = Lab::new(1 << 20);
    let mut dir = Dir::new(root());
    let (victim, at) = lab.make(&mut dir, b"victim", FileKind::Regular);
    let (sub, place) = lab.directory(&mut dir, b"sub");
    let page: Page = sub.pages[0].start;
    let gone = Remove {
        place,
        inode: sub.inode,
        ctime: NOW,
        kills: sub.pages,
    };
    let _ = remove(&lab.m, gone, touch(&dir)).unwrap();
    // The page is free after the mount, and gets content; the power fails before its descriptor is durable.
    let mount = mounted(&lab.m.content());
    let mut content = mount.medium.content();
    for (index, word) in forged(&lab, at, victim).iter().enumerate() {
        let at = page.at() as usize + index * 8;
        content[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    let mount = mounted(&content);
    assert_eq!(mount.report.recovered_words, 0);
    assert_eq!(mount.medium.load(at.at() + slot::COMMIT), victim.word());
}
