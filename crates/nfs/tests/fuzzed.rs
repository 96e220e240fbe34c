//! The fuzz target's body with bounded, seeded inputs: the same checks in every test run.
#![allow(missing_docs)]

/// A generator of numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn any_bytes_are_answered_or_refused() {
    let runs = if std::env::var_os("STEADFAST_LONG").is_some() {
        400_000
    } else {
        4_000
    };
    let mut random = Random(0x5eed);
    for _ in 0..runs {
        let len = random.next() % 600;
        let kind = random.next() % 3;
        let bytes: Vec<u8> = (0..len)
            .map(|i| match (kind, i) {
                // Mostly small words, so that calls come far.
                (1, _) => (random.next() % 5) as u8,
                (2, 0) => 1,
                (2, _) if !random.next().is_multiple_of(3) => (random.next() % 4) as u8,
                _ => random.next() as u8,
            })
            .collect();
        steadfast_nfs::fuzz::serve(&bytes);
    }
}
