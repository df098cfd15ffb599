//! Pipelined fetches of a follower. Several fetches are in flight to a leader over one connection, for any number of
//! partitions.
//!
//! [`FetchPipe`] counts the fetches of the connection. [`PartitionPipe`] is the state of a partition in one leader
//! epoch. The partition's first fetch is from the end of the follower's log, and its response may truncate this log.
//! Each later fetch requests the records after the leader's last response, even if that response has not arrived yet.
//! Such a fetch reports the follower's log end only as an acknowledgement.
//!
//! If a response does not begin at the follower's log end, it is dropped, and so are all later ones in flight. The next
//! fetch is from the log end again.
//!
//! The contents of responses and the leader's side are not here. Invariant: a response is used only if it begins at the
//! end of the follower's log. This log must also be a prefix of the leader's log in this epoch.

/// The position that a fetch requests records from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The follower's log end. The leader checks that the follower's log is a prefix of its own.
    FromLogEnd,
    /// The end of the records in the leader's last response on this connection.
    Continue,
}

/// The fetches over a connection. Their responses arrive in the order of the fetches.
#[derive(Clone, Debug)]
pub struct FetchPipe {
    depth: usize,
    outstanding: usize,
}

impl FetchPipe {
    /// Creates a pipe that allows `depth` fetches in flight, which is at least one.
    pub fn new(depth: usize) -> FetchPipe {
        FetchPipe { depth: depth.max(1), outstanding: 0 }
    }

    /// Returns how many fetches have no response yet.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Returns true if another fetch may be sent. While records arrive, `depth` fetches may be in flight. Otherwise
    /// only one fetch is in flight, and waits at the leader for records. If the follower has something to report
    /// (`has_to_say`), twice `depth` fetches may be in flight, because the leader may need the report to respond to
    /// waiting fetches.
    pub fn may_send(&self, do_records_come: bool, has_to_say: bool) -> bool {
        let most = match (has_to_say, do_records_come) {
            (true, _) => self.depth.saturating_mul(2),
            (false, true) => self.depth,
            (false, false) => 1,
        };
        self.outstanding < most
    }

    /// Counts a fetch that was sent.
    pub fn sent(&mut self) {
        self.outstanding += 1;
    }

    /// Counts the response to the oldest fetch.
    pub fn answered(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }
}

/// The state of a partition's fetches in one leader epoch. Each response contains the number of the fetch from the log
/// end that the leader has seen last for the partition. So late responses to earlier fetches are recognised.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartitionPipe {
    phase: Phase,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The next fetch of the partition must be from the log end.
    #[default]
    FromLogEnd,
    /// The fetch with this number is from the log end, and has no response yet. Until the response arrives, no other
    /// fetch includes the partition.
    Requested(i32),
    /// The response to the fetch with this number, which was from the log end, was used. Later fetches continue from
    /// it.
    Flowing(i32),
}

impl PartitionPipe {
    /// Returns the position that the fetch with this number must request; None if the fetch must leave the partition
    /// out.
    pub fn request(&mut self, fetch: i32) -> Option<Ask> {
        match self.phase {
            Phase::FromLogEnd => {
                self.phase = Phase::Requested(fetch);
                Some(Ask::FromLogEnd)
            }
            Phase::Requested(_) => None,
            Phase::Flowing(_) => Some(Ask::Continue),
        }
    }

    /// Handles a response. `requested_in` is the number in the response of the partition's fetch from the log end.
    /// `fits` is true if the response begins at the log end, and has no error or divergence. Returns true if the caller
    /// must use the response.
    pub fn answered(&mut self, requested_in: i32, fits: bool) -> bool {
        if !self.concerns(requested_in) {
            return false;
        }
        self.phase = if fits { Phase::Flowing(requested_in) } else { Phase::FromLogEnd };
        fits
    }

    /// Makes the next fetch start from the log end again, whatever is in flight.
    pub fn restart_from_log_end(&mut self) {
        self.phase = Phase::FromLogEnd;
    }

    /// Returns true if `requested_in` is the partition's last fetch from the log end, and is still valid. Returns false
    /// for a late response to an earlier fetch, and while the next fetch must be from the log end.
    pub fn concerns(&self, requested_in: i32) -> bool {
        matches!(self.phase, Phase::Requested(fetch) | Phase::Flowing(fetch) if fetch == requested_in)
    }

    /// Returns true if the next fetch of the partition must be from the log end.
    pub fn is_from_log_end(&self) -> bool {
        self.phase == Phase::FromLogEnd
    }

    /// Returns true if the follower's log is known to be a prefix of the leader's.
    pub fn is_flowing(&self) -> bool {
        matches!(self.phase, Phase::Flowing(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fetch_waits_without_records_and_several_with_them() {
        let mut pipe = FetchPipe::new(3);
        assert!(pipe.may_send(false, false));
        pipe.sent();
        assert!(!pipe.may_send(false, false) && pipe.may_send(false, true));
        pipe.answered();
        for _ in 0..3 {
            assert!(pipe.may_send(true, false));
            pipe.sent();
        }
        assert!(!pipe.may_send(true, false), "all are under way");
        assert!(pipe.may_send(true, true), "what is acknowledged does not wait for that");
        pipe.answered();
        assert_eq!(pipe.outstanding(), 2);
    }

    #[test]
    fn first_fetch_is_from_the_log_end_and_later_ones_read_on() {
        let mut partition = PartitionPipe::default();
        assert!(!partition.answered(0, true), "it was not asked for");
        assert_eq!(partition.request(4), Some(Ask::FromLogEnd));
        assert_eq!(partition.request(5), None);
        assert!(!partition.answered(3, true), "it was asked before");
        assert!(partition.answered(4, true) && partition.is_flowing());
        assert_eq!(partition.request(6), Some(Ask::Continue));
    }

    #[test]
    fn response_that_does_not_fit_discards_all_earlier_fetches() {
        let mut partition = PartitionPipe::default();
        partition.request(1);
        assert!(partition.answered(1, true));
        assert!(!partition.answered(1, false));
        assert!(!partition.answered(1, true), "what came before it is missing");
        assert_eq!(partition.request(9), Some(Ask::FromLogEnd));
        assert!(!partition.answered(1, true) && !partition.concerns(1));
        assert!(!partition.answered(9, false), "it diverges");
        assert!(partition.is_from_log_end());
        assert_eq!(partition.request(10), Some(Ask::FromLogEnd));
        assert!(partition.answered(10, true));
    }
}
