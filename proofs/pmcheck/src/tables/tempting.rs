//! Plans and rules that look right. Each is tried; most are not.

mod births;
mod contents;
mod names;

use super::families::{aged, forged, forged_before, forged_names, forged_write, mixed};
use super::*;
use crate::pm::Model;
use crate::volume::*;
use Op::*;

/// A plan or a rule to try.
pub struct Tempting {
    pub name: &'static str,
    /// Whether it is sound, as far as is known.
    pub sound: bool,
    pub layout: Layout,
    pub model: Model,
    pub setup: Vec<Op>,
    pub op: Op,
    /// Empty: the recommended one.
    pub plan: &'static str,
    /// Other plans of the calls that follow.
    pub also: Vec<(&'static str, &'static str)>,
    /// Calls that follow one after another, instead of each alone.
    pub then: Vec<Op>,
}

fn tempt(
    name: &'static str,
    layout: Layout,
    model: Model,
    setup: &[Op],
    op: Op,
    plan: &'static str,
) -> Tempting {
    Tempting {
        name,
        sound: false,
        layout,
        model,
        setup: setup.to_vec(),
        op,
        plan,
        also: vec![],
        then: vec![],
    }
}

/// All of them.
pub fn tempting() -> Vec<Tempting> {
    [
        births::of_births(),
        names::of_names(),
        contents::of_contents(),
        contents::of_recovery(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
