//! The write-ahead log of the index of diskless topics is damaged in ways at which SQLite's recovery stops silently. No
//! acknowledged record may vanish.

use std::fs;
use std::path::PathBuf;

use fullbore_tests::{Batch, Broker, serve_refused};

const TOPIC: &str = "diskless";
const CONFIGS: &[(&str, &str)] = &[("diskless.enable", "true")];
/// How many batches are written. Each is sent after the previous one is acknowledged, so each has its own commit.
const BATCHES: usize = 30;
const REFUSED: &str = "cannot use diskless.db: ";
/// The size of the write-ahead log's header, in bytes.
const HEADER: usize = 32;
/// The size of a frame in the write-ahead log, which has a header and a page.
const FRAME: usize = 24 + 1024;

/// The files of an index as a kill left them.
struct Killed {
    broker: Broker,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Killed {
    /// Writes acknowledged records: some before a clean stop, and the rest before a kill.
    fn after_records() -> Killed {
        let mut broker = Broker::start(&[]);
        broker.client().create_topic(TOPIC, 1, CONFIGS);
        produce(&broker, 0..BATCHES / 2);
        broker.stop();
        broker.restart();
        produce(&broker, BATCHES / 2..BATCHES);
        broker.kill();
        let path = |name: &str| broker.data_dir().join(name);
        let files = ["diskless.db", "diskless.db-wal", "diskless-counter"].map(path);
        let files = files.map(|path| (path.clone(), fs::read(path).unwrap_or_default())).to_vec();
        Killed { broker, files }
    }

    fn wal(&self) -> &(PathBuf, Vec<u8>) {
        &self.files[1]
    }

    /// Restores the files, with `bytes` in place of the write-ahead log.
    fn set_wal(&self, bytes: &[u8]) {
        for (path, bytes) in &self.files {
            fs::write(path, bytes).expect("written");
        }
        fs::write(&self.wal().0, bytes).expect("written");
    }

    fn assert_refused(&self, place: &str) {
        let found = fs::read(&self.wal().0).expect("read");
        let refused = serve_refused(self.broker.data_dir(), &[]);
        let line = refused.stderr.lines().last().unwrap_or_default();
        assert!(!refused.status.success() && line.contains(REFUSED), "{place}: {}", refused.stderr);
        assert!(line.contains("diskless.db-wal") && line.contains("diskless-counter"), "it names the remedies: {line}");
        assert!(fs::read(&self.wal().0).expect("read") == found, "{place}: the damaged log is left for repair");
    }

    fn assert_serves_all(&mut self) {
        self.broker.restart();
        assert_eq!(texts(&self.broker), numbered(0..BATCHES));
        self.broker.kill();
    }
}

fn numbered(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| format!("record {number}")).collect()
}

fn produce(broker: &Broker, numbers: std::ops::Range<usize>) {
    let mut client = broker.client();
    for text in numbered(numbers) {
        client.produced(TOPIC, 0, &Batch::of(&[text]));
    }
}

fn texts(broker: &Broker) -> Vec<String> {
    broker.client().fetch_records(TOPIC, 0).iter().map(|record| record.text()).collect()
}

fn flipped(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 0x40;
    bytes
}

/// Returns the offset of the last complete frame.
fn last_frame(wal: &[u8]) -> usize {
    HEADER + ((wal.len() - HEADER) / FRAME - 1) * FRAME
}

#[test]
fn flipped_byte_of_the_write_ahead_log_refuses_the_start() {
    let mut killed = Killed::after_records();
    let wal = killed.wal().1.clone();
    let (last, middle) = (last_frame(&wal), HEADER + (wal.len() - HEADER) / FRAME / 2 * FRAME);
    let places = [
        ("the header", 9),
        ("the header of the first frame", HEADER + 18),
        ("the first frame", HEADER + 500),
        ("the middle", middle + 700),
        ("the last frame", last + 24 + 1000),
    ];
    for (place, at) in places {
        killed.set_wal(&flipped(&wal, at));
        killed.assert_refused(place);
    }
    killed.set_wal(&wal);
    killed.assert_serves_all();
}

#[test]
fn torn_last_frame_of_the_write_ahead_log_loses_no_record() {
    let mut killed = Killed::after_records();
    let wal = killed.wal().1.clone();
    let last = last_frame(&wal);
    let frame = wal[last..last + FRAME].to_vec();
    for torn in [frame[..20].to_vec(), frame[..600].to_vec(), flipped(&frame, 100)] {
        killed.set_wal(&[&wal[..last + FRAME], &torn].concat());
        killed.assert_serves_all();
    }
}

#[test]
fn removed_marker_starts_the_broker_with_the_rest_of_a_damaged_log() {
    let mut killed = Killed::after_records();
    let wal = killed.wal().1.clone();
    killed.set_wal(&flipped(&wal, last_frame(&wal) - 3 * FRAME));
    killed.assert_refused("three frames before the end");
    fs::remove_file(killed.broker.data_dir().join("diskless-counter")).expect("removed");
    killed.broker.restart();
    let left = texts(&killed.broker);
    assert!(left.len() < BATCHES && left == numbered(0..left.len()), "{left:?}");
    produce(&killed.broker, 100..101);
    killed.broker.kill();
    killed.broker.restart();
    assert_eq!(texts(&killed.broker), [left, numbered(100..101)].concat());
}
