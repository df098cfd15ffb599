//! Tests of shards on a real log.

use super::*;
use crate::partitions::{AppendError, InvalidBatch, Origin, Partitions, led_by};
use bytes::Bytes;
use fullbore_config::{BrokerConfig, Properties};
use fullbore_host::task;
use fullbore_rules::replica::PartitionRegistration;
use fullbore_wire::Uuid;
use fullbore_wire::batch::Compression;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Opened {
    shard: Arc<Shard>,
    logs: Arc<Partitions>,
    directory: tempfile::TempDir,
}

const ID: Uuid = Uuid([7; 16]);

fn opened(compression: Compression, text: &str) -> Opened {
    let directory = tempfile::tempdir().expect("tempdir");
    let logs = logs(directory.path(), text, Origin::New);
    let topic = InternalTopic::new(ID, 1, compression, &logs);
    Opened { shard: Arc::clone(&topic.shards()[0]), logs, directory }
}

fn logs(directory: &std::path::Path, text: &str, origin: Origin) -> Arc<Partitions> {
    let config = BrokerConfig::from_properties(&Properties::parse(text).expect("valid")).expect("valid").0;
    let logs = Partitions::open(directory, &config).expect("opens");
    logs.put_topic("__state", ID, &led_by(1, 1), &Arc::new(config.topics.defaults), origin);
    logs
}

fn record(key: &str, value: Option<Vec<u8>>) -> KeyValue {
    (Bytes::copy_from_slice(key.as_bytes()), value.map(Bytes::from))
}

/// Returns what loading the shard would read: each key, and the length of its value.
fn read(shard: &Shard) -> Vec<(String, Option<usize>)> {
    let mut found = Vec::new();
    let key = |key: Bytes| String::from_utf8(key.to_vec()).expect("UTF-8");
    let note = |entry| match entry {
        LogEntry::Record { key: k, value, transaction: None } => {
            found.push((key(k), value.map(|value| value.len())));
            Ok(())
        }
        other => panic!("{other:?}"),
    };
    replay(shard.partition(), note).expect("readable");
    found
}

#[tokio::test]
async fn callbacks_run_in_order_and_late_records_see_the_earlier_ones() {
    let Opened { shard, logs: _logs, directory: _directory } = opened(Compression::None, "");
    assert_eq!(shard.status(), Status::Serving, "there is nothing to load");
    let reported = Arc::new(Mutex::new(Vec::new()));
    let report = |name: &'static str| {
        let reported = Arc::clone(&reported);
        move |kept: Result<(), AppendError>| {
            kept.expect("kept");
            reported.lock().push(name);
            name
        }
    };
    let seen = Arc::clone(&reported);
    let late = Records::late(move || std::iter::once(record(&seen.lock().join("+"), None)));
    let first = shard.write(Records::Plain(vec![record("a", Some(vec![1]))]), report("first"));
    drop(shard.write(Records::Plain(vec![]), report("empty")));
    let last = shard.write(late, report("late"));
    assert_eq!(last.kept().await, Ok("late"), "all before it were appended with it");
    assert_eq!(first.kept().await, Ok("first"));
    assert_eq!(*reported.lock(), ["first", "empty", "late"]);
    assert_eq!(read(&shard), [("a".to_owned(), Some(1)), ("first+empty".to_owned(), None)]);
}

#[tokio::test]
async fn a_write_of_any_size_is_read_again() {
    for compression in [Compression::None, Compression::Zstd] {
        let Opened { shard, logs, directory } = opened(compression, "message.max.bytes=104857600");
        let many: Vec<_> = (0..100_u8).map(|n| record(&format!("many-{n}"), Some(vec![n; 20_000]))).collect();
        let large = vec![record("large", Some(vec![5; 3 << 20]))];
        let small = vec![record("small", Some(vec![1]))];
        let mut expected = Vec::new();
        let mut pending = Vec::new();
        for records in [small.clone(), many, small.clone(), large, small] {
            let seen =
                |(key, value): &KeyValue| (String::from_utf8_lossy(key).into_owned(), value.as_ref().map(Bytes::len));
            expected.extend(records.iter().map(seen));
            pending.push(shard.write(Records::Plain(records), |kept| kept));
        }
        for pending in pending {
            assert_eq!(pending.kept().await, Ok(Ok(())));
        }
        assert_eq!(read(&shard), expected);
        logs.close();
        let logs = self::logs(directory.path(), "", Origin::Kept);
        let topic = InternalTopic::new(ID, 1, compression, &logs);
        let shard = &topic.shards()[0];
        assert_eq!(shard.status(), Status::Loading);
        shard.partition().opened().await.expect("whole");
        assert_eq!(read(shard), expected);
    }
}

#[tokio::test]
async fn records_written_together_are_one_batch() {
    let Opened { shard, logs: _logs, directory: _directory } = opened(Compression::None, "message.max.bytes=104857600");
    let many = |name: &str| (0..100_u8).map(|n| record(&format!("{name}-{n:02}"), Some(vec![n; 20_000]))).collect();
    let small = || Records::Plain(vec![record("small", None)]);
    let writes = [small(), Records::Together(many("whole")), small(), Records::Plain(many("split"))];
    let pending: Vec<_> = writes.into_iter().map(|records| shard.write(records, |kept| kept)).collect();
    for pending in pending {
        assert_eq!(pending.kept().await, Ok(Ok(())));
    }
    assert_eq!(read(&shard).len(), 202);
    let partition = shard.partition();
    let (mut offset, mut batches) = (0, Vec::new());
    while offset < partition.offsets().expect("open").log_end {
        let read = partition.read(offset, 8 << 20, true).expect("readable").records;
        let bytes = replay::memory(read, partition.cold()).expect("readable");
        for batch in fullbore_wire::batch::batches(&bytes).map_while(Result::ok) {
            batches.push(batch.record_count());
            offset = batch.last_offset() + 1;
        }
    }
    assert_eq!(batches[..3], [1, 100, 1]);
    assert!(batches.len() > 4, "{batches:?}");
}

#[tokio::test]
async fn oversized_write_fails_and_those_around_it_do_not() {
    let Opened { shard, logs, directory: _directory } = opened(Compression::None, "message.max.bytes=1000000");
    let write = |key: &str, len| shard.write(Records::Plain(vec![record(key, Some(vec![0; len]))]), |kept| kept);
    let (before, large, after) = (write("before", 1), write("large", 1_000_000), write("after", 1));
    let refused = large.kept().await;
    assert!(matches!(refused, Ok(Err(AppendError::Invalid(InvalidBatch::TooLarge { .. })))), "{refused:?}");
    assert_eq!((before.kept().await, after.kept().await), (Ok(Ok(())), Ok(Ok(()))));
    assert_eq!(read(&shard).into_iter().map(|(key, _)| key).collect::<Vec<_>>(), ["before", "after"]);
    logs.close();
    assert_eq!(write("gone", 1).kept().await, Ok(Err(AppendError::Gone)));
}

#[tokio::test]
async fn futures_after_responses_run_whether_the_connection_continues_or_ends() {
    let done = Arc::new(AtomicUsize::new(0));
    let following = |waits: bool| {
        let done = Arc::clone(&done);
        task::boxed(async move {
            if waits {
                tokio::task::yield_now().await;
            }
            done.fetch_add(1, Ordering::Relaxed);
        })
    };
    let are_done = async |count: usize| {
        while done.load(Ordering::Relaxed) < count {
            tokio::task::yield_now().await;
        }
    };
    let unwritten = Unwritten::default();
    unwritten.follow(following(false));
    unwritten.follow(following(true));
    tokio::select! {
        biased;
        never = unwritten.carry_out() => match never {},
        () = are_done(2) => {}
    }
    unwritten.follow(following(false));
    unwritten.follow(following(true));
    drop(unwritten);
    are_done(4).await;
}

#[tokio::test]
async fn dropped_write_is_appended_all_the_same() {
    let Opened { shard, logs: _logs, directory: _directory } = opened(Compression::None, "");
    let unwritten = Unwritten::default();
    let pending = shard.write(Records::Plain(vec![record("a", None)]), drop);
    unwritten.note(&shard);
    let there = async {
        while read(&shard).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        never = unwritten.carry_out() => match never {},
        () = there => {}
    }
    pending.kept().await.expect("kept");
    drop(shard.write(Records::Plain(vec![record("b", None)]), drop));
    while read(&shard).len() < 2 {
        tokio::task::yield_now().await;
    }
}

/// Several threads write at the same time, so now and then a caller finds the writer locked by another. Every write
/// must still be appended, in the order of its task.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callbacks_of_all_callers_run_on_whichever_thread_appends() {
    let Opened { shard, logs: _logs, directory: _directory } = opened(Compression::None, "");
    let requester = |number: usize| {
        let shard = Arc::clone(&shard);
        tokio::spawn(async move {
            for round in 0..500 {
                let pending = shard.write(Records::Plain(vec![record(&format!("{number}-{round}"), None)]), drop);
                if round % 5 == 0 { drop(pending) } else { pending.kept().await.expect("kept") }
            }
            shard.write(Records::Plain(vec![]), drop).kept().await.expect("kept");
        })
    };
    let requesters: Vec<_> = (0..8).map(requester).collect();
    for requester in requesters {
        requester.await.expect("no panic");
    }
    let found = read(&shard);
    assert_eq!(found.len(), 8 * 500);
    for number in 0..8 {
        let of_one = found.iter().filter_map(|(key, _)| key.strip_prefix(&format!("{number}-")));
        assert!(of_one.map(|round| round.parse::<i32>().expect("a number")).eq(0..500), "in the order asked");
    }
}

#[tokio::test]
async fn writes_share_no_batch_above_the_topics_limit() {
    let Opened { shard, logs: _logs, directory: _directory } = opened(Compression::None, "message.max.bytes=1000");
    let write = |n: u8| shard.write(Records::Plain(vec![record(&format!("{n:03}"), Some(vec![n; 100]))]), |kept| kept);
    let one_by_one: Vec<_> = (0..50).map(write).collect();
    let together = (50..100_u8).map(|n| record(&format!("{n:03}"), Some(vec![n; 100]))).collect();
    let together = shard.write(Records::Plain(together), |kept| kept);
    for pending in one_by_one {
        assert_eq!(pending.kept().await, Ok(Ok(())));
    }
    assert_eq!(together.kept().await, Ok(Ok(())));
    assert!(read(&shard).into_iter().map(|(key, _)| key).eq((0..100).map(|n| format!("{n:03}"))));
}

#[tokio::test]
async fn write_that_waits_only_for_the_disk_has_no_timeout() {
    let Opened { shard, logs: _logs, directory: _directory } = opened(Compression::None, "");
    let (release, released) = std::sync::mpsc::channel();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let slow = Records::late(move || {
        begun.send(()).expect("the test waits");
        released.recv().expect("the test says so");
        std::iter::once(record("slow", None))
    });
    let slow = shard.write(slow, |kept| kept);
    let writer = Arc::clone(&shard);
    let writing = std::thread::spawn(move || writer.flush());
    has_begun.recv().expect("begun");
    let mut kept = std::pin::pin!(shard.write(Records::Plain(vec![record("next", None)]), |kept| kept).kept());
    let longer = pending::KEPT_WITHIN + std::time::Duration::from_millis(500);
    assert!(tokio::time::timeout(longer, &mut kept).await.is_err(), "it is not told that it failed");
    release.send(()).expect("it waits");
    assert_eq!(kept.await, Ok(Ok(())));
    assert_eq!(slow.kept().await, Ok(Ok(())));
    writing.join().expect("written");
}

#[tokio::test]
async fn write_queued_during_an_append_does_not_wait_for_the_replicas_of_that_append() {
    let Opened { shard, logs: _logs, directory: _directory } = opened(Compression::None, "");
    let partition = Arc::clone(shard.partition());
    let (replicas, isr) = (vec![1, 2], vec![1, 2]);
    let leader = Some(1);
    let registered = PartitionRegistration { replicas, isr, leader, partition_epoch: 1, ..Default::default() };
    partition.follow(&Arc::new(registered), &partition.config());
    let (release, released) = std::sync::mpsc::channel();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let slow = Records::late(move || {
        begun.send(()).expect("the test waits");
        released.recv().expect("the test says so");
        std::iter::once(record("slow", None))
    });
    let slow = shard.write(slow, drop);
    let writer = Arc::clone(&shard);
    let writing = tokio::task::spawn_blocking(move || writer.flush());
    has_begun.recv().expect("begun");
    let next = shard.write(Records::Plain(vec![record("next", None)]), drop);
    shard.flush();
    release.send(()).expect("it waits");
    writing.await.expect("written");
    assert_eq!(partition.offsets().expect("open").log_end, 2, "who has the writer appends that, too");
    drop((slow, next));
}
