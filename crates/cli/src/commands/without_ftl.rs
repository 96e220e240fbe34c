//! `steadfast ftl` in a program without the feature `flash`.

use std::process::ExitCode;

use super::without_feature;
pub(crate) use super::without_feature::Args as Command;
use crate::failure::Failure;
use crate::features::Feature;

pub(crate) fn run(args: &Command) -> Result<ExitCode, Failure> {
    without_feature::run(args, Feature::Flash, "ftl")
}
