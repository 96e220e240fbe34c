//! Cases of the writer that the exploration does not reach: a store that breaks its rules, or extra reads by the driver.

#![allow(clippy::panic, reason = "a test that fails says why")]

use steadfast_store::protocol::{
    Answer, Base, Body, Claim, Event, Full, Head, Nonce, ObjectName, Output, Request, Settings,
    Slot, SlotName, SlotSeen, Stamp, Stop, Term, Writer,
};

const OWN: Nonce = Nonce(7);

/// The answer of a faultless store without slots.
fn calm(head: &mut Head, request: &Request) -> Answer {
    match request {
        Request::ReadHead => Answer::Head(head.clone()),
        Request::SwapHead { to, .. } => {
            *head = to.clone();
            Answer::Done
        }
        Request::ReadSlot(_) => Answer::Slot(SlotSeen::Absent),
        _ => Answer::Done,
    }
}

/// Answers requests until none is left. Opens the term when the old one is sealed.
fn drain(
    writer: &mut Writer,
    head: &mut Head,
    out: Output,
    mut answer: impl FnMut(&mut Head, &Request) -> Answer,
) -> Vec<Event> {
    let (mut requests, mut events) = (out.requests, out.events);
    while let Some(request) = requests.pop() {
        let answer = answer(head, &request);
        let mut out = writer.answer(&request, answer);
        if out
            .events
            .iter()
            .any(|event| matches!(event, Event::Sealed { .. }))
        {
            let opened = writer.open();
            out.requests.extend(opened.requests);
        }
        requests.extend(out.requests);
        events.extend(out.events);
    }
    events
}

fn opened() -> (Writer, Head) {
    let mut head = Head::new(Nonce(1));
    let (mut writer, out) = Writer::new(Settings::default(), OWN);
    let events = drain(&mut writer, &mut head, out, calm);
    assert!(matches!(events.last(), Some(Event::Opened { .. })));
    (writer, head)
}

#[test]
fn an_open_writer_that_reads_head_stays_open() {
    let (mut writer, head) = opened();
    let mut newer = head.clone();
    newer.version.counter += 1;
    newer.version.nonce = Nonce(9);
    let out = writer.answer(&Request::ReadHead, Answer::Head(newer.clone()));
    assert_eq!(out, Output::default());
    assert_eq!(writer.head(), Some(&newer));
    let claim = Claim {
        term: Term(9),
        nonce: Nonce(9),
    };
    newer.version.counter += 1;
    newer.claim = claim;
    let out = writer.answer(&Request::ReadHead, Answer::Head(newer));
    assert_eq!(out.events, [Event::Stopped(Stop::Claimed(claim))]);
    assert!(out.requests.is_empty());
}

#[test]
fn an_older_head_and_another_head_of_the_same_version_stop_the_writer() {
    let change: [fn(&mut Head); 2] = [
        |head| head.version.counter -= 1,
        |head| head.version.nonce = Nonce(9),
    ];
    for change in change {
        let (mut writer, head) = opened();
        let mut shown = head.clone();
        change(&mut shown);
        writer.answer(&Request::ReadHead, Answer::Head(shown));
        assert!(matches!(writer.stopped(), Some(Stop::WentBack { .. })));
    }
}

#[test]
fn damage_above_the_seal_is_ignored() {
    let mut head = Head::new(Nonce(1));
    let (mut writer, out) = Writer::new(Settings::default(), OWN);
    let term = Term(1);
    let events = drain(&mut writer, &mut head, out, |head, request| match request {
        Request::ReadSlot(at) if at.slot > Slot(1) => Answer::Slot(SlotSeen::Damaged),
        Request::ReadSlot(_) => Answer::Slot(SlotSeen::Holds(Body::Seal(Nonce(5)))),
        other => calm(head, other),
    });
    let first = Slot(1);
    let opened = Event::Opened {
        term: Term(2),
        first,
    };
    assert_eq!(events.last(), Some(&opened));
    // Damage in the history is fatal.
    let mut head = Head::new(Nonce(1));
    let (mut writer, out) = Writer::new(Settings::default(), OWN);
    drain(&mut writer, &mut head, out, |head, request| match request {
        Request::ReadSlot(_) => Answer::Slot(SlotSeen::Damaged),
        other => calm(head, other),
    });
    let at = SlotName {
        term,
        slot: Slot(1),
    };
    assert_eq!(writer.stopped(), Some(Stop::Damaged(at)));
}

#[test]
fn a_released_volume_is_not_written_any_more() {
    let (mut writer, mut head) = opened();
    let Ok(out) = writer.publish(Base::default(), Vec::new(), true) else {
        panic!("the release was refused");
    };
    drain(&mut writer, &mut head, out, calm);
    assert!(head.released);
    assert_eq!(writer.append(Stamp(1), &[]).map(|_| ()), Err(Full::NotOpen));
    let again = writer.publish(Base::default(), Vec::new(), false);
    assert_eq!(again.map(|_| ()), Err(Full::NotOpen));
}

#[test]
fn a_term_that_is_open_before_its_claim_is_known_belongs_to_a_copy_of_the_machine() {
    let (_, head) = opened();
    let (mut copy, _) = Writer::new(Settings::default(), OWN);
    let out = copy.answer(&Request::ReadHead, Answer::Head(Head::new(Nonce(1))));
    for request in out.requests {
        copy.answer(&request, Answer::Unknown);
    }
    copy.answer(&Request::ReadHead, Answer::Head(head));
    assert_eq!(copy.stopped(), Some(Stop::Doubled(ObjectName::Head)));
}

#[test]
fn a_slot_of_the_history_that_is_gone_stops_the_writer() {
    let mut head = Head::new(Nonce(1));
    head.claim.term = Term(2);
    head.spans[0].last = Some(Slot(3));
    head.spans.push(steadfast_store::protocol::Span {
        term: Term(2),
        first: Slot(4),
        last: None,
    });
    let (mut writer, out) = Writer::new(Settings::default(), OWN);
    drain(&mut writer, &mut head, out, calm);
    let at = SlotName {
        term: Term(1),
        slot: Slot(1),
    };
    assert_eq!(writer.stopped(), Some(Stop::Missing(at)));
}
