//! The state after a power cut. Every page that was programmed or erased since it was last durable
//! holds its old bytes, the new ones, a mixture, or garbage: each on its own.

use crate::nand::{Nand, Pending};
use crate::store::Store;
use crate::time::Clock;
use crate::{Address, Result, Rng};

/// Severity of a cut: seeds are spread over all of these.
#[derive(Clone, Copy)]
enum Manner {
    /// Nearly everything had arrived.
    Late,
    /// Nearly nothing had.
    Early,
    /// Anything.
    Mixed,
    /// Everything touched is garbage: the emulator of SCFTL §7.1.
    Garbage,
}

impl<S: Store> Nand<S> {
    /// Cuts the power and turns it on again. Planned failures and a planned cut are forgotten,
    /// the rates stay. Blocks that were touched must be erased before they are programmed.
    ///
    /// # Errors
    /// [`crate::FlashError::Store`].
    pub fn cut(mut self, seed: u64) -> Result<Nand<S>> {
        let mut rng = Rng::new(seed);
        let manner = match rng.below(4) {
            0 => Manner::Late,
            1 => Manner::Early,
            2 => Manner::Mixed,
            _ => Manner::Garbage,
        };
        let mut touched: Vec<(u32, Pending)> = self.pending.drain().collect();
        touched.sort_unstable_by_key(|(block, _)| *block);
        for (block, pending) in touched {
            self.leave(block, &pending, manner, &mut rng)?;
        }
        self.failed.clear();
        self.cut_after = None;
        let now = self.clock.now;
        self.clock = Clock::new(&self.geometry, self.clock.latency().clone());
        self.clock.now = now;
        self.store.sync()?;
        Ok(self)
    }

    fn leave(&mut self, block: u32, left: &Pending, manner: Manner, rng: &mut Rng) -> Result<()> {
        let state = &mut self.states[block as usize];
        if left.erase.is_some() {
            state.used = self.geometry.pages;
        }
        self.store.set_state(block, *state)?;
        let bytes = self.geometry.raw_bytes();
        for page in 0..self.geometry.pages {
            let at = Address { block, page };
            let mut values = Vec::new();
            values.extend(
                (left.overtaken.iter())
                    .filter(|p| p.0 == page)
                    .map(|p| &*p.1),
            );
            let erased = vec![0xFF; bytes];
            if left.erase.is_some() {
                values.push(&erased);
            }
            values.extend(left.pages.get(&page).map(|p| &**p));
            if values.is_empty() {
                continue;
            }
            let mut old = vec![0; bytes];
            self.store.load(at, &mut old)?;
            values.insert(0, &old);
            let result = choose(&values, manner, rng);
            self.store.store(at, &result)?;
        }
        Ok(())
    }
}

/// One of the values, the oldest first, or a mixture of two, or garbage.
fn choose(values: &[&[u8]], manner: Manner, rng: &mut Rng) -> Vec<u8> {
    let newest = values.len() - 1;
    let value = match (manner, rng.below(16)) {
        (Manner::Late, 2..) => newest,
        (Manner::Early, 2..) => 0,
        (Manner::Mixed, 8..) => rng.below(values.len() as u64) as usize,
        (Manner::Garbage, _) | (_, 0) => {
            return (0..values[0].len()).map(|_| rng.number() as u8).collect();
        }
        _ => {
            let from = values[rng.below(values.len() as u64) as usize];
            let to = values[rng.below(values.len() as u64) as usize];
            let border = rng.below(from.len() as u64) as usize;
            let mut torn = to[..border].to_vec();
            torn.extend_from_slice(&from[border..]);
            return torn;
        }
    };
    values[value].to_vec()
}
