//! A disk that is full to the last byte and has both the index of diskless topics and their objects. Operations that
//! free space must succeed, and a broker must start and serve. The tests use a tmpfs of 48 MiB, and are skipped if
//! mounting is not permitted.

use std::time::Duration;

use fullbore_tests::{Batch, Broker, Client, wait_until};
use fullbore_wire::ErrorCode;

use super::delete_records::delete_from;
use super::disk_freed::{delete_topic, fill};
use super::disk_full::SmallDisk;

const DISK: usize = 48 << 20;
/// Short intervals, so that orphans are soon deleted.
const CLEANER: &[&str] = &["diskless.file.cleaner.interval.ms=100", "diskless.file.cleaner.retention.period.ms=1000"];
const CLEANED: Duration = Duration::from_secs(60);
const LARGE: &str = "large";
const SMALL: &str = "small";
const DISKLESS: &[(&str, &str)] = &[("diskless.enable", "true")];

/// Starts a broker that deletes no records by itself, and fills its disk with objects and another file. Returns the
/// broker, the disk, and the number of records of each topic.
fn filled() -> Option<(Broker, SmallDisk, i64, i64)> {
    let disk = SmallDisk::mount(DISK)?;
    let broker = Broker::start_in(&disk.path().join("data"), CLEANER);
    let mut client = broker.client();
    for topic in [LARGE, SMALL] {
        client.create_topic(topic, 1, DISKLESS);
    }
    let mut produce = |topic, most| {
        (0..most).take_while(|_| !client.produce(topic, 0, &Batch::sized(400_000)).error_code.is_err()).count() as i64
    };
    let small = produce(SMALL, 5);
    let large = produce(LARGE, 1000);
    assert!(small == 5 && large > 20, "{small} and {large}");
    fill(&disk);
    Some((broker, disk, small, large))
}

fn takes_records_again(client: &mut Client, topic: &str) {
    wait_until("records are taken again", CLEANED, || {
        !client.produce(topic, 0, &Batch::sized(400_000)).error_code.is_err()
    });
}

#[test]
fn full_disk_deletion_of_a_diskless_topic_frees_space_for_records() {
    let Some((broker, disk, small, _)) = filled() else { return };
    let mut client = broker.client();
    assert_eq!(delete_topic(&mut client, LARGE), ErrorCode::NONE);
    fill(&disk);
    takes_records_again(&mut client, SMALL);
    assert_eq!(client.fetch_records(SMALL, 0).len() as i64, small + 1);
}

#[test]
fn start_on_a_disk_full_of_objects_serves_reads_and_deletions() {
    let ends: [fn(&mut Broker); 2] = [Broker::kill, Broker::stop];
    for end in ends {
        let Some((mut broker, disk, small, large)) = filled() else { return };
        end(&mut broker);
        fill(&disk);
        broker.restart();
        let mut client = broker.client();
        assert_eq!(client.fetch_records(SMALL, 0).len() as i64, small);
        assert_eq!(client.latest(LARGE, 0), large);
        fill(&disk);
        let deleted = delete_from(&mut client, LARGE, 0, large, 2);
        assert_eq!((deleted.error_code, deleted.low_watermark), (ErrorCode::NONE, large));
        takes_records_again(&mut client, SMALL);
    }
}
