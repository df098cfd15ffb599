//! Large responses in memory that their clients have not read yet.
//!
//! A short request can have a response of many megabytes, and a client may send such requests over many connections
//! without ever reading. The total size of all such responses has a limit. A request reserves room within this limit
//! before the broker makes its response. Requests that find too little room wait in the order of their arrival. Bytes
//! of a response that were sent no longer count.
//!
//! While a request waits for room, the broker closes connections whose clients have stopped reading. A client that
//! reads steadily, however slowly, keeps its connection. Invariant: all responses with reserved room take at most
//! [`BYTES_MAX`] together, unless a single response is larger. Other responses are about as large as their requests.
//! All responses together take at most twice [`BYTES_MAX`].

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
#[cfg(any(test, feature = "test-util"))]
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::log_rate_limit::LogRateLimit;

/// Maximum size of a response that is too small to count, in bytes.
pub const COUNTED_FROM: usize = 1 << 20;
/// Maximum size of all counted responses together, in bytes.
const BYTES_MAX: usize = 256 << 20;
/// How long a request waits for room before the broker closes its connection. No client waits longer than this for a
/// response.
pub const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a client must have received less than [`STEP_BYTES`] before the broker treats it as a client that does not
/// read.
const STALLED_AFTER: Duration = Duration::from_secs(3);
/// Number of bytes that a client must receive to count as a client that reads. With a smaller number, a client could
/// keep its connection by reading single bytes.
const STEP_BYTES: u64 = 16 << 10;
/// Minimum time between two polls of the connections by requests that reserve room.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The largest number of bytes for which a request of this process has reserved room or tried to.
#[cfg(any(test, feature = "test-util"))]
pub static LARGEST_ROOM: AtomicUsize = AtomicUsize::new(0);

/// The connection of a response.
pub trait Connection: Send + Sync {
    /// Returns how many bytes the client has received since it connected. `None` if the system does not count them.
    fn bytes_taken(&self) -> Option<u64>;
    /// Ends the connection.
    fn evict(&self);
}

/// The error of a request that has waited for room in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The unread responses of one broker.
pub struct UnreadResponses {
    table: Mutex<Table>,
    /// The notification that a response has become smaller or has ended.
    freed: Notify,
    /// The lock of the request that gets room next. Later requests wait for this lock in the order of their arrival.
    turn: tokio::sync::Mutex<()>,
    /// The rate limit of log lines about requests that got no room.
    pub no_room_line: LogRateLimit,
    /// The rate limit of log lines about evicted connections.
    pub evicted_line: LogRateLimit,
}

struct Table {
    bytes_max: usize,
    /// Bytes of the counted responses, and the room that is reserved for responses that are not made yet.
    bytes: usize,
    /// The number that the next response will get. It is the response's key in `responses`.
    next: u64,
    responses: BTreeMap<u64, Response>,
    polled_at: Instant,
}

/// The room of one response: first reserved, then used by the finished response.
#[derive(Default)]
struct Response {
    bytes: usize,
    /// The client that reads the response; `None` until the response has been made.
    reader: Option<Reader>,
}

struct Reader {
    connection: Box<dyn Connection>,
    /// How many bytes of the response have been freed because they were sent.
    freed: u64,
    /// How many bytes the client had received when `stepped_at` was last updated.
    taken: u64,
    /// When a poll last found that the client had received another [`STEP_BYTES`].
    stepped_at: Instant,
}

/// A handle on the room of one response, from before the response is made until it is sent. Dropping the handle frees
/// the room.
pub struct ResponseRoom {
    number: u64,
    all: Arc<UnreadResponses>,
}

impl Default for UnreadResponses {
    fn default() -> Self {
        let table =
            Table { bytes_max: BYTES_MAX, bytes: 0, next: 0, responses: BTreeMap::new(), polled_at: Instant::now() };
        UnreadResponses {
            table: Mutex::new(table),
            freed: Notify::new(),
            turn: tokio::sync::Mutex::new(()),
            no_room_line: LogRateLimit::default(),
            evicted_line: LogRateLimit::default(),
        }
    }
}

impl UnreadResponses {
    /// Returns the room of a response that is not made yet. The room is empty at first.
    pub fn room(self: &Arc<Self>) -> ResponseRoom {
        ResponseRoom { number: self.table.lock().add(), all: Arc::clone(self) }
    }

    /// Changes the limit.
    #[cfg(any(test, feature = "test-util"))]
    pub fn limit(&self, bytes_max: usize) {
        self.table.lock().bytes_max = bytes_max;
    }

    /// Returns the total size of all finished responses that count, without room that is only reserved.
    #[cfg(any(test, feature = "test-util"))]
    pub fn bytes(&self) -> usize {
        let table = self.table.lock();
        table.responses.values().filter(|response| response.reader.is_some()).map(|response| response.bytes).sum()
    }
}

impl ResponseRoom {
    /// Reserves room for a response of at most about `bytes` bytes. Waits until earlier requests have got their room
    /// and there is enough for this one. A response of at most [`COUNTED_FROM`] bytes needs no room.
    ///
    /// # Errors
    /// Returns [`NoRoom`] after [`WAIT_MAX`].
    pub async fn reserve(&self, bytes: usize) -> Result<(), NoRoom> {
        #[cfg(any(test, feature = "test-util"))]
        LARGEST_ROOM.fetch_max(bytes, Ordering::SeqCst);
        if bytes <= COUNTED_FROM {
            return Ok(());
        }
        let reserved = async {
            let _turn = self.all.turn.lock().await;
            loop {
                let freed = self.all.freed.notified();
                if self.all.table.lock().reserve(self.number, bytes, Instant::now()) {
                    return;
                }
                // After the timeout, `Table::reserve` polls the connections again.
                let _ = timeout(POLL_INTERVAL, freed).await;
            }
        };
        timeout(WAIT_MAX, reserved).await.map_err(|_| NoRoom)
    }

    /// Replaces the reserved room by the actual size of the finished response. While all responses together exceed the
    /// limit, ends the connections of clients that do not read. While they exceed twice the limit, also ends the
    /// connections of the clients that read most slowly.
    pub fn hold(&self, bytes: usize, connection: Box<dyn Connection>) {
        self.all.table.lock().hold(self.number, bytes, connection, Instant::now());
        self.all.freed.notify_waiters();
    }

    /// Records that `bytes` of the response have been sent and freed.
    pub fn shrink(&self, bytes: usize) {
        self.all.table.lock().shrink(self.number, bytes);
        self.all.freed.notify_waiters();
    }
}

impl Drop for ResponseRoom {
    fn drop(&mut self) {
        self.all.table.lock().remove(self.number);
        self.all.freed.notify_waiters();
    }
}

impl Table {
    fn add(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.responses.insert(number, Response::default());
        number
    }

    fn remove(&mut self, number: u64) -> Option<Response> {
        let removed = self.responses.remove(&number)?;
        self.bytes -= removed.bytes;
        Some(removed)
    }

    fn resize(&mut self, number: u64, bytes: usize) {
        if let Some(response) = self.responses.get_mut(&number) {
            self.bytes = self.bytes - response.bytes + bytes;
            response.bytes = bytes;
        }
    }

    /// Reserves `bytes`. If there is too little room, first evicts clients that do not read. Returns false if there is
    /// still too little room.
    fn reserve(&mut self, number: u64, bytes: usize, now: Instant) -> bool {
        let bytes = bytes.min(self.bytes_max);
        if now >= self.polled_at + POLL_INTERVAL {
            self.poll(now);
        }
        while self.bytes + bytes > self.bytes_max {
            let Some((stalled, since)) = self.longest_without_step() else { return false };
            if now < since + STALLED_AFTER {
                return false;
            }
            self.evict(stalled);
        }
        self.resize(number, bytes);
        true
    }

    fn hold(&mut self, number: u64, bytes: usize, connection: Box<dyn Connection>, now: Instant) {
        let bytes = if bytes > COUNTED_FROM { bytes } else { 0 };
        self.resize(number, bytes);
        if self.bytes > self.bytes_max {
            self.poll(now);
        }
        while self.bytes > self.bytes_max
            && let Some((longest, since)) = self.longest_without_step()
            && (now >= since + STALLED_AFTER || self.bytes > 2 * self.bytes_max)
        {
            self.evict(longest);
        }
        let Some(response) = self.responses.get_mut(&number).filter(|response| response.bytes > 0) else { return };
        let taken = connection.bytes_taken().unwrap_or(0);
        response.reader = Some(Reader { connection, freed: 0, taken, stepped_at: now });
    }

    fn shrink(&mut self, number: u64, by: usize) {
        let Some(response) = self.responses.get_mut(&number) else { return };
        let by = by.min(response.bytes);
        response.bytes -= by;
        self.bytes -= by;
        if let Some(reader) = &mut response.reader {
            reader.freed += by as u64;
        }
    }

    /// Records which clients have received another [`STEP_BYTES`].
    fn poll(&mut self, now: Instant) {
        self.polled_at = now;
        for reader in self.responses.values_mut().filter_map(|response| response.reader.as_mut()) {
            let taken = reader.connection.bytes_taken().unwrap_or(reader.freed);
            if taken >= reader.taken + STEP_BYTES {
                (reader.taken, reader.stepped_at) = (taken, now);
            }
        }
    }

    /// Returns the response whose client has gone longest without receiving another [`STEP_BYTES`], and since when.
    fn longest_without_step(&self) -> Option<(u64, Instant)> {
        let stepped = |(number, response): (&u64, &Response)| Some((*number, response.reader.as_ref()?.stepped_at));
        self.responses.iter().filter_map(stepped).min_by_key(|(_, stepped_at)| *stepped_at)
    }

    fn evict(&mut self, number: u64) {
        if let Some(Response { reader: Some(reader), .. }) = self.remove(number) {
            reader.connection.evict();
        }
    }
}

#[cfg(test)]
mod tests;
