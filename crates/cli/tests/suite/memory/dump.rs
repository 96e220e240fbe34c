//! The output of `dump`.

use super::*;

#[test]
fn dump_shows_superblock_chunks_and_the_use_of_every_page() {
    let Some(place) = mounted("4M", "rw") else {
        return;
    };
    fs::write(place.mnt().join("file"), vec![1; 3 * 4096]).unwrap();
    place.must(&["umount", "mnt"]);
    let before = fs::read(place.path().join("img")).unwrap();
    let shown = json(&place, &["dump", "--json", "img"]);
    let number = |value: &Value| value.as_u64().unwrap();
    let superblock = &shown["superblock"];
    assert_eq!(
        (&superblock["label"], &superblock["clean"]),
        (&"test".into(), &true.into())
    );
    assert_eq!(number(&superblock["volume_pages"]), 1024);
    // Every page once, in order, and the chunks add up.
    let mut next = 0;
    for run in shown["pages"].as_array().unwrap() {
        assert_eq!(number(&run["pages"][0]), next);
        next = number(&run["pages"][1]);
    }
    assert_eq!(next, 1024);
    let chunk = &shown["chunks"][0];
    let parts = [
        "directory_pages",
        "content_pages",
        "attribute_pages",
        "free_pages",
    ];
    let parts = parts.map(|name| number(&chunk[name]));
    assert_eq!(parts[..3], [1, 3, 0]);
    assert_eq!(parts.iter().sum::<u64>(), number(&chunk["data_pages"]));
    let alone = json(&place, &["dump", "--json", "--superblock", "img"]);
    assert_eq!(alone["uuid"], superblock["uuid"]);
    let text = place.must(&["dump", "img"]);
    for line in [
        "mounts:   1, unmounted since",
        "page 0",
        "chunk 0:",
        ": free",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(
        before == fs::read(place.path().join("img")).unwrap(),
        "dump wrote"
    );
}

#[test]
fn dump_shows_single_inodes_directories_and_pages() {
    let Some(place) = mounted("4M", "rw") else {
        return;
    };
    let long = "a name of more than thirty-two bytes, which goes on in the next slot";
    fs::create_dir(place.mnt().join("dir")).unwrap();
    let file = place.mnt().join("dir").join(long);
    fs::write(&file, vec![b'x'; 5000]).unwrap();
    rustix::fs::setxattr(
        &file,
        "user.small",
        b"value",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    std::os::unix::fs::symlink("target", place.mnt().join("link")).unwrap();
    place.must(&["umount", "mnt"]);
    let path = format!("/dir/{long}");
    let inode = json(&place, &["dump", "--json", "--inode", &path, "img"]);
    assert_eq!(
        (&inode["kind"], &inode["size"]),
        (&"file".into(), &5000.into())
    );
    assert_eq!(
        (&inode["links"], &inode["alive"]),
        (&1.into(), &true.into())
    );
    assert_eq!(inode["xattrs"][0]["value"], "76616c7565");
    assert_eq!(inode["attributes_place"], "inline");
    let number = inode["inode"].to_string();
    let by_number = json(&place, &["dump", "--json", "--inode", &number, "img"]);
    assert_eq!(by_number, inode);
    let link = json(&place, &["dump", "--json", "--inode", "/link", "img"]);
    assert_eq!(
        (&link["target"], &link["damage"]),
        (&"target".into(), &Value::Array(vec![]))
    );
    let dir = json(&place, &["dump", "--json", "--directory", "/dir", "img"]);
    let slot = &dir["pages"][0]["slots"][0];
    assert_eq!((&dir["entries"], &slot["slots"]), (&1.into(), &2.into()));
    assert_eq!(
        (&slot["name"], &slot["inode"]),
        (&long.into(), &inode["inode"])
    );
    // The page that has the content.
    let first = inode["pages"][0]["pages"][0].to_string();
    let page = json(&place, &["dump", "--json", "--block", &first, "img"]);
    assert!(page["bytes"].as_str().unwrap().starts_with("787878"));
    assert_eq!(page["descriptor"]["inode"], inode["inode"]);
    let text = place.must(&["dump", "--block", &first, "img"]);
    assert!(
        text.contains(&format!("content of inode {number}")),
        "{text}"
    );
    for (block, what) in [
        ("0", "the superblock"),
        ("1", "the copy"),
        ("2", "inodes of chunk 0"),
    ] {
        assert!(
            place
                .must(&["dump", "--block", block, "img"])
                .contains(what)
        );
    }
    for (args, why) in [
        (["--inode", "/absent"], "does not exist"),
        (["--inode", "999999"], "is no inode"),
        (["--inode", "99999999999"], "is no inode"),
        (["--directory", "/link"], "no directory"),
        (["--directory", "77"], "is no inode"),
        (["--block", "1024"], "beyond its end"),
        (["--block", "18446744073709551615"], "beyond its end"),
    ] {
        refused(
            &place,
            1,
            &[&["dump"], &args[..], &["img"]].concat(),
            &[why],
        );
    }
    // The words of a free inode are shown as they are.
    let free = json(&place, &["dump", "--json", "--inode", "77", "img"]);
    assert_eq!(free["alive"], false);
}
