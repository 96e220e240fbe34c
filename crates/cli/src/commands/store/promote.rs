//! `steadfast store promote`: makes a clone independent of its parent.

use std::process::ExitCode;

use steadfast_block::BLOCK_SIZE;
use steadfast_store::OpenError;

use super::Where;
use crate::failure::Failure;
use crate::progress::Meter;
use crate::volume::store;
use crate::{size, text};

/// Copies all that the clone reads from its parent's objects into objects of its own, and removes the clone from the
/// parent's list: the parent may then delete what the clone alone needed, and may be deleted itself. The clone must
/// not be mounted. Before, delete its snapshots that need objects of the parent, and promote clones of it. If the
/// command is interrupted, call it again: it continues.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show progress even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    place: Where,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let url = &args.place.url;
    let found = args.place.find()?;
    let Some(parent) = found.object().parents.first().map(|p| p.url.clone()) else {
        return Err(Failure::new(format!(
            "{url}: is no clone: it needs no other volume"
        )));
    };
    // Checked first, so that nothing is copied in vain.
    let needing = found.pins_with_parents().map_err(store::failure)?;
    if !needing.is_empty() {
        return Err(store::failure(OpenError::NeedsParents {
            url: url.clone(),
            parent,
            names: needing.into_iter().map(|pin| pin.name).collect(),
        }));
    }
    let device = args.place.open(false)?;
    let meter = Meter::new(args.progress);
    let copied = device.promote(&mut |done, all| meter.show("copying blocks", done, all));
    drop(meter);
    let copied = copied.map_err(|e| Failure::new(format!("{url}: {e}")))?;
    let released = device.release();
    released.map_err(|e| Failure::new(format!("{url}: releasing it: {e}")))?;
    drop(device);
    found
        .leave_parent(store::PATIENCE)
        .map_err(store::failure)?;
    let bytes = copied * BLOCK_SIZE as u64;
    if args.place.json {
        text::print_json(&serde_json::json!({
            "url": url,
            "parent": parent,
            "copied_bytes": bytes,
        }))?;
    } else {
        text::print(&format!(
            "{url}: {} copied; it needs nothing of {parent} any more",
            size::show(bytes)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
