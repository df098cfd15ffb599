use super::*;
use crate::grant::Grants;

fn partition() -> Arc<Partition> {
    partition_with((1000, 1000), Compression::None)
}

/// With this batch.size and max.request.size, and a batch for each record.
fn partition_with((batch_size, batch_bytes_max): (usize, usize), codec: Compression) -> Arc<Partition> {
    let limits = ProducerLimits {
        batch_size,
        one_record: true,
        batch_bytes_max,
        linger: Duration::ZERO,
        delivery_timeout: Duration::from_secs(1),
        codec: (codec, None),
        idempotent: false,
    };
    Partition::new(Text::from_static("t"), 0, Arc::new(limits), &Pool::new(10_000, 1000))
}

/// What a broker's list has.
fn listed(broker: &Worklist<Listing>) -> Vec<Listing> {
    std::mem::take(&mut *broker.incoming.lock())
}

/// A leader that lost the partition and has it again before its task looked had it twice in its list, and put two batches of it into
/// one request: both were told the offset of the first, and Kafka's broker keeps only one of them.
#[test]
fn a_leader_that_leads_again_before_it_looked_has_the_partition_once() {
    let (partition, first, second) = (partition(), Worklist::new(1), Worklist::new(2));
    partition.set_leader(Uuid::default(), Some(first.clone()), 1);
    for value in [b"a", b"b"] {
        drop(partition.append(&ProducerRecord::new("t", value), 0, 100, 1).expect("there is room"));
    }
    let mut active = listed(&first);
    assert_eq!(active.len(), 1);
    partition.set_leader(Uuid::default(), Some(second.clone()), 2);
    partition.set_leader(Uuid::default(), Some(first.clone()), 3);
    active.append(&mut listed(&first));
    active.append(&mut listed(&first));
    let grants = Grants::default();
    let path = Path { connection: 0, lane: 0, lanes: 1 };
    let (hurry, flush, rtt) = (true, false, None);
    let (room, missing, striped, reorders) = (None, false, false, false);
    let round =
        Round { now: Instant::now(), hurry, flush, rtt, room, grants: &grants, missing, path, striped, reorders };
    let taken: Vec<Take> = active.iter().map(|listing| listing.take(&first, &round)).collect();
    let batches = taken.iter().filter(|take| matches!(take, Take::Batch(_))).count();
    assert_eq!((active.len(), batches), (2, 1), "the older listing is none any more");
    assert!(listed(&second).iter().all(|listing| matches!(listing.take(&second, &round), Take::Gone)));
}

/// Sends a batch that a broker refuses with these bytes before and after compression, and which goes on in no parts.
fn refused(partition: &Arc<Partition>, leader: &Arc<Worklist<Listing>>, before: usize, after: usize) {
    drop(partition.append(&ProducerRecord::new("t", b"a"), 0, 100, 1).expect("there is room"));
    let grants = Grants::default();
    let path = Path { connection: 0, lane: 0, lanes: 1 };
    let (now, hurry, flush, rtt) = (Instant::now(), true, false, None);
    let (room, missing, striped, reorders) = (None, false, false, false);
    let round = Round { now, hurry, flush, rtt, room, grants: &grants, missing, path, striped, reorders };
    let Take::Batch(outgoing) = partition.take(leader, 1, &round) else { panic!("a batch") };
    partition.split(outgoing.ticket, Some((before, after)), Vec::new(), now);
}

/// Bytes that the next batch may have before compression, where batches become a tenth.
fn grows_to(partition: &Partition) -> usize {
    (0..100).for_each(|_| partition.compressed(1000, 100));
    let state = partition.state.lock();
    state.ratio.uncompressed(state.bytes_max)
}

#[test]
fn a_grown_batch_refused_within_the_limit_that_was_learnt_ends_growth_and_leaves_the_limit() {
    let (partition, leader) = (partition_with((1_000, 1_000_000), Compression::Zstd), Worklist::new(1));
    partition.set_leader(Uuid::default(), Some(leader.clone()), 1);
    refused(&partition, &leader, 400_000, 200_000);
    assert_eq!(partition.state.lock().bytes_max, 100_000, "it had not grown: the broker takes less");
    assert_eq!(grows_to(&partition), 400_000);
    // Another one of the time before says nothing new.
    refused(&partition, &leader, 400_000, 200_000);
    assert_eq!(grows_to(&partition), 400_000);
    // The broker stores it with another codec.
    refused(&partition, &leader, 400_000, 90_000);
    assert_eq!(grows_to(&partition), 100_000);
    assert_eq!(partition.state.lock().bytes_max, 100_000);
}
