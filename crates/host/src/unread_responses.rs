//! Large responses in memory that their clients have not read yet.
//!
//! A short request can have a response of many megabytes, and a client may send it over many connections without ever
//! reading. All such responses together have a limit. Beyond it, a request for another one waits for a second. Then the
//! connection whose response waits longest is closed, so clients that do not read cannot stop the others.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Responses of at most this size do not count.
pub const COUNTED_FROM: usize = 1 << 20;
/// Maximum size of all counted responses together, in bytes.
const BYTES_MAX: usize = 256 << 20;
/// How long a request waits for other clients to read their responses.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Ends the connection of a response.
type Eviction = Box<dyn FnOnce() + Send>;

/// The unread responses of one broker.
pub struct UnreadResponses {
    held: Mutex<HeldResponses>,
    /// Notified when a response has been read.
    was_read: Notify,
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
        UnreadResponses { held: Mutex::new(held), was_read: Notify::new() }
    }
}

impl UnreadResponses {
    /// Waits until there is room for a response of about this size, but at most [`WAIT_MAX`].
    pub async fn room(&self, bytes: usize) {
        let has_room = || {
            let held = self.held.lock();
            held.by_age.is_empty() || held.bytes.saturating_add(bytes) <= held.bytes_max
        };
        let room = async {
            loop {
                let was_read = self.was_read.notified();
                if has_room() {
                    return;
                }
                was_read.await;
            }
        };
        let _ = timeout(WAIT_MAX, room).await;
    }

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
        drop(held);
        self.all.was_read.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::future::Future;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    #[tokio::test]
    async fn no_room_until_a_client_reads_a_request_waits() {
        let all = Arc::new(UnreadResponses::default());
        let first = all.hold(BYTES_MAX, || panic!("it is the only one"));
        let mut room = pin!(all.room(BYTES_MAX / 2));
        let mut context = Context::from_waker(Waker::noop());
        assert!(room.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(room.as_mut().poll(&mut context).is_ready());
    }

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
