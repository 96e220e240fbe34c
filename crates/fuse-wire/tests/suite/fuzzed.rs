//! The fuzz target's body with bounded, seeded inputs: the same checks in every test run.

use steadfast_testkit::Random;

/// Bytes before a request's payload, and the places of its opcode and of its payload's length.
const HEAD: usize = 288;
const OPCODE: usize = 4;
const PAYLOAD_LEN: usize = 272;

#[test]
fn any_bytes_are_a_request_or_malformed() {
    let runs = if std::env::var_os("STEADFAST_LONG").is_some() {
        1_000_000
    } else {
        10_000
    };
    let mut random = Random::from_state(0xf05e);
    for _ in 0..runs {
        let len = HEAD + (random.number() % 300) as usize;
        let small = random.number().is_multiple_of(2);
        let byte = |random: &mut Random| match small {
            true => (random.number() % 4) as u8,
            false => random.number() as u8,
        };
        let mut bytes: Vec<u8> = (0..len).map(|_| byte(&mut random)).collect();
        // Mostly a known opcode, a length that is there, and no extensions, so that more than the first check is tried.
        if !random.number().is_multiple_of(8) {
            let opcode = (random.number() % 60) as u32;
            bytes[OPCODE..OPCODE + 4].copy_from_slice(&opcode.to_ne_bytes());
            let payload = (len - HEAD) as u32;
            bytes[PAYLOAD_LEN..PAYLOAD_LEN + 4].copy_from_slice(&payload.to_ne_bytes());
            bytes[36..38].fill(0);
        }
        steadfast_fuse_wire::fuzz::request(&bytes);
    }
}
