//! Reads without a group: all partitions of the topics, or those that the flags name, from the start that the flags
//! set. No offsets are committed.
//!
//! Invariant: each record from the start offset on is printed once. The records of a partition are printed in their
//! order.

use super::args::Consume;
use super::printer::{Printer, PrinterContext};
use super::reading::{End, TopicSelection};
use crate::failure::Failure;
use crate::stop::Stop;
use crate::troubles::Troubles;
use crate::waiting::Idle;
use fullbore_client::blocking::{Cluster, PartitionPlace};
use fullbore_client::consume::{ConsumePlan, Cursor, Growth, StartOffset, consume_growing};
use fullbore_client::{ClientError, ConsumerConfig};
use fullbore_wire::Text;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Reads to the end that the flags set, or until the user stops it.
pub(super) fn read(
    cluster: &mut Cluster,
    topics: &TopicSelection,
    args: &Consume,
    start: StartOffset,
    settings: &ConsumerConfig,
    shared: &Arc<PrinterContext>,
    stop: &Stop,
) -> Result<End, Failure> {
    let of_shared = shared.clone();
    let cursor = move |place: PartitionPlace| {
        let printer = Printer::new(of_shared.clone(), (place.topic.clone(), place.partition), place.topic_id);
        Cursor::new(place, printer)
    };
    let places = places(cluster, topics, &args.partitions)?;
    let cursors = places.values().flatten().cloned().map(&cursor).collect();
    // Partitions that are created later are read as well, unless the flags name partitions or an end.
    let is_open = args.partitions.is_empty() && !args.exit && shared.until.is_none();
    let timeout = args.timeout_ms.map_or(Duration::MAX, Duration::from_millis);
    let plan = ConsumePlan {
        start,
        to_end: args.exit,
        metadata_max_age: settings.group.metadata_max_age,
        outlives_topics: is_open && topics.matches.is_some(),
        places,
        ..ConsumePlan::new(settings.fetch.clone(), timeout)
    };
    let every = settings.group.metadata_max_age;
    let growth = is_open.then(|| Growth::new(topics.named.clone(), topics.matches.clone(), every, cursor));
    let (mut troubles, mut idle) = (Troubles::default(), Idle::begin());
    let outcome = consume_growing(cluster, cursors, &plan, growth, |progress| {
        troubles.of_run(progress, None);
        idle.observe(progress.records() > 0, || topics.waits_for(start == StartOffset::Latest));
        if stop.is_requested() {
            // A fetcher may be waiting for a slow reader of the output. Its records are no longer needed, so closing
            // the outlet ends this wait.
            shared.outlet.close();
        }
        !stop.is_requested() && !shared.is_spent()
    })?;
    let finished = outcome.finished.is_some() || shared.is_spent() || !stop.is_requested();
    Ok(End { finished, unread: outcome.unread })
}

/// Returns all partitions of the topics, or of each topic the partitions that the flags name.
fn places(
    cluster: &mut Cluster,
    topics: &TopicSelection,
    wanted: &[i32],
) -> Result<BTreeMap<Text, Vec<PartitionPlace>>, Failure> {
    let mut all = cluster.partitions_of(&topics.all)?;
    // A topic that the flags name must exist. A topic that a pattern has selected may have been deleted since.
    let missing: Vec<Text> = topics.named.iter().filter(|topic| !all.contains_key(*topic)).cloned().collect();
    for topic in missing {
        // A broker that is behind may not know a new topic, so another one is queried.
        match cluster.partitions_elsewhere(&topic) {
            Some(Ok(places)) => _ = all.insert(topic, places),
            _ => return Err(ClientError::NoTopic(topic.to_string()).into()),
        }
    }
    for (topic, places) in &mut all {
        if let Some(missing) = wanted.iter().find(|wanted| places.iter().all(|place| place.partition != **wanted)) {
            let last = places.last().map_or(0, |place| place.partition);
            return Err(Failure::new(format!("topic '{topic}' has no partition {missing}; it has 0 to {last}")));
        }
        places.retain(|place| wanted.is_empty() || wanted.contains(&place.partition));
    }
    Ok(all)
}
