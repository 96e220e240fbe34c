//! `steadfast crash` in a program without the feature `crash`.

use std::process::ExitCode;

use super::without_feature;
pub(crate) use super::without_feature::Args as Command;
use crate::failure::Failure;
use crate::features::Feature;

pub(crate) fn run(args: &Command) -> Result<ExitCode, Failure> {
    without_feature::run(args, Feature::Crash, "crash")
}
