//! The fuzz target's body with bounded, seeded inputs: the same checks in every test run.
#![allow(missing_docs)]

use steadfast_testkit::Random;

#[test]
fn any_bytes_are_answered_or_refused() {
    let runs = if std::env::var_os("STEADFAST_LONG").is_some() {
        400_000
    } else {
        4_000
    };
    let mut random = Random::from_state(0x5eed);
    for _ in 0..runs {
        let len = random.number() % 600;
        let kind = random.number() % 3;
        let bytes: Vec<u8> = (0..len)
            .map(|i| match (kind, i) {
                // Mostly small words, so that calls get past the first checks.
                (1, _) => (random.number() % 5) as u8,
                (2, 0) => 1,
                (2, _) if !random.number().is_multiple_of(3) => (random.number() % 4) as u8,
                _ => random.number() as u8,
            })
            .collect();
        steadfast_nfs::fuzz::serve(&bytes);
    }
}

#[test]
fn any_bytes_of_a_tls_client_are_understood_or_refused() {
    let runs = if std::env::var_os("STEADFAST_LONG").is_some() {
        40_000
    } else {
        400
    };
    let mut random = Random::from_state(0x7e15);
    for run in 0..runs {
        // As they are, or from a real client whose bytes are changed in transit, mostly late.
        let mut bytes = vec![3, (run % 8) as u8];
        if run % 2 == 1 {
            for _ in 0..random.number() % 6 {
                bytes.extend([0, 0]);
            }
        }
        let len = random.number() % 200;
        bytes.extend((0..len).map(|_| random.number() as u8));
        steadfast_nfs::fuzz::serve(&bytes);
    }
}

/// A client that sends its close_notify within the handshake, after which it must not read.
#[test]
fn inputs_of_the_fuzzer_that_failed_once() {
    let failed: [&[u8]; 2] = [
        &[
            0xff, 0x01, 0x2a, 0xff, 0x01, 0xbf, 0x0c, 0x0c, 0x0e, 0x0c, 0x03,
        ],
        // Requests key updates until the server refuses.
        &[0xff; 100],
    ];
    for input in failed {
        steadfast_nfs::fuzz::serve(input);
    }
}
