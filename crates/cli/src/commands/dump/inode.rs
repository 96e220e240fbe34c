//! One inode: its fields, its tree, its extended attributes.

use std::path::Path;

use serde::Serialize;
use steadfast_vfs::{FileKind, Time};

use super::{Which, name};
use crate::failure::Failure;
use crate::volume::{InodeShown, Inspector};
use crate::{text, volume};

/// What is shown.
#[derive(Serialize)]
pub(super) struct Shown {
    image: String,
    inode: u64,
    block: u64,
    slot: u64,
    kind: &'static str,
    mode: String,
    flags: u32,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    blocks: u64,
    generation: u64,
    modified: f64,
    changed: f64,
    accessed: f64,
    made: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_number: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    nodes: Vec<Node>,
    extents: Vec<Extent>,
    xattr_block: Option<u64>,
    xattrs: Vec<Xattr>,
    damage: Vec<String>,
    note: Option<String>,
}

#[derive(Serialize)]
struct Node {
    block: u64,
    level: u16,
    items: u16,
}

#[derive(Serialize)]
struct Extent {
    file_block: u64,
    block: u64,
    blocks: u64,
    unwritten: bool,
}

#[derive(Serialize)]
struct Xattr {
    name: String,
    /// Hexadecimal.
    value: String,
}

/// Kind of an inode, in words.
pub(super) fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "character-device",
        FileKind::BlockDevice => "block-device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

fn seconds(time: Time) -> f64 {
    time.secs as f64 + f64::from(time.nanos) / 1e9
}

/// Reads one inode.
pub(super) fn look(image: &Path, device: &volume::Device, which: &Which) -> Result<Shown, Failure> {
    let inspector = volume::inspect(image, device)?;
    let ino = which.resolve(image, &inspector)?;
    let shown = inspector
        .show_inode(ino)
        .map_err(|e| which.failure(image, &e))?;
    Ok(Shown::of(image, ino, shown, &inspector))
}

impl Shown {
    fn of(image: &Path, ino: u64, shown: InodeShown, inspector: &Inspector) -> Shown {
        let (attr, disk) = (shown.attr, shown.disk);
        let is_dir = attr.kind == FileKind::Directory;
        let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        Shown {
            image: image.display().to_string(),
            inode: ino,
            block: shown.place.0.0,
            slot: shown.place.1,
            kind: kind_name(attr.kind),
            mode: format!("{:04o}", attr.perm),
            flags: disk.flags.get(),
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            blocks: disk.blocks.get(),
            generation: attr.generation,
            modified: seconds(attr.mtime),
            changed: seconds(attr.ctime),
            accessed: seconds(attr.atime),
            made: seconds(attr.btime),
            device_number: is_device.then_some(attr.rdev),
            parent: is_dir.then(|| disk.parent.get()),
            entries: is_dir.then(|| disk.entries.get()),
            target: shown.target.as_deref().map(name),
            nodes: (shown.nodes.iter())
                .map(|node| Node {
                    block: node.block.0,
                    level: node.level,
                    items: node.items,
                })
                .collect(),
            extents: (shown.extents.iter())
                .map(|extent| Extent {
                    file_block: extent.logical,
                    block: extent.block.0,
                    blocks: extent.blocks,
                    unwritten: extent.unwritten,
                })
                .collect(),
            xattr_block: Some(disk.xattr_block.get()).filter(|at| *at != 0),
            xattrs: (shown.xattrs.iter())
                .map(|(key, value)| Xattr {
                    name: name(key),
                    value: text::hex(value),
                })
                .collect(),
            damage: shown.damage,
            note: inspector.warning().map(str::to_owned),
        }
    }

    pub(super) fn lines(&self) -> String {
        let mut lines = vec![
            format!(
                "inode {}: {}, slot {} of block {}",
                self.inode, self.kind, self.slot, self.block
            ),
            format!("mode:       {}", self.mode),
            format!("owner:      {}:{}", self.uid, self.gid),
            format!("links:      {}", self.links),
            format!("size:       {} B", self.size),
            format!("blocks:     {}", self.blocks),
            format!("generation: {:#018x}", self.generation),
            format!("modified:   {:.9}", self.modified),
            format!("changed:    {:.9}", self.changed),
            format!("accessed:   {:.9}", self.accessed),
            format!("made:       {:.9}", self.made),
        ];
        if let Some(number) = self.device_number {
            lines.push(format!("device:     {number:#x}"));
        }
        if let (Some(parent), Some(entries)) = (self.parent, self.entries) {
            lines.push(format!("parent:     {parent}"));
            lines.push(format!("entries:    {entries}"));
        }
        if let Some(target) = &self.target {
            lines.push(format!("target:     {target}"));
        }
        for node in &self.nodes {
            lines.push(format!(
                "node:       block {}, level {}, {} items",
                node.block, node.level, node.items
            ));
        }
        for extent in &self.extents {
            lines.push(format!(
                "extent:     {} blocks from file block {} on at block {}{}",
                extent.blocks,
                extent.file_block,
                extent.block,
                if extent.unwritten { ", unwritten" } else { "" }
            ));
        }
        match self.xattr_block {
            Some(at) => lines.push(format!("attributes: block {at}")),
            None if self.xattrs.is_empty() => {}
            None => lines.push("attributes: in the inode".to_owned()),
        }
        for xattr in &self.xattrs {
            lines.push(format!("attribute:  {} = {}", xattr.name, xattr.value));
        }
        lines.extend(self.damage.iter().map(|why| format!("damage:     {why}")));
        lines.extend(self.note.iter().map(|why| format!("note:       {why}")));
        lines.join("\n")
    }
}
