//! A disk that fills up. It is a tmpfs of a few megabytes. If mounting is not permitted, the tests are skipped with a
//! line on standard error.

use fullbore_tests::{Batch, Broker};
use fullbore_wire::ErrorCode;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TOPIC: &str = "full";

/// A small file system. Dropping it unmounts it.
pub struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    pub fn mount(bytes: usize) -> Option<SmallDisk> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let size = format!("size={bytes}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "fullbore-tests"])
            .arg(directory.path())
            .stderr(Stdio::null())
            .status();
        match mount {
            Ok(status) if status.success() => Some(SmallDisk(directory)),
            _ => {
                // Writes to the stream directly, because `cargo test` captures `eprintln!`. Each run must show which
                // tests were skipped.
                let _ = writeln!(std::io::stderr(), "skipped: mounting a tmpfs is not permitted here");
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // After the lazy unmount, the file system exists until all its files are closed.
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// Writes a file that the test can delete to free space. Returns its path.
pub fn ballast(disk: &SmallDisk, bytes: usize) -> PathBuf {
    let file = disk.path().join("ballast");
    fs::write(&file, vec![0; bytes]).expect("there is room still");
    file
}

#[test]
fn full_disk_is_a_storage_error_and_the_log_continues_once_space_is_free() {
    let Some(disk) = SmallDisk::mount(8 << 20) else { return };
    let mut broker = Broker::start_in(&disk.path().join("data"), &[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let id = client.init_producer_id();
    let ballast = ballast(&disk, 2 << 20);
    let mut next = 0;
    let refused = loop {
        let response = client.produce(TOPIC, 0, &Batch::numbered(id, next, 20_000));
        if response.error_code.is_err() {
            break response;
        }
        assert_eq!(response.base_offset, i64::from(next));
        next += 1;
        assert!(next < 1000, "8 MiB hold more than 20 MB");
    };
    assert_eq!(refused.error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    let again = client.produce(TOPIC, 0, &Batch::numbered(id, next, 20_000));
    assert_eq!(again.error_code, ErrorCode::KAFKA_STORAGE_ERROR, "a retry is refused as long as the disk is full");
    assert_eq!(client.fetch_records(TOPIC, 0).len(), usize::try_from(next).expect("positive"), "reading goes on");

    fs::remove_file(ballast).expect("ours");
    for sequence in next..next + 20 {
        assert_eq!(
            client.produced(TOPIC, 0, &Batch::numbered(id, sequence, 20_000)),
            i64::from(sequence),
            "there is room again"
        );
    }
    for end in [Broker::kill, Broker::stop] {
        end(&mut broker);
        broker.restart();
        let mut client = broker.client();
        let records = client.fetch_records(TOPIC, 0);
        assert_eq!(records.len(), usize::try_from(next).expect("positive") + 20);
        let numbered = |(n, record): (i32, &fullbore_tests::Record)| record.text().starts_with(&format!("{n}."));
        assert!((0..).zip(&records).all(numbered), "each record once and in order");
    }
}

/// The disk fills up while a whole window is in flight. If the later batches got a sequence error, clients would begin
/// a new epoch, or report a mistake to the user.
#[test]
fn batches_behind_one_refused_by_a_full_disk_get_its_error() {
    let Some(disk) = SmallDisk::mount(8 << 20) else { return };
    let broker = Broker::start_in(&disk.path().join("data"), &[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[]);
    let id = client.init_producer_id();
    let ballast = ballast(&disk, 2 << 20);
    let mut next = 0;
    let mut codes = Vec::new();
    while codes.last().is_none_or(|code| *code == ErrorCode::NONE) {
        let window = next..next + 5;
        window.clone().for_each(|sequence| _ = client.send_produce(TOPIC, 0, &Batch::numbered(id, sequence, 20_000)));
        codes = window.map(|_| client.receive_produced().error_code).collect();
        next += 5;
    }
    let taken = codes.iter().filter(|code| **code == ErrorCode::NONE).count();
    assert!(codes[taken..].iter().all(|code| *code == ErrorCode::KAFKA_STORAGE_ERROR), "{codes:?}");
    next -= i32::try_from(5 - taken).expect("small");

    fs::remove_file(ballast).expect("ours");
    let early = client.produce(TOPIC, 0, &Batch::numbered(id, next + 1, 20_000)).error_code;
    assert_eq!(early, ErrorCode::KAFKA_STORAGE_ERROR, "it was in flight");
    for sequence in next..next + 5 {
        assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, sequence, 20_000)), i64::from(sequence));
    }
    let early = client.produce(TOPIC, 0, &Batch::numbered(id, next + 6, 20_000)).error_code;
    assert_eq!(early, ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, "with room it is what it is");
}

/// A new topic needs space. On a full disk the broker refuses to create it and leaves nothing of it.
#[test]
fn full_disk_refuses_topics_and_a_restart_finds_none_of_them() {
    let Some(disk) = SmallDisk::mount(4 << 20) else { return };
    let mut broker = Broker::start_in(&disk.path().join("data"), &[]);
    let mut client = broker.client();
    client.create_topic("before", 1, &[]);
    let ballast = disk.path().join("ballast");
    // Writes until the disk is full.
    let filled = fs::write(&ballast, vec![0; 8 << 20]);
    assert!(filled.is_err(), "4 MiB hold less than 8");
    let refused = create_until_refused(&mut client);
    fs::remove_file(&ballast).expect("ours");
    client.create_topic("after", 1, &[]);
    broker.kill();
    broker.restart();
    let mut client = broker.client();
    for topic in ["before", "after"] {
        assert_eq!(client.produced(topic, 0, &Batch::of(&["x"])), 0);
    }
    let unknown = client.list_offset(&refused, 0, -1).error_code;
    assert_eq!(unknown, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, "a refused topic is not there");
}

/// Creates topics until one is refused. Returns the name of the one that was refused.
fn create_until_refused(client: &mut fullbore_tests::Client) -> String {
    use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
    for n in 0..1000 {
        // The names are long, so that the database soon needs a new page, for which the disk has no space.
        let name = format!("{}-{n}", "n".repeat(200));
        let topic = CreatableTopic {
            name: name.as_str().into(),
            num_partitions: 1,
            replication_factor: 1,
            ..Default::default()
        };
        let response = client.call(&CreateTopicsRequest { topics: vec![topic], ..Default::default() }, 7);
        let code = response.topics[0].error_code;
        if code.is_err() {
            assert_eq!(code, ErrorCode::KAFKA_STORAGE_ERROR, "{:?}", response.topics[0].error_message);
            return name;
        }
    }
    panic!("a full disk took a thousand topics");
}
