//! Reading partitions that are nobody else's: all of the topics, or those named, from the offsets asked for.
//!
//! Nothing is committed. Invariant: each record from the start on is printed once, in the order of its partition.

use super::printer::{Printer, Shared};
use super::start::{self, Mark};
use super::{Consume, Settings, Troubles};
use crate::failure::Failure;
use crate::stop::Stop;
use fullbore_bench::client::{Cluster, EARLIEST, LATEST, PartitionPlace, offsets_of};
use fullbore_bench::consume::{ConsumeError, Cursor, Growth, Plan, consume_growing};
use fullbore_wire::Text;
use std::sync::Arc;
use std::time::Duration;

/// Reads until the end that was asked for, or until the user asks to end; whether the end was reached.
pub fn read(
    cluster: &mut Cluster,
    topics: &[Text],
    args: &Consume,
    start: Mark,
    settings: &Settings,
    shared: &Arc<Shared>,
    stop: &Stop,
) -> Result<bool, Failure> {
    let places = places(cluster, topics, &args.partitions)?;
    let read_committed = settings.fetch.read_committed;
    let mut starts = start::offsets(cluster, &places, start, read_committed)?;
    let mut ends = vec![None; places.len()];
    if args.exit {
        let found = offsets_of(cluster, &places, LATEST, read_committed)?;
        // Nothing would be fetched from behind the end, so that no broker would refuse it.
        if let Some(at) = found.iter().zip(&starts).position(|(end, start)| start > end) {
            let PartitionPlace { topic, partition, .. } = places[at].clone();
            let out_of_range = ConsumeError::OutOfRange { topic, partition, offset: starts[at] };
            starts = start::offsets(cluster, &places, settings.reset.ok_or(out_of_range)?, read_committed)?;
        }
        ends = found.into_iter().map(Some).collect();
    }
    let cursor = |((place, start), end): ((PartitionPlace, i64), Option<i64>)| {
        let printer = Printer::new(shared.clone(), (place.topic.clone(), place.partition));
        Cursor { offset: Some(start), end, ..Cursor::new(place, printer) }
    };
    let cursors = places.into_iter().zip(starts).zip(ends).map(cursor).collect();
    let plan = Plan {
        fetch: settings.fetch.clone(),
        records: u64::MAX,
        timeout: args.timeout_ms.map_or(Duration::MAX, Duration::from_millis),
        start: if settings.reset == Some(Mark::Beginning) { EARLIEST } else { LATEST },
    };
    let mut troubles = Troubles::new();
    // Partitions that were named, or are to be read up to where they end now, are all there is to read.
    let is_open = args.partitions.is_empty() && !args.exit && shared.until.is_none();
    let growth = is_open.then(|| {
        let shared = shared.clone();
        Growth::new(topics.to_vec(), settings.group.metadata_max_age, move |place: PartitionPlace| {
            let printer = Printer::new(shared.clone(), (place.topic.clone(), place.partition));
            Cursor::new(place, printer)
        })
    });
    let outcome = consume_growing(cluster, cursors, &plan, growth, |progress| {
        troubles.observe(progress.trouble());
        if stop.is_asked() {
            // A lane that waits for a slow reader is told that nobody wants the rest.
            shared.outlet.close();
        }
        !stop.is_asked() && !shared.is_spent()
    })?;
    Ok(outcome.finished.is_some() || shared.is_spent() || !stop.is_asked())
}

/// The partitions of every topic, or those of them that were named.
fn places(cluster: &mut Cluster, topics: &[Text], wanted: &[i32]) -> Result<Vec<PartitionPlace>, Failure> {
    let mut all = Vec::new();
    for topic in topics {
        let places = cluster.partitions(topic)?;
        if let Some(missing) = wanted.iter().find(|wanted| places.iter().all(|place| place.partition != **wanted)) {
            let last = places.last().map_or(0, |place| place.partition);
            return Err(Failure::new(format!("topic '{topic}' has no partition {missing}; it has 0 to {last}")));
        }
        let is_wanted = |place: &PartitionPlace| wanted.is_empty() || wanted.contains(&place.partition);
        all.extend(places.into_iter().filter(is_wanted));
    }
    Ok(all)
}
