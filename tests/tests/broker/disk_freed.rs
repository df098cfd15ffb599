//! A disk that is full to the last byte. Operations that free space must succeed there without a restart. A broker also
//! starts and serves on such a disk. The tests use a tmpfs of 48 MiB, and are skipped if mounting is not permitted.

use crate::delete_records::delete_from;
use crate::disk_full::SmallDisk;
use crate::slow_readers::hang_at;
use fullbore_tests::{Batch, Broker, Client, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::delete_topics::{DeleteTopicState, DeleteTopicsRequest};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DISK: usize = 48 << 20;
const SOON: Duration = Duration::from_secs(60);
/// The two topics. The records of each take a large share of the disk.
const LARGE: &str = "large";
const SMALL: &str = "small";
const TOPIC: i8 = 2;

/// A broker whose disk is full of the records of both topics and another file. It deletes no records by itself.
struct Filled {
    broker: Broker,
    disk: SmallDisk,
    /// How many records the topic [`LARGE`] has.
    large: i64,
    small: i64,
}

impl Filled {
    fn new() -> Option<Filled> {
        Filled::beside(0)
    }

    /// Fills a disk that has `others` partitions besides the two topics. A stop of the broker must write index entries
    /// and checkpoint lines for each of them.
    fn beside(others: i32) -> Option<Filled> {
        let disk = SmallDisk::mount(DISK)?;
        // With a small buffer, the socket accepts only the beginning of a response.
        let broker = Broker::start_in(&disk.path().join("data"), &["socket.send.buffer.bytes=65536"]);
        let mut client = broker.client();
        for topic in [LARGE, SMALL] {
            client.create_topic(topic, 1, &[("segment.bytes", "4194304")]);
        }
        if others > 0 {
            client.create_topic("others", others, &[]);
            let id = client.init_producer_id();
            (0..others).for_each(|n| _ = client.produced("others", n, &Batch::of(&["v"]).from_producer(id, 0, 0)));
        }
        let small = produce_until(&mut client, SMALL, |sent| sent == 30);
        let large = produce_until(&mut client, LARGE, |_| false);
        fill(&disk);
        Some(Filled { broker, disk, large, small })
    }

    /// Fills the disk to the last byte again, including space that was freed.
    fn fill(&self) {
        fill(&self.disk);
    }

    fn serves_reads(&self) {
        let mut client = self.broker.client();
        assert_eq!(client.fetch_records(SMALL, 0).len() as i64, self.small);
        assert_eq!(client.latest(LARGE, 0), self.large);
        assert_eq!(client.fetch_records(LARGE, 0).len() as i64, self.large);
    }

    /// Waits until the topic accepts records again. The log must continue at `end`.
    fn takes_records_again(&self, topic: &str, end: i64) {
        let mut client = self.broker.client();
        wait_until("records are taken again", SOON, || {
            let response = client.produce(topic, 0, &Batch::sized(100_000));
            !response.error_code.is_err() && {
                assert_eq!(response.base_offset, end);
                true
            }
        });
    }
}

/// Produces until a batch is refused or `enough` returns true. Returns how many batches were accepted.
fn produce_until(client: &mut Client, topic: &str, enough: impl Fn(i64) -> bool) -> i64 {
    for sent in 0.. {
        if enough(sent) {
            return sent;
        }
        let response = client.produce(topic, 0, &Batch::sized(100_000));
        if response.error_code.is_err() {
            assert_eq!(response.error_code, ErrorCode::KAFKA_STORAGE_ERROR);
            return sent;
        }
        assert!(sent < 1000, "48 MiB hold more than 100 MB");
    }
    unreachable!("the loop has no end")
}

pub fn fill(disk: &SmallDisk) {
    let path = disk.path().join("ballast");
    let mut ballast = std::fs::File::options().create(true).append(true).open(path).expect("a name needs no room");
    for size in [1 << 16, 1] {
        while ballast.write_all(&vec![0; size]).is_ok() {}
    }
}

pub fn delete_topic(client: &mut Client, topic: &str) -> ErrorCode {
    let topics = vec![DeleteTopicState { name: Some(topic.into()), ..Default::default() }];
    let request = DeleteTopicsRequest { topics, timeout_ms: 30_000, ..Default::default() };
    client.call(&request, 6).responses[0].error_code
}

#[test]
fn full_disk_topic_deletion_frees_space_for_records() {
    let Some(filled) = Filled::new() else { return };
    let mut client = filled.broker.client();
    assert_eq!(delete_topic(&mut client, LARGE), ErrorCode::NONE);
    filled.takes_records_again(SMALL, filled.small);
}

#[test]
fn full_disk_slow_readers_do_not_hold_deleted_space() {
    let ways: [fn(&mut Client, i64); 3] = [
        |client, _| assert_eq!(delete_topic(client, LARGE), ErrorCode::NONE),
        |client, end| assert_eq!(delete_from(client, LARGE, 0, -1, 2).low_watermark, end),
        |client, _| client.set_config(TOPIC, LARGE, "retention.ms", "1"),
    ];
    for free_room in ways {
        let Some(filled) = Filled::new() else { return };
        let firsts = (0..filled.large).step_by(20);
        let slow: Vec<Client> = firsts.map(|first| hang_at(filled.broker.client(), LARGE, first)).collect();
        free_room(&mut filled.broker.client(), filled.large);
        filled.takes_records_again(SMALL, filled.small);
        wait_until("all of it is gone", SOON, || filled.broker.bytes_of_removed_files() == 0);
        drop(slow);
    }
}

/// The broker releases bytes of the disk reserve for a deletion. Producers that retry must not get these bytes.
#[test]
fn full_disk_deletions_succeed_beside_retrying_producers() {
    let Some(filled) = Filled::new() else { return };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut client = filled.broker.client();
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    client.produce(SMALL, 0, &Batch::sized(100_000));
                }
            });
        }
        let ended = Ended(&stop);
        let mut client = filled.broker.client();
        for offset in 1..30 {
            let deleted = delete_from(&mut client, LARGE, 0, offset, 2);
            assert_eq!((deleted.error_code, deleted.low_watermark), (ErrorCode::NONE, offset));
        }
        client.set_config(TOPIC, LARGE, "file.delete.delay.ms", "1000");
        assert_eq!(delete_topic(&mut client, LARGE), ErrorCode::NONE);
        wait_until("records are taken again", SOON, || client.latest(SMALL, 0) > filled.small);
        drop(ended);
    });
}

/// A guard that stops the producers when it is dropped, even if the test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn full_disk_record_deletion_frees_space_for_others() {
    for part in [None, Some(7)] {
        let Some(mut filled) = Filled::new() else { return };
        let mut client = filled.broker.client();
        let offset = part.unwrap_or(-1);
        let deleted = delete_from(&mut client, LARGE, 0, offset, 2);
        let start = part.unwrap_or(filled.large);
        assert_eq!((deleted.error_code, deleted.low_watermark), (ErrorCode::NONE, start));
        // A deletion within the first segment frees no space, so the broker releases disk reserve to write the new log
        // start. A crash must not undo the deletion.
        filled.broker.kill();
        filled.broker.restart();
        assert_eq!(filled.broker.client().earliest(LARGE, 0), start);
        if part.is_none() {
            filled.takes_records_again(LARGE, filled.large);
            filled.takes_records_again(SMALL, filled.small);
        }
    }
}

#[test]
fn full_disk_new_retention_frees_space_without_a_restart() {
    for topic in [LARGE, SMALL] {
        let Some(filled) = Filled::new() else { return };
        let mut client = filled.broker.client();
        // All segments expire, including the active one.
        client.set_config(TOPIC, topic, "retention.ms", "1");
        let end = if topic == LARGE { filled.large } else { filled.small };
        wait_until("old records are gone", SOON, || client.earliest(topic, 0) == end);
        filled.takes_records_again(topic, end);
    }
}

#[test]
fn full_disk_start_serves_reads_and_deletions() {
    let ends: [fn(&mut Broker); 2] = [Broker::kill, Broker::stop];
    for end in ends {
        let Some(mut filled) = Filled::new() else { return };
        end(&mut filled.broker);
        filled.fill();
        filled.broker.restart();
        filled.serves_reads();
        let mut client = filled.broker.client();
        filled.fill();
        client.set_config(TOPIC, SMALL, "retention.ms", "1");
        wait_until("old records are gone", SOON, || client.earliest(SMALL, 0) == filled.small);
        filled.fill();
        let deleted = delete_from(&mut client, LARGE, 0, 50, 2);
        assert_eq!((deleted.error_code, deleted.low_watermark), (ErrorCode::NONE, 50));
        filled.fill();
        assert_eq!(delete_topic(&mut client, LARGE), ErrorCode::NONE);
        filled.takes_records_again(SMALL, filled.small);
    }
}

/// The broker is killed repeatedly on a full disk, sometimes while it frees space. Every response must remain true.
#[test]
fn full_disk_kills_revert_no_deletion_and_lose_no_record() {
    let Some(mut filled) = Filled::new() else { return };
    let mut start = 0;
    for round in 0..8 {
        let mut client = filled.broker.client();
        let deleted = delete_from(&mut client, LARGE, 0, start + 13, 2);
        assert_eq!((deleted.error_code, deleted.low_watermark), (ErrorCode::NONE, start + 13), "round {round}");
        start += 13;
        // The test does not wait for the response to this deletion.
        let mut other = filled.broker.client();
        other.send(&crate::delete_records::request(LARGE, 0, start + 5), 2);
        filled.broker.kill();
        filled.fill();
        filled.broker.restart();
        let mut client = filled.broker.client();
        let found = client.earliest(LARGE, 0);
        // The deletion without a response may be complete, not begun, or done up to the start of a segment.
        assert!((start..=start + 5).contains(&found), "round {round}: {found} after {start}");
        start = found;
        assert_eq!(client.latest(LARGE, 0), filled.large);
        assert_eq!(client.fetch_records(LARGE, 0).len() as i64, filled.large - start, "round {round}");
    }
}

/// A stop must write the last index entries, the checkpoints and a marker. The disk reserve has space for them.
#[test]
fn full_disk_stop_is_clean() {
    for others in [0, 100] {
        let Some(mut filled) = Filled::beside(others) else { return };
        filled.broker.stop();
        assert!(filled.broker.data_dir().join(".kafka_cleanshutdown").exists(), "beside {others}");
        filled.fill();
        filled.broker.restart();
        filled.serves_reads();
        let stderr = filled.broker.stderr();
        assert!(!stderr.contains("unclean shutdown"), "{stderr}");
        let mut client = filled.broker.client();
        assert_eq!(delete_topic(&mut client, LARGE), ErrorCode::NONE);
        filled.takes_records_again(SMALL, filled.small);
    }
}

/// Returns the status line of /healthz.
fn health(broker: &Broker) -> String {
    broker.admin_page("/healthz").lines().next().expect("a status line").to_owned()
}

#[test]
fn healthz_follows_the_last_append_or_the_free_space() {
    let Some(disk) = SmallDisk::mount(DISK) else { return };
    let broker = Broker::start_in(&disk.path().join("data"), &["fullbore.admin.listener=127.0.0.1:0"]);
    let mut client = broker.client();
    client.create_topic(SMALL, 1, &[]);
    client.produced(SMALL, 0, &Batch::sized(100_000));
    assert!(health(&broker).contains("200"));
    for _ in 0..3 {
        fill(&disk);
        wait_until("no room is left", SOON, || client.produce(SMALL, 0, &Batch::sized(100_000)).error_code.is_err());
        assert!(health(&broker).contains("503"));
        std::fs::remove_file(disk.path().join("ballast")).expect("ours");
        wait_until("records are taken again", SOON, || {
            !client.produce(SMALL, 0, &Batch::sized(100_000)).error_code.is_err()
        });
        assert!(health(&broker).contains("200"));
    }
    fill(&disk);
    wait_until("others have filled the disk", SOON, || health(&broker).contains("503"));
    std::fs::remove_file(disk.path().join("ballast")).expect("ours");
    wait_until("nobody writes, and there is room", SOON, || health(&broker).contains("200"));
}

#[test]
fn full_disk_is_logged_once_with_the_remedy() {
    let Some(filled) = Filled::new() else { return };
    let mut client = filled.broker.client();
    for _ in 0..100 {
        assert!(client.produce(LARGE, 0, &Batch::sized(100_000)).error_code.is_err());
    }
    filled.broker.wait_for_stderr("the disk is full");
    let stderr = filled.broker.stderr();
    let reported: Vec<&str> = stderr.lines().filter(|line| line.contains("ERROR")).collect();
    // The broker may log one such line a minute, and on a slow machine the test may take more than a minute.
    assert!(reported.len() <= 3, "{reported:?}");
    assert!(reported.iter().all(|line| line.contains("delete topics or records")), "{reported:?}");
}
