//! Times at which clients may push their metrics (KIP-714), by the rules of Kafka's `ClientMetricsManager`.
//!
//! Not here: the metrics that a client should push. The caller passes the matching subscription in. Invariant: no more
//! clients are remembered than the limit; the longest silent client is forgotten first.

use std::collections::{BTreeMap, HashMap};

/// Most clients that are remembered (Kafka's `CACHE_MAX_SIZE`).
pub const CLIENTS_MAX: usize = 16_384;

/// Subscription that matches a client now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Id of the subscription. It changes with the metrics that the client should push.
    pub id: i32,
    /// Time between two pushes, in ms.
    pub interval_ms: u64,
}

/// Push of a client: its properties that decide about the push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Push {
    /// Id of the subscription for which the client pushes.
    pub subscription_id: i32,
    /// True if the client terminates.
    pub is_last: bool,
    /// True if the codec of the push was offered.
    pub is_known_codec: bool,
    /// True if the size of the push is within the limit.
    pub fits: bool,
}

/// Reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TelemetryRefusal {
    /// The interval is not over yet.
    TooEarly,
    /// The client has terminated; its last push was marked as such.
    Ended,
    /// The subscription has changed: the client must request it again.
    UnknownSubscription,
    /// The codec was not offered.
    UnknownCodec,
    /// The push exceeds the size limit.
    TooLarge,
}

#[derive(Debug, Default)]
struct Client {
    turn: u64,
    /// Start of the client's present interval: its last request, except one that was too early or came after the last
    /// push.
    last_ms: Option<u64>,
    /// True from the client's request for a subscription until its first push, which need not wait for the interval.
    may_push: bool,
    /// True if the client must request its subscription again, and need not wait for the interval.
    may_ask: bool,
    has_ended: bool,
}

impl Client {
    fn is_early(&self, now_ms: u64, interval_ms: u64) -> bool {
        self.last_ms.is_some_and(|last| now_ms.saturating_sub(last) < interval_ms)
    }
}

/// Clients that have requested a subscription or pushed, by their instance ids.
#[derive(Debug)]
pub struct Clients {
    by_id: HashMap<u128, Client>,
    /// Ids in the order of their last requests, the longest silent first.
    silent: BTreeMap<u64, u128>,
    turns: u64,
    limit: usize,
}

impl Default for Clients {
    fn default() -> Self {
        Clients::bounded(CLIENTS_MAX)
    }
}

impl Clients {
    /// Creates the state for at most `limit` clients, at least one.
    pub fn bounded(limit: usize) -> Clients {
        Clients { by_id: HashMap::new(), silent: BTreeMap::new(), turns: 0, limit: limit.max(1) }
    }

    /// Handles a client's request for its subscription.
    ///
    /// # Errors
    /// [`TelemetryRefusal::TooEarly`] if the client's interval is not over.
    pub fn ask(&mut self, id: u128, subscription: Subscription, now_ms: u64) -> Result<(), TelemetryRefusal> {
        let client = self.heard_of(id);
        if client.is_early(now_ms, subscription.interval_ms) && !client.may_ask {
            return Err(TelemetryRefusal::TooEarly);
        }
        *client = Client { turn: client.turn, last_ms: Some(now_ms), may_push: true, ..Client::default() };
        Ok(())
    }

    /// Handles a push of a client.
    ///
    /// # Errors
    /// [`TelemetryRefusal`] if the push is not accepted. Every refused push starts a new interval, except a push that
    /// is too early or comes after the client's last push.
    pub fn push(
        &mut self,
        id: u128,
        push: Push,
        subscription: Subscription,
        now_ms: u64,
    ) -> Result<(), TelemetryRefusal> {
        let client = self.heard_of(id);
        if client.has_ended {
            return Err(TelemetryRefusal::Ended);
        }
        let is_early = client.is_early(now_ms, subscription.interval_ms) && !client.may_push;
        if is_early && !push.is_last {
            return Err(TelemetryRefusal::TooEarly);
        }
        client.last_ms = Some(now_ms);
        client.may_push = false;
        client.may_ask = push.subscription_id != subscription.id || !push.is_known_codec;
        if push.subscription_id != subscription.id {
            return Err(TelemetryRefusal::UnknownSubscription);
        }
        if !push.is_known_codec {
            return Err(TelemetryRefusal::UnknownCodec);
        }
        if !push.fits {
            return Err(TelemetryRefusal::TooLarge);
        }
        client.has_ended = push.is_last;
        Ok(())
    }

    /// Returns the number of remembered clients.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns true if no client is remembered.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    fn heard_of(&mut self, id: u128) -> &mut Client {
        self.turns += 1;
        if !self.by_id.contains_key(&id)
            && self.by_id.len() >= self.limit
            && let Some((_, longest)) = self.silent.pop_first()
        {
            self.by_id.remove(&longest);
        }
        let client = self.by_id.entry(id).or_default();
        self.silent.remove(&client.turn);
        client.turn = self.turns;
        self.silent.insert(self.turns, id);
        client
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: Subscription = Subscription { id: 7, interval_ms: 1000 };
    const PUSH: Push = Push { subscription_id: 7, is_last: false, is_known_codec: true, fits: true };

    #[test]
    fn first_push_comes_at_any_time_and_later_ones_once_an_interval() {
        let mut clients = Clients::default();
        assert_eq!(clients.ask(1, WANTED, 0), Ok(()));
        assert_eq!(clients.ask(1, WANTED, 999), Err(TelemetryRefusal::TooEarly));
        assert_eq!(clients.push(1, PUSH, WANTED, 500), Ok(()));
        assert_eq!(clients.push(1, PUSH, WANTED, 1499), Err(TelemetryRefusal::TooEarly));
        assert_eq!(clients.push(1, PUSH, WANTED, 1500), Ok(()));
        assert_eq!(clients.ask(1, WANTED, 2499), Err(TelemetryRefusal::TooEarly));
        assert_eq!(clients.ask(1, WANTED, 2500), Ok(()));
        assert_eq!(clients.push(1, PUSH, WANTED, 2500), Ok(()));
        assert_eq!(clients.ask(2, WANTED, 2500), Ok(()), "another client has its own times");
    }

    #[test]
    fn terminating_client_pushes_once_more_at_any_time() {
        let mut clients = Clients::default();
        let last = Push { is_last: true, ..PUSH };
        assert_eq!(clients.push(1, PUSH, WANTED, 0), Ok(()), "of a client that was forgotten");
        assert_eq!(clients.push(1, last, WANTED, 1), Ok(()));
        assert_eq!(clients.push(1, last, WANTED, 5000), Err(TelemetryRefusal::Ended));
        assert_eq!(clients.push(1, PUSH, WANTED, 5000), Err(TelemetryRefusal::Ended));
    }

    #[test]
    fn client_with_an_outdated_subscription_may_request_it_at_once() {
        let changed = Subscription { id: 8, ..WANTED };
        let unknown = Push { is_known_codec: false, ..PUSH };
        for (push, subscription, refusal) in
            [(PUSH, changed, TelemetryRefusal::UnknownSubscription), (unknown, WANTED, TelemetryRefusal::UnknownCodec)]
        {
            let mut clients = Clients::default();
            assert_eq!(clients.ask(1, WANTED, 0), Ok(()));
            assert_eq!(clients.push(1, push, subscription, 10), Err(refusal));
            assert_eq!(clients.ask(1, subscription, 11), Ok(()));
            assert_eq!(clients.ask(1, subscription, 12), Err(TelemetryRefusal::TooEarly), "but once");
            let follows = Push { subscription_id: subscription.id, ..PUSH };
            assert_eq!(clients.push(1, follows, subscription, 13), Ok(()));
        }
        let mut clients = Clients::default();
        let large = Push { fits: false, ..PUSH };
        assert_eq!(clients.push(1, large, WANTED, 0), Err(TelemetryRefusal::TooLarge));
        assert_eq!(clients.ask(1, WANTED, 1), Err(TelemetryRefusal::TooEarly));
    }

    #[test]
    fn longest_silent_client_is_forgotten_at_the_limit() {
        let mut clients = Clients::bounded(2);
        for (id, now_ms) in [(1, 0), (2, 1)] {
            assert_eq!(clients.ask(id, WANTED, now_ms), Ok(()));
        }
        assert_eq!(clients.ask(1, WANTED, 2), Err(TelemetryRefusal::TooEarly), "heard of all the same");
        assert_eq!(clients.ask(3, WANTED, 3), Ok(()));
        assert_eq!(clients.len(), 2);
        assert_eq!(clients.ask(1, WANTED, 4), Err(TelemetryRefusal::TooEarly), "still remembered");
        assert_eq!(clients.ask(2, WANTED, 5), Ok(()), "forgotten");
    }
}
