//! Large responses in memory that their clients have not read yet.
//!
//! A short request can have a response of many megabytes, and a client may send it over many connections without ever
//! reading. All such responses together have a limit. Beyond it, the connection whose response waits longest is closed.
//! So no client has to wait for others to read. A client that reads is done long before its response is the oldest.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Responses of at most this size do not count.
pub const COUNTED_FROM: usize = 1 << 20;
/// Maximum size of all counted responses together, in bytes.
const BYTES_MAX: usize = 256 << 20;

/// Ends the connection of a response.
type Eviction = Box<dyn FnOnce() + Send>;

/// The unread responses of one broker.
pub struct UnreadResponses {
    held: Mutex<HeldResponses>,
}

struct HeldResponses {
    bytes_max: usize,
    bytes: usize,
    /// The number of the next response. Older responses have lower numbers.
    next: u64,
    by_age: BTreeMap<u64, (usize, Eviction)>,
}

/// A response until it is sent. Dropping this ends its share.
pub struct UnreadResponse {
    number: u64,
    all: Arc<UnreadResponses>,
}

impl Default for UnreadResponses {
    fn default() -> Self {
        let held = HeldResponses { bytes_max: BYTES_MAX, bytes: 0, next: 0, by_age: BTreeMap::new() };
        UnreadResponses { held: Mutex::new(held) }
    }
}

impl UnreadResponses {
    /// Counts a response of this size, whose connection is ended by `evict`. If all together are too large, ends the
    /// connections with the oldest ones. Returns `None` for a short response.
    pub fn hold(self: &Arc<Self>, bytes: usize, evict: impl FnOnce() + Send + 'static) -> Option<UnreadResponse> {
        if bytes <= COUNTED_FROM {
            return None;
        }
        let mut held = self.held.lock();
        let number = held.next;
        held.next += 1;
        held.bytes += bytes;
        held.by_age.insert(number, (bytes, Box::new(evict)));
        while held.bytes > held.bytes_max && held.by_age.len() > 1 {
            let Some((_, (bytes, oldest))) = held.by_age.pop_first() else { break };
            held.bytes -= bytes;
            oldest();
        }
        drop(held);
        Some(UnreadResponse { number, all: Arc::clone(self) })
    }

    /// Changes the limit.
    #[cfg(any(test, feature = "test-util"))]
    pub fn limit(&self, bytes_max: usize) {
        self.held.lock().bytes_max = bytes_max;
    }

    /// Returns the size of all counted responses together.
    #[cfg(any(test, feature = "test-util"))]
    pub fn bytes(&self) -> usize {
        self.held.lock().bytes
    }
}

impl Drop for UnreadResponse {
    fn drop(&mut self) {
        let mut held = self.all.held.lock();
        if let Some((bytes, _)) = held.by_age.remove(&self.number) {
            held.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::mpsc;

    #[test]
    fn unread_responses_beyond_the_limit_end_the_oldest_connection() {
        let all = Arc::new(UnreadResponses::default());
        let (evicts, evicted) = mpsc::channel();
        let hold = |bytes, connection: u8| {
            let evicts = evicts.clone();
            all.hold(bytes, move || evicts.send(connection).expect("received"))
        };
        let evicted = || evicted.try_iter().collect::<Vec<u8>>();
        assert!(hold(COUNTED_FROM, 0).is_none());
        let (first, second) = (hold(BYTES_MAX / 2, 1), hold(BYTES_MAX / 2, 2));
        assert_eq!(evicted(), []);
        let third = hold(BYTES_MAX / 2, 3);
        assert_eq!((evicted(), all.bytes()), (vec![1], BYTES_MAX));
        drop((first, second));
        assert_eq!(all.bytes(), BYTES_MAX / 2, "the first one does not count twice");
        let alone = hold(2 * BYTES_MAX, 4);
        assert_eq!(evicted(), [3], "a single response may exceed the limit");
        drop((third, alone));
        assert_eq!(all.bytes(), 0);
    }
}
