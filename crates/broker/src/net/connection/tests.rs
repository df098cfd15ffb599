//! Tests of the queue between the halves, and of the order in which both are polled.

use super::*;
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Wake;
use tokio::net::{TcpListener, TcpStream};

/// Returns the size of the future that a function creates. The function is not called.
fn size_of_future<A, B, C, D, F: Future>(_: impl Fn(A, B, C, D) -> F) -> usize {
    size_of::<F>()
}

/// With ten thousand idle connections there are ten thousand of these tasks, so they must be small. If this test fails,
/// box large futures that are rarely awaited, and pin futures where they are created, so that no future is in the task
/// twice.
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
            tokio::time::sleep(Duration::from_micros(number % 3)).await;
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
    let never = pending::<Result<(), _>>;
    let ended = in_turn(&handover, pin!(async { Err::<(), _>("gone") }), pin!(never())).await;
    assert_eq!(ended, Err("gone"));
    let ended = in_turn(&handover, pin!(never()), pin!(async { Err::<(), _>("full") })).await;
    assert_eq!(ended, Err("full"));
}

fn admitted(completion: Completion) -> AdmittedRequest {
    let bytes = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("free");
    let label = Label { peer: ([127, 0, 0, 1], 1).into(), api: 3, version: 0, correlation_id: 0 };
    let owed = Owed { api: ApiKey::Metadata, received: Instant::now(), label, _bytes: bytes, room: None };
    AdmittedRequest { completion, owed }
}

#[tokio::test]
async fn polled_completion_releases_its_permit_while_the_response_before_it_is_written() {
    let places = Arc::new(Semaphore::new(0));
    let wanted = Arc::clone(&places);
    let answer = async move {
        let _place = wanted.acquire().await.expect("never closed");
        Ok(Frame::default())
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let socket = TcpStream::connect(listener.local_addr().expect("bound")).await.expect("connected");
    let stream = &Arc::new(ClientStream::Plain(socket));
    let unread = UnreadCounter { all: &Arc::default(), idleness: &Arc::default(), stream };
    let queued = ready(admitted(Completion::Later(Box::pin(answer))), &unread).await;
    let Err(mut queued) = queued else { panic!("there is no place") };
    places.add_permits(1);
    // The write ends only after the completion has released its permit. A client causes this if it first reads a
    // response on another connection.
    let writing = pin!(async { drop(places.acquire().await) });
    let beside = beside(writing, Some(&mut queued), &unread);
    tokio::time::timeout(Duration::from_secs(30), beside).await.expect("it has what the client waits for");
    assert!(matches!(queued.completion, Completion::Ready(_)));
    assert!(ready(queued, &unread).await.is_ok());
}
