use super::*;
use crate::grant::Grants;

/// Returns a partition where each record is a batch of its own.
fn partition() -> Arc<Partition> {
    let (batch_size, batch_bytes_max, compression) = (1000, 1000, Compression::None);
    let limits = ProducerLimits {
        batch_size,
        one_record: true,
        batch_bytes_max,
        linger: Duration::ZERO,
        delivery_timeout: Duration::from_secs(1),
        compression,
        level: None,
        idempotent: false,
        coordinator: None,
    };
    let limit = Arc::new(BatchLimit::new(batch_bytes_max));
    Partition::new(Text::from_static("t"), 0, Arc::new(limits), limit, &Pool::new(10_000, 1000))
}

/// Removes and returns the new entries of a broker's worklist.
fn listed(broker: &Worklist<Listing>) -> Vec<Listing> {
    std::mem::take(&mut *broker.incoming.lock())
}

/// If a leader loses the partition and gets it back before its task reads the worklist, the list has two entries for
/// the partition. The sender then used to put two of its batches into one request. Both were completed with the offset
/// of the first one, although Kafka's broker appends only one of them.
#[test]
fn leader_leads_again_before_its_task_runs_it_has_the_partition_once() {
    let (partition, first, second) = (partition(), Worklist::new(1), Worklist::new(2));
    partition.set_leader(Uuid::default(), Some(first.clone()), 1);
    for value in [b"a", b"b"] {
        drop(partition.append(&ProducerRecord::new("t", value), (0, 100), 1, None).expect("there is room"));
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
    let round = Round {
        now: Instant::now(),
        hurry,
        flush,
        rtt,
        room,
        grants: &grants,
        missing,
        path,
        striped,
        reorders,
        pass: None,
    };
    let taken: Vec<Take> = active.iter().map(|listing| listing.take(&first, &round)).collect();
    let batches = taken.iter().filter(|take| matches!(take, Take::Batch(_))).count();
    assert_eq!((active.len(), batches), (2, 1), "the older listing is none any more");
    assert!(listed(&second).iter().all(|listing| matches!(listing.take(&second, &round), Take::Gone)));
}
