//! One block: what it is, and its bytes.

use std::fmt::Write;
use std::path::Path;

use serde::Serialize;
use steadfast_block::{BLOCK_SIZE, Block, BlockNo};
use steadfast_journal::seal_holds;

use crate::failure::Failure;
use crate::text;
use crate::volume::{self, BlockPlace, VolumeMap};

/// Bytes in a line.
const LINE: usize = 16;

/// What is shown.
#[derive(Serialize)]
pub(super) struct Shown {
    image: String,
    block: u64,
    what: String,
    /// Whether the block ends in the seal for its address and volume, as metadata does.
    sealed: bool,
    bytes: String,
    #[serde(skip)]
    raw: Box<Block>,
}

/// Reads one block.
pub(super) fn look(
    image: &Path,
    device: &volume::Device,
    map: &VolumeMap,
    at: BlockNo,
) -> Result<Shown, Failure> {
    let mut raw = Box::new([0; BLOCK_SIZE]);
    device
        .block(image)?
        .read(at, &mut raw[..])
        .map_err(|e| volume::device_failure(image, &e))?;
    let sealed = seal_holds(&map.uuid(), at, &raw);
    let what = match map.place(at) {
        BlockPlace::Superblock => "the superblock".to_owned(),
        BlockPlace::SuperblockCopy => "the copy of the superblock".to_owned(),
        BlockPlace::TailHeader(slot) => format!("tail header {slot} of the journal"),
        BlockPlace::Log(index) => format!("block {index} of the log"),
        BlockPlace::BlockBitmap(group) => format!("the block bitmap of group {group}"),
        BlockPlace::InodeBitmap(group) => format!("the inode-block bitmap of group {group}"),
        BlockPlace::Contents(group) if sealed => format!("metadata in group {group}"),
        BlockPlace::Contents(group) => format!("data in group {group}, or free"),
        BlockPlace::Beyond => "after the end of the volume".to_owned(),
    };
    Ok(Shown {
        image: image.display().to_string(),
        block: at.0,
        what,
        sealed,
        bytes: text::hex(&raw[..]),
        raw,
    })
}

impl Shown {
    pub(super) fn lines(&self) -> String {
        let seal = if self.sealed {
            "its seal holds"
        } else {
            "without a seal"
        };
        let mut text = format!("block {}: {}; {seal}", self.block, self.what);
        hex_lines(&self.raw[..], &mut text);
        text
    }
}

/// Appends bytes, a line for each 16 of them.
pub(super) fn hex_lines(raw: &[u8], text: &mut String) {
    let mut previous: Option<&[u8]> = None;
    let mut left_out = false;
    for (i, line) in raw.chunks(LINE).enumerate() {
        // A run of equal lines is shown once.
        if previous == Some(line) && (i + 1) * LINE < raw.len() {
            if !left_out {
                text.push_str("\n*");
            }
            left_out = true;
            continue;
        }
        (previous, left_out) = (Some(line), false);
        let _ = write!(text, "\n{:04x} ", i * LINE);
        for byte in line {
            let _ = write!(text, " {byte:02x}");
        }
        text.push_str("  ");
        let shown = |byte: &u8| match byte {
            b' '..=b'~' => char::from(*byte),
            _ => '.',
        };
        text.extend(line.iter().map(shown));
    }
}
