//! Contents that say where they belong: every byte follows from a tag and its position, so that a byte of another file, of
//! another version, or of another place is seen.

pub(crate) use steadfast_testkit::Random;

/// The mixing function of all content.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A tag for one version of one thing.
pub(crate) fn tag(parts: &[u64]) -> u64 {
    parts
        .iter()
        .fold(0, |tag, part| mix(tag ^ mix(part.wrapping_add(GOLDEN))))
}

/// The bytes of `tag` from `offset` on.
pub(crate) fn fill(tag: u64, offset: u64, buffer: &mut [u8]) {
    let word = |index: u64| mix(tag ^ index.wrapping_mul(GOLDEN)).to_le_bytes();
    let skip = (offset % 8) as usize;
    let head = ((8 - skip) % 8).min(buffer.len());
    let (first, rest) = buffer.split_at_mut(head);
    first.copy_from_slice(&word(offset / 8)[skip..][..head]);
    for (index, chunk) in (offset.div_ceil(8)..).zip(rest.chunks_mut(8)) {
        chunk.copy_from_slice(&word(index)[..chunk.len()]);
    }
}

/// Whether `found` are the bytes of `tag` at `offset`; else where the first difference is.
pub(crate) fn check(tag: u64, offset: u64, found: &[u8]) -> Result<(), u64> {
    let mut expected = [0; 4096];
    let mut at = offset;
    for chunk in found.chunks(expected.len()) {
        let expected = &mut expected[..chunk.len()];
        fill(tag, at, expected);
        if let Some(i) = chunk.iter().zip(&*expected).position(|(a, b)| a != b) {
            return Err(at + i as u64);
        }
        at += chunk.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_has_the_bytes_of_the_whole_wherever_it_begins() {
        let mut whole = [0; 100];
        fill(5, 0, &mut whole);
        for begin in 0..40 {
            for len in 0..40 {
                let mut piece = vec![0; len];
                fill(5, begin as u64, &mut piece);
                assert_eq!(piece, whole[begin..begin + len], "{begin} + {len}");
            }
        }
    }

    #[test]
    fn another_tag_another_place_and_one_changed_byte_are_all_seen() {
        let mut data = vec![0; 10_000];
        fill(1, 4096, &mut data);
        assert_eq!(check(1, 4096, &data), Ok(()));
        assert_eq!(check(2, 4096, &data), Err(4096));
        assert_eq!(check(1, 8192, &data), Err(8192));
        data[9_999] ^= 1;
        assert_eq!(check(1, 4096, &data), Err(4096 + 9_999));
        assert_eq!(check(1, 0, &[0; 64]), Err(0));
    }
}
