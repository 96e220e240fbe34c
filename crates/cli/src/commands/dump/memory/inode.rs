//! One inode of a volume in persistent memory: its words, and what a mount would show.

use std::path::Path;

use serde::Serialize;
use steadfast_vfs::{Attr, FileKind};

use super::super::inode::kind_name;
use super::super::{Which, name};
use super::{Run, seconds};
use crate::failure::Failure;
use crate::text;
use crate::volume::MemoryView;
use crate::volume::memory_words::{InodeDump, PageUse};

/// What is shown.
#[derive(Serialize)]
pub(super) struct Shown {
    image: String,
    inode: u32,
    byte: u64,
    generation: u32,
    kind: Option<&'static str>,
    /// Whether it has a name.
    alive: bool,
    sequence: u64,
    mode: String,
    /// `none`, `inline` or `pages`.
    attributes_place: &'static str,
    uid: u32,
    gid: u32,
    size: u64,
    /// Owner, group and size that the next change overwrites.
    other_uid: u32,
    other_gid: u32,
    other_size: u64,
    modified: f64,
    changed: f64,
    /// None, if the second line is of another generation.
    accessed: Option<f64>,
    made: Option<f64>,
    inline_bytes: u16,
    inline: String,
    #[serde(flatten)]
    mounted: Option<Mounted>,
    pages: Vec<Run>,
    damage: Vec<String>,
}

/// What a mount shows of an inode that is alive.
#[derive(Serialize)]
struct Mounted {
    links: u32,
    blocks: u64,
    flags: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    device_number: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    xattrs: Vec<Xattr>,
}

#[derive(Serialize)]
struct Xattr {
    name: String,
    /// Hexadecimal.
    value: String,
}

/// Reads one inode.
pub(super) fn look(image: &Path, view: &MemoryView, which: &Which) -> Result<Shown, Failure> {
    let number = number(image, view, which)?;
    let Some(inode) = view.words.inode(number) else {
        return Err(which.failure(image, &steadfast_vfs::Errno::Stale.into()));
    };
    let mut damage = view.damage();
    let mounted = view.attr(u64::from(number)).ok();
    let mounted = mounted.map(|attr| Mounted::of(view, &attr, &mut damage));
    let mut pages = Vec::new();
    if mounted.is_some() {
        view.map(image, |run| match run.what {
            PageUse::Directory { inode }
            | PageUse::Data { inode, .. }
            | PageUse::Attributes { inode }
                if inode == number =>
            {
                pages.push(Run::of(&run.pages, run.what));
            }
            _ => {}
        })?;
    }
    pages.sort_by_key(|run| (run.what, run.offset));
    Ok(Shown::of(image, &inode, mounted, pages, damage))
}

/// The number of the inode that was asked for.
pub(super) fn number(image: &Path, view: &MemoryView, which: &Which) -> Result<u32, Failure> {
    let found = match which {
        Which::Number(ino) => Ok(*ino),
        Which::Path(path) => view.resolve(path.as_bytes()),
    };
    let found = found.map_err(|e| which.failure(image, &e))?;
    u32::try_from(found).map_err(|_| which.failure(image, &steadfast_vfs::Errno::Stale.into()))
}

impl Mounted {
    fn of(view: &MemoryView, attr: &Attr, damage: &mut Vec<String>) -> Mounted {
        let mut note = |what: &str, error: &steadfast_vfs::Error| {
            damage.push(format!("{what} cannot be read: {error}"));
        };
        let is_device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let target = (attr.kind == FileKind::Symlink).then(|| view.target(attr.ino));
        let target = target.and_then(|target| {
            let target = target.inspect_err(|e| note("its target", e));
            target.ok()
        });
        let xattrs = view.xattrs(attr.ino);
        let xattrs = xattrs.inspect_err(|e| note("its extended attributes", e));
        let has_flags = matches!(attr.kind, FileKind::Regular | FileKind::Directory);
        let flags = has_flags.then(|| view.flags(attr.ino)).transpose();
        let flags = flags.inspect_err(|e| note("its flags", e)).ok().flatten();
        Mounted {
            links: attr.nlink,
            blocks: attr.blocks,
            flags: flags.map_or(0, steadfast_vfs::InodeFlags::bits),
            device_number: is_device.then_some(attr.rdev),
            target: target.as_deref().map(name),
            xattrs: xattrs
                .unwrap_or_default()
                .iter()
                .map(|(key, value)| Xattr {
                    name: name(key),
                    value: text::hex(value),
                })
                .collect(),
        }
    }

    fn lines(&self, lines: &mut Vec<String>) {
        lines.push(format!("links:      {}", self.links));
        lines.push(format!("blocks:     {} of 512 B", self.blocks));
        if self.flags != 0 {
            lines.push(format!("flags:      {:#x}", self.flags));
        }
        if let Some(number) = self.device_number {
            lines.push(format!("device:     {number:#x}"));
        }
        if let Some(target) = &self.target {
            lines.push(format!("target:     {target}"));
        }
        for xattr in &self.xattrs {
            lines.push(format!("attribute:  {} = {}", xattr.name, xattr.value));
        }
    }
}

impl Shown {
    fn of(
        image: &Path,
        inode: &InodeDump,
        mounted: Option<Mounted>,
        pages: Vec<Run>,
        damage: Vec<String>,
    ) -> Shown {
        let of_this_life = |nanos| inode.second_line_counts.then(|| seconds(nanos));
        let [(uid, gid), (other_uid, other_gid)] = inode.owners;
        Shown {
            image: image.display().to_string(),
            inode: inode.number,
            byte: inode.address,
            generation: inode.generation,
            kind: inode.kind.map(kind_name),
            alive: mounted.is_some(),
            sequence: inode.sequence,
            mode: format!("{:04o}", inode.perm),
            attributes_place: match inode.attributes {
                0 => "none",
                1 => "inline",
                2 => "pages",
                _ => "unknown",
            },
            uid,
            gid,
            size: inode.sizes[0],
            other_uid,
            other_gid,
            other_size: inode.sizes[1],
            modified: seconds(inode.mtime),
            changed: seconds(inode.ctime),
            accessed: of_this_life(inode.atime),
            made: of_this_life(inode.btime),
            inline_bytes: inode.inline_len,
            inline: text::hex(&inode.inline),
            mounted,
            pages,
            damage,
        }
    }

    pub(super) fn lines(&self) -> String {
        let what = match (self.alive, self.kind) {
            (true, Some(kind)) => kind,
            _ => "free",
        };
        let mut lines = vec![
            format!("inode {}: {what}, at byte {:#x}", self.inode, self.byte),
            format!("generation: {}", self.generation),
            format!("sequence:   {}", self.sequence),
            format!("mode:       {}", self.mode),
            format!("owner:      {}:{}", self.uid, self.gid),
            format!("size:       {}", self.size),
            format!(
                "other slot: owner {}:{}, size {}",
                self.other_uid, self.other_gid, self.other_size
            ),
            format!("modified:   {:.9}", self.modified),
            format!("changed:    {:.9}", self.changed),
        ];
        for (name, time) in [("accessed: ", self.accessed), ("made:     ", self.made)] {
            lines.extend(time.map(|time| format!("{name}  {time:.9}")));
        }
        if let Some(mounted) = &self.mounted {
            mounted.lines(&mut lines);
        }
        if self.alive && self.attributes_place != "none" {
            lines.push(format!("attributes: {}", self.attributes_place));
        }
        lines.extend(self.pages.iter().map(Run::line));
        lines.extend(self.damage.iter().map(|why| format!("damage:     {why}")));
        lines.join("\n")
    }
}
