//! Finds the partition of an internal topic that a group or a transactional id belongs to (Kafka's
//! `GroupCoordinatorService.partitionFor`, `TransactionStateManager.partitionFor` and `Utils.abs`).

/// Returns which of `partitions` partitions `id` belongs to. This is decided by the absolute value of Java's
/// `String.hashCode`.
///
/// # Panics
/// Panics if `partitions` is not above 0.
pub fn partition_for(id: &str, partitions: i32) -> i32 {
    assert!(partitions > 0, "a topic has partitions");
    let hash = id.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // The smallest number has no absolute value in 32 bits, and counts as 0.
    hash.checked_abs().unwrap_or(0) % partitions
}
