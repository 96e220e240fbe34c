//! The states that the contract allows: one per choice of a prefix of each stream.
//!
//! A choice without its newest operation is a choice too, and if that one is not
//! allowed neither is the longer one. So every allowed state is an allowed state plus
//! one piece, found while the history grows. States below the durable floor are
//! *retired*: they stay in the index, but nothing is built on them any more.

use super::covers;
use super::effect::effect;
use crate::op::{Call, OpResult};
use crate::snapshot::{Digest, Observe};
use crate::tree::Tree;
use std::collections::HashMap;
use steadfast_vfs::{Caller, Ino, Time};

/// An operation, or a part of one that a crash may separate from the rest.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Position of its operation in the history.
    pub(super) op: usize,
    pub(super) stream: usize,
    /// Its place among the pieces of its stream.
    pub(super) index: u32,
    pub(super) call: Call,
    pub(super) caller: Caller,
    pub(super) at: Time,
    /// Number of the inode that it may make.
    pub(super) ino: Ino,
    /// Its reported result and its effect in the history.
    pub(super) outcome: OpResult,
    pub(super) effect: u128,
    pub(super) touched: Vec<Ino>,
}

#[derive(Clone, Debug)]
enum Event {
    Piece(Box<Piece>),
    Open(Ino),
    Close(Ino),
}

#[derive(Clone, Debug)]
struct State {
    /// Number of pieces of each stream; an absent entry is 0.
    taken: Box<[u32]>,
    digest: Digest,
}

#[derive(Clone, Debug)]
pub(super) struct States {
    events: Vec<Event>,
    pieces: Vec<u32>,
    all: Vec<State>,
    by_content: HashMap<u128, Vec<u32>>,
    /// States that may still grow, with their trees.
    alive: Vec<(u32, Tree)>,
}

/// Puts a piece on a tree. Returns whether its effect is that in the history.
pub(super) fn put(tree: &mut Tree, piece: &Piece) -> bool {
    tree.set_next_ino(piece.ino);
    let before = tree.clone();
    let outcome = tree.call(&piece.call, &piece.caller, piece.at);
    let same = outcome == piece.outcome && effect(&before, tree).digest == piece.effect;
    if piece.outcome.is_err() {
        // A failed call has changed nothing, even if it would change something here.
        *tree = before;
    }
    same
}

impl States {
    pub(super) fn new(initial: &Tree) -> States {
        let mut states = States {
            events: Vec::new(),
            pieces: Vec::new(),
            all: Vec::new(),
            by_content: HashMap::new(),
            alive: Vec::new(),
        };
        states.push(Box::default(), initial.clone());
        states
    }

    fn push(&mut self, taken: Box<[u32]>, tree: Tree) {
        let id = self.all.len() as u32;
        let digest = tree.digest();
        self.by_content.entry(digest.content).or_default().push(id);
        self.all.push(State { taken, digest });
        self.alive.push((id, tree));
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Pieces of a stream so far.
    pub(super) fn pieces_of(&self, stream: usize) -> u32 {
        self.pieces.get(stream).copied().unwrap_or(0)
    }

    /// No further operation is tried on states that lack durable operations.
    pub(super) fn retire(&mut self, least: &[u32]) {
        let all = &self.all;
        self.alive
            .retain(|(id, _)| covers(&all[*id as usize].taken, least));
    }

    /// Opens and closes happen in every state that has the inode.
    pub(super) fn keep_alive(&mut self, call: &Call) {
        let event = match call {
            Call::Open { ino, .. } => Event::Open(*ino),
            Call::Close { ino, .. } => Event::Close(*ino),
            _ => return,
        };
        for (_, tree) in &mut self.alive {
            hold(tree, &event);
        }
        self.events.push(event);
    }

    /// Adds the next piece of a stream: every state that holds all earlier ones of
    /// that stream may grow by it. False if there would be too many states.
    pub(super) fn extend(&mut self, piece: Piece, states_max: usize) -> bool {
        let stream = piece.stream;
        super::raise(&mut self.pieces, stream, piece.index + 1);
        let mut grown = Vec::new();
        for (id, tree) in &self.alive {
            let taken = &self.all[*id as usize].taken;
            if taken.get(stream).copied().unwrap_or(0) != piece.index {
                continue;
            }
            let mut tree = tree.clone();
            if put(&mut tree, &piece) {
                let mut taken = taken.to_vec();
                super::raise(&mut taken, stream, piece.index + 1);
                grown.push((taken.into_boxed_slice(), tree));
            }
        }
        self.events.push(Event::Piece(Box::new(piece)));
        if self.all.len() + grown.len() > states_max {
            return false;
        }
        for (taken, tree) in grown {
            self.push(taken, tree);
        }
        true
    }

    /// Choices whose tree has this digest.
    pub(super) fn with_digest(
        &self,
        digest: &Digest,
        observe: Observe,
    ) -> impl Iterator<Item = &[u32]> {
        let ids = self
            .by_content
            .get(&digest.content)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let states = ids.iter().rev().map(|id| &self.all[*id as usize]);
        let digest = *digest;
        states
            .filter(move |s| s.digest.agrees(&digest, observe))
            .map(|s| &*s.taken)
    }

    /// All choices, oldest first.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &[u32]> {
        self.all.iter().map(|s| &*s.taken)
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.events.iter().filter_map(|e| match e {
            Event::Piece(p) => Some(&**p),
            _ => None,
        })
    }

    /// The tree of a choice, allowed or not.
    pub(super) fn replay(&self, initial: &Tree, taken: &[u32]) -> Tree {
        let mut tree = initial.clone();
        for event in &self.events {
            match event {
                Event::Piece(p) if p.index < taken.get(p.stream).copied().unwrap_or(0) => {
                    put(&mut tree, p);
                }
                Event::Piece(_) => {}
                other => hold(&mut tree, other),
            }
        }
        tree
    }
}

fn hold(tree: &mut Tree, event: &Event) {
    match event {
        Event::Open(ino) => {
            // Where the inode was never made there is nothing to keep alive.
            let _ = tree.open(*ino);
        }
        Event::Close(ino) => tree.release(*ino),
        Event::Piece(_) => {}
    }
}
