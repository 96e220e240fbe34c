//! Disks in flash images in a program without the feature `flash`: they are recognised, and refused.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{Access, Device, Unopened};
use crate::features::Feature;

/// The first bytes of a flash image.
const MAGIC: &[u8; 8] = b"STDFLASH";

/// Whether a file is a flash image.
pub(crate) fn is_image(image: &Path) -> std::io::Result<bool> {
    let mut word = [0; 8];
    match File::open(image)?.read_exact_at(&mut word, 0) {
        Ok(()) => Ok(word == *MAGIC),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

pub(super) fn open(image: &Path, _access: Access) -> Result<Device, Unopened> {
    let what = format!("{}: a flash image", image.display());
    Err(Unopened::Failed(Feature::Flash.lacks(&what)))
}
