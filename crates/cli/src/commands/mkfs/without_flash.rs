//! `steadfast mkfs --on flash` in a program without the feature `flash`.

use std::fs::Metadata;
use std::path::Path;

use super::Args;
use crate::failure::Failure;
use crate::features::Feature;
use crate::volume::Device;

pub(super) fn open(_: &Args, _: &Path, _: Option<&Metadata>) -> Result<Device, Failure> {
    Err(Feature::Flash.lacks("mkfs --on flash"))
}
