//! Tests leaders that move while a broker has stale metadata. Batches must reach the new leader in spite of this
//! broker's responses.

use crate::alone::{producer, send, settle};
use crate::fake::Fake;
use fullbore_wire::ErrorCode;

/// An interval at which no test fetches metadata.
const RARELY: &[(&str, &str)] = &[("metadata.max.age.ms", "600000")];

#[tokio::test]
async fn deposed_leader_names_itself_batches_move_to_the_leader_of_the_metadata() {
    let fake = Fake::start(2, 1).await;
    let producer = producer(&fake, RARELY);
    settle(vec![send(&producer, 0, "0").await]).await;
    {
        let mut state = fake.lock();
        (state.leaders, state.leader_epoch, state.names_leader) = (vec![1], 1, Some((0, 0)));
    }
    settle(vec![send(&producer, 0, "1").await]).await;
    assert_eq!(fake.values(0), ["0", "1"]);
}

#[tokio::test]
async fn only_connected_broker_is_behind_batches_move_to_the_leader_that_another_knows() {
    let fake = Fake::start(2, 1).await;
    let producer = producer(&fake, RARELY);
    settle(vec![send(&producer, 0, "0").await]).await;
    {
        let mut state = fake.lock();
        (state.leaders, state.leader_epoch, state.behind) = (vec![1], 1, Some(0));
    }
    settle(vec![send(&producer, 0, "1").await]).await;
    assert_eq!(fake.values(0), ["0", "1"]);
}

#[tokio::test]
async fn deposed_leader_lacks_replicas_batches_move_in_order_to_the_leader_that_another_knows() {
    for code in [ErrorCode::NOT_ENOUGH_REPLICAS, ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND] {
        let fake = Fake::start(2, 1).await;
        let producer = producer(&fake, RARELY);
        settle(vec![send(&producer, 0, "0").await]).await;
        {
            let mut state = fake.lock();
            (state.leaders, state.leader_epoch, state.behind) = (vec![1], 1, Some(0));
            state.former_leader_answers = code;
        }
        settle(vec![send(&producer, 0, "1").await, send(&producer, 0, "2").await]).await;
        assert_eq!(fake.values(0), ["0", "1", "2"]);
    }
}
