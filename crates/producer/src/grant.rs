//! The limits that a broker grants: the number of unacknowledged batches (KIP-1269), and the number of out-of-order
//! batches that it parks.
//!
//! This module has no I/O. Invariant: Kafka's default applies until the broker has sent a value on the connection in
//! use. A later value replaces an earlier one, whether larger or smaller.

use crate::window::{WINDOW_DEFAULT, WINDOW_MAX};
use fullbore_wire::Text;
use fullbore_wire::apis::produce::{ProduceResponse, TopicProduceResponse};
use std::collections::HashMap;

/// The limits that one broker has granted.
#[derive(Debug)]
pub(crate) struct Grants {
    /// How many batches the broker retains per producer and partition, unless the topic has its own value.
    node: usize,
    topics: HashMap<Text, usize>,
    /// Maximum number of out-of-order batches per producer and partition that the broker parks until the missing ones
    /// arrive. 0 if the broker does not park batches.
    pub(crate) reorder: usize,
    /// True if the broker has acknowledged a batch. Until then, an idempotent sender has at most one request to it in
    /// flight.
    pub(crate) proven: bool,
    /// True once a value out of bounds was reported. Further ones are not reported.
    reported: bool,
}

impl Default for Grants {
    fn default() -> Self {
        Grants { node: WINDOW_DEFAULT, topics: HashMap::new(), reorder: 0, proven: false, reported: false }
    }
}

impl Grants {
    /// Resets the grants for a new connection. The broker may have been restarted with other settings or an older
    /// version.
    pub(crate) fn forget(&mut self) {
        *self = Grants { proven: self.proven, reported: self.reported, ..Grants::default() };
    }

    /// Returns the window of a partition of `topic`.
    pub(crate) fn of(&self, topic: &Text) -> usize {
        self.topics.get(topic).copied().unwrap_or(self.node)
    }

    /// Returns the window of topics for which the broker has sent no value of their own.
    pub(crate) fn of_node(&self) -> usize {
        self.node
    }

    /// Returns the largest window in force. `striped` is true if the batches of one partition go over several
    /// connections.
    pub(crate) fn in_force(&self, striped: bool) -> usize {
        let granted = self.topics.values().copied().max().unwrap_or(self.node);
        if striped && self.reorder > 0 { granted.min(self.reorder + 1) } else { granted }
    }

    /// Applies the broker-wide values of a response. A missing value means the default. Returns true only for the first
    /// value of this broker that is out of bounds.
    #[must_use]
    pub(crate) fn learn(&mut self, response: &ProduceResponse) -> bool {
        self.reorder = usize::try_from(response.reorder_batches).unwrap_or(0).min(WINDOW_MAX);
        let batches = response.max_idempotence_batches_to_retain;
        self.node = granted(batches);
        self.is_first_nonsense(batches)
    }

    /// Applies the value of a response for one topic. Returns true, like [`Grants::learn`], only for the first value of
    /// this broker that is out of bounds.
    #[must_use]
    pub(crate) fn learn_topic(&mut self, topic: &Text, answer: &TopicProduceResponse) -> bool {
        match answer.producer_state_batches_to_retain {
            -1 => {
                self.topics.remove(topic);
                false
            }
            batches => {
                match self.topics.get_mut(topic) {
                    Some(known) => *known = granted(batches),
                    None => drop(self.topics.insert(topic.clone(), granted(batches))),
                }
                self.is_first_nonsense(batches)
            }
        }
    }

    fn is_first_nonsense(&mut self, batches: i32) -> bool {
        let first = usize::try_from(batches) != Ok(granted(batches)) && !self.reported;
        self.reported |= first;
        first
    }
}

/// Limits the broker's value to the range from Kafka's default to the maximum of KIP-1269.
fn granted(batches: i32) -> usize {
    usize::try_from(batches).unwrap_or(0).clamp(WINDOW_DEFAULT, WINDOW_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(batches: i32) -> ProduceResponse {
        ProduceResponse { max_idempotence_batches_to_retain: batches, ..Default::default() }
    }

    fn of_topic(batches: i32) -> TopicProduceResponse {
        TopicProduceResponse { producer_state_batches_to_retain: batches, ..Default::default() }
    }

    #[test]
    fn the_topics_value_goes_before_the_brokers_and_both_may_shrink_or_go() {
        let (a, b) = (Text::from_static("a"), Text::from_static("b"));
        let mut grants = Grants::default();
        assert_eq!(grants.of(&a), 5);
        assert!(!grants.learn(&response(100)));
        assert!(!grants.learn_topic(&a, &of_topic(1024)));
        assert_eq!((grants.of(&a), grants.of(&b)), (1024, 100));
        assert!(!grants.learn_topic(&a, &of_topic(-1)));
        assert!(!grants.learn(&response(20)));
        assert_eq!((grants.of(&a), grants.of(&b)), (20, 20));
        // The field has its default, as in the response of a broker that sends no value.
        assert!(!grants.learn(&ProduceResponse::default()));
        assert_eq!(grants.of(&a), 5);
    }

    #[test]
    fn value_out_of_bounds_is_clamped_and_reported_once() {
        let topic = Text::from_static("t");
        for (batches, window) in [(0, 5), (-1, 5), (4, 5), (i32::MIN, 5), (i32::MAX, 10_000), (10_001, 10_000)] {
            let mut grants = Grants::default();
            assert!(grants.learn(&response(batches)), "{batches}");
            assert_eq!(grants.of(&topic), window);
            assert!(!grants.learn(&response(batches)), "once");
            grants.forget();
            assert!(!grants.learn_topic(&topic, &of_topic(0)), "once, whatever says it");
            assert_eq!(grants.of(&topic), 5);
        }
        let mut grants = Grants::default();
        assert!(!grants.learn(&ProduceResponse { reorder_batches: -7, ..response(10_000) }));
        assert_eq!(grants.reorder, 0);
    }

    #[test]
    fn a_new_connection_starts_over() {
        let mut grants = Grants { proven: true, ..Grants::default() };
        assert!(!grants.learn(&ProduceResponse { reorder_batches: 64, ..response(64) }));
        assert_eq!((grants.of(&Text::from_static("t")), grants.reorder), (64, 64));
        grants.forget();
        assert_eq!((grants.of(&Text::from_static("t")), grants.reorder, grants.proven), (5, 0, true));
    }
}
