//! The searches: each prints its cases and returns the number of wrong results.

use crate::check::{Checker, Cost, State};
use crate::ops::{Choice, groups};
use crate::plan::*;
use crate::pm::*;
use crate::spec::*;
use crate::tables::*;
use crate::volume::*;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Instant;

/// The table that the code is compared with.
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/plans.txt");

/// The labels that occur in a family's cases, in the order in which they are built, and the states that they start from.
fn labels_of(
    checker: &Checker,
    family: &Family,
    plans: &dyn Fn(&Op) -> Plan,
) -> (Vec<&'static str>, Vec<State>) {
    let (mut labels, mut starts) = (vec![], vec![]);
    for (setup, op) in &family.cases {
        let state = checker.run(setup, plans, 0);
        let choice = Choice {
            fine: checker.fine,
            ..Choice::default()
        };
        let groups = groups(checker.layout, &state.image, state.open, op, choice);
        for (label, _) in groups.unwrap_or_else(|| panic!("no room for {op:?} in {setup:?}")) {
            if !labels.contains(&label) {
                labels.push(label);
            }
        }
        starts.push(state);
    }
    (labels, starts)
}

/// Checks that `plans.txt` agrees with the recommended plans, or writes it.
pub fn table(write: bool) -> usize {
    let layout = Layout {
        times: true,
        ..RECOMMENDED
    };
    let plans = |op: &Op| plan_of(op, layout, Model::Line);
    let checker = Checker::new(layout, Model::Line);
    let mut text = String::from(
        "# The order of stores of each call, as `cargo run --release -- --write` in proofs/pmcheck writes it.\n\
         # `|` is a fence. Groups between two fences are stored in any order, those of one line in the order given here.\n\
         # A call has the groups that it needs. A fence before which nothing is left to store is left out.\n\n",
    );
    let listed =
        |label: &str| !label.contains("nlink") && !label.contains("zero") || label == "page.zero";
    for (label, content) in LABELS {
        if !content.is_empty()
            && listed(label)
            && !["fence", "poke", "D.unptr"].contains(label)
            && !label.starts_with("desc.")
        {
            let _ = writeln!(text, "label | {label:<12} | {content}");
        }
    }
    let _ = writeln!(text, "anywhere | {}", ANYWHERE.join(" "));
    let _ = writeln!(text, "earlier  | {}\n", EARLIER.join(" "));
    let families = families(layout);
    let mut calls: Vec<&str> = vec![];
    for family in &families {
        if !calls.contains(&family.call) {
            calls.push(family.call);
            let mut whole = plans(&family.cases[0].1);
            for phase in &mut whole {
                phase.retain(|l| listed(l) && *l != "D.unptr");
            }
            let last = whole.len() - 1;
            let whole: Plan = whole
                .into_iter()
                .enumerate()
                .filter(|(k, p)| *k == last || !p.is_empty())
                .map(|x| x.1)
                .collect();
            let _ = writeln!(text, "call | {:<22} | {}", family.call, show(&whole));
        }
    }
    text.push('\n');
    for family in &families {
        let (labels, _) = labels_of(&checker, family, &plans);
        let plan = only(&plans(&family.cases[0].1), &labels);
        let _ = writeln!(
            text,
            "shape | {:<44} | {} | {}",
            family.name(),
            plan.len() - 1,
            show(&plan)
        );
    }
    if write {
        return usize::from(std::fs::write(TABLE, text).is_err());
    }
    let same = std::fs::read_to_string(TABLE).is_ok_and(|old| old == text);
    if !same {
        println!("plans.txt differs from the recommended plans: cargo run --release -- --write");
    }
    usize::from(!same)
}

/// Proves the recommended plans, and that no plan with one fence less will do.
pub fn plans(all: bool) -> usize {
    let mut wrong = 0;
    for (title, layout, model, short) in searches() {
        if !all && !short {
            continue;
        }
        let started = Instant::now();
        println!("{title}\n  {:<40} fences / lines   plan", "call");
        let mut images = 0;
        for family in families(layout) {
            if model == Model::Word && word_skips(&family.name()) {
                continue;
            }
            wrong += usize::from(!search(layout, model, &family, &mut images));
        }
        println!(
            "  {images} images recovered [{:.1} s]\n",
            started.elapsed().as_secs_f32()
        );
    }
    // Times, which the searches leave out.
    let layout = Layout {
        times: true,
        ..RECOMMENDED
    };
    for model in [Model::Line, Model::Eadr] {
        let mut checker = Checker::new(layout, model);
        let plans = |op: &Op| plan_of(op, layout, model);
        for family in families(layout) {
            for (setup, op) in &family.cases {
                let state = checker.run(setup, &plans, 0);
                if let Err(e) = checker.attempt(&state, op, &plans(op), 0) {
                    println!("  WRONG with times, {}: {e}", family.name());
                    wrong += 1;
                }
            }
        }
        println!(
            "With times, {model:?}: each time is an old or a new one in {} images",
            checker.images
        );
    }
    println!();
    wrong
}

/// One call: its plan, and all with one fence less.
fn search(layout: Layout, model: Model, family: &Family, images: &mut u64) -> bool {
    let mut checker = Checker::new(layout, model);
    let plans = |op: &Op| plan_of(op, layout, model);
    let (labels, starts) = labels_of(&checker, family, &plans);
    let whole = |checker: &mut Checker, plan: &Plan| -> Result<Cost, String> {
        let mut cost = (0, 0);
        for (setup, op) in &family.cases {
            let one = checker.full(setup, op, plan, &plans, &followers(layout, model), false)?;
            cost = (cost.0.max(one.0), cost.1.max(one.1));
            for chain in &family.chains {
                checker.full(setup, op, plan, &plans, chain, true)?;
            }
        }
        Ok(cost)
    };
    let mut best = only(&plans(&family.cases[0].1), &labels);
    let done = whole(&mut checker, &best);
    *images += checker.images;
    let (mut fences, mut lines) = match done {
        Ok(cost) => cost,
        Err(e) => {
            println!("  {:<40} WRONG {}: {e}", family.name(), show(&best));
            return false;
        }
    };
    let mut notes = vec![];
    let moved = only(&earlier(&best), &labels);
    if moved != best {
        if let Err(e) = whole(&mut checker, &moved) {
            println!("  {:<40} WRONG {}: {e}", family.name(), show(&moved));
            return false;
        }
        notes.push(format!("or {}", show(&moved)));
    }
    let mut sound = true;
    while fences > 1 {
        let fewer = all_plans(&labels, fences - 1);
        let alone = fewer.iter().filter(|plan| {
            let mut cases = starts.iter().zip(&family.cases);
            cases.all(|(state, (_, op))| checker.attempt(state, op, plan, 0).is_ok())
        });
        let alone: Vec<&Plan> = alone.collect();
        let mut tried = alone.iter();
        let found = tried.find_map(|plan| Some((plan, whole(&mut checker, plan).ok()?)));
        let Some((plan, cost)) = found else {
            let later = match alone.len() {
                0 => String::new(),
                n => format!(", {n} of them only in a later call"),
            };
            notes.push(format!(
                "all {} plans with {} fail{later}",
                fewer.len(),
                fences - 1
            ));
            break;
        };
        if family.vanishes {
            notes.push("less would do, as nothing of it survives a crash".into());
            break;
        }
        if layout.generations && model != Model::Word {
            notes.push(format!("WRONG: {} will do: {}", fences - 1, show(plan)));
            sound = false;
            break;
        }
        // Elsewhere no plan is recommended: the best one is looked for.
        ((fences, lines), best) = (cost, (*plan).clone());
    }
    println!(
        "  {:<40} {fences} / {lines:>2}   {}",
        family.name(),
        show(&best)
    );
    for note in notes {
        println!("  {:<40}          {note}", "");
    }
    sound
}

/// Long sequences of calls on names, under the rules of the code and, if `all`, under rules that would do.
pub fn deep(all: bool) -> usize {
    if !all {
        return sequences("", RECOMMENDED, 4);
    }
    let fewer = Layout {
        bump: Bump::Source,
        swap_clears: false,
        ..RECOMMENDED
    };
    sequences("", RECOMMENDED, 5) + sequences(", a new tag for the source alone", fewer, 5)
}

/// Every sequence of `depth` calls on three names of two files, with a crash and recovery after any of them.
fn sequences(title: &str, layout: Layout, depth: usize) -> usize {
    let mut checker = Checker::new(layout, Model::Line);
    let plans = |op: &Op| plan_of(op, layout, Model::Line);
    let started = Instant::now();
    let a = At(TOP, u64::from(b'a'));
    let b = At(TOP, u64::from(b'b'));
    let first = checker.run(
        &[Op::Create(a), Op::Create(b), Op::Chmod(b, 0x8600)],
        &plans,
        0,
    );
    let mut frontier: Vec<State> = vec![first];
    let mut sequences = 0u64;
    for level in 1..=depth {
        let mut next: HashMap<u64, State> = HashMap::new();
        for state in &frontier {
            for op in name_calls() {
                checker.watch();
                let done = checker.attempt(state, &op, &plans(&op), 0);
                let recovered = checker.watched();
                match done {
                    Ok(None) => continue,
                    Ok(Some((after, _))) => {
                        sequences += 1;
                        if level < depth {
                            next.insert(after.image.hash(), after);
                            next.extend(recovered.into_iter().map(|(h, image)| {
                                (
                                    h,
                                    State {
                                        image,
                                        pending: vec![],
                                        open: None,
                                    },
                                )
                            }));
                        }
                    }
                    Err(e) => {
                        println!("WRONG after {level} calls, {op:?}: {e}");
                        return 1;
                    }
                }
            }
        }
        frontier = next.into_values().collect();
    }
    println!(
        "Sequences of {depth} calls on three names, crashes between{title}: {sequences} calls, {} images, sound [{:.1} s]\n",
        checker.images,
        started.elapsed().as_secs_f32()
    );
    0
}

/// Locks of a call: inodes by key, and 0 for moves of directories.
fn locks(tree: &Tree, op: &Op) -> Vec<u64> {
    let dir = |at: At| if at == OPENED { None } else { tree.dir(at.0) };
    let mut locks = match op {
        Op::Create(at) | Op::CreateWith(at, _) | Op::Mkdir(at) | Op::Symlink(at, _) => {
            vec![dir(*at)]
        }
        Op::Link(from, to) => vec![tree.get(*from), dir(*to)],
        Op::Unlink(at) | Op::Rmdir(at) => vec![dir(*at), tree.get(*at)],
        Op::Rename(from, to) | Op::Exchange(from, to) | Op::Whiteout(from, to) => {
            // A directory that moves is not locked itself: its names change meanwhile. One that goes is.
            let moves = |node: &Option<u64>| node.is_some_and(|n| tree.is_dir(n));
            let (node, old) = (tree.get(*from), tree.get(*to));
            let moved = [node, old].iter().any(moves).then_some(0);
            let stays = matches!(op, Op::Exchange(..));
            vec![
                dir(*from),
                dir(*to),
                node.filter(|n| !tree.is_dir(*n)),
                old.filter(|n| !stays || !tree.is_dir(*n)),
                moved,
            ]
        }
        Op::Write(at, ..)
        | Op::Overwrite(at, ..)
        | Op::Truncate(at, _)
        | Op::Chmod(at, _)
        | Op::Punch(at, ..)
        | Op::Zero(at, ..) => vec![tree.get(*at)],
        Op::Falloc(at, _)
        | Op::Reserve(at, _)
        | Op::SetTimes(at)
        | Op::SetAttributes(at, _)
        | Op::Open(at) => vec![tree.get(*at)],
        Op::Tmpfile | Op::Poke(_) => vec![],
    };
    locks.retain(Option::is_some);
    locks.into_iter().flatten().collect()
}

/// All pairs of calls that locks let run at once.
pub fn pairs() -> usize {
    let mut wrong = 0;
    for model in [Model::Line, Model::Eadr] {
        let started = Instant::now();
        let mut checker = Checker::new(RECOMMENDED, model);
        let plans = |op: &Op| plan_of(op, RECOMMENDED, model);
        let mut count = 0;
        for setup in pair_setups() {
            let state = checker.run(&setup, &plans, 0);
            let Ok(view) = RECOMMENDED.scan(&state.image, None) else {
                return 1;
            };
            let calls = pair_calls();
            for (k, a) in calls.iter().enumerate() {
                for b in calls
                    .iter()
                    .enumerate()
                    .filter(|(j, _)| *j != k)
                    .map(|x| x.1)
                {
                    let (mine, other) = (locks(&view.tree, a), locks(&view.tree, b));
                    if mine.iter().any(|l| other.contains(l)) {
                        continue;
                    }
                    match checker.pair(&state, a, b, &plans, true) {
                        Ok(ran) => count += usize::from(ran),
                        Err(e) => {
                            println!("  WRONG {e}");
                            wrong += 1;
                        }
                    }
                }
            }
        }
        println!(
            "Two calls at once, {model:?}: {count} pairs, {} images, {wrong} wrong [{:.1} s]",
            checker.images,
            started.elapsed().as_secs_f32()
        );
    }
    let mut checker = Checker::new(RECOMMENDED, Model::Line);
    let plans = |op: &Op| plan_of(op, RECOMMENDED, Model::Line);
    let state = checker.run(&pair_setups()[0], &plans, 0);
    let (a, b) = (At(TOP, u64::from(b'a')), At(TOP, u64::from(b'b')));
    let (first, second) = (Op::Write(a, 0, vec![5, 6]), Op::Write(b, 0, vec![7, 8]));
    match checker.pair(&state, &first, &second, &plans, false) {
        Err(e) => println!("  a page reused before the call that freed it has fenced\n      {e}\n"),
        Ok(_) => {
            println!("  WRONG: a page may be reused before the call that freed it has fenced\n");
            wrong += 1;
        }
    }
    wrong
}

/// Calls that could fail between two of their fences.
pub fn abandoned() -> usize {
    let mut checker = Checker::new(RECOMMENDED, Model::Line);
    let plans = |op: &Op| plan_of(op, RECOMMENDED, Model::Line);
    println!("Calls that stop after a fence that is not their last, without a crash:");
    for family in families(RECOMMENDED) {
        let mut results = family.cases.iter().map(|(setup, op)| {
            checker.abandoned(setup, op, &plans, &followers(RECOMMENDED, Model::Line))
        });
        let (labels, _) = labels_of(&Checker::new(RECOMMENDED, Model::Line), &family, &plans);
        if only(&plans(&family.cases[0].1), &labels).len() < 3 {
            continue;
        }
        match results.find_map(Result::err) {
            Some(e) => println!("  {:<40} no: {e}", family.name()),
            None => println!("  {:<40} harmless", family.name()),
        }
    }
    println!();
    0
}

/// Plans and rules that look right, each with the crash that breaks it.
pub fn tempting() -> usize {
    let mut wrong = 0;
    println!("Shorter or other orders that look right:");
    for x in crate::tables::tempting() {
        let mut checker = Checker::new(x.layout, x.model);
        checker.fine |= x.plan.contains("desc.");
        let plans = |op: &Op| match x.also.iter().find(|k| k.0 == call(op)) {
            Some(other) => plan(other.1),
            None => plan_of(op, x.layout, x.model),
        };
        let tried = if x.plan.is_empty() {
            plans(&x.op)
        } else {
            plan(x.plan)
        };
        let chain = !x.then.is_empty();
        let next = if chain {
            x.then.clone()
        } else {
            followers(x.layout, x.model)
        };
        let result = checker.full(&x.setup, &x.op, &tried, &plans, &next, chain);
        let surprise = result.is_ok() != x.sound;
        wrong += usize::from(surprise);
        let mark = if surprise { "SURPRISE: " } else { "" };
        match result {
            Err(e) => println!("  {}\n      {mark}{e}", x.name),
            Ok((fences, _)) => println!(
                "  {}\n      {mark}sound, {fences} fence{}",
                x.name,
                if fences == 1 { "" } else { "s" }
            ),
        }
    }
    println!();
    wrong
}
