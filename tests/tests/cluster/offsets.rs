//! Watches the high watermark, last stable offset and log start in the responses of leaders while a fault is injected.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use fullbore_tests::{Client, FetchFrom, fetch_request};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::metadata::{MetadataRequest, MetadataRequestTopic};

const METADATA: i16 = 12;
const FETCH: i16 = 12;
const PAUSE: Duration = Duration::from_millis(20);

/// The offsets that a leader has returned for a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The leader's broker id, the partition and the leader epoch.
    pub of: (i32, i32, i32),
    pub high_watermark: i64,
    pub last_stable_offset: i64,
    pub log_start: i64,
}

impl Marks {
    /// Returns true if any of the offsets is lower than in `before`.
    pub fn are_behind(&self, before: &Marks) -> bool {
        self.high_watermark < before.high_watermark
            || self.last_stable_offset < before.last_stable_offset
            || self.log_start < before.log_start
    }
}

/// Polls the offsets of the partitions that broker `id` leads until `is_over` is true. Returns them in order. If the
/// broker is down, connects again later.
pub fn watched(id: i32, address: SocketAddr, topic: &str, is_over: &AtomicBool) -> Vec<Marks> {
    let mut reported = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        if let Ok(mut client) = Client::try_connect(address) {
            while !is_over.load(Ordering::Relaxed) && request(&mut client, id, topic, &mut reported).is_some() {
                sleep(PAUSE);
            }
        }
        sleep(PAUSE);
    }
    reported
}

/// Polls once. `None` if the broker has closed the connection.
fn request(client: &mut Client, id: i32, topic: &str, reported: &mut Vec<Marks>) -> Option<()> {
    let topics = vec![MetadataRequestTopic { name: Some(topic.into()), ..Default::default() }];
    let request = MetadataRequest { topics: Some(topics), allow_auto_topic_creation: false, ..Default::default() };
    let partitions = client.try_call(&request, METADATA)?.topics.remove(0).partitions;
    for led in partitions.iter().filter(|of| of.leader_id == id) {
        let mut request = fetch_request(&[FetchFrom { topic, partition: led.partition_index, offset: 0 }], 0, 0);
        let from = &mut request.topics[0].partitions[0];
        (from.current_leader_epoch, from.partition_max_bytes) = (led.leader_epoch, 1);
        let answer = client.try_call(&request, FETCH)?.responses.remove(0).partitions.remove(0);
        // The leader epoch has changed, or this broker does not know yet that it leads.
        if answer.error_code != ErrorCode::NONE {
            continue;
        }
        reported.push(Marks {
            of: (id, led.partition_index, led.leader_epoch),
            high_watermark: answer.high_watermark,
            last_stable_offset: answer.last_stable_offset,
            log_start: answer.log_start_offset,
        });
    }
    Some(())
}
