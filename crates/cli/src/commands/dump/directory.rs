//! One directory: its index, its leaves, their entries.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use steadfast_vfs::FileKind;

use super::inode::kind_name;
use super::{Which, name};
use crate::failure::Failure;
use crate::volume::LeafShown;
use crate::{text, volume};

#[derive(Serialize)]
struct Shown {
    image: String,
    inode: u64,
    entries: u64,
    index: Vec<Node>,
    leaves: Vec<Leaf>,
    note: Option<String>,
}

#[derive(Serialize)]
struct Node {
    block: u64,
    level: u16,
    items: u16,
}

#[derive(Serialize)]
struct Leaf {
    block: u64,
    from_cookie: u64,
    free_bytes: usize,
    entries: Vec<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    inode: u64,
    kind: &'static str,
    cookie: u64,
}

impl Leaf {
    fn of(leaf: LeafShown) -> Leaf {
        Leaf {
            block: leaf.block.0,
            from_cookie: leaf.from,
            free_bytes: leaf.free_bytes,
            entries: (leaf.entries.iter())
                .map(|entry| Entry {
                    name: name(&entry.name),
                    inode: entry.ino,
                    kind: kind_name(entry.kind),
                    cookie: entry.cookie,
                })
                .collect(),
            damage: leaf.damage,
        }
    }

    fn lines(&self) -> String {
        let mut text = format!(
            "leaf: block {}, cookies from {:#x} on, {} entries, {} B free",
            self.block,
            self.from_cookie,
            self.entries.len(),
            self.free_bytes
        );
        for entry in &self.entries {
            let _ = write!(
                text,
                "\n  {:#018x}  inode {:<10} {:<9} {}",
                entry.cookie, entry.inode, entry.kind, entry.name
            );
        }
        if let Some(why) = &self.damage {
            let _ = write!(text, "\n  damage: {why}");
        }
        text
    }
}

/// Shows a directory, leaf by leaf.
pub(super) fn print(
    image: &Path,
    device: &volume::Device,
    which: &Which,
    json: bool,
) -> Result<(), Failure> {
    let inspector = volume::inspect(image, device)?;
    let failed = |e: steadfast_vfs::Error| which.failure(image, &e);
    let ino = which.resolve(image, &inspector)?;
    let inode = inspector.show_inode(ino).map_err(failed)?;
    if inode.attr.kind != FileKind::Directory {
        return Err(which.failure(image, &steadfast_vfs::Errno::NotDir.into()));
    }
    let entries = inode.disk.entries.get();
    let index: Vec<Node> = (inode.nodes.iter())
        .map(|node| Node {
            block: node.block.0,
            level: node.level,
            items: node.items,
        })
        .collect();
    if json {
        let mut leaves = Vec::new();
        inspector
            .show_directory(ino, &mut |leaf| leaves.push(Leaf::of(leaf)))
            .map_err(failed)?;
        return text::print_json(&Shown {
            image: image.display().to_string(),
            inode: ino,
            entries,
            index,
            leaves,
            note: inspector.warning().map(str::to_owned),
        });
    }
    let mut head = format!("directory {ino}: {entries} entries");
    for node in &index {
        let _ = write!(
            head,
            "\nindex: block {}, level {}, {} items",
            node.block, node.level, node.items
        );
    }
    if let Some(why) = inspector.warning() {
        let _ = write!(head, "\nnote: {why}");
    }
    text::print(&head)?;
    let mut printed = Ok(());
    inspector
        .show_directory(ino, &mut |leaf| {
            if printed.is_ok() {
                printed = text::print(&Leaf::of(leaf).lines());
            }
        })
        .map_err(failed)?;
    printed
}
