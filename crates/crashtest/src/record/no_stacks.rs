//! Stacks are taken on x86_64 alone: nothing here.

use crate::trace::Stack;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(super) struct Captured {
    pub(super) key: u32,
    pub(super) stack: Arc<Stack>,
}

pub(super) struct Stacks;

impl Stacks {
    pub(super) fn new() -> Stacks {
        Stacks
    }

    pub(super) fn begin(&self, _device: u64) {}

    pub(super) fn of(&self, _thread: u32, _process: u32) -> Option<Captured> {
        None
    }
}
