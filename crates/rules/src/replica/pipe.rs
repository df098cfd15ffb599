//! How a follower keeps several fetches under way to one leader, over one connection and of any number of partitions,
//! and what it takes of the answers.
//!
//! [`FetchPipe`] counts the fetches of the connection. A [`PartitionPipe`] is one partition in one leader epoch: it is
//! first asked for from the end of the follower's log, which the answer may have truncated. From then on each fetch
//! lets the leader send what follows its last answer, without knowing whether that has arrived; where the follower's
//! log ends is only an acknowledgement. An answer that does not begin where the log ends is dropped, and so is all that
//! was under way; then the partition is asked for anew.
//!
//! Not here: what an answer says, and what the leader counts. Invariant: an answer is taken only if the follower's log
//! was found to be a beginning of its leader's in this epoch, and the answer begins where it ends.

/// Request of a fetch for a partition that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Records behind the follower's log end; the leader checks that the log is a beginning of its own.
    FromLogEnd,
    /// Records behind the leader's last answer on this connection.
    ReadOn,
}

/// The fetches over one connection. Answers come in the order of the fetches.
#[derive(Clone, Debug)]
pub struct FetchPipe {
    depth: usize,
    outstanding: usize,
}

impl FetchPipe {
    /// Creates a pipe of `depth` fetches at a time while records come, at least one.
    pub fn new(depth: usize) -> FetchPipe {
        FetchPipe { depth: depth.max(1), outstanding: 0 }
    }

    /// How many answers are owed.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Returns true if one more may go. While records come, the leader is to have all of them; else one, by which it
    /// can say so. What the follower has to say goes at once, though all of them may wait at the leader: it may be what
    /// they wait for.
    pub fn may_send(&self, do_records_come: bool, has_to_say: bool) -> bool {
        let most = match (has_to_say, do_records_come) {
            (true, _) => self.depth.saturating_mul(2),
            (false, true) => self.depth,
            (false, false) => 1,
        };
        self.outstanding < most
    }

    /// Counts a fetch that is sent.
    pub fn sent(&mut self) {
        self.outstanding += 1;
    }

    /// The oldest that was owed an answer has it.
    pub fn answered(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }
}

/// Partition of a pipe, in one leader epoch. The fetch from the log end has a number, which is in each answer of the
/// leader: an earlier fetch that waited at the leader may bring records requested after it.
#[derive(Clone, Copy, Debug, Default)]
pub struct PartitionPipe {
    phase: Phase,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// The next fetch that names it asks from the log end.
    #[default]
    Anew,
    /// The fetch of this number did, and nothing has come of it: nothing is asked for until then.
    Asked(i32),
    /// Answers are to that fetch, and to those after it.
    Flowing(i32),
}

impl PartitionPipe {
    /// How the fetch of this number asks for it, if it may name it.
    pub fn ask(&mut self, fetch: i32) -> Option<Ask> {
        match self.phase {
            Phase::Anew => {
                self.phase = Phase::Asked(fetch);
                Some(Ask::FromLogEnd)
            }
            Phase::Asked(_) => None,
            Phase::Flowing(_) => Some(Ask::ReadOn),
        }
    }

    /// An answer to what was asked for from the log end in that fetch. It `fits` if it begins where the log ends, and
    /// neither refuses nor diverges. Whether to take it.
    pub fn answered(&mut self, asked_in: i32, fits: bool) -> bool {
        if !self.concerns(asked_in) {
            return false;
        }
        self.phase = if fits { Phase::Flowing(asked_in) } else { Phase::Anew };
        fits
    }

    /// Requests the partition from its log end again, whatever is under way.
    pub fn begin_anew(&mut self) {
        self.phase = Phase::Anew;
    }

    /// Returns true if an answer to what was asked for in that fetch says anything of the log as it is.
    pub fn concerns(&self, asked_in: i32) -> bool {
        matches!(self.phase, Phase::Asked(fetch) | Phase::Flowing(fetch) if fetch == asked_in)
    }

    /// Returns true if it is to be asked for anew.
    pub fn is_anew(&self) -> bool {
        self.phase == Phase::Anew
    }

    /// Returns true if the log was found to be a beginning of the leader's.
    pub fn is_flowing(&self) -> bool {
        matches!(self.phase, Phase::Flowing(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fetch_waits_while_nothing_comes_and_then_as_many_as_may() {
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
    fn the_first_goes_alone_and_then_each_reads_on() {
        let mut partition = PartitionPipe::default();
        assert!(!partition.answered(0, true), "it was not asked for");
        assert_eq!(partition.ask(4), Some(Ask::FromLogEnd));
        assert_eq!(partition.ask(5), None);
        assert!(!partition.answered(3, true), "it was asked before");
        assert!(partition.answered(4, true) && partition.is_flowing());
        assert_eq!(partition.ask(6), Some(Ask::ReadOn));
    }

    #[test]
    fn after_an_answer_that_does_not_fit_nothing_is_taken_that_was_asked_for_before() {
        let mut partition = PartitionPipe::default();
        partition.ask(1);
        assert!(partition.answered(1, true));
        assert!(!partition.answered(1, false));
        assert!(!partition.answered(1, true), "what came before it is missing");
        assert_eq!(partition.ask(9), Some(Ask::FromLogEnd));
        assert!(!partition.answered(1, true) && !partition.concerns(1));
        assert!(!partition.answered(9, false), "it diverges");
        assert!(partition.is_anew());
        assert_eq!(partition.ask(10), Some(Ask::FromLogEnd));
        assert!(partition.answered(10, true));
    }
}
