//! Moves leaderships back to this broker. A broker should lead each partition whose first replica it is. When it
//! restarts, other brokers become the leaders of these partitions (Kafka's `maybeBalancePartitionLeaders`).
//!
//! Only a partition's first replica requests an election, so no two brokers request one for the same partition. The
//! control plane decides on the newest metadata.

use std::time::Duration;

use tokio::sync::watch as channel;
use tokio::time::sleep;

use super::stopped;
use fullbore_control::{Control, ElectLeaders, ElectionKind, Image};

/// Maximum number of elections in one round (Kafka's `MAX_ELECTIONS_PER_IMBALANCE`).
const ELECTIONS_MAX: usize = 1000;

/// Requests elections at each `interval` (`leader.imbalance.check.interval.seconds`), until the broker stops.
pub async fn run(control: Control, node_id: i32, interval: Duration, mut stop: channel::Receiver<bool>) {
    loop {
        tokio::select! {
            () = sleep(interval) => {}
            () = stopped(&mut stop) => return,
        }
        let partitions = led_by_others(&control.image(), node_id);
        if partitions.is_empty() {
            continue;
        }
        let outcomes = control.elect_leaders(ElectLeaders::new(ElectionKind::Preferred, partitions)).await;
        let elected = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        if elected > 0 {
            tracing::info!(partitions = elected, "this broker leads partitions again as their preferred leader");
        }
    }
}

/// Returns the topic name and number of each partition that another broker leads, although this broker is its first
/// replica and in the ISR. Returns an empty list if this broker is fenced or otherwise not fit to lead. Skips diskless
/// partitions, since they have no leader.
fn led_by_others(image: &Image, node_id: i32) -> Vec<(String, i32)> {
    if !image.node(node_id).is_some_and(|node| node.registration.is_fit()) {
        return Vec::new();
    }
    let led = image.topics().filter(|topic| !topic.config.diskless);
    let of_topic = led.flat_map(|topic| (0..).zip(&topic.partitions).map(move |of| (topic, of)));
    let wanted = of_topic.filter(|(_, (_, partition))| {
        partition.replicas.first() == Some(&node_id)
            && partition.leader != Some(node_id)
            && partition.isr.contains(&node_id)
    });
    wanted.map(|(topic, (index, _))| (topic.name.clone(), index)).take(ELECTIONS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_config::{BrokerConfig, Properties, TopicConfig};
    use fullbore_control::{RegisteredBroker, Topic};
    use fullbore_rules::replica::PartitionRegistration;
    use fullbore_wire::Uuid;
    use std::sync::Arc;

    /// Both topics have replicas on the same brokers. Broker 1 is the first replica and in the ISR, but broker 2 leads.
    /// Broker 1 becomes leader only of the classic topic's partition.
    #[test]
    fn a_diskless_partition_is_not_taken_back() {
        let (broker, _) = BrokerConfig::from_properties(&Properties::default()).expect("valid");
        let defaults = broker.topics.defaults;
        let mut image = Image::default();
        image.put_node(1, RegisteredBroker::default());
        for (name, diskless) in [("classic", false), ("diskless", true)] {
            let registered =
                PartitionRegistration { replicas: vec![1, 2], isr: vec![1, 2], leader: Some(2), ..Default::default() };
            image.put(Arc::new(Topic {
                name: name.into(),
                id: Uuid([u8::from(diskless); 16]),
                partitions: [Arc::new(registered)].into_iter().collect(),
                overrides: Default::default(),
                config: Arc::new(TopicConfig { diskless, ..defaults.clone() }),
            }));
        }
        assert_eq!(led_by_others(&image, 1), [("classic".to_owned(), 0)]);
    }
}
