//! From running to durable: closing, syncing, and the flushes.
//!
//! There is no dedicated committer thread: a thread that waits for a commit becomes the
//! committer if there is none (`Core::committing`), so a lone `sync` costs no thread switch and
//! many share one record. The same holds for checkpoints. Without workers everything
//! happens inside the callers, which makes a single-threaded run deterministic.
//!
//! Order of closing and committing one transaction:
//! 1. if the client put work off for it, a gate: new operations are held back, open ones end,
//!    the client allocates in memory; then the transaction freezes (memory only);
//! 2. its data blocks are written to their places, and hashed, or flushed if they are many;
//! 3. the committer lays and writes the record, flushes, acknowledges.

use crate::checkpoint::Requester;
use crate::core::{Batch, Core, DataRun, Request, TxnId};
use crate::engine::Inner;
use crate::lanes::AllLanes;
use crate::policy::{self, Patience};
use crate::record::Covered;
use crate::sync::{MutexGuard, thread, wait_timeout};
use crate::{COVERED_BLOCKS_MAX, Credits, Error, Op, Result, StreamId};
use std::time::{Duration, Instant};

/// Time that a checkpoint waits for a commit's flush before it flushes by itself.
const FLUSH_PATIENCE: Duration = Duration::from_millis(5);
/// Keys of delayed work that are closed while operations are held back once: a few milliseconds' work.
pub(crate) const HOLD_KEYS_MAX: usize = if cfg!(feature = "shuttle") { 1 } else { 256 };

/// Event that a thread that carries transactions waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Until {
    /// The device has them.
    Sent,
    /// They are durable.
    Durable,
}

impl Inner {
    // ---- closing ---------------------------------------------------------------------------

    /// Closes the running ones of the chosen transactions; returns all chosen. Without delayed
    /// work that takes a moment under the core's lock: an open operation has no part in a
    /// transaction yet, and comes after it. With delayed work, no operation is open meanwhile:
    /// blocks that the client allocates may be another stream's. Much of it is closed in several holds, and
    /// operations go on between them, so that no thread waits long because others wrote many files.
    pub(crate) fn close(&self, choose: impl Fn(&mut Core) -> Vec<TxnId>) -> Result<Vec<TxnId>> {
        // Operations between two holds may attach further keys: the last hold takes the rest.
        let mut holds_left = None;
        loop {
            let (lanes, mut core) = if self.config.faults.freeze_beside_applying {
                (None, self.core.lock())
            } else {
                let (lanes, core) = self.told();
                (Some(lanes), core)
            };
            core.check()?;
            let chosen = choose(&mut core);
            if !core.any_running(&chosen) {
                return Ok(chosen);
            }
            if core.closing {
                drop(lanes);
                drop(self.wait(core));
                continue;
            }
            let attached = core.attached(&chosen);
            let lanes = match lanes {
                Some(lanes) if attached > 0 => lanes,
                still_locked => {
                    core.freeze(&chosen, &self.cache);
                    self.unlock(core);
                    drop(still_locked);
                    return Ok(chosen);
                }
            };
            let left = holds_left.unwrap_or(attached.div_ceil(HOLD_KEYS_MAX));
            holds_left = Some(left.saturating_sub(1));
            if let Some(chosen) = self.close_held(lanes, core, &choose, left <= 1)? {
                return Ok(chosen);
            }
            // Those that were held back come first.
            let mut core = self.core.lock();
            while core.held_back > 0 {
                core = self.wait(core);
            }
        }
    }

    /// Holds operations back and closes some of the chosen transactions' delayed work, or, in the last hold, all of it;
    /// freezes them and returns them if nothing is left.
    fn close_held<'a>(
        &'a self,
        mut lanes: AllLanes<'a>,
        mut core: MutexGuard<'a, Core>,
        choose: impl Fn(&mut Core) -> Vec<TxnId>,
        last: bool,
    ) -> Result<Option<Vec<TxnId>>> {
        core.closing = true;
        lanes.slow_down(&mut core);
        while lanes.open() > 0 {
            drop(lanes);
            drop(self.wait(core));
            (lanes, core) = self.told();
        }
        drop(lanes);
        // Nothing is open: the choice cannot change any more but by the client's own work.
        let chosen = choose(&mut core);
        let mut most = if last { usize::MAX } else { HOLD_KEYS_MAX };
        let mut result = Ok(());
        while most > 0
            && let Some(attached) = core.take_attached(&chosen, most)
        {
            most -= attached.keys.len();
            drop(core);
            result = self.close_keys(attached.id, attached.stream, &attached.keys);
            core = self.core.lock();
            if let Err(error) = result {
                result = Err(core.fail(&error));
                break;
            }
            core.was_attached(&attached);
        }
        let done = result.is_ok() && core.attached(&chosen) == 0;
        if done {
            core.freeze(&chosen, &self.cache);
        }
        core.closing = false;
        if result.is_ok() {
            self.unlock(core);
        } else {
            self.wake_everybody(core);
        }
        result.map(|()| done.then_some(chosen))
    }

    fn close_keys(&self, id: TxnId, stream: StreamId, keys: &[u64]) -> Result<()> {
        let Some(client) = self.client() else {
            // The client's delayed work is lost: the transaction can never be whole.
            return Err(Error::Closed);
        };
        let _guard = PanicGuard(self);
        let op = Op::new(self, stream, Err(id), Credits::default());
        client.close(op, keys).map(|_| ())
    }

    // ---- syncing ---------------------------------------------------------------------------

    /// Makes the chosen transactions durable.
    pub(crate) fn sync(
        &self,
        request: Request<'_>,
        choose: impl Fn(&mut Core) -> Vec<TxnId>,
    ) -> Result<()> {
        if self.config.read_only {
            return Ok(());
        }
        let chosen = self.close(choose)?;
        self.drive(request, &chosen)
    }

    /// Works, or waits for others that work, until `ids` are durable.
    pub(crate) fn drive(&self, request: Request<'_>, ids: &[TxnId]) -> Result<()> {
        self.carry(request, ids, Until::Durable)
    }

    /// Works, or waits for others that work, until the device has `ids`, or until they are durable if there is a log.
    pub(crate) fn send(&self, request: Request<'_>, ids: &[TxnId]) -> Result<()> {
        self.carry(request, ids, Until::Sent)
    }

    fn carry(&self, request: Request<'_>, ids: &[TxnId], until: Until) -> Result<()> {
        let mut core = self.core.lock();
        core.requested(request, ids);
        let mut patience = Patience::default();
        loop {
            let done = match until {
                Until::Durable => core.acknowledged(ids),
                Until::Sent => core.sent(ids),
            };
            if done {
                return Ok(());
            }
            core.check()?;
            if let Some((id, data)) = core.claim_data(ids) {
                drop(core);
                self.write_data(id, &data)?;
            } else if core.all_in_batches(ids) || core.waits_for_company(request) {
                core = self.wait_for_batch(core, ids);
                continue;
            } else if let Some(pause) = self.pause(&core, request) {
                // Asleep, not waiting for an event: the pause is short, and threads that come meanwhile sleep until the same time.
                drop(core);
                thread::sleep(pause);
            } else if core.may_lead() && patience.expects_more(core.committers(), core.crowd) {
                drop(core);
                thread::yield_now();
            } else if let Some(batch) = self.lead(&mut core, ids, false) {
                drop(core);
                match until {
                    Until::Durable => self.commit_batch(batch)?,
                    Until::Sent => self.send_batch_unattended(batch)?,
                }
            } else {
                core = self.wait_for_batch(core, ids);
                continue;
            }
            core = self.core.lock();
        }
    }

    /// Becomes the committer, above all for the needs of `ids`, if there is no committer and something to commit.
    pub(crate) fn lead(
        &self,
        core: &mut MutexGuard<'_, Core>,
        ids: &[TxnId],
        empty: bool,
    ) -> Option<Batch> {
        if !core.may_lead() {
            return None;
        }
        let batch = core.next_batch(ids, empty, &self.config.faults);
        if batch.is_some() && !self.config.batch_gap.is_zero() {
            core.batch_began = Some(self.config.clock.now());
        }
        batch
    }

    /// Time until a batch may begin for this request. A request for room never pauses.
    fn pause(&self, core: &Core, request: Request<'_>) -> Option<Duration> {
        let gap = self.config.batch_gap;
        if gap.is_zero() || core.hurry > 0 || !matches!(request, Request::Sync(_)) {
            return None;
        }
        let since = |began: Duration| self.config.clock.now().saturating_sub(began);
        let pause = policy::pause(gap, core.batch_began.map(since));
        (core.may_lead() && !pause.is_zero()).then_some(pause)
    }

    /// Writes a closed transaction's data blocks to their places. Few are hashed, to be covered
    /// by the record; many are flushed here, where only their own stream waits.
    fn write_data(&self, id: TxnId, data: &[DataRun]) -> Result<()> {
        let written = if self.config.faults.data_late {
            Ok(Vec::new())
        } else {
            self.write_runs(data)
        };
        match written {
            Ok(mut covered) => {
                if self.config.faults.data_uncovered {
                    covered.clear();
                }
                let mut core = self.core.lock();
                core.data_written(id, covered);
                self.wake_everybody(core);
                Ok(())
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    pub(crate) fn write_runs(&self, data: &[DataRun]) -> Result<Vec<Covered>> {
        let blocks = self.write_runs_outside(data)?;
        self.core.lock().stats.around_blocks += blocks;
        if self.epoch.is_some() {
            // The batch's flush makes it durable, or one before it.
            return Ok(Vec::new());
        }
        if blocks > COVERED_BLOCKS_MAX {
            self.flush()?;
            return Ok(Vec::new());
        }
        Ok(data
            .iter()
            .map(|(at, images)| Covered {
                at: *at,
                count: images.len() as u32,
                hash: self.identity.covered_hash(*at, images.iter().map(|b| &**b)),
            })
            .collect())
    }

    /// Flushes the device. A device reports a lost write once, to whichever flush comes first:
    /// so a success counts only when every flush that overlapped it has reported, too.
    pub(crate) fn flush(&self) -> Result<()> {
        let id = self.core.lock().flush_begins();
        let result = if self.config.faults.skip_flush {
            Ok(())
        } else {
            self.device.flush()
        };
        let mut core = self.core.lock();
        let newest = core.flush_ends(id);
        core.stats.flushes += 1;
        if let Err(error) = result {
            let error = core.fail(&error.into());
            self.wake_everybody(core);
            return Err(error);
        }
        while core.flushing_since(newest) {
            core = self.wait(core);
        }
        let failed = core.failure().cloned();
        if failed.is_none() {
            core.flushed(id);
        }
        self.unlock(core);
        failed.map_or(Ok(()), Err)
    }

    /// Makes earlier writes durable, with the flush of a commit if one comes soon: a
    /// checkpoint in the background then costs no flush of its own. Never waits for a commit
    /// that may wait for the checkpoint (`Core::hurry`).
    pub(crate) fn flush_with_others(&self) -> Result<()> {
        let mut core = self.core.lock();
        let before = core.newest_flush();
        let begun = Instant::now();
        while core.flushed_upto() <= before {
            core.check()?;
            let patience = FLUSH_PATIENCE.saturating_sub(begun.elapsed());
            if core.hurry > 0 || core.stopped || patience.is_zero() {
                drop(core);
                return self.flush();
            }
            core.waiters += 1;
            core = wait_timeout(&self.changed, core, patience);
            core.waiters -= 1;
        }
        Ok(())
    }

    pub(crate) fn reclaim(&self) -> Result<bool> {
        let (before, telling) = {
            let core = self.core.lock();
            (core.stats.released_blocks, core.releasing > 0)
        };
        self.sync(Request::Housekeeping, Core::everything)?;
        let mut core = self.core.lock();
        // A checkpoint under way, or one record that proves the last, is all that can be
        // missing; then the client must have heard of it.
        while core.quarantined() || core.releasing > 0 {
            core.check()?;
            if core.releasing > 0 || core.checkpointing {
                core = self.wait(core);
            } else if let Some(batch) = self.lead(&mut core, &[], true) {
                drop(core);
                self.commit_batch(batch)?;
                core = self.core.lock();
            } else if core.committing {
                core = self.wait(core);
            } else if core.can_checkpoint() {
                // No room for a record: the next tail header proves as well.
                drop(core);
                self.checkpoint(Requester::Caller)?;
                core = self.core.lock();
            } else {
                break;
            }
        }
        Ok(telling || core.stats.released_blocks > before)
    }
}

/// Opens the gate and stops the journal if the client panics in it, so that no thread waits for ever.
struct PanicGuard<'a>(&'a Inner);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let mut core = self.0.core.lock();
            core.fail(&Error::Corrupt {
                what: "the storage program panicked while a transaction closed".into(),
            });
            core.closing = false;
            self.0.wake_everybody(core);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
