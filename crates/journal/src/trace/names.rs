//! Names for contents: equal sectors have equal names, so a checker need not see bytes.

use std::collections::HashMap;
use steadfast_block::{Block, SECTOR_SIZE};

/// Sectors of a block.
pub(super) const SECTORS: usize = steadfast_block::BLOCK_SIZE / SECTOR_SIZE;

/// Names of sectors; zeros are 0.
#[derive(Clone)]
pub(super) struct Names {
    known: HashMap<[u8; SECTOR_SIZE], u64>,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            known: HashMap::from([([0; SECTOR_SIZE], 0)]),
        }
    }
}

impl Names {
    fn sector(&mut self, sector: &[u8; SECTOR_SIZE]) -> u64 {
        let next = self.known.len() as u64;
        *self.known.entry(*sector).or_insert(next)
    }

    /// The content of a block, of those sectors that `wanted` has.
    pub(super) fn sectors(&mut self, block: &Block, wanted: [bool; SECTORS]) -> String {
        let (sectors, _) = block.as_chunks::<SECTOR_SIZE>();
        let names: Vec<Option<u64>> = (sectors.iter().zip(wanted))
            .map(|(sector, wanted)| wanted.then(|| self.sector(sector)))
            .collect();
        match names[0] {
            Some(first) if names.iter().all(|name| *name == Some(first)) => first.to_string(),
            _ => {
                let name = |name: &Option<u64>| name.map_or("-".into(), |name| name.to_string());
                names.iter().map(name).collect::<Vec<String>>().join("/")
            }
        }
    }

    /// The whole content of a block.
    pub(super) fn block(&mut self, block: &Block) -> String {
        self.sectors(block, [true; SECTORS])
    }

    /// A content that nothing has.
    pub(super) fn nothing(&mut self) -> String {
        // Names count from 0 on, one for each sector seen.
        (1u64 << 61).to_string()
    }
}
