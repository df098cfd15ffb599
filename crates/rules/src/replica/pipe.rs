//! How a follower keeps several fetches under way to one leader, and what it takes of the answers.
//!
//! The first goes alone: it says where the follower's log ends, and its answer may truncate. From then on each further fetch lets the
//! leader send what follows its last answer, without knowing whether that has arrived; where the follower's log ends is only
//! an acknowledgement. An answer that does not begin where the log ends is dropped, and so is all that was asked for with it; then one goes
//! alone again.
//!
//! Not here: what an answer says, and what the leader counts. Invariant: an answer is taken only if everything that was asked for before it
//! was.

/// What the next fetch asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// What follows the end of the follower's log, of which the leader makes sure that it is the beginning of its own.
    FromLogEnd,
    /// What follows the leader's last answer on this connection.
    ReadOn,
}

/// The fetches to one leader, of one partition, in one leader epoch, over one connection.
#[derive(Clone, Debug)]
pub struct FetchPipe {
    depth: usize,
    outstanding: usize,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next one goes alone.
    Alone,
    Flowing,
    /// Answers are dropped until none is owed.
    Draining,
}

impl FetchPipe {
    /// At most `depth` fetches at a time, at least one.
    pub fn new(depth: usize) -> FetchPipe {
        FetchPipe { depth: depth.max(1), outstanding: 0, phase: Phase::Alone }
    }

    /// What the next fetch asks for, if one may go now.
    pub fn next(&self) -> Option<Ask> {
        match self.phase {
            Phase::Alone if self.outstanding == 0 => Some(Ask::FromLogEnd),
            Phase::Flowing if self.outstanding < self.depth => Some(Ask::ReadOn),
            _ => None,
        }
    }

    /// It went.
    pub fn sent(&mut self) {
        self.outstanding += 1;
    }

    /// How many answers are owed.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// An answer came, the oldest that was owed. It `fits` if it begins where the log ends, and neither refuses nor diverges. Whether
    /// to append it.
    pub fn answered(&mut self, fits: bool) -> bool {
        self.outstanding = self.outstanding.saturating_sub(1);
        let takes = fits && self.phase != Phase::Draining;
        self.phase = match self.outstanding {
            _ if takes => Phase::Flowing,
            0 => Phase::Alone,
            _ => Phase::Draining,
        };
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(pipe: &mut FetchPipe, ask: Ask) {
        assert_eq!(pipe.next(), Some(ask));
        pipe.sent();
    }

    #[test]
    fn the_first_goes_alone_and_then_as_many_as_may() {
        let mut pipe = FetchPipe::new(3);
        send(&mut pipe, Ask::FromLogEnd);
        assert_eq!(pipe.next(), None);
        assert!(pipe.answered(true));
        (0..3).for_each(|_| send(&mut pipe, Ask::ReadOn));
        assert_eq!(pipe.next(), None);
        assert!(pipe.answered(true));
        send(&mut pipe, Ask::ReadOn);
    }

    #[test]
    fn after_an_answer_that_does_not_fit_nothing_is_taken_that_was_asked_for_before() {
        let mut pipe = FetchPipe::new(3);
        send(&mut pipe, Ask::FromLogEnd);
        assert!(pipe.answered(true));
        (0..3).for_each(|_| send(&mut pipe, Ask::ReadOn));
        assert!(!pipe.answered(false));
        assert_eq!(pipe.next(), None);
        assert!(!pipe.answered(true), "what came before it is missing");
        assert!(!pipe.answered(true));
        send(&mut pipe, Ask::FromLogEnd);
        assert!(!pipe.answered(false), "it diverges");
        send(&mut pipe, Ask::FromLogEnd);
        assert!(pipe.answered(true));
        assert_eq!(pipe.outstanding(), 0);
    }
}
