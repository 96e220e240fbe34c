//! Reports the core's decisions to its watcher: see `trace`. Without the feature of that
//! name a probe is empty, and a report costs nothing.

pub(crate) use crate::changes::OpName;
use crate::changes::{OpChanges, Run};
use crate::patch::Edit;
use crate::{Access, Object, StreamId};
use steadfast_block::BlockNo;

#[cfg(feature = "trace")]
struct Listener {
    hears: Box<dyn Fn(Decision) + Send + Sync>,
    /// Name of the newest operation.
    newest: std::sync::atomic::AtomicU64,
}

/// Listens to the core, or does not. Told under the core's lock, or under that of a lane, so
/// decisions arrive in the order in which they take effect; the listener must not block.
#[derive(Clone, Default)]
pub struct Probe {
    #[cfg(feature = "trace")]
    listener: Option<std::sync::Arc<Listener>>,
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probe")
    }
}

/// Common part of two operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Object(Object, Access),
    /// Bits of a block that are written: block, first, count.
    Bits(BlockNo, usize, usize),
    /// A counter of a block that is added to: block, byte.
    Sum(BlockNo, usize),
    /// Bits of a block whose newest value counts: block, first, count.
    Newest(BlockNo, usize, usize),
    /// The block's life begins or ends.
    Life(BlockNo),
}

/// Decision of the core, at the moment when it takes effect.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "trace"), allow(dead_code))]
pub(crate) enum Decision {
    /// An operation is committed in memory.
    Committed {
        name: OpName,
        stream: StreamId,
        parts: Vec<Part>,
    },
    /// A transaction with these operations closed: it owns its bytes.
    Frozen(Vec<OpName>),
    /// A record with these operations is laid; they free and write around the log these runs.
    Laid {
        names: Vec<OpName>,
        frees: Vec<Run>,
        around: Vec<Run>,
    },
    /// The record laid last is durable.
    Acknowledged,
    /// These runs left the quarantine.
    Released(Vec<Run>),
    /// A checkpoint chose the images of these blocks.
    Round(Vec<BlockNo>),
    /// The log before that round's tail is free.
    Trimmed,
}

impl Probe {
    /// A probe that calls `hears` with each decision.
    #[cfg(feature = "trace")]
    pub(crate) fn new(hears: impl Fn(Decision) + Send + Sync + 'static) -> Probe {
        let listener = Listener {
            hears: Box::new(hears),
            newest: std::sync::atomic::AtomicU64::new(0),
        };
        Probe {
            listener: Some(std::sync::Arc::new(listener)),
        }
    }

    /// A name for the next operation.
    #[cfg_attr(not(feature = "trace"), allow(clippy::unused_self))]
    pub(crate) fn name(&self) -> OpName {
        #[cfg(feature = "trace")]
        if let Some(listener) = &self.listener {
            let order = std::sync::atomic::Ordering::Relaxed;
            return OpName {
                number: listener.newest.fetch_add(1, order) + 1,
            };
        }
        OpName::default()
    }

    /// Tells of a decision, which is made up only if there is a listener.
    #[cfg_attr(not(feature = "trace"), allow(unused_variables, clippy::unused_self))]
    pub(crate) fn tell(&self, decision: impl FnOnce() -> Decision) {
        #[cfg(feature = "trace")]
        if let Some(listener) = &self.listener {
            (listener.hears)(decision());
        }
    }
}

impl OpChanges {
    /// Parts that other operations may have in common with this one.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<Part> = (self.relations.iter())
            .map(|(object, access)| Part::Object(*object, *access))
            .collect();
        for block in &self.blocks {
            if block.zero || block.revoke {
                parts.push(Part::Life(block.at));
            }
            parts.extend(block.edits.iter().map(|edit| match *edit {
                Edit::Bytes { offset, len, .. } => {
                    Part::Bits(block.at, usize::from(offset) * 8, usize::from(len) * 8)
                }
                Edit::Add { offset, .. } => Part::Sum(block.at, usize::from(offset)),
                Edit::Latest { offset, len, .. } => {
                    Part::Newest(block.at, usize::from(offset) * 8, usize::from(len) * 8)
                }
                Edit::Bits { first, count, .. } => {
                    Part::Bits(block.at, usize::from(first), usize::from(count))
                }
            }));
        }
        let around = (self.data.iter()).map(|(at, blocks)| (*at, blocks.len() as u64));
        for (at, count) in self.frees.iter().copied().chain(around) {
            parts.extend((0..count).map(|i| Part::Life(at.offset(i))));
        }
        parts
    }
}
