//! `steadfast dump` of a volume in persistent memory: superblock, chunks and the use of all pages; the words of one
//! inode or directory, with what a mount would show; or one page.
//!
//! The structures have the names of `steadfast_pmfs::layout`, which has the byte maps.

mod directory;
mod inode;
mod page;

use std::fmt::Write;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::{Args, BLOCK};
use crate::failure::Failure;
use crate::volume::memory_words::{self as words, PageUse, Superblock as Words};
use crate::volume::{Contract, MemoryView, Region};
use crate::{size, text};

/// Shows what the command line asks for.
pub(super) fn run(args: &Args, region: &Region) -> Result<ExitCode, Failure> {
    let image = &args.image;
    if args.log {
        let why = format!("has no log: {}", text::no_log("pm"));
        return Err(Failure::at(image, why.replace("none: ", "")));
    }
    let view = MemoryView::open(image)?;
    if let Some(number) = args.block {
        let shown = page::look(image, region, &view, number)?;
        return show(args, &shown, || shown.lines());
    }
    if let Some(which) = &args.inode {
        let shown = inode::look(image, &view, which)?;
        return show(args, &shown, || shown.lines());
    }
    if let Some(which) = &args.directory {
        let shown = directory::look(image, &view, which)?;
        return show(args, &shown, || shown.lines());
    }
    let superblock = Superblock::of(region, &view);
    if args.superblock {
        return show(args, &superblock, || superblock.lines(image));
    }
    let mut runs = Vec::new();
    view.map(image, |run| runs.push(Run::of(&run.pages, run.what)))?;
    let shown = Shown {
        image: image.display().to_string(),
        superblock,
        chunks: chunks(view.words.superblock(), &runs),
        pages: runs,
        damage: view.damage(),
    };
    show(args, &shown, || shown.lines(image))
}

fn show(
    args: &Args,
    shown: &impl Serialize,
    lines: impl FnOnce() -> String,
) -> Result<ExitCode, Failure> {
    if args.json {
        text::print_json(shown)?;
    } else {
        text::print(lines().trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All of it.
#[derive(Serialize)]
struct Shown {
    image: String,
    superblock: Superblock,
    chunks: Vec<Chunk>,
    pages: Vec<Run>,
    damage: Vec<String>,
}

impl Shown {
    fn lines(&self, image: &Path) -> String {
        let mut text = self.superblock.lines(image);
        for chunk in &self.chunks {
            let _ = writeln!(text, "{}", chunk.line());
        }
        for run in &self.pages {
            let _ = writeln!(text, "{}", run.line());
        }
        for why in &self.damage {
            let _ = writeln!(text, "damage:   {why}");
        }
        text
    }
}

/// Fields of the superblock.
#[derive(Serialize)]
struct Superblock {
    uuid: String,
    label: String,
    contract: &'static str,
    medium: &'static str,
    format_version: u32,
    features: u32,
    region_bytes: u64,
    volume_pages: u64,
    volume_bytes: u64,
    chunk_pages: u64,
    chunk_inodes: u64,
    chunks: u64,
    inodes: u32,
    data_pages: u64,
    root_inode: u32,
    made_unix_seconds: i64,
    mounts: u64,
    clean: bool,
}

impl Superblock {
    fn of(region: &Region, view: &MemoryView) -> Superblock {
        let found: &Words = view.words.superblock();
        let geometry = &found.geometry;
        let (clean, mounts) = view.hints();
        let root = view.words.inode(words::ROOT);
        Superblock {
            uuid: text::uuid(&found.uuid),
            label: found.label.clone(),
            contract: Contract::Sync.name(),
            medium: "pm",
            format_version: found.version,
            features: found.features,
            region_bytes: region.len(),
            volume_pages: geometry.pages,
            volume_bytes: geometry.pages * BLOCK,
            chunk_pages: geometry.chunk_pages,
            chunk_inodes: geometry.chunk_inodes,
            chunks: geometry.chunks(),
            inodes: geometry.inodes(),
            data_pages: geometry.data_pages_total(),
            root_inode: words::ROOT,
            made_unix_seconds: root.map_or(0, |root| root.btime.div_euclid(NANOS)),
            mounts,
            clean,
        }
    }

    fn lines(&self, image: &Path) -> String {
        let label = match self.label.is_empty() {
            true => "(none)",
            false => &self.label,
        };
        let state = match self.clean {
            true => "unmounted since",
            false => "not unmounted",
        };
        [
            format!("image:    {}", image.display()),
            format!("label:    {label}"),
            format!("uuid:     {}", self.uuid),
            format!("contract: {}", self.contract),
            format!(
                "size:     {} ({} pages of {BLOCK} B)",
                size::show(self.volume_bytes),
                self.volume_pages
            ),
            format!("log:      {}", text::no_log(self.medium)),
            format!(
                "chunks:   {} of {} pages, with {} inodes each",
                self.chunks, self.chunk_pages, self.chunk_inodes
            ),
            format!("inodes:   {}, root {}", self.inodes, self.root_inode),
            format!("mounts:   {}, {state}\n", self.mounts),
        ]
        .join("\n")
    }
}

/// Nanoseconds of a second.
const NANOS: i64 = 1_000_000_000;

/// Seconds of a time word.
fn seconds(nanos: i64) -> f64 {
    nanos.div_euclid(NANOS) as f64 + nanos.rem_euclid(NANOS) as f64 / NANOS as f64
}

/// A part of the volume with tables of its own.
#[derive(Serialize)]
struct Chunk {
    chunk: u64,
    first_page: u64,
    first_inode: u64,
    inodes: u64,
    inode_table_byte: u64,
    descriptor_table_byte: u64,
    data_start_page: u64,
    data_pages: u64,
    directory_pages: u64,
    content_pages: u64,
    attribute_pages: u64,
    free_pages: u64,
}

/// The chunks, with what their pages are used for.
fn chunks(superblock: &Words, runs: &[Run]) -> Vec<Chunk> {
    let geometry = &superblock.geometry;
    let mut chunks: Vec<Chunk> = (0..geometry.chunks())
        .map(|chunk| {
            let data = geometry.data_pages(chunk);
            Chunk {
                chunk,
                first_page: chunk * geometry.chunk_pages,
                first_inode: chunk * geometry.chunk_inodes + 1,
                inodes: geometry.chunk_inodes,
                inode_table_byte: geometry.tables(chunk).start,
                descriptor_table_byte: geometry.desc_at(words::Page(chunk * geometry.chunk_pages)),
                data_start_page: data.start,
                data_pages: data.end - data.start,
                directory_pages: 0,
                content_pages: 0,
                attribute_pages: 0,
                free_pages: 0,
            }
        })
        .collect();
    for run in runs {
        // Tables lie between the pages for data of two chunks: no run crosses.
        let Some(chunk) = chunks.get_mut((run.pages[0] / geometry.chunk_pages) as usize) else {
            continue;
        };
        let counter = match run.what {
            "directory" => &mut chunk.directory_pages,
            "content" => &mut chunk.content_pages,
            "attributes" => &mut chunk.attribute_pages,
            "free" => &mut chunk.free_pages,
            _ => continue,
        };
        *counter += run.pages[1] - run.pages[0];
    }
    chunks
}

impl Chunk {
    fn line(&self) -> String {
        format!(
            "chunk {}:  pages from {} on, inodes {} to {} from byte {:#x}, descriptors from byte {:#x}; {} pages for data from page {} on: \
             {} directory, {} content, {} attributes, {} free",
            self.chunk,
            self.first_page,
            self.first_inode,
            self.first_inode + self.inodes - 1,
            self.inode_table_byte,
            self.descriptor_table_byte,
            self.data_pages,
            self.data_start_page,
            self.directory_pages,
            self.content_pages,
            self.attribute_pages,
            self.free_pages
        )
    }
}

/// Pages in a row with one use.
#[derive(Serialize)]
struct Run {
    /// The first, and the first after it.
    pages: [u64; 2],
    /// `superblock`, `unused` (in its place in later chunks), `tables`, `directory`, `content`, `attributes` or `free`.
    what: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    /// Offset in the file, in pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unwritten: bool,
}

impl Run {
    fn of(pages: &Range<u64>, what: PageUse) -> Run {
        let (name, inode, offset, zeros) = match what {
            PageUse::Superblock if pages.start == 0 => ("superblock", None, None, false),
            PageUse::Superblock => ("unused", None, None, false),
            PageUse::Tables => ("tables", None, None, false),
            PageUse::Free => ("free", None, None, false),
            PageUse::Directory { inode } => ("directory", Some(inode), None, false),
            PageUse::Data {
                inode,
                offset,
                unwritten,
            } => ("content", Some(inode), Some(offset), unwritten),
            PageUse::Attributes { inode } => ("attributes", Some(inode), None, false),
        };
        Run {
            pages: [pages.start, pages.end],
            what: name,
            inode,
            offset,
            unwritten: zeros,
        }
    }

    fn line(&self) -> String {
        let [start, end] = self.pages;
        let mut line = match end - start {
            1 => format!("page {start}: {}", self.what),
            _ => format!("pages {start} to {}: {}", end - 1, self.what),
        };
        if let Some(inode) = self.inode {
            let _ = write!(line, " of inode {inode}");
        }
        if let Some(offset) = self.offset {
            let _ = write!(line, " from page {offset} of it on");
        }
        if self.unwritten {
            line.push_str(", unwritten");
        }
        line
    }
}
