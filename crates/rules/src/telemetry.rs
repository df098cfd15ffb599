//! Which clients may tell their metrics when (KIP-714), as Kafka's `ClientMetricsManager` decides it.
//!
//! Not which metrics are wanted of whom: the subscription that fits a client comes in as an argument. Invariant: no
//! more clients are remembered than the limit; the one that was silent for the longest time is forgotten first.

use std::collections::{BTreeMap, HashMap};

/// Clients remembered (Kafka's `CACHE_MAX_SIZE`).
pub const CLIENTS_MAX: usize = 16_384;

/// What fits a client now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Changes when what is wanted of the client does.
    pub id: i32,
    /// Between two pushes, in ms.
    pub interval_ms: u64,
}

/// One push, as far as it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Push {
    /// The subscription that it is for.
    pub subscription_id: i32,
    /// True if the client says that it ends.
    pub is_last: bool,
    /// True if its codec is one that was offered.
    pub is_known_codec: bool,
    /// True if it is within the limit.
    pub fits: bool,
}

/// Why a request was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TelemetryRefusal {
    /// The request came before the interval was over.
    TooEarly,
    /// The client said that it would end.
    Ended,
    /// What is wanted has changed: the client has to ask.
    UnknownSubscription,
    /// A codec that was not offered.
    UnknownCodec,
    /// Larger than may be.
    TooLarge,
}

#[derive(Debug, Default)]
struct Client {
    turn: u64,
    /// When its last request was accepted.
    last_ms: Option<u64>,
    /// It has asked and not pushed since: its first push comes at any part of the interval.
    may_push: bool,
    /// It was told to ask.
    may_ask: bool,
    has_ended: bool,
}

impl Client {
    fn is_early(&self, now_ms: u64, interval_ms: u64) -> bool {
        self.last_ms.is_some_and(|last| now_ms.saturating_sub(last) < interval_ms)
    }
}

/// The clients that have asked or pushed, by their instance ids.
#[derive(Debug)]
pub struct Clients {
    by_id: HashMap<u128, Client>,
    /// Ids by the turn of their last request: the longest silent comes first.
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
    /// At most `limit` clients, and at least one.
    pub fn bounded(limit: usize) -> Clients {
        Clients { by_id: HashMap::new(), silent: BTreeMap::new(), turns: 0, limit: limit.max(1) }
    }

    /// A client asks what is wanted of it.
    ///
    /// # Errors
    /// [`TelemetryRefusal::TooEarly`].
    pub fn ask(&mut self, id: u128, subscription: Subscription, now_ms: u64) -> Result<(), TelemetryRefusal> {
        let client = self.heard_of(id);
        if client.is_early(now_ms, subscription.interval_ms) && !client.may_ask {
            return Err(TelemetryRefusal::TooEarly);
        }
        *client = Client { turn: client.turn, last_ms: Some(now_ms), may_push: true, ..Client::default() };
        Ok(())
    }

    /// A client pushes its metrics.
    ///
    /// # Errors
    /// [`TelemetryRefusal`]; the push counts against the interval unless it was too early.
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

    /// Clients remembered now.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns true if none is.
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
    fn a_push_comes_once_an_interval_and_the_first_at_any_time() {
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
    fn a_client_that_ends_pushes_once_more_whenever_that_is() {
        let mut clients = Clients::default();
        let last = Push { is_last: true, ..PUSH };
        assert_eq!(clients.push(1, PUSH, WANTED, 0), Ok(()), "of a client that was forgotten");
        assert_eq!(clients.push(1, last, WANTED, 1), Ok(()));
        assert_eq!(clients.push(1, last, WANTED, 5000), Err(TelemetryRefusal::Ended));
        assert_eq!(clients.push(1, PUSH, WANTED, 5000), Err(TelemetryRefusal::Ended));
    }

    #[test]
    fn who_is_told_that_what_is_wanted_has_changed_may_ask_at_once() {
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
    fn the_longest_silent_is_forgotten_at_the_limit() {
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
