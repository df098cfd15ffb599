//! Zigzag variable-length integers, which records contain. Tagged fields contain unsigned ones instead.

/// Maximum size of a 64-bit integer in bytes. Each byte has seven bits of the integer.
pub const LEN_MAX: usize = 10;
/// Maximum size of a 32-bit integer in bytes.
pub const LEN32_MAX: usize = 5;

const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// Returns how many bytes `value` takes.
#[inline]
pub const fn len(value: i64) -> usize {
    let bits = 64 - (zigzag(value) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Writes `value` at the start of `out`, which must have room for the value. Returns how many bytes were written.
#[inline]
pub fn put(out: &mut [u8], value: i64) -> usize {
    let mut left = zigzag(value);
    let mut at = 0;
    while left >= 0x80 {
        out[at] = left as u8 | 0x80;
        left >>= 7;
        at += 1;
    }
    out[at] = left as u8;
    at + 1
}

/// Reads a value at the start of `bytes`, and removes it from `bytes`. Returns `None` if there is no valid value.
#[inline]
pub fn take(bytes: &mut &[u8]) -> Option<i64> {
    let (&first, rest) = bytes.split_first()?;
    if first < 0x80 {
        *bytes = rest;
        return Some(unzigzag(u64::from(first)));
    }
    let mut value = u64::from(first & 0x7f);
    for (at, &byte) in rest.iter().enumerate().take(LEN_MAX - 1) {
        value |= u64::from(byte & 0x7f) << (7 * (at + 1));
        if byte < 0x80 {
            *bytes = &rest[at + 1..];
            return Some(unzigzag(value));
        }
    }
    None
}

/// Reads a value at the start of `bytes`, and removes it from `bytes`. Returns `None` if there is no valid value, or if
/// it does not fit into 32 bits.
#[inline]
pub fn take_i32(bytes: &mut &[u8]) -> Option<i32> {
    i32::try_from(take(bytes)?).ok()
}

/// Returns the value whose zigzag form is `value`.
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_value_comes_back(value: i64) {
            let mut out = [0; LEN_MAX];
            let n = put(&mut out, value);
            prop_assert_eq!(n, len(value));
            let mut left = &out[..n];
            prop_assert_eq!(take(&mut left), Some(value));
            prop_assert!(left.is_empty());
        }
    }

    #[test]
    fn too_long_or_cut_short_is_none() {
        assert_eq!(take(&mut [0x80; 11].as_slice()), None);
        assert_eq!(take(&mut [0x80].as_slice()), None);
        assert_eq!(take(&mut [].as_slice()), None);
    }
}
