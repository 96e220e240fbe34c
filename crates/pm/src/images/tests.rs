//! The images against a naive definition of the models, and the purpose of exploration: it finds write-backs and fences
//! that a program forgot.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const WORDS: u64 = 24;
// Miri is slow: it runs the same code on less.
const CASES: u32 = if cfg!(miri) { 2 } else { 400 };
const EVENTS: usize = if cfg!(miri) { 6 } else { 14 };
const LINES: u64 = if cfg!(miri) { 7 } else { 30 };
const SAMPLES: u32 = if cfg!(miri) { 5 } else { 256 };

fn event() -> impl Strategy<Value = Event> {
    // Few addresses, so that stores meet.
    let at = || prop::sample::select(vec![0, 8, 16, 64, 72, 128]);
    prop_oneof![
        4 => (at(), 1..4_u64).prop_map(|(at, word)| Event::Store { at, word }),
        2 => (at(), 1..4_u64).prop_map(|(at, word)| Event::Data { at, word }),
        2 => (0..3_u64).prop_map(|line| Event::WriteBack { line }),
        2 => Just(Event::Fence),
        1 => (0..9_u64).prop_map(Event::Mark),
    ]
}

fn trace(threads: u32) -> impl Strategy<Value = Trace> {
    proptest::collection::vec((event(), 0..threads), 0..EVENTS).prop_map(|events| {
        let mut trace = Trace::new((100..100 + WORDS).collect());
        for (event, thread) in events {
            trace.push(event, thread);
        }
        trace
    })
}

type Images = BTreeSet<Vec<u64>>;

/// By the number of marks before the crash.
type ByMark = BTreeMap<usize, Images>;

fn explored(trace: &Trace, options: &Exploration, first: impl Fn(u64) -> bool) -> ByMark {
    let mut images = ByMark::new();
    let outcome = trace.explore(options, first, |image| {
        let events = &trace.events()[..image.cut()];
        let marks = events.iter().filter(|e| matches!(e, Event::Mark(_)));
        let of_mark = images.entry(marks.count()).or_default();
        match of_mark.insert(image.words().to_vec()) {
            true => Ok(()),
            false => Err(format!("formed twice: {image}")),
        }
    });
    assert!(outcome.is_ok(), "{outcome:?}");
    images
}

/// Whether a store is durable for certain after `cut` events: by the words of the models, store for store.
fn guaranteed(model: Model, trace: &Trace, store: usize, cut: usize) -> bool {
    let steps: Vec<_> = trace.steps().take(cut).collect();
    let (_, event, thread) = steps[store];
    let fenced = |from: usize, by: u32| {
        steps[from..]
            .iter()
            .any(|s| s.1 == Event::Fence && s.2 == by)
    };
    match event {
        Event::Store { at, .. } if model != Model::Eadr => {
            let line = Event::WriteBack {
                line: at / LINE_BYTES,
            };
            let mut later = steps[store..].iter();
            later.any(|(index, event, by)| *event == line && fenced(*index, *by))
        }
        _ => fenced(store, thread),
    }
}

/// Whether the stores of a set can be durable without the others.
fn closed(model: Model, trace: &Trace, stores: &[(usize, bool)]) -> bool {
    let events = trace.events();
    let must_precede = |first: usize, second: usize| match (events[first], events[second]) {
        (Event::Store { at: a, .. }, Event::Store { at: b, .. }) => match model {
            Model::Line => a / LINE_BYTES == b / LINE_BYTES,
            Model::Word => false,
            Model::Eadr => true,
        },
        _ => false,
    };
    let broken = |(position, (second, present)): (usize, &(usize, bool))| {
        let mut earlier = stores[..position].iter();
        *present && earlier.any(|(first, present)| !present && must_precede(*first, *second))
    };
    !stores.iter().enumerate().any(broken)
}

/// All images, at every cut point and for every set of stores.
fn naive(model: Model, trace: &Trace) -> ByMark {
    let mut images = ByMark::new();
    for cut in 0..=trace.events().len() {
        let events = &trace.events()[..cut];
        let marks = events.iter().filter(|e| matches!(e, Event::Mark(_)));
        let of_mark = images.entry(marks.count()).or_default();
        let stores = events
            .iter()
            .enumerate()
            .filter(|(_, event)| event.is_store());
        let stores: Vec<usize> = stores.map(|(index, _)| index).collect();
        let must = stores
            .iter()
            .map(|store| guaranteed(model, trace, *store, cut));
        let must: Vec<bool> = must.collect();
        for subset in 0..1_u32 << stores.len() {
            let chosen = stores.iter().enumerate();
            let chosen = chosen.map(|(bit, store)| (*store, subset >> bit & 1 == 1));
            let chosen: Vec<(usize, bool)> = chosen.collect();
            let complete = chosen
                .iter()
                .zip(&must)
                .all(|((_, present), must)| *present || !must);
            if !complete || !closed(model, trace, &chosen) {
                continue;
            }
            let mut words = trace.base().to_vec();
            for (store, present) in chosen {
                if let (true, Event::Store { at, word } | Event::Data { at, word }) =
                    (present, events[store])
                {
                    words[(at / 8) as usize] = word;
                }
            }
            of_mark.insert(words);
        }
    }
    images
}

fn all(model: Model) -> Exploration {
    Exploration {
        model,
        images_max: u64::MAX,
        ..Exploration::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn the_images_are_those_that_the_models_allow_at_any_cut(trace in trace(2)) {
        for model in [Model::Line, Model::Word, Model::Eadr] {
            let (found, allowed) = (explored(&trace, &all(model), |_| true), naive(model, &trace));
            prop_assert_eq!(found, allowed, "{:?}: {:?}", model, trace);
        }
    }

    #[test]
    fn every_image_of_the_line_model_is_one_of_the_word_model(trace in trace(3)) {
        let line = explored(&trace, &all(Model::Line), |_| true);
        let word = explored(&trace, &all(Model::Word), |_| true);
        for (mark, images) in &line {
            prop_assert!(images.is_subset(&word[mark]), "{:?}", trace);
        }
    }

    #[test]
    fn every_image_of_persistent_caches_is_one_of_the_line_model(trace in trace(1)) {
        let eadr = explored(&trace, &all(Model::Eadr), |_| true);
        let line = explored(&trace, &all(Model::Line), |_| true);
        for (mark, images) in &eadr {
            prop_assert!(images.is_subset(&line[mark]), "{:?}", trace);
        }
    }

    #[test]
    fn a_sample_has_only_images_that_the_model_allows(trace in trace(2), seed: u64, images_max in 0..20_u64) {
        for model in [Model::Line, Model::Word, Model::Eadr] {
            let options = Exploration { model, images_max, samples: 20, seed };
            let some = explored(&trace, &options, |at| at < 16);
            let every = explored(&trace, &all(model), |_| true);
            prop_assert_eq!(&some, &explored(&trace, &options, |at| at < 16));
            for (mark, images) in &some {
                prop_assert!(images.is_subset(&every[mark]), "{:?}", trace);
            }
        }
    }

    #[test]
    fn words_that_are_read_take_all_their_values_even_if_the_others_are_kept_together(trace in trace(2)) {
        let read = |at: u64| at == 0 || at == 64 || at == 72;
        let reads = |images: ByMark| -> BTreeMap<usize, BTreeSet<[u64; 3]>> {
            let read_words = |words: Vec<u64>| [words[0], words[8], words[9]];
            let images = images.into_iter();
            images.map(|(mark, images)| (mark, images.into_iter().map(read_words).collect())).collect()
        };
        for model in [Model::Line, Model::Word, Model::Eadr] {
            // Whether the reduced set is small enough depends on the trace; a sample may lack values.
            let options = Exploration { model, images_max: 300, ..Exploration::default() };
            let sampled = trace.explore(&options, read, |_| Ok::<(), ()>(())).map(|e| e.sampled);
            prop_assume!(sampled == Ok(0));
            let every = reads(explored(&trace, &all(model), |_| true));
            prop_assert_eq!(reads(explored(&trace, &options, read)), every);
        }
    }
}

/// Stores a record of two lines, and then the word that makes it valid.
fn publish(region: &Region) {
    if let Some(recorder) = region.recorder() {
        recorder.mark(0);
    }
    region.store(64, 7);
    region.store(128, 7);
    region.write_back(64, 128);
    region.fence();
    region.store(0, 1);
    region.write_back(0, 8);
    region.fence();
    if let Some(recorder) = region.recorder() {
        recorder.mark(1);
    }
}

fn published() -> Trace {
    let region = Region::recorded(vec![0; 256]);
    publish(&region);
    region
        .recorder()
        .map(Recorder::trace)
        .unwrap_or_else(|| Trace::new(Vec::new()))
}

use crate::Recorder;

/// A valid record is whole; after the call has returned, it is there.
fn record_is_whole(image: &CrashImage<'_>) -> Result<(), String> {
    let words = image.words();
    let whole = (words[8], words[16]) == (7, 7);
    match words[0] {
        1 if whole => Ok(()),
        0 if image.mark() != Some(1) => Ok(()),
        valid => Err(format!(
            "valid {valid}, {:?}: {image}",
            (words[8], words[16])
        )),
    }
}

#[test]
fn a_program_that_forgets_nothing_passes_under_every_model() {
    let trace = published();
    assert!(trace.report().is_clean(), "{}", trace.report());
    for model in [Model::Line, Model::Word, Model::Eadr] {
        let explored = trace.explore(&all(model), |_| true, record_is_whole);
        assert_eq!(explored.map(|e| e.images > 2), Ok(true));
    }
}

#[test]
fn each_forgotten_write_back_and_fence_is_found_by_an_image_and_by_the_report() {
    let trace = published();
    let events = trace.events().to_vec();
    let matters = |event: &Event| matches!(event, Event::WriteBack { .. } | Event::Fence);
    let forgotten: Vec<usize> = (0..events.len()).filter(|i| matters(&events[*i])).collect();
    assert_eq!(forgotten.len(), 5);
    for index in forgotten {
        let broken = trace.without(index);
        let found = broken.explore(&all(Model::Line), |_| true, record_is_whole);
        assert!(found.is_err(), "{}: {found:?}", events[index]);
        // The report cannot know of a fence that a later one stands in for.
        let report = broken.report();
        let replaced = index == 5 && events[index] == Event::Fence;
        assert_eq!(report.is_clean(), replaced, "{}: {report}", events[index]);
        if let Event::WriteBack { .. } = events[index] {
            assert_eq!(report.never_written_back.len(), 1);
        }
    }
}

#[test]
fn persistent_caches_forgive_a_forgotten_write_back_and_not_a_fence_after_data() {
    let trace = published();
    let events = trace.events();
    let is_write_back = |i: &usize| matches!(events[*i], Event::WriteBack { .. });
    for index in (0..events.len()).filter(is_write_back) {
        let explored = trace
            .without(index)
            .explore(&all(Model::Eadr), |_| true, record_is_whole);
        assert!(explored.is_ok(), "{explored:?}");
    }
    let region = Region::recorded(vec![0; 256]);
    region.write_data(64, &7_u64.to_le_bytes());
    region.write_data(128, &7_u64.to_le_bytes());
    region.store(0, 1);
    let trace = region.recorder().map(Recorder::trace);
    let found = trace.map(|trace| trace.explore(&all(Model::Eadr), |_| true, record_is_whole));
    assert!(matches!(found, Some(Err(_))), "{found:?}");
}

/// Stores to `lines` lines, three words each, none of it fenced.
fn wide(lines: u64) -> Trace {
    let mut trace = Trace::new(vec![0; (lines * 8) as usize]);
    for line in 0..lines {
        for word in 0..3 {
            let (at, word) = (line * 64 + word * 8, 1 + word);
            trace.push(Event::Store { at, word }, 0);
        }
    }
    trace
}

fn sampling() -> Exploration {
    Exploration {
        samples: SAMPLES,
        ..Exploration::default()
    }
}

#[test]
fn a_sample_has_nothing_everything_and_each_line_alone() {
    let (lines, trace) = (LINES, wide(LINES));
    let options = sampling();
    let images = explored(&trace, &options, |_| true)
        .remove(&0)
        .unwrap_or_default();
    let image = |has: &dyn Fn(u64) -> bool| -> Vec<u64> {
        let words = (0..lines * 8).map(|word| (word / 8, word % 8));
        words
            .map(|(line, word)| if has(line) && word < 3 { 1 + word } else { 0 })
            .collect()
    };
    assert!(images.contains(&image(&|_| false)));
    assert!(images.contains(&image(&|_| true)));
    for line in 0..lines {
        assert!(images.contains(&image(&|l| l == line)), "{line} alone");
        assert!(images.contains(&image(&|l| l != line)), "{line} missing");
        assert!(images.contains(&image(&|l| l <= line)), "up to {line}");
    }
    // And random ones.
    assert!(
        images.len() as u64 > 3 * lines + u64::from(SAMPLES) / 2,
        "{}",
        images.len()
    );
    let other = Exploration { seed: 1, ..options };
    assert_ne!(explored(&trace, &other, |_| true).remove(&0), Some(images));
}

#[test]
fn lines_that_are_not_read_are_kept_together() {
    let trace = wide(LINES);
    let options = sampling();
    let count = |first: &dyn Fn(u64) -> bool| trace.explore(&options, first, |_| Ok::<(), ()>(()));
    let explored = count(&|at| at < 128).unwrap_or_default();
    // Two lines with four prefixes each, and all the others: there or not.
    assert_eq!(
        (explored.images, explored.reduced, explored.sampled),
        (32, 1, 0)
    );
    let explored = count(&|_| true).unwrap_or_default();
    assert_eq!((explored.reduced, explored.sampled), (1, 1));
    let explored = count(&|_| false).unwrap_or_default();
    assert_eq!((explored.images, explored.sampled), (2, 0));
}

#[test]
fn images_are_formed_again_after_a_mark() {
    let mut trace = Trace::new(vec![0; 8]);
    trace.push(Event::Store { at: 0, word: 1 }, 0);
    trace.push(Event::Mark(5), 0);
    let mut seen = Vec::new();
    let _ = trace.explore(
        &all(Model::Line),
        |_| true,
        |image| {
            seen.push((image.mark(), image.words()[0], image.lost()));
            Ok::<(), ()>(())
        },
    );
    let expected = [
        (None, 0, vec![0]),
        (None, 1, vec![]),
        (Some(5), 0, vec![0]),
        (Some(5), 1, vec![]),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn a_fence_orders_only_write_backs_of_its_own_thread() {
    let mut trace = Trace::new(vec![0; 8]);
    trace.push(Event::Store { at: 0, word: 1 }, 1);
    trace.push(Event::WriteBack { line: 0 }, 1);
    trace.push(Event::Fence, 2);
    trace.push(Event::Mark(1), 2);
    let lost = |trace: &Trace| {
        let images = explored(trace, &all(Model::Line), |_| true);
        images[&1].iter().any(|words| words[0] == 0)
    };
    assert!(lost(&trace));
    trace.push(Event::Fence, 1);
    trace.push(Event::Mark(2), 1);
    let images = explored(&trace, &all(Model::Line), |_| true);
    assert!(images[&2].iter().all(|words| words[0] == 1));
}

#[test]
fn an_image_becomes_a_region_and_names_the_lost_stores() {
    let trace = wide(1);
    let outcome = trace.explore(
        &all(Model::Line),
        |_| true,
        |image| {
            let (plain, recorded) = (image.region(), image.recorded());
            assert_eq!(plain.content(), image.content());
            assert_eq!(recorded.content(), image.content());
            assert!(
                recorded
                    .recorder()
                    .is_some_and(|recorder| recorder.events().is_empty())
            );
            if image.lost() == [1, 2] {
                Err(image.to_string())
            } else {
                Ok(())
            }
        },
    );
    let expected = "crash after 3 of 3 events\n  lost: event 1, store 0x2 at 0x8\n  lost: event 2, store 0x3 at \
        0x10\n  durable by chance: event 0, store 0x1 at 0x0";
    assert_eq!(outcome, Err(expected.to_owned()));
}
