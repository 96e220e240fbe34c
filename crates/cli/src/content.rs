//! Content of a file or block device that formatting would destroy.
//!
//! A regular file is read whole: every range that its file system calls data, to its last byte. One byte that is not
//! zero is content. A block device may be too large for that: its first and last MiB are read, 4 KiB at each of 4096
//! places evenly spread over the rest, and every place where a known format has a copy of its superblock. So a device
//! whose content lies between these places alone counts as empty; a file never does.
//!
//! Known signatures only name the content: content without one is refused as well.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use steadfast_block::{BLOCK_SIZE, BlockDevice, BlockNo};

use crate::volume::Region;

/// Bytes of one read, and of each end of a block device.
const CHUNK: u64 = 1 << 20;
/// Places of a block device that are read between its ends.
const SAMPLES: u64 = 4096;
/// Bytes of each such place.
const SAMPLE: u64 = 4096;
/// Bytes at the beginning that decide whether content is text.
const TEXT: usize = 4096;

/// Copies of superblocks away from the ends: those of ext4 by size of block, and of btrfs.
const COPIES: [u64; 5] = [8193 << 10, 16384 << 11, 32768 << 12, 64 << 20, 256 << 30];

/// A signature: its offset, its bytes, its format.
type Signature = (u64, &'static [u8], &'static str);

/// Signatures at fixed places. The more specific ones come first: many formats share the last two bytes of a boot
/// sector.
const SIGNATURES: &[Signature] = &[
    (0, b"STDFLASH", "a flash image"),
    (0, b"STEADFST", "a Steadfast volume"),
    (0, b"StdfstPM", "a Steadfast volume in persistent memory"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (65600, b"_BHRfS_M", "a btrfs file system"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (1024, b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    (0, b"hsqs", "a squashfs file system"),
    (
        4120,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        "a bcachefs file system",
    ),
    (
        4120,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        "a bcachefs file system",
    ),
    (65588, b"ReIsEr", "a ReiserFS file system"),
    (32768, b"JFS1", "a JFS file system"),
    (1024, b"H+", "an HFS+ file system"),
    (1024, b"HX", "an HFS+ file system"),
    (32, b"NXSB", "an APFS container"),
    (1030, b"\x34\x34", "a NILFS2 file system"),
    (4096, b"UBIFS", "a UBIFS file system"),
    (0, b"UBI#", "a UBI volume"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (32769, b"CD001", "an ISO 9660 image"),
    (32769, b"BEA01", "a UDF file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4086, b"SWAP-SPACE", "swap space"),
    (4086, b"S1SUSPEND", "a suspended system"),
    (0, b"LUKS\xba\xbe", "a LUKS encrypted volume"),
    (3, b"-FVE-FS-", "a BitLocker volume"),
    (512, b"LABELONE", "an LVM physical volume"),
    (0, b"LABELONE", "an LVM physical volume"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID"),
    (0, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (4096, b"EFI PART", "a partition table (GPT)"),
    (0, b"QFI\xfb", "a QEMU disk image (qcow2)"),
    (0, b"KDMV", "a VMware disk image"),
    (64, b"\x7f\x10\xda\xbe", "a VirtualBox disk image"),
    (0, b"vhdxfile", "a Hyper-V disk image"),
    (0, b"conectix", "a Virtual PC disk image"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (0, b"\x7fELF", "an ELF program or library"),
    (0, b"%PDF-", "a PDF document"),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"GIF8", "a GIF image"),
    (0, b"PK\x03\x04", "a ZIP archive or an office document"),
    (0, b"\x1f\x8b", "gzip-compressed data"),
    (0, b"\xfd7zXZ\0", "xz-compressed data"),
    (0, b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (0, b"BZh", "bzip2-compressed data"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (257, b"ustar", "a tar archive"),
    (4, b"ftyp", "a video (MP4)"),
    (0, b"OggS", "Ogg media"),
    (0, b"ID3", "an MP3 file"),
    (510, b"\x55\xaa", "a boot sector or a partition table"),
];

/// A source of bytes that can be read from any offset.
trait Readable {
    /// Fills `buf` from `at` as far as there are bytes; returns their number.
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Offset of the first byte in a range that is not zero.
    fn first_in(&self, from: u64, to: u64, buf: &mut Vec<u8>) -> io::Result<Option<u64>> {
        let mut at = from;
        while at < to {
            buf.resize(CHUNK.min(to - at) as usize, 0);
            let len = self.read(at, buf)?;
            if len == 0 {
                break;
            }
            if let Some(byte) = first_not_zero(&buf[..len]) {
                return Ok(Some(at + byte as u64));
            }
            at += len as u64;
        }
        Ok(None)
    }
}

impl Readable for File {
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.read_at(&mut buf[done..], at + done as u64) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

impl Readable for Region {
    fn read(&self, at: u64, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.len().saturating_sub(at).min(buf.len() as u64) as usize;
        Region::read(self, at, &mut buf[..len]);
        match self.failed() {
            true => Err(io::Error::other("the memory failed")),
            false => Ok(len),
        }
    }
}

fn first_not_zero(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte != 0)
}

/// Content of a regular file or block device, in words; None if it is empty in the sense of the module's header.
/// `progress` gets the number of bytes read so far, and of all.
pub(crate) fn held_by_file(
    path: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<Option<String>> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    let (first, bytes) = if metadata.file_type().is_block_device() {
        let bytes = rustix::fs::seek(&file, SeekFrom::End(0))?;
        (first_on_device(&file, bytes, progress)?, bytes)
    } else {
        let bytes = metadata.len();
        (first_in_file(&file, bytes, progress)?, bytes)
    };
    let Some(first) = first else {
        return Ok(None);
    };
    named(&file, first, bytes).map(Some)
}

/// Content of a DAX device, read like a block device.
pub(crate) fn held_by_region(
    region: &Region,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<Option<String>> {
    match first_on_device(region, region.len(), progress)? {
        Some(first) => named(region, first, region.len()).map(Some),
        None => Ok(None),
    }
}

/// Content of a disk in a flash image: it is read whole.
pub(crate) fn held_by_disk(
    disk: &dyn BlockDevice,
    progress: &mut dyn FnMut(u64, u64),
) -> steadfast_block::Result<Option<String>> {
    const STEP: u64 = CHUNK / BLOCK_SIZE as u64;
    let blocks = disk.geometry().blocks;
    let mut buf = vec![0; CHUNK as usize];
    for at in (0..blocks).step_by(STEP as usize) {
        let bytes = &mut buf[..STEP.min(blocks - at) as usize * BLOCK_SIZE];
        disk.read(BlockNo(at), bytes)?;
        if let Some(first) = first_not_zero(bytes) {
            return Ok(Some(unnamed(at * BLOCK_SIZE as u64 + first as u64)));
        }
        progress(at, blocks);
    }
    Ok(None)
}

fn first_in_file(
    file: &File,
    bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<Option<u64>> {
    let mut buf = Vec::new();
    let mut at = 0;
    while at < bytes {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Holes to the end.
            Err(Errno::NXIO) => return Ok(None),
            // A file system without holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(e) => return Err(e.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(bytes);
        let mut from = data;
        while from < end {
            let to = end.min(from + CHUNK);
            if let Some(first) = file.first_in(from, to, &mut buf)? {
                return Ok(Some(first));
            }
            progress(to, bytes);
            from = to;
        }
        // Never backwards, whatever the file system answers.
        at = end.max(data + 1);
    }
    Ok(None)
}

fn first_on_device(
    device: &impl Readable,
    bytes: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<Option<u64>> {
    let mut buf = Vec::new();
    let head = CHUNK.min(bytes);
    let tail = bytes.saturating_sub(CHUNK).max(head);
    for (from, to) in [(0, head), (tail, bytes)] {
        if let Some(first) = device.first_in(from, to, &mut buf)? {
            return Ok(Some(first));
        }
    }
    let step = ((tail - head) / SAMPLES)
        .max(SAMPLE)
        .next_multiple_of(SAMPLE);
    let samples = (head..tail).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    for at in COPIES.into_iter().filter(|at| *at < tail).chain(samples) {
        if let Some(first) = device.first_in(at, (at + SAMPLE).min(tail), &mut buf)? {
            return Ok(Some(first));
        }
        progress(at, bytes);
    }
    Ok(None)
}

/// Names content by its signature, or as text.
fn named(file: &impl Readable, first: u64, bytes: u64) -> io::Result<String> {
    let last = SIGNATURES
        .iter()
        .map(|(at, mark, _)| *at as usize + mark.len());
    let mut head = vec![0; last.max().unwrap_or(0)];
    let len = file.read(0, &mut head)?;
    head.truncate(len);
    if let Some(name) = signature(&head) {
        return Ok(name.to_owned());
    }
    let start = &head[..head.len().min(TEXT)];
    if first == 0 && is_text(start) {
        return Ok(format!("a text of {}", crate::size::show(bytes)));
    }
    Ok(unnamed(first))
}

fn unnamed(first: u64) -> String {
    format!("data that is no Steadfast volume (byte {first} is the first that is not zero)")
}

fn signature(head: &[u8]) -> Option<&'static str> {
    let found = SIGNATURES.iter().find(|(at, mark, _)| {
        let at = *at as usize;
        head.get(at..at + mark.len()) == Some(*mark)
    });
    found.map(|(_, _, name)| *name)
}

/// Whether bytes begin a text: UTF-8 without control characters; the last character may be cut off.
fn is_text(bytes: &[u8]) -> bool {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => {
            std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    !text.is_empty() && !text.chars().any(|c| c.is_control() && !c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked_at(write: &[(u64, &[u8])], bytes: u64) -> Option<String> {
        let file = tempfile::NamedTempFile::new().ok()?;
        file.as_file().set_len(bytes).ok()?;
        for (at, data) in write {
            file.as_file().write_all_at(data, *at).ok()?;
        }
        held_by_file(file.path(), &mut |_, _| {}).ok()?
    }

    #[test]
    fn zeros_and_holes_are_no_content() {
        assert_eq!(looked_at(&[], 0), None);
        assert_eq!(looked_at(&[], 1 << 40), None);
        assert_eq!(looked_at(&[(0, &[0; 100])], 100), None);
        assert_eq!(looked_at(&[(5 << 20, &[0; 8192])], 64 << 20), None);
    }

    #[test]
    fn one_byte_anywhere_is_content() {
        for (at, bytes) in [
            (0, 1),
            (499, 500),
            (4094, 4095),
            (4096, 4097),
            (200 << 10, 1 << 20),
            ((3 << 20) + 7, 64 << 20),
            ((1 << 40) - 1, 1 << 40),
        ] {
            let held = looked_at(&[(at, b"\x01")], bytes).unwrap_or_default();
            assert!(held.contains(&format!("byte {at} is")), "{at}: {held}");
        }
    }

    #[test]
    fn known_content_has_a_name() {
        for (at, mark, name) in SIGNATURES {
            // All other bytes are zero, so nothing else matches.
            let held = looked_at(&[(*at, mark)], 128 << 10).unwrap_or_default();
            assert_eq!(&held, name);
        }
        let text = "Größe: a note to be kept\n".repeat(20);
        assert!(
            looked_at(&[(0, text.as_bytes())], text.len() as u64)
                .is_some_and(|held| held.starts_with("a text of"))
        );
    }

    #[cfg(feature = "pm")]
    fn first_byte_found(at: u64, bytes: u64) -> Option<u64> {
        let file = tempfile::tempfile().ok()?;
        file.set_len(bytes).ok()?;
        file.write_all_at(b"\x01", at).ok()?;
        first_on_device(&file, bytes, &mut |_, _| {}).ok()?
    }

    #[cfg(feature = "pm")]
    #[test]
    fn a_device_is_looked_at_where_known_formats_keep_copies() {
        let bytes = 300 << 30;
        for at in COPIES.into_iter().chain([0, bytes - 1, bytes - CHUNK]) {
            assert_eq!(first_byte_found(at, bytes), Some(at));
        }
        // DAX devices are mapped, not read.
        let region = Region::anonymous(8 << 20);
        assert!(matches!(held_by_region(&region, &mut |_, _| {}), Ok(None)));
        region.write_data((3 << 20) + 8, b"\x01");
        let held = held_by_region(&region, &mut |_, _| {});
        assert!(held.is_ok_and(|held| held.is_some_and(|what| what.contains("byte 3145736 is"))));
        // A small one is read whole.
        assert_eq!(first_byte_found(5_000_001, 8 << 20), Some(5_000_001));
    }
}
