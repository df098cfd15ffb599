//! SipHash-2-4 with 128 bits of output, a keyed hash for the keys of records.
//!
//! The cleaner's map stores hashes instead of keys, so if two keys had the same hash, a record would be lost. With a
//! keyed pseudo-random function this is practically impossible: for 10^9 keys the probability is 10^-21. Clients cannot
//! search for colliding keys, because they do not know the hash's key, which is random for each cleaning. Kafka uses
//! MD5, which has no key and whose collisions can be computed in seconds.
//!
//! Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012, and the authors' 128-bit extension.

/// The secret key of the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKey(pub [u64; 2]);

struct SipState([u64; 4]);

impl SipState {
    fn new(HashKey([k0, k1]): HashKey) -> SipState {
        SipState([
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        ])
    }

    #[inline]
    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.0;
        *v0 = v0.wrapping_add(*v1);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v3);
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.wrapping_add(*v3);
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.wrapping_add(*v1);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v2 = v2.rotate_left(32);
    }

    #[inline]
    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    fn squeeze(&mut self) -> u64 {
        (0..4).for_each(|_| self.round());
        self.0[0] ^ self.0[1] ^ self.0[2] ^ self.0[3]
    }
}

/// Returns the hash of `bytes`.
pub fn hash(key: HashKey, bytes: &[u8]) -> [u64; 2] {
    let mut state = SipState::new(key);
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| state.absorb(u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    state.absorb(u64::from_le_bytes(last));
    state.0[2] ^= 0xee;
    let first = state.squeeze();
    state.0[1] ^= 0xdd;
    [first, state.squeeze()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are from `vectors_sip128` of the reference implementation. The key is 00..0f, and the inputs are 00,
    /// 01, 02 and so on.
    #[test]
    fn hashes_are_those_of_the_reference() {
        let key = HashKey([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        let input: Vec<u8> = (0..=255).collect();
        let bytes = |len: usize| hash(key, &input[..len]).map(u64::to_le_bytes).concat();
        let known = [
            (0, "a3817f04ba25a8e66df67214c7550293"),
            (1, "da87c1d86b99af44347659119b22fc45"),
            (2, "8177228da4a45dc7fca38bdef60affe4"),
            (7, "a1f1ebbed8dbc153c0b84aa61ff08239"),
            (8, "3b62a9ba6258f5610f83e264f31497b4"),
        ];
        for (len, expected) in known {
            let hex: String = bytes(len).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected, "{len} bytes");
        }
    }
}
