//! Decides which records survive a cleaning (Kafka's `Cleaner.shouldRetainRecord` and KIP-534).

/// The time from which a cleaning can remove a batch's tombstones or its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Horizon {
    /// Not set yet. A cleaning sets the time when it keeps a tombstone or finds a marker without data.
    Unset,
    /// The time in ms.
    At(i64),
}

impl Horizon {
    /// Returns true if the time is set and has been reached.
    pub fn has_passed(self, now_ms: i64) -> bool {
        matches!(self, Horizon::At(time_ms) if now_ms >= time_ms)
    }
}

/// Returns true if a record survives. `newest` is the newest offset of its key in the map. The map has the records
/// below the offset `mapped_to`, so all later records survive.
pub fn survives(
    offset: i64,
    newest: Option<i64>,
    mapped_to: i64,
    has_value: bool,
    horizon: Horizon,
    now_ms: i64,
) -> bool {
    if offset >= mapped_to {
        return true;
    }
    let is_newest = newest.is_none_or(|newest| offset >= newest);
    is_newest && (has_value || !horizon.has_passed(now_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_record_of_a_key_stays_and_a_tombstone_until_its_horizon() {
        let value = |offset, newest| survives(offset, newest, 100, true, Horizon::At(0), 1000);
        assert!(value(5, None) && value(5, Some(5)) && !value(5, Some(6)));
        assert!(value(100, Some(99)), "past the map nothing is known");
        let tombstone = |horizon, now_ms| survives(5, Some(5), 100, false, horizon, now_ms);
        assert!(tombstone(Horizon::Unset, 1000));
        assert!(tombstone(Horizon::At(1000), 999) && !tombstone(Horizon::At(1000), 1000));
        assert!(!survives(5, Some(6), 100, false, Horizon::Unset, 0), "superseded like any record");
        assert!(survives(100, None, 100, false, Horizon::At(0), 1000), "past the map nothing is known");
    }
}
