//! The connection of one client. Requests are admitted in order, complete concurrently, and are answered in order.
//!
//! The reading half ([`super::reading`]) admits each request, which fixes its position in the order, and queues its
//! response. The writing half ([`super::writing`]) awaits the responses in that order. Both run in the same task. So a
//! request that can be answered at once costs no task switch. A fault of one connection never ends another.
//!
//! The queue between the halves ([`Handover`]) is not a channel, because neither half wakes the other: [`in_turn`]
//! polls both whenever the task is woken. A channel would wake the running task, and the runtime would wake another
//! thread to take it over. That costs two system calls and a thread switch for each request.

use super::admitted::Ended;
use super::idleness::Idleness;
use super::input::InputError;
use super::reading::{ReadEnd, read};
use super::stream::ClientStream;
use super::writing::write;
use crate::api::{Client, Fault};
use crate::coordinator::Unwritten;
use crate::node::Node;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::watch;

/// How long a client that has ended its side may stay silent, even if a response is still in progress. Most such
/// clients are gone.
const HUNG_UP_MAX: Duration = Duration::from_secs(5);

/// Serves one client until either side is done.
pub async fn serve(
    broker: &Arc<Node>,
    stream: &Arc<ClientStream>,
    peer: SocketAddr,
    listener: usize,
    stop: watch::Receiver<bool>,
) {
    let queue = Handover::new(broker.metadata.config.network.connection.requests_max);
    let idleness = Arc::new(Idleness::default());
    let unwritten = Arc::new(Unwritten::default());
    let client = Client::new(peer, Arc::clone(&unwritten));
    // Both halves are pinned here, where they are created. A future that is pinned as an argument is in the task's
    // memory twice.
    let reading = pin!(async {
        match read(broker, stream, client, listener, &queue, &idleness, stop).await {
            // The client has not ended its side. As long as it waits for a response, it is not idle.
            Ok(ReadEnd::Stopping) => Ok(None),
            Ok(ReadEnd::Client) => {
                idleness.end();
                Ok(None)
            }
            Err(lost @ Ended::Input(InputError::Io(_))) => Err(lost),
            // Requests that came before the bad one are still answered.
            Err(ended) => {
                idleness.end();
                Ok(Some(ended))
            }
        }
    });
    let writing = pin!(async {
        tokio::select! {
            biased;
            ended = write(broker, stream, &queue, &idleness) => ended,
            never = unwritten.carry_out() => match never {},
            ended = end_idle(&idleness, broker.metadata.config.network.connection.idle_max) => Err(ended),
        }
    });
    let ended = in_turn(&queue, reading, writing).await;
    match ended {
        Ok((None, ())) => tracing::debug!(%peer, "connection closed"),
        Ok((Some(Ended::Input(InputError::Cut)), ())) => {
            tracing::debug!(%peer, error = %InputError::Cut, "connection lost")
        }
        Ok((Some(Ended::Fault(Fault::NoRoom)), ())) | Err(Ended::Fault(Fault::NoRoom)) => {
            if let Some(left_out) = broker.unread.no_room_line.due() {
                tracing::warn!(%peer, left_out, "cannot make a large response: other clients are still reading theirs, so the connection is closed; request it again")
            }
        }
        Ok((Some(bad), ())) => tracing::warn!(%peer, error = %bad, "connection closed on a bad request"),
        Err(Ended::Idle(time)) => tracing::debug!(%peer, ?time, "connection idle"),
        Err(error @ Ended::HungUp(_)) => tracing::debug!(%peer, %error, "connection lost"),
        Err(Ended::Unread) => {
            if let Some(left_out) = broker.unread.evicted_line.due() {
                tracing::warn!(%peer, left_out, "cannot keep an unread response in memory: the connection of the slowest client is closed; check if it reads")
            }
        }
        Err(Ended::Input(InputError::Io(error))) | Err(Ended::Output(error)) => {
            tracing::debug!(%peer, %error, "connection lost");
        }
        Err(error) => tracing::warn!(%peer, %error, "connection closed on a bad request"),
    }
}

/// Returns once the client has been idle for too long. A client that waits for a response counts as idle only after it
/// has ended its side.
async fn end_idle(idleness: &Idleness, idle_max: Option<Duration>) -> Ended {
    let idle = async {
        let Some(max) = idle_max else { return pending().await };
        idleness.reaches(max).await;
        max
    };
    tokio::select! {
        max = idle => return Ended::Idle(max),
        () = idleness.ended() => {}
    }
    let evicted = async {
        while !idleness.is_evicted() {
            idleness.ended().await;
        }
    };
    let max = idle_max.map_or(HUNG_UP_MAX, |max| max.min(HUNG_UP_MAX));
    tokio::select! {
        biased;
        () = evicted => Ended::Unread,
        () = idleness.reaches(max) => Ended::HungUp(max),
    }
}

/// The queue between the two halves. Its futures only work within [`in_turn`]. Items leave in the order in which they
/// came. At most `max` items are between [`Handover::enter`] and [`Handover::leave`].
pub struct Handover<T> {
    max: usize,
    state: Mutex<HandoverState<T>>,
}

struct HandoverState<T> {
    items: VecDeque<T>,
    /// How many slots are in use. An item uses its slot from before it is queued until it was taken out and finished.
    taken: usize,
    is_closed: bool,
    /// True if the reading half is waiting for a slot.
    wants_room: bool,
}

impl<T> Handover<T> {
    pub fn new(max: usize) -> Self {
        let state = HandoverState { items: VecDeque::new(), taken: 0, is_closed: false, wants_room: false };
        Handover { max, state: Mutex::new(state) }
    }

    /// Waits until a slot is free and takes it.
    pub async fn enter(&self) {
        poll_fn(|_| {
            let mut state = self.state.lock();
            state.wants_room = state.taken >= self.max;
            if state.wants_room {
                return Poll::Pending;
            }
            state.taken += 1;
            Poll::Ready(())
        })
        .await;
    }

    /// Adds an item. The caller has taken a slot for it before.
    pub fn push(&self, item: T) {
        self.state.lock().items.push_back(item);
    }

    /// Frees `count` slots, whose items are finished or were never added.
    pub fn leave(&self, count: usize) {
        self.state.lock().taken -= count;
    }

    /// Announces that no more items will come.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Waits for the oldest item. Returns `None` once the queue is closed and empty.
    pub async fn pop(&self) -> Option<T> {
        poll_fn(|_| {
            let mut state = self.state.lock();
            match state.items.pop_front() {
                Some(item) => Poll::Ready(Some(item)),
                None if state.is_closed => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Returns the oldest item, or `None` if the queue is empty.
    pub fn try_pop(&self) -> Option<T> {
        self.state.lock().items.pop_front()
    }

    /// Returns true if the reading half is waiting and a slot has become free.
    fn has_room_wanted(&self) -> bool {
        let state = self.state.lock();
        state.wants_room && state.taken < self.max
    }
}

/// Runs both halves until both are done or one of them fails. Returns the results of both.
///
/// # Errors
/// Returns the first error of either half.
pub async fn in_turn<T, A, B, E>(
    handover: &Handover<T>,
    mut pushing: Pin<&mut impl Future<Output = Result<A, E>>>,
    popping: Pin<&mut impl Future<Output = Result<B, E>>>,
) -> Result<(A, B), E> {
    // The pushing half may use up the cooperative budget of the task. The popping half therefore runs without that
    // limit. Its work is limited by the items that were pushed.
    let mut popping = pin!(tokio::task::coop::unconstrained(popping));
    let (mut pushed, mut popped) = (None, None);
    poll_fn(|context| {
        loop {
            // If `enter` still waits, it sets `wants_room` again.
            handover.state.lock().wants_room = false;
            if pushed.is_none()
                && let Poll::Ready(ended) = pushing.as_mut().poll(context)
            {
                handover.close();
                pushed = Some(ended?);
            }
            if popped.is_none()
                && let Poll::Ready(ended) = popping.as_mut().poll(context)
            {
                popped = Some(ended?);
            }
            match (pushed.take(), popped.take()) {
                (Some(pushed), Some(popped)) => return Poll::Ready(Ok((pushed, popped))),
                (first, second) => (pushed, popped) = (first, second),
            }
            if pushed.is_some() || !handover.has_room_wanted() {
                return Poll::Pending;
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::{Context, Wake};

    /// Returns the size of the future that a function creates. The function is not called.
    fn size_of_future<A, B, C, D, F: Future>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }

    /// With ten thousand idle connections there are ten thousand of these tasks. To keep them small, box large futures
    /// that are rarely awaited. Pin futures where they are created, so that none is in the task twice.
    #[test]
    fn the_task_of_a_connection_is_small() {
        let task = |broker: Arc<Node>, stream: Arc<ClientStream>, peer, stop| async move {
            serve(&broker, &stream, peer, 0, stop).await
        };
        let size = size_of_future(task);
        assert!(size <= 6 * 1024, "{size} bytes");
    }

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn items_cross_in_order_with_any_limit_and_without_a_wake() {
        for max in [1, 2, 5, 100] {
            let (handover, wakes) = (Handover::new(max), Arc::new(Wakes::default()));
            let pushing = async {
                for number in 0..50 {
                    handover.enter().await;
                    handover.push(number);
                }
                Ok::<_, Infallible>(())
            };
            let popping = async {
                let mut got = Vec::new();
                while let Some(number) = handover.pop().await {
                    assert!(handover.state.lock().items.len() < max, "this one has a place still");
                    got.push(number);
                    handover.leave(1);
                }
                Ok(got)
            };
            let waker = Arc::clone(&wakes).into();
            let (pushing, popping) = (pin!(pushing), pin!(popping));
            let mut both = pin!(in_turn(&handover, pushing, popping));
            let Poll::Ready(Ok(((), got))) = both.as_mut().poll(&mut Context::from_waker(&waker)) else {
                panic!("one poll is enough, room for {max}");
            };
            assert_eq!(got, (0..50).collect::<Vec<_>>());
            assert_eq!(wakes.0.load(Relaxed), 0);
        }
    }

    #[tokio::test]
    async fn half_that_awaits_another_event_is_polled_at_that_event() {
        let handover = Handover::new(1);
        let pushing = async {
            for number in 0..20 {
                handover.enter().await;
                handover.push(number);
                tokio::task::yield_now().await;
            }
            Ok::<_, Infallible>(())
        };
        let popping = async {
            let mut got = Vec::new();
            while let Some(number) = handover.pop().await {
                tokio::time::sleep(std::time::Duration::from_micros(number % 3)).await;
                got.push(number);
                assert_eq!(handover.state.lock().items.len(), 0, "one place is for one, wherever it is");
                handover.leave(1);
            }
            Ok(got)
        };
        let Ok(((), got)) = in_turn(&handover, pin!(pushing), pin!(popping)).await;
        assert_eq!(got, (0..20).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn half_without_pauses_does_not_starve_the_other() {
        let (handover, pushed, longest) = (Handover::new(5000), AtomicUsize::new(0), AtomicUsize::new(0));
        let pushing = async {
            for number in 0..20_000 {
                tokio::task::coop::consume_budget().await;
                handover.enter().await;
                handover.push(number);
                pushed.store(number, Relaxed);
            }
            Ok::<_, Infallible>(())
        };
        let popping = async {
            while let Some(number) = handover.pop().await {
                tokio::task::coop::consume_budget().await;
                longest.fetch_max(pushed.load(Relaxed).saturating_sub(number), Relaxed);
                handover.leave(1);
            }
            Ok(())
        };
        let Ok(_) = in_turn(&handover, pin!(pushing), pin!(popping)).await;
        assert!(longest.load(Relaxed) < 1000, "{longest:?} wait though nothing else is done");
    }

    #[tokio::test]
    async fn the_first_failure_ends_both() {
        let handover: Handover<()> = Handover::new(1);
        let never = std::future::pending::<Result<(), _>>;
        let ended = in_turn(&handover, pin!(async { Err::<(), _>("gone") }), pin!(never())).await;
        assert_eq!(ended, Err("gone"));
        let ended = in_turn(&handover, pin!(never()), pin!(async { Err::<(), _>("full") })).await;
        assert_eq!(ended, Err("full"));
    }
}
