//! Followers have what their leader has.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_acknowledged_with_acks_all_is_in_all_three_logs() {
    let cluster = Cluster::start(3, "").await;
    let topic = cluster.topic("t", 2, &[("min.insync.replicas", "3")]).await;
    let client = cluster.client(1).await;
    for number in 0..200_i64 {
        let offset = produce(&client, "t", 0, -1, batch(number.to_string().as_bytes())).await;
        assert_eq!(offset, Ok(number));
    }
    for id in 1..=3 {
        assert_eq!(cluster.replica(id, &topic, 0).offsets().expect("open").log_end, 200, "broker {id}");
    }
    cluster.are_equal(&topic, 0).await;
    cluster.stop().await;
}
