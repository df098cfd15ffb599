//! Tests how batches are appended: the checks, the bytes that are written, and the results.

use std::sync::Arc;

use fullbore_broker::partitions::{Acks, AppendError, AppendTerms, InvalidBatch};
use fullbore_config::TimestampType;
use fullbore_rules::sequence::SequenceRefusal;
use fullbore_wire::batch::{BatchView, Compression, HEADER_LEN, Stamp};
use fullbore_wire::{ErrorCode, Uuid};
use tokio::sync::Notify;

use crate::directory::*;

#[test]
fn appended_batch_is_read_unchanged_except_offset_and_epoch() {
    let directory = Directory::new();
    let partition = directory.partition();
    let sent: Vec<_> = (1..=200).map(|n| plain(n % 7 + 1, &vec![n as u8; n * 13])).collect();
    let mut next = 0;
    for batch in &sent {
        assert_eq!(offset(&partition, batch), next);
        next += i64::from(BatchView::first(batch).expect("a batch").record_count());
    }
    let got = read_all(&partition, 0);
    assert_eq!(got.len(), sent.len());
    for (got, sent) in got.iter().zip(&sent) {
        assert_eq!((&got[8..12], &got[16..]), (&sent[8..12], &sent[16..]));
        assert_eq!(BatchView::first(got).expect("a batch").partition_leader_epoch(), 0);
    }
    let offsets = partition.offsets().expect("open");
    assert_eq!((offsets.log_start, offsets.high_watermark, offsets.log_end), (0, next, next));
}

#[test]
fn nothing_is_on_the_disk_before_the_first_append() {
    let directory = Directory::new();
    let partition = directory.partition();
    assert_eq!(partition.offsets().expect("absent").log_end, 0);
    assert!(partition.read(0, 100, true).expect("absent").records.is_empty());
    assert!(partition.read(1, 100, true).is_err());
    assert!(!directory.file("").exists());
    offset(&partition, &plain(1, b"v"));
    assert_eq!(directory.files("log"), ["00000000000000000000.log"]);
    let metadata = std::fs::read_to_string(directory.file("partition.metadata")).expect("read");
    assert_eq!(metadata, format!("version: 0\ntopic_id: {ID}\n"));
    let epochs = std::fs::read_to_string(directory.file("leader-epoch-checkpoint")).expect("read");
    assert_eq!(epochs, "0\n1\n0 0\n");
}

#[test]
fn log_append_time_replaces_the_producers_and_the_checksum_holds() {
    let directory = Directory::new().with(|config| config.message_timestamp_type = TimestampType::LogAppendTime);
    let partition = directory.partition();
    for codec in [Compression::None, Compression::Zstd] {
        let batch = timed(Stamp::NONE, codec, &[5, 6], b"v");
        let appended = append(&partition, &batch).expect("appended");
        assert_eq!(appended.log_append_time_ms, NOW);
    }
    for batch in read_all(&partition, 0) {
        let batch = BatchView::first(&batch).expect("a batch");
        assert_eq!((batch.max_timestamp(), batch.base_timestamp()), (NOW, 5));
        assert_eq!(batch.timestamp_type(), fullbore_wire::batch::TimestampType::LogAppendTime);
    }
}

#[test]
fn log_append_time_flag_of_a_client_is_cleared() {
    let directory = Directory::new();
    let partition = directory.partition();
    let mut batch = plain(1, b"v");
    batch[22] |= 8;
    fullbore_wire::batch::restamp(&mut batch, Stamp::NONE);
    assert_eq!(append(&partition, &batch).expect("appended").log_append_time_ms, -1);
    let stored = read_all(&partition, 0);
    assert_eq!(BatchView::first(&stored[0]).expect("a batch").attributes() & 8, 0);
}

#[test]
fn batch_against_the_topics_settings_is_refused_and_changes_nothing() {
    let directory = Directory::new().with(|config| {
        config.max_message_bytes = 2000;
        config.segment_bytes = 1000;
        config.message_timestamp_before_max_ms = 100;
        config.message_timestamp_after_max_ms = 50;
    });
    let partition = directory.partition();
    let at = |timestamps: &[i64]| timed(Stamp::NONE, Compression::None, timestamps, b"v");
    let mut miscounted = plain(2, b"v");
    miscounted[26] = 9;
    let large = plain(1, &[0; 2000]);
    let refused = [
        (large.clone(), InvalidBatch::TooLarge { size: large.len(), max: 2000 }, ErrorCode::MESSAGE_TOO_LARGE),
        (plain(1, &[0; 1000]), InvalidBatch::LargerThanSegment, ErrorCode::RECORD_LIST_TOO_LARGE),
        (at(&[NOW - 101, NOW]), InvalidBatch::Timestamp, ErrorCode::INVALID_TIMESTAMP),
        (at(&[NOW, NOW + 51]), InvalidBatch::Timestamp, ErrorCode::INVALID_TIMESTAMP),
        (miscounted, InvalidBatch::Header, ErrorCode::INVALID_RECORD),
    ];
    for (batch, error, code) in refused {
        assert_eq!(append(&partition, &batch).expect_err("refused"), AppendError::Invalid(error));
        assert_eq!(error.code(), code);
    }
    assert_eq!(offset(&partition, &at(&[NOW - 100, NOW + 50])), 0);
    assert_eq!(read_all(&partition, 0).len(), 1);
}

#[test]
fn sequences_are_checked_and_duplicates_get_their_first_offset() {
    let directory = Directory::new().with(|config| config.message_timestamp_type = TimestampType::LogAppendTime);
    let partition = directory.partition();
    let refusal = |batch: &[u8]| append(&partition, batch).expect_err("refused").code();
    assert_eq!(refusal(&idempotent(1, 0, 17, 1)), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(partition.offsets().expect("open").log_end, 0);
    for n in 0..10 {
        assert_eq!(offset(&partition, &idempotent(1, 0, n * 2, 2)), i64::from(n) * 2);
    }
    for n in 5..10 {
        let batch = idempotent(1, 0, n * 2, 2);
        let terms = AppendTerms::in_turn(Acks::Leader, NOW + 999);
        let step = partition.append(&valid(&partition, &batch).expect("valid"), terms).expect("known");
        let again = step.into_written().expect("written").appended;
        assert_eq!((again.base_offset, again.log_append_time_ms), (i64::from(n) * 2, NOW));
    }
    assert_eq!(refusal(&idempotent(1, 0, 0, 2)), ErrorCode::DUPLICATE_SEQUENCE_NUMBER);
    assert_eq!(refusal(&idempotent(1, 0, 22, 2)), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    assert_eq!(offset(&partition, &idempotent(1, 1, 0, 1)), 20);
    assert_eq!(refusal(&idempotent(1, 0, 20, 2)), ErrorCode::INVALID_PRODUCER_EPOCH);
    assert_eq!(refusal(&idempotent(1, 2, 3, 1)), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER);
    let stray = append(&partition, &idempotent(2, -1, 0, 1)).expect_err("refused");
    assert_eq!(stray, AppendError::Sequence(SequenceRefusal::InvalidRecord));
    assert_eq!(read_all(&partition, 0).len(), 11);
}

#[test]
fn segments_roll_by_size_time_index_and_offset() {
    let by_size = Directory::new().with(|config| config.segment_bytes = 1000);
    let by_time = Directory::new().with(|config| config.segment_ms = 10);
    let by_index = Directory::new().with(|config| {
        config.index_interval_bytes = 0;
        config.segment_index_bytes = 48;
    });
    let partition = by_size.partition();
    (0..10).for_each(|_| _ = append(&partition, &plain(1, &[1; 400])).expect("appended"));
    assert_eq!(by_size.files("log").len(), 5);
    assert_eq!(by_size.files("log")[1], "00000000000000000002.log");
    assert_eq!(by_size.files("snapshot").last().map(String::as_str), Some("00000000000000000008.snapshot"));
    assert_eq!(read_all(&partition, 0).len(), 10);

    let partition = by_time.partition();
    for timestamp in [0, 10, 11, 21, 22] {
        offset(&partition, &timed(Stamp::NONE, Compression::None, &[timestamp], b"v"));
    }
    assert_eq!(by_time.files("log").len(), 3);

    let partition = by_index.partition();
    (0..20).for_each(|_| _ = append(&partition, &plain(1, b"v")).expect("appended"));
    assert_eq!(by_index.files("log").len(), 3);
    assert_eq!(read_all(&partition, 0).len(), 20);
}

#[test]
fn a_segment_ends_before_its_relative_offsets_overflow() {
    let directory = Directory::new();
    let partition = directory.partition();
    let huge = |records: i32| {
        let mut batch = plain(1, b"v");
        batch[23..27].copy_from_slice(&(records - 1).to_be_bytes());
        batch[57..61].copy_from_slice(&records.to_be_bytes());
        fullbore_wire::batch::restamp(&mut batch, Stamp::NONE);
        batch
    };
    let half = 1 << 30;
    assert_eq!(offset(&partition, &huge(half)), 0);
    assert_eq!(offset(&partition, &huge(half)), i64::from(half));
    assert_eq!(offset(&partition, &huge(1)), 2 * i64::from(half));
    assert_eq!(directory.files("log"), ["00000000000000000000.log", "00000000002147483648.log"]);
    assert_eq!(read_all(&partition, 0).len(), 3);
}

#[tokio::test]
async fn a_waiter_is_woken_by_an_append_and_by_deletion() {
    let directory = Directory::new();
    let partition = directory.partition();
    let waiter = Arc::new(Notify::new());
    let registration = partition.register(&waiter);
    offset(&partition, &plain(1, b"v"));
    waiter.notified().await;
    directory.logs.delete_topic(ID);
    waiter.notified().await;
    directory.logs.deleted(ID).await;
    drop(registration);
    assert_eq!(append(&partition, &plain(1, b"v")).expect_err("deleted"), AppendError::Gone);
}

#[tokio::test]
async fn topic_with_flush_settings_returns_tickets_that_resolve() {
    let every = Directory::new().with(|config| config.flush_messages = Some(1));
    let partition = every.partition();
    for n in 0..50 {
        let durability = append_with(&partition, &idempotent(1, 0, n, 1), Acks::Leader).expect("appended").durability;
        if n % 5 == 0 {
            assert!(!durability.is_nothing());
            durability.wait(tokio::time::Instant::now()).await.expect("flushed");
            let retry = append_with(&partition, &idempotent(1, 0, n, 1), Acks::Leader).expect("known");
            assert!(retry.durability.is_nothing(), "it is on the disk already");
        }
    }
    let each_third = Directory::new().with(|config| config.flush_messages = Some(3));
    let partition = each_third.partition();
    let written = || append_with(&partition, &plain(1, b"v"), Acks::Leader).expect("appended");
    let waits = [(); 3].map(|()| !written().durability.is_nothing());
    assert_eq!(waits, [false, false, true]);
}

#[test]
fn recreated_topic_starts_empty_and_the_old_directory_is_removed() {
    let directory = Directory::new().with(|config| config.file_delete_delay_ms = 0);
    let old = directory.partition();
    offset(&old, &plain(3, b"v"));
    directory.logs.delete_topic(ID);
    let new = directory.partition_of(TOPIC, Uuid([8; 16]), 0);
    assert_eq!(offset(&new, &plain(1, b"v")), 0);
    assert!(old.read(0, 100, true).is_err());
    wait_until("the deleted directory is removed", || directory.partition_directories() == 1);
    assert_eq!(read_all(&new, 0).len(), 1);
}

#[test]
fn batch_without_records_is_refused() {
    let directory = Directory::new();
    let partition = directory.partition();
    let batch = plain(0, b"");
    assert_eq!(batch.len(), HEADER_LEN);
    assert_eq!(append(&partition, &batch).expect_err("no records"), AppendError::Invalid(InvalidBatch::Header));
}
