//! A 128-bit hash for comparing states quickly. Not cryptographic: the states it
//! compares come from our own tests, they are not chosen to collide.
//!
//! Neighbours: [`crate::data`] hashes pages, [`crate::snapshot`] whole trees,
//! [`crate::ordered`] the effects of operations.

const K: [u64; 6] = [
    0x9e37_79b9_7f4a_7c15,
    0xbf58_476d_1ce4_e5b9,
    0x94d0_49bb_1331_11eb,
    0xd6e8_feb8_6659_fd93,
    0xa076_1d64_78bd_642f,
    0xe703_7ed1_a0b4_28db,
];

/// Both halves of the product, folded: every input bit reaches every output bit.
fn fold(a: u64, b: u64) -> u64 {
    let m = u128::from(a) * u128::from(b);
    (m as u64) ^ ((m >> 64) as u64)
}

/// Takes words and byte strings, gives 128 bits.
#[derive(Clone, Debug)]
pub struct Hasher128 {
    a: u64,
    b: u64,
    words: u64,
}

impl Hasher128 {
    /// A hasher for one kind of thing: different tags, different hashes.
    #[must_use]
    pub fn new(tag: u64) -> Hasher128 {
        Hasher128 {
            a: K[4] ^ tag,
            b: fold(K[5] ^ tag, K[0]),
            words: 0,
        }
    }

    fn pair(&mut self, x: u64, y: u64) {
        let a = fold(x ^ K[0], y ^ self.a ^ K[1]);
        self.b = fold(x ^ self.b ^ K[2], y.rotate_left(32) ^ K[3]).wrapping_add(self.a);
        self.a = a ^ self.b.rotate_left(29);
        self.words += 1;
    }

    /// Adds a number.
    pub fn u64(&mut self, v: u64) -> &mut Hasher128 {
        self.pair(v, K[5]);
        self
    }

    /// Adds a 128-bit number.
    pub fn u128(&mut self, v: u128) -> &mut Hasher128 {
        self.pair(v as u64, (v >> 64) as u64);
        self
    }

    /// Adds a byte string, its length included.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Hasher128 {
        let mut chunks = bytes.chunks_exact(16);
        for c in &mut chunks {
            let mut w = [0u8; 16];
            w.copy_from_slice(c);
            self.u128(u128::from_le_bytes(w));
        }
        let rest = chunks.remainder();
        let mut w = [0u8; 16];
        w[..rest.len()].copy_from_slice(rest);
        self.u128(u128::from_le_bytes(w));
        self.pair(bytes.len() as u64, K[4]);
        self
    }

    /// The hash of everything added.
    #[must_use]
    pub fn finish(&self) -> u128 {
        let hi = fold(self.a ^ self.words ^ K[1], self.b ^ K[2]);
        let lo = fold(self.b ^ K[3], self.a.rotate_left(17) ^ self.words ^ K[4]);
        (u128::from(hi ^ lo.rotate_left(11)) << 64) | u128::from(lo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_single_bit_and_every_length_changes_the_hash() {
        let mut seen = HashSet::new();
        for len in 0..70usize {
            let mut bytes = vec![0u8; len];
            assert!(seen.insert(Hasher128::new(1).bytes(&bytes).finish()));
            for bit in 0..len * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(seen.insert(Hasher128::new(1).bytes(&bytes).finish()));
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        assert!(seen.insert(Hasher128::new(2).bytes(&[]).finish()));
    }
}
