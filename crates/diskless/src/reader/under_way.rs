//! Tracks the read-ahead requests that are under way, so that a client makes each of them once, and few at a time.
//!
//! A request continues even if its client is gone, so the number of clients does not limit the number of requests.
//! Invariant: a client has at most [`ASKED_MAX`] requests for a partition, and all clients together have at most
//! [`OF_PARTITION_MAX`].

use std::collections::BTreeMap;

use fullbore_rules::commit::DisklessPartitionId;

/// Maximum number of requests of a client for a partition.
pub const ASKED_MAX: usize = 16;
/// Maximum number of requests of all clients for a partition. A client that reads ahead has two.
const OF_PARTITION_MAX: usize = 256;

/// The requests that are waiting or under way.
#[derive(Debug, Default)]
pub struct UnderWay {
    /// The end of the window of each request, by its partition, client and offset. A window that is not found yet ends
    /// at its offset.
    requests: BTreeMap<(DisklessPartitionId, u64, i64), i64>,
}

impl UnderWay {
    /// Adds a request. Returns false if it is there already or if there are too many.
    pub fn begin(&mut self, partition: DisklessPartitionId, client: u64, offset: i64) -> bool {
        let count = |clients: std::ops::RangeInclusive<u64>| {
            self.requests.range((partition, *clients.start(), 0)..=(partition, *clients.end(), i64::MAX)).count()
        };
        let has_room = count(client..=client) < ASKED_MAX && count(0..=u64::MAX) < OF_PARTITION_MAX;
        let key = (partition, client, offset);
        has_room && !self.requests.contains_key(&key) && self.requests.insert(key, offset).is_none()
    }

    /// Notes that the window of a request is found and ends at `end`.
    pub fn found(&mut self, partition: DisklessPartitionId, client: u64, offset: i64, end: i64) {
        self.requests.entry((partition, client, offset)).and_modify(|of| *of = end);
    }

    /// Returns true if the window of a request of this client contains `offset`.
    pub fn covers(&self, partition: DisklessPartitionId, client: u64, offset: i64) -> bool {
        let before = (partition, client, i64::MIN)..=(partition, client, offset);
        self.requests.range(before).any(|(_, end)| offset < *end)
    }

    /// Removes a request that has ended.
    pub fn end(&mut self, partition: DisklessPartitionId, client: u64, offset: i64) {
        self.requests.remove(&(partition, client, offset));
    }

    /// Returns the number of requests.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.requests.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_has_many_requests_other_clients_can_make_theirs() {
        let mut under_way = UnderWay::default();
        let begun = (0..1000).filter(|offset| under_way.begin(1, 1, *offset)).count();
        assert_eq!(begun, ASKED_MAX);
        assert!(under_way.begin(1, 2, 0) && !under_way.begin(1, 2, 0) && under_way.begin(2, 1, 0));
        let begun = (3..1000).filter(|client| under_way.begin(1, *client, 0)).count();
        assert_eq!(begun, OF_PARTITION_MAX - ASKED_MAX - 1);
        under_way.found(1, 1, 5, 2000);
        assert!(under_way.covers(1, 1, 1999) && !under_way.covers(1, 1, 2000) && !under_way.covers(1, 2, 1999));
        under_way.end(1, 1, 5);
        assert!(!under_way.covers(1, 1, 1999));
        assert!(under_way.begin(1, 9999, 5));
    }
}
