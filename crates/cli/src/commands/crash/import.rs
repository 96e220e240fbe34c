//! `steadfast crash import`: a log of strace as a trace, for places without `/dev/fuse`.

use std::path::PathBuf;
use std::process::ExitCode;

use steadfast_crashtest::record::{self, Import};

use super::not_run;
use crate::failure::Failure;
use crate::{size, text};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The log that 'strace -f -y -xx -ttt -s 10000000 -o LOG -- WORKLOAD' wrote
    #[arg(long, value_name = "LOG")]
    strace: PathBuf,
    /// Directory of the workload, absolute and without symbolic links; calls elsewhere are left out
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Copy of the directory before the workload
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// The trace to write
    #[arg(short, long, value_name = "TRACE")]
    output: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let imported = record::import(&Import {
        log: args.strace.clone(),
        root: args.root.clone(),
        from: args.from.clone(),
        trace: args.output.clone(),
    })
    .map_err(not_run)?;
    let counts = imported.counts;
    let mut lines = vec![format!(
        "{}: {} calls, {} syncs, {} written, {} acknowledgements",
        args.output.display(),
        counts.calls,
        counts.syncs,
        size::show(counts.bytes_written),
        counts.acknowledged
    )];
    if imported.unseen > 0 {
        lines.push(format!(
            "not seen: {} calls that the log does not show in full, such as mmap and copy_file_range",
            imported.unseen
        ));
    }
    text::print(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}
