//! Arithmetic of sequences, which wrap from 2^31-1 to 0.

/// Returns the sequence that is `count` records after `sequence`. After 2^31-1 the sequences start again at 0.
pub(crate) fn sequence_add(sequence: i32, count: u32) -> i32 {
    sequence.wrapping_add(count as i32) & i32::MAX
}

/// Returns the distance from `from` forward to `to`, in records.
pub(super) fn sequence_distance(from: i32, to: i32) -> u32 {
    (to.wrapping_sub(from) & i32::MAX) as u32
}
