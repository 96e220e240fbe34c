//! The model in `proofs/alloy` has the transitions of the code, and no others: each of its predicates that names a function says the
//! same of it as the types do.
#![allow(missing_docs)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use steadfast_pmfs::state::transitions::{TRANSITIONS, Transition};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../proofs/alloy/transitions.als"
);

/// A transition in words: object, states before and after, conditions, function.
type Row = (String, [String; 4], BTreeSet<[String; 3]>, String);

fn code(row: &Transition) -> Row {
    let states = [row.from.0, row.from.1, row.to.0, row.to.1].map(String::from);
    let needs = row.needs.iter().flatten();
    let needs = needs.map(|need| [need.0, need.1, need.2].map(String::from));
    (row.object.into(), states, needs.collect(), row.by.into())
}

/// The arguments of the call of `name` in `line`.
fn arguments<'l>(line: &'l str, name: &str) -> Option<Vec<&'l str>> {
    let rest = line.trim().strip_prefix(name)?.strip_prefix('[')?;
    let (inside, _) = rest.split_once(']')?;
    Some(inside.split(',').map(str::trim).collect())
}

/// Need of another object in a line of a predicate.
fn need(line: &str) -> Option<[String; 3]> {
    let words = |object: &str, state: [&str; 2]| [object, state[0], state[1]].map(String::from);
    if let Some(arguments) = arguments(line, "needs") {
        let [_, of, _, persistence, state] = arguments[..] else {
            panic!("{line}");
        };
        let object = if of.ends_with(".ino") {
            "Inode"
        } else {
            "Slot"
        };
        return Some(words(object, [persistence, state]));
    }
    if let Some(arguments) = arguments(line, "needs_descriptors") {
        return Some(words("Descriptors", [arguments[2], "Before"]));
    }
    let arguments = arguments(line, "needs_content")?;
    Some(words("Content", [arguments[2], "Written"]))
}

/// The predicates of the model that name a function.
fn model(text: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for predicate in text.split("\npred ").skip(1) {
        let (head, body) = predicate.split_once('\n').unwrap_or((predicate, ""));
        let Some((signature, by)) = head.split_once(" -- ") else {
            continue;
        };
        let object = ["Inode", "Slot", "Page"]
            .into_iter()
            .find(|object| signature.contains(&format!("x: {object},")))
            .unwrap_or_else(|| panic!("{head}"));
        let body = body.split_once("\n}").unwrap().0;
        let goes: Vec<_> = body.lines().filter_map(|l| arguments(l, "goes")).collect();
        let [[_, _, _, states @ ..]] = &goes.iter().map(Vec::as_slice).collect::<Vec<_>>()[..]
        else {
            panic!("{head}: it has {} lines `goes`", goes.len());
        };
        let states: [&str; 4] = states.try_into().unwrap_or_else(|_| panic!("{head}"));
        let needs = body.lines().filter_map(need).collect();
        rows.push((object.into(), states.map(String::from), needs, by.into()));
    }
    rows
}

#[test]
fn model_and_code_have_the_same_transitions() {
    let text = std::fs::read_to_string(MODEL).unwrap();
    let mut model = model(&text);
    let mut code: Vec<_> = TRANSITIONS.iter().map(code).collect();
    model.sort();
    code.sort();
    let missing: Vec<_> = code.iter().filter(|row| !model.contains(row)).collect();
    let unknown: Vec<_> = model.iter().filter(|row| !code.contains(row)).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "only in the code: {missing:#?}\nonly in the model: {unknown:#?}"
    );
    assert_eq!(model.len(), code.len(), "a transition is there twice");
}

#[test]
fn every_transition_of_the_model_can_be_taken() {
    // A predicate that no object may follow would agree with the code and say nothing.
    let text = std::fs::read_to_string(MODEL).unwrap();
    let steps = text.split_once("pred slot_moves").unwrap().1;
    for predicate in text.split("\npred ").skip(1) {
        let head = predicate.lines().next().unwrap_or_default();
        let name = predicate.split_once('[').unwrap().0;
        if head.contains(" -- ") {
            assert!(steps.contains(&format!("{name}[o, x, m]")), "{name}");
        }
    }
}

#[test]
fn a_transition_that_differs_is_found() {
    let text = std::fs::read_to_string(MODEL).unwrap();
    let rows = model(&text);
    for (from, to) in [
        (
            "goes[o, x, m, Clean, Live, Dirty, Swapped]",
            "goes[o, x, m, Dirty, Live, Dirty, Swapped]",
        ),
        (
            "needs[o, o.to, m, Clean, Committed]",
            "needs[o, o.to, m, Dirty, Committed]",
        ),
        (
            "-- Descriptors<Killed>::kill",
            "-- Descriptors<Before>::kill",
        ),
        (
            "needs_content[o, m, Clean]",
            "needs_content[o, m, InFlight]",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        assert_ne!(model(&text.replace(from, to)), rows, "{from}");
    }
}
