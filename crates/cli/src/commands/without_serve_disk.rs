//! `steadfast serve disk` in a program without the feature `flash`.

use std::process::ExitCode;

use super::without_feature;
pub(crate) use super::without_feature::Args;
use crate::failure::Failure;
use crate::features::Feature;

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    without_feature::run(args, Feature::Flash, "serve disk")
}
