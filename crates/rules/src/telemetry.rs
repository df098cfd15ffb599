//! Decides when clients may push their metrics (KIP-714), by the rules of Kafka's `ClientMetricsManager`.
//!
//! The caller knows which metrics a client should push, and passes the subscription that applies to the client.
//! Invariant: no more clients are remembered than the limit allows. The client that has been silent the longest is
//! forgotten first.

use std::collections::{BTreeMap, HashMap};

/// Maximum number of clients that are remembered (Kafka's `CACHE_MAX_SIZE`).
pub const CLIENTS_MAX: usize = 16_384;

/// The subscription that applies to a client now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The id of the subscription. It changes when the client should push other metrics.
    pub id: i32,
    /// How long a client waits between two pushes, in ms.
    pub interval_ms: u64,
}

/// The properties of a push that decide whether the push is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Push {
    /// The id of the subscription in the client's push.
    pub subscription_id: i32,
    /// True if this is the client's last push before it terminates.
    pub is_last: bool,
    /// True if the push uses a codec that was offered.
    pub is_known_codec: bool,
    /// True if the push is within the size limit.
    pub fits: bool,
}

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TelemetryRefusal {
    /// The client's interval since its last request or push is not over yet.
    TooEarly,
    /// The client has already sent its last push.
    Ended,
    /// The subscription has changed. The client must request it again.
    UnknownSubscription,
    /// The codec was not offered.
    UnknownCodec,
    /// The push exceeds the size limit.
    TooLarge,
}

#[derive(Debug, Default)]
struct Client {
    turn: u64,
    /// When the client's current interval started. Each request or push starts one, except a push that is refused as
    /// too early or because the client has already sent its last push.
    last_ms: Option<u64>,
    /// True from the client's request for its subscription until its next push, which need not wait for the interval.
    may_push: bool,
    /// True if the client must request its subscription again, for which it need not wait for the interval.
    may_request: bool,
    has_ended: bool,
}

impl Client {
    fn is_early(&self, now_ms: u64, interval_ms: u64) -> bool {
        self.last_ms.is_some_and(|last| now_ms.saturating_sub(last) < interval_ms)
    }
}

/// The clients that have requested a subscription or pushed metrics, by instance id.
#[derive(Debug)]
pub struct Clients {
    by_id: HashMap<u128, Client>,
    /// The ids in the order of the clients' last requests, so the one that has been silent the longest comes first.
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
    /// Creates a state that remembers at most `limit` clients, which is at least one.
    pub fn bounded(limit: usize) -> Clients {
        Clients { by_id: HashMap::new(), silent: BTreeMap::new(), turns: 0, limit: limit.max(1) }
    }

    /// Handles a client's request for its subscription.
    ///
    /// # Errors
    /// Returns [`TelemetryRefusal::TooEarly`] if the client's interval is not over.
    pub fn request(&mut self, id: u128, subscription: Subscription, now_ms: u64) -> Result<(), TelemetryRefusal> {
        let client = self.known_of(id);
        if client.is_early(now_ms, subscription.interval_ms) && !client.may_request {
            return Err(TelemetryRefusal::TooEarly);
        }
        *client = Client { turn: client.turn, last_ms: Some(now_ms), may_push: true, ..Client::default() };
        Ok(())
    }

    /// Handles a client's push.
    ///
    /// # Errors
    /// Returns [`TelemetryRefusal`] if the push is refused. A refused push also starts a new interval, unless it is
    /// refused as too early or because the client has already sent its last push.
    pub fn push(
        &mut self,
        id: u128,
        push: Push,
        subscription: Subscription,
        now_ms: u64,
    ) -> Result<(), TelemetryRefusal> {
        let client = self.known_of(id);
        if client.has_ended {
            return Err(TelemetryRefusal::Ended);
        }
        let is_early = client.is_early(now_ms, subscription.interval_ms) && !client.may_push;
        if is_early && !push.is_last {
            return Err(TelemetryRefusal::TooEarly);
        }
        client.last_ms = Some(now_ms);
        client.may_push = false;
        client.may_request = push.subscription_id != subscription.id || !push.is_known_codec;
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

    fn known_of(&mut self, id: u128) -> &mut Client {
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
        assert_eq!(clients.request(1, WANTED, 0), Ok(()));
        assert_eq!(clients.request(1, WANTED, 999), Err(TelemetryRefusal::TooEarly));
        assert_eq!(clients.push(1, PUSH, WANTED, 500), Ok(()));
        assert_eq!(clients.push(1, PUSH, WANTED, 1499), Err(TelemetryRefusal::TooEarly));
        assert_eq!(clients.push(1, PUSH, WANTED, 1500), Ok(()));
        assert_eq!(clients.request(1, WANTED, 2499), Err(TelemetryRefusal::TooEarly));
        assert_eq!(clients.request(1, WANTED, 2500), Ok(()));
        assert_eq!(clients.push(1, PUSH, WANTED, 2500), Ok(()));
        assert_eq!(clients.request(2, WANTED, 2500), Ok(()), "another client has its own times");
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
            assert_eq!(clients.request(1, WANTED, 0), Ok(()));
            assert_eq!(clients.push(1, push, subscription, 10), Err(refusal));
            assert_eq!(clients.request(1, subscription, 11), Ok(()));
            assert_eq!(clients.request(1, subscription, 12), Err(TelemetryRefusal::TooEarly), "but once");
            let follows = Push { subscription_id: subscription.id, ..PUSH };
            assert_eq!(clients.push(1, follows, subscription, 13), Ok(()));
        }
        let mut clients = Clients::default();
        let large = Push { fits: false, ..PUSH };
        assert_eq!(clients.push(1, large, WANTED, 0), Err(TelemetryRefusal::TooLarge));
        assert_eq!(clients.request(1, WANTED, 1), Err(TelemetryRefusal::TooEarly));
    }

    #[test]
    fn longest_silent_client_is_forgotten_at_the_limit() {
        let mut clients = Clients::bounded(2);
        for (id, now_ms) in [(1, 0), (2, 1)] {
            assert_eq!(clients.request(id, WANTED, now_ms), Ok(()));
        }
        assert_eq!(clients.request(1, WANTED, 2), Err(TelemetryRefusal::TooEarly), "heard of all the same");
        assert_eq!(clients.request(3, WANTED, 3), Ok(()));
        assert_eq!(clients.len(), 2);
        assert_eq!(clients.request(1, WANTED, 4), Err(TelemetryRefusal::TooEarly), "still remembered");
        assert_eq!(clients.request(2, WANTED, 5), Ok(()), "forgotten");
    }
}
