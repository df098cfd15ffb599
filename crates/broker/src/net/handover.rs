//! A queue between the two halves of one task.
//!
//! This is not a channel, because neither half wakes the other: [`in_turn`] polls both whenever the task is woken. A
//! channel would wake the running task, and the runtime would wake another thread to take it over. That costs two
//! system calls and a thread switch for each request.
//!
//! Items leave in the order in which they came. At most `max` items are between [`Handover::enter`] and
//! [`Handover::leave`].

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

/// The queue between the two halves. Its futures only work within [`in_turn`].
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::task::{Context, Wake};

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
