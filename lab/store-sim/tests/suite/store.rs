//! The simulated store itself: its conditions hold in all trouble, and each trouble comes up.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that fails says why"
)]

use std::sync::{Arc, Mutex};

use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};
use steadfast_store_sim::{Clock, SimStore, Trouble};

const SECOND: u64 = 1_000_000;

/// Runs one task on a store with some trouble; returns its result, if it ended in ten minutes.
fn on<T, F>(seed: u64, trouble: Trouble, task: impl FnOnce(Clock, SimStore) -> F) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let clock = Clock::new();
    let store = SimStore::new(clock.clone(), seed, trouble);
    let result = Arc::new(Mutex::new(None));
    let (told, work) = (result.clone(), task(clock.clone(), store));
    clock.spawn(async move {
        let outcome = work.await;
        *told.lock().unwrap() = Some(outcome);
    });
    clock.run(600 * SECOND);
    result.lock().unwrap().take()
}

fn always(change: impl FnOnce(&mut Trouble)) -> Trouble {
    let mut trouble = Trouble::default();
    change(&mut trouble);
    trouble
}

fn create(
    store: &SimStore,
    data: &'static [u8],
) -> impl Future<Output = object_store::Result<object_store::PutResult>> + use<> {
    let store = store.clone();
    async move {
        store
            .put_opts(
                &Path::from("x"),
                PutPayload::from_static(data),
                PutMode::Create.into(),
            )
            .await
    }
}

#[test]
fn of_many_creations_one_wins_and_stays() {
    for seed in 1..=200 {
        let clock = Clock::new();
        let store = SimStore::new(clock.clone(), seed, Trouble::plenty());
        let winners = Arc::new(Mutex::new(Vec::new()));
        for data in [b"a", b"b", b"c", b"d"] {
            let (put, winners) = (create(&store, data), winners.clone());
            clock.spawn(async move {
                if put.await.is_ok() {
                    winners.lock().unwrap().push(data);
                }
            });
        }
        clock.run(600 * SECOND);
        let winners = winners.lock().unwrap();
        assert!(winners.len() <= 1, "seed {seed}: {winners:?}");
        let there = store.peek(&Path::from("x"));
        assert!(
            winners
                .iter()
                .all(|data| there.as_deref() == Some(&data[..]))
        );
    }
}

#[test]
fn a_swap_from_an_old_version_is_refused() {
    let outcome = on(1, Trouble::default(), |_, store| async move {
        let at = Path::from("head");
        let first = store.put(&at, PutPayload::from_static(b"1")).await?;
        let version = UpdateVersion {
            e_tag: first.e_tag,
            version: None,
        };
        let swap = PutMode::Update(version);
        store
            .put_opts(&at, PutPayload::from_static(b"2"), swap.clone().into())
            .await?;
        store
            .put_opts(&at, PutPayload::from_static(b"3"), swap.into())
            .await
    });
    assert!(matches!(outcome, Some(Err(Error::Precondition { .. }))));
}

#[test]
fn each_trouble_comes_up() {
    let put = |trouble| {
        on(7, trouble, |_, store| {
            let looks = store.clone();
            async move {
                let outcome = create(&store, b"a").await;
                (outcome, looks.peek(&Path::from("x")).is_some())
            }
        })
    };
    assert!(matches!(put(Trouble::default()), Some((Ok(_), true))));
    assert!(matches!(
        put(always(|t| t.failed_before = 1000)),
        Some((Err(Error::Generic { .. }), false))
    ));
    assert!(matches!(
        put(always(|t| t.throttled = 1000)),
        Some((Err(Error::Generic { .. }), false))
    ));
    assert!(matches!(
        put(always(|t| t.conflict = 1000)),
        Some((Err(Error::AlreadyExists { .. }), false))
    ));
    assert!(put(always(|t| t.lost = 1000)).is_none());
    assert!(put(always(|t| t.unheard = 1000)).is_none());
    // It took effect, and the client library's second attempt says that the object exists, or the status is 5xx.
    assert!(matches!(
        put(always(|t| t.failed_after = 1000)),
        Some((Err(_), true))
    ));
}

#[test]
fn a_put_takes_effect_after_its_answer_was_given_up_and_once_more_after_a_deletion() {
    let late = always(|t| t.late = 1000);
    let outcome = on(3, late, |clock, store| async move {
        let put = create(&store, b"a");
        let first = futures_util::future::select(Box::pin(put), clock.sleep(SECOND / 2)).await;
        let waits = matches!(first, futures_util::future::Either::Right(_));
        drop(first);
        let before = store.peek(&Path::from("x")).is_some();
        clock.sleep(120 * SECOND).await;
        (waits, before, store.peek(&Path::from("x")).is_some())
    });
    assert_eq!(outcome, Some((true, false, true)));
    let twice = always(|t| t.twice = 1000);
    let again = on(3, twice, |clock, store| async move {
        create(&store, b"a").await.unwrap();
        store.set_trouble(Trouble::default());
        store.delete(&Path::from("x")).await.unwrap();
        clock.sleep(120 * SECOND).await;
        store.peek(&Path::from("x")).is_some()
    });
    assert_eq!(again, Some(true));
}

#[test]
fn a_body_may_be_cut_and_a_list_may_be_old() {
    let cut = always(|t| t.cut = 1000);
    let body = on(1, cut, |_, store| async move {
        create(&store, b"abcd").await.unwrap();
        store
            .get(&Path::from("x"))
            .await
            .unwrap()
            .bytes()
            .await
            .is_err()
    });
    assert_eq!(body, Some(true));
    let stale = always(|t| t.stale_list = 1000);
    let old = (1..=20).any(|seed| {
        let listed = on(seed, stale, |_, store| async move {
            create(&store, b"a").await.unwrap();
            store
                .list_with_delimiter(None)
                .await
                .unwrap()
                .objects
                .is_empty()
        });
        listed == Some(true)
    });
    assert!(old);
}

#[test]
fn an_upload_in_parts_is_seen_whole_or_not_at_all() {
    for seed in 1..=50 {
        let trouble = always(|t| t.failed_before = 300);
        let outcome = on(seed, trouble, |_, store| async move {
            let at = Path::from("x");
            let mut upload = store.put_multipart(&at).await.unwrap();
            for part in [&b"ab"[..], b"cd"] {
                let _ = upload.put_part(PutPayload::from_static(part)).await;
            }
            let done = upload.complete().await.is_ok();
            (done, store.peek(&at))
        });
        let (done, there) = outcome.unwrap();
        assert_eq!(done, there.is_some());
        assert!(there.is_none_or(|data| data == "abcd"));
    }
}
