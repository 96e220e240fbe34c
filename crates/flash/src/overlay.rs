//! A store over another one that is never changed: all writes stay in memory. So a memory
//! can be mounted, which programs pages, and left unchanged.

use crate::store::{BlockState, Store};
use crate::{Address, Geometry};
use std::collections::HashMap;

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Overlay<S> {
    below: S,
    pages_per_block: u32,
    /// `None`: erased.
    pages: HashMap<Address, Option<Box<[u8]>>>,
    states: HashMap<u32, BlockState>,
}

impl<S: Store> Overlay<S> {
    /// An overlay of a store of this geometry, without changes.
    #[must_use]
    pub fn new(below: S, geometry: &Geometry) -> Overlay<S> {
        Overlay {
            below,
            pages_per_block: geometry.pages,
            pages: HashMap::new(),
            states: HashMap::new(),
        }
    }
}

impl<S: Store> Store for Overlay<S> {
    fn load(&self, at: Address, bytes: &mut [u8]) -> std::io::Result<()> {
        match self.pages.get(&at) {
            Some(Some(page)) => bytes.copy_from_slice(page),
            Some(None) => bytes.fill(0xFF),
            None => self.below.load(at, bytes)?,
        }
        Ok(())
    }

    fn store(&mut self, at: Address, bytes: &[u8]) -> std::io::Result<()> {
        self.pages.insert(at, Some(bytes.into()));
        Ok(())
    }

    fn erase(&mut self, block: u32) -> std::io::Result<()> {
        for page in 0..self.pages_per_block {
            self.pages.insert(Address { block, page }, None);
        }
        Ok(())
    }

    fn state(&self, block: u32) -> std::io::Result<BlockState> {
        match self.states.get(&block) {
            Some(state) => Ok(*state),
            None => self.below.state(block),
        }
    }

    fn set_state(&mut self, block: u32, state: BlockState) -> std::io::Result<()> {
        self.states.insert(block, state);
        Ok(())
    }

    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
