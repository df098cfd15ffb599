//! Tests of reads of batches, and of positions in recreated topics.

use super::*;
use fullbore_wire::batch::{BatchBuilder, EndTransactionMarker, Header, Stamp};

fn place(topic_id: Uuid) -> PartitionPlace {
    PartitionPlace { topic: Text::from("t"), topic_id, partition: 3, leader: None, leader_epoch: -1 }
}

/// Returns a cursor at the committed offset 100, after a record of epoch 10.
fn committed(end: Option<i64>) -> Cursor<()> {
    let placed = Placed { offset: Some(100), leader_epoch: Some(10), end, ..Placed::default() };
    Cursor::placed(Text::from("t"), 3, placed, ())
}

#[test]
fn committed_epoch_is_unknown_to_leaders_the_older_one_is_compared() {
    let (mut cursor, began) = (committed(None), Instant::now());
    let refused = ClientError::refused("cannot read", ErrorCode::UNKNOWN_LEADER_EPOCH);
    let later = |s| began + Duration::from_secs(s);
    cursor.note_refusal(&refused, later(1));
    cursor.note_refusal(&ClientError::refused("cannot read", ErrorCode::NOT_LEADER_OR_FOLLOWER), later(5));
    cursor.note_refusal(&refused, later(20));
    assert_eq!(cursor.unknown_epoch_for(later(31)), Duration::from_secs(30));
    assert_eq!(cursor.lost_since(7), None);
    cursor.go_back_to_epoch(7, true);
    assert_eq!(cursor.position(), FetchPosition { offset: 100, last_epoch: 7 });
    assert_eq!(cursor.unknown_epoch_for(later(60)), Duration::ZERO);
}

#[test]
fn committed_offset_is_past_the_end_the_end_is_suspended_until_a_response() {
    let mut cursor = committed(Some(60));
    assert!(cursor.suspend_end() && !cursor.is_done());
    cursor.resume_end();
    assert!(cursor.is_done());
    assert!(cursor.suspend_end());
    let leader = EpochEndOffset { epoch: 8, end_offset: 50, ..Default::default() };
    cursor.follow_truncation(&leader, 0, true);
    assert_eq!((cursor.offset, cursor.end, cursor.is_done()), (Some(50), Some(60), false));
    cursor.reset();
    assert!(!cursor.suspend_end(), "no epoch is known");
}

#[test]
fn a_wrong_checksum_ends_the_partition_only_if_checksums_are_checked() {
    let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
    builder.append(0, None, Some(b"value"), &[]);
    let (mut bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
    // Changes a byte of the value. The record is still readable.
    let at = bytes.len() - 3;
    bytes[at] ^= 1;
    let read = |check_crcs| {
        let of = place(Uuid::ZERO);
        let mut count = Count::default();
        let reading = Reading { check_crcs, skips_bad_batches: false, aborted: None };
        Cursor::new(of, ()).read(&bytes, reading, &mut count).map(|_| count)
    };
    assert!(matches!(read(true), Err(ConsumeError::Corrupt { partition: 3, offset: 0, .. })));
    assert_eq!(read(false).expect("nobody looks"), Count { records: 1, bytes: 5 });
}

#[test]
fn a_header_whose_key_is_no_text_does_not_break_its_batch() {
    let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
    builder.append(0, None, Some(b"value"), &[Header { key: b"\xff", value: Some(b"1") }]);
    let (bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
    let of = place(Uuid::ZERO);
    let mut count = Count::default();
    let reading = Reading { check_crcs: true, skips_bad_batches: false, aborted: None };
    Cursor::new(of, ()).read(&bytes, reading, &mut count).expect("good");
    assert_eq!(count, Count { records: 1, bytes: 5 });
}

#[test]
fn marker_before_the_offset_ends_its_transaction_the_next_one_is_read() {
    let (producer_id, producer_epoch) = (7, 0);
    let marker = EndTransactionMarker { producer_id, producer_epoch, is_commit: false, coordinator_epoch: 0 };
    let mut marker = marker.batch(0);
    marker[..8].copy_from_slice(&4_i64.to_be_bytes());
    let mut builder = BatchBuilder::new(Default::default(), Compression::None, None).transactional();
    builder.append(0, None, Some(b"value"), &[]);
    let (mut next, _) = builder.seal(Stamp { producer_id, producer_epoch, base_sequence: 9 }).expect("sealed");
    next[..8].copy_from_slice(&5_i64.to_be_bytes());
    let of = place(Uuid::ZERO);
    let (mut cursor, mut count) = (Cursor::new(of, ()), Count::default());
    cursor.offset = Some(5);
    let aborted = [AbortedTransaction { producer_id, first_offset: 0, ..Default::default() }];
    let reading = Reading { check_crcs: true, skips_bad_batches: false, aborted: Some(&aborted) };
    cursor.read(&[&marker[..], &next].concat(), reading, &mut count).expect("good");
    assert_eq!((count.records, cursor.offset), (1, Some(6)));
}

/// Returns `count` batches of one record each. The batches in `bad` claim to have more records.
fn batches(count: usize, bad: &[usize]) -> Vec<u8> {
    let batch = |at: usize| {
        let mut builder = BatchBuilder::new(Default::default(), Compression::None, None);
        builder.append(0, None, Some(b"value"), &[]);
        let (mut bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
        if bad.contains(&at) {
            bytes[57..61].copy_from_slice(&2_i32.to_be_bytes());
            let crc = fullbore_wire::batch::crc32c(&bytes[21..]);
            bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        bytes[..8].copy_from_slice(&(at as i64).to_be_bytes());
        bytes.to_vec()
    };
    (0..count).flat_map(batch).collect()
}

#[test]
fn topic_ids_of_a_broker_behind_do_not_rewind_the_cursor() {
    let id = |byte| Uuid([byte; 16]);
    let of = place(id(1));
    let mut cursor = Cursor::new(of, ());
    (cursor.offset, cursor.placed.offset) = (Some(70), Some(5));
    cursor.confirm();
    // A broker that is behind names an older topic, which no leader knows.
    // Look-ups alternate between this broker and another one.
    for _ in 0..3 {
        cursor.follow(id(9), true).expect("it restarts");
        assert_eq!(cursor.offset, Some(0));
        cursor.follow(id(1), true).expect("it goes on");
        assert_eq!((cursor.offset, cursor.placed.offset, cursor.placed.topic_id), (Some(70), Some(5), id(1)));
    }
    // The topic is recreated, and records of the new one are read.
    cursor.follow(id(2), true).expect("it restarts");
    assert_eq!(cursor.offset, Some(0));
    cursor.offset = Some(8);
    cursor.confirm();
    cursor.follow(id(3), true).expect("it restarts");
    assert_eq!(cursor.offset, Some(0));
}

#[test]
fn a_producers_bad_batch_is_reported_or_skipped() {
    let read = |skips_bad_batches| {
        let of = place(Uuid::ZERO);
        let mut count = Count::default();
        let reading = Reading { check_crcs: true, skips_bad_batches, aborted: None };
        let mut cursor = Cursor::new(of, ());
        let outcome = cursor.read(&batches(6, &[2, 4]), reading, &mut count);
        (outcome, cursor.offset)
    };
    let (outcome, offset) = read(false);
    let reported = outcome.expect_err("a bad batch").to_string();
    assert!(
        reported.starts_with("the producer's batch at offset 2 of partition 3 of topic 't' cannot be read: "),
        "{reported}"
    );
    assert_eq!(offset, Some(2));
    let (outcome, offset) = read(true);
    let reported = outcome.expect("skipped").notice().expect("a line");
    assert!(
        reported.starts_with("skipped the producer's batch at offsets 2 to 2 of partition 3 of topic 't', and 1 more"),
        "{reported}"
    );
    assert_eq!(offset, Some(6));
}
