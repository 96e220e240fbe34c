//! Losses of a power cut at each point of the run: files as the calls had made them, and as they are if only what
//! must survive survives. For the page, where the crash point can be moved.

use super::{PointReport, Report, files};
use crate::effects::{Bits, Effects, Run};
use crate::models::Model;
use crate::states::Former;
use std::sync::Arc;

/// Maximum number of points of one model: with more calls, some are left out.
const POINTS_MAX: usize = 300;
/// Maximum number of inodes that are compared at all points of one model together.
const INODES_MAX: usize = 300_000;
/// Maximum number of rows of all points of one model together.
const ROWS_MAX: usize = 6000;

impl Report {
    /// Adds to each model the losses of a power cut at each point of the run.
    pub fn add_points(&mut self, run: &Run, models: &[Model]) {
        for report in &mut self.models {
            if let Some(model) = models.iter().find(|m| m.name == report.name) {
                report.points = points(run, model);
            }
        }
    }
}

/// The points at which the losses change, in ascending order.
fn points(run: &Run, model: &Model) -> Vec<PointReport> {
    let effects = Effects::new(run, model);
    let former = Former::new(&effects);
    let steps = effects.steps();
    let inodes = effects.base.inodes().max(1);
    let count = POINTS_MAX.min(INODES_MAX / inodes).max(2);
    let every = (steps + 1).div_ceil(count).max(1);
    let mut points: Vec<PointReport> = Vec::new();
    let mut least: Option<(Arc<Bits>, crate::effects::Disk)> = None;
    let mut rows = 0;
    let moments = (0..=steps).filter(|t| t % every == 0 || *t == steps);
    for after in moments {
        let Some(demanded) = effects.demanded.get(after) else {
            break;
        };
        let is_known = |l: &(Arc<Bits>, crate::effects::Disk)| Arc::ptr_eq(&l.0, demanded);
        if !least.as_ref().is_some_and(is_known) {
            least = Some((Arc::clone(demanded), former.disk(demanded, None)));
        }
        let Some((_, found)) = &least else {
            break;
        };
        let written = former.disk(&effects.prefix(after), None);
        let (files, more) = files::differing(&written, found);
        if points
            .last()
            .is_some_and(|p| p.files == files && p.more == more)
        {
            continue;
        }
        rows += files.iter().map(|f| f.rows.len() + 1).sum::<usize>();
        if rows > ROWS_MAX {
            break;
        }
        points.push(PointReport { after, files, more });
    }
    points
}
