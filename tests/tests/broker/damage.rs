//! Files that are not as the broker left them. The next start truncates a torn tail and rebuilds an index. If a log is
//! damaged in the middle, its partition is unavailable, and a log line names the file. Other partitions are not
//! affected.

use crate::assert_serves;
use fullbore_tests::{Batch, Broker, Client};
use fullbore_wire::ErrorCode;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

const TOPIC: &str = "damaged";
/// How many batches of one record are written before the damage.
const BATCHES: i32 = 20;

/// A position inside the log's first record, after the header of its batch.
const FIRST_RECORD: usize = 64;

/// Starts a broker and writes twenty batches of one producer to partition 0.
fn written(configs: &[(&str, &str)]) -> (Broker, i64) {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 2, configs);
    let id = client.init_producer_id();
    for sequence in 0..BATCHES {
        assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, sequence, 9)), i64::from(sequence));
    }
    client.produced(TOPIC, 1, &Batch::of(&["the other partition"]));
    (broker, id)
}

fn log_file(broker: &Broker) -> PathBuf {
    broker.partition_files(TOPIC, 0, "log").pop().expect("a segment")
}

fn texts(client: &mut Client) -> Vec<String> {
    client.fetch_records(TOPIC, 0).iter().map(|record| record.text()).collect()
}

fn expected(count: i32) -> Vec<String> {
    (0..count).map(|sequence| Batch::numbered(-1, sequence, 9).records[0].text()).collect()
}

/// Checks that exactly the first `kept` records are there, and that the producer can continue after them.
fn assert_recovered(broker: &Broker, id: i64, kept: i32) {
    let mut client = broker.client();
    assert_eq!(texts(&mut client), expected(kept));
    assert_eq!(client.latest(TOPIC, 0), i64::from(kept));
    let last = Batch::numbered(id, kept - 1, 9);
    assert_eq!(client.produced(TOPIC, 0, &last), i64::from(kept) - 1, "the last batch is known");
    assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, kept, 9)), i64::from(kept), "the next one follows");
    assert_eq!(texts(&mut client), expected(kept + 1));
    assert_serves(broker);
}

#[test]
fn garbage_after_the_last_whole_batch_is_cut_off() {
    let garbage: [Vec<u8>; 5] = [vec![0; 4096], vec![0xff; 1], vec![0x5a; 61], vec![0; 16], half_a_batch()];
    for tail in garbage {
        let (mut broker, id) = written(&[]);
        broker.kill();
        let mut file = OpenOptions::new().append(true).open(log_file(&broker)).expect("ours");
        file.write_all(&tail).expect("room");
        broker.restart();
        assert_recovered(&broker, id, BATCHES);
    }
}

/// Returns the first 300 bytes of the next batch.
fn half_a_batch() -> Vec<u8> {
    let next = Batch { base_offset: i64::from(BATCHES), leader_epoch: 0, ..Batch::of(&[vec![b'x'; 500]]) };
    next.bytes()[..300].to_vec()
}

#[test]
fn a_cut_tail_loses_the_batches_it_touches_and_nothing_else() {
    for cut in [1, 10, 61, 70, 75] {
        let (mut broker, id) = written(&[]);
        broker.kill();
        let path = log_file(&broker);
        let len = fs::metadata(&path).expect("ours").len();
        OpenOptions::new().write(true).open(&path).expect("ours").set_len(len - cut).expect("shorter");
        broker.restart();
        let one = u64::try_from(Batch::numbered(id, 19, 9).bytes().len()).expect("small");
        let lost = i32::try_from(cut.div_ceil(one)).expect("few");
        assert_recovered(&broker, id, BATCHES - lost);
    }
}

#[test]
fn a_bit_flipped_in_the_last_batch_costs_that_batch() {
    let (mut broker, id) = written(&[]);
    broker.kill();
    let path = log_file(&broker);
    let mut bytes = fs::read(&path).expect("ours");
    *bytes.last_mut().expect("not empty") ^= 0x10;
    fs::write(&path, bytes).expect("ours");
    broker.restart();
    assert_recovered(&broker, id, BATCHES - 1);
}

fn flip_a_bit(broker: &Broker, at: impl Fn(usize) -> usize) -> PathBuf {
    let path = log_file(broker);
    let mut bytes = fs::read(&path).expect("ours");
    let at = at(bytes.len());
    bytes[at] ^= 0x10;
    fs::write(&path, bytes).expect("ours");
    path
}

/// There are acknowledged records behind the damage. Truncating the log there would lose them silently.
#[test]
fn corruption_before_good_batches_refuses_its_partition_and_the_others_are_served() {
    let (mut broker, id) = written(&[]);
    broker.kill();
    let path = flip_a_bit(&broker, |len| len / 2);
    let damaged = fs::read(&path).expect("ours");
    broker.restart();
    let mut client = broker.client();
    let refused = client.produce(TOPIC, 0, &Batch::numbered(id, BATCHES, 9));
    assert_eq!(refused.error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(client.fetch(TOPIC, 0, 0).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    assert_eq!(client.list_offset(TOPIC, 0, -1).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    broker.wait_for_stderr(&path.display().to_string());
    assert!(fs::read(&path).expect("ours") == damaged, "the file was changed");
    assert_eq!(client.fetch_records(TOPIC, 1)[0].text(), "the other partition");
    assert_serves(&broker);
}

/// After a clean stop, the broker trusts its files. It does not find the damaged record, and the log keeps its end.
#[test]
fn a_clean_stop_skips_recovery() {
    let (mut broker, _) = written(&[]);
    broker.stop();
    flip_a_bit(&broker, |_| FIRST_RECORD);
    broker.restart();
    assert_eq!(broker.client().latest(TOPIC, 0), i64::from(BATCHES), "the files are believed");
    assert_eq!(broker.stderr(), "", "nothing was repaired");
    assert_serves(&broker);
}

/// Settings with which the log has several segments, and an index entry for nearly every batch.
const SEVERAL_SEGMENTS: &[(&str, &str)] = &[("segment.bytes", "1048576"), ("index.interval.bytes", "0")];

fn damage_indexes(broker: &Broker, how: fn(&PathBuf)) {
    for extension in ["index", "timeindex"] {
        for file in broker.partition_files(TOPIC, 0, extension) {
            how(&file);
        }
    }
}

#[test]
fn damaged_indexes_are_repaired_after_a_crash_and_after_a_clean_stop() {
    let damages: [fn(&PathBuf); 5] = [
        |file| fs::remove_file(file).and_then(|()| fs::create_dir(file)).expect("ours"),
        |file| fs::remove_file(file).expect("ours"),
        |file| fs::write(file, []).expect("ours"),
        |file| fs::write(file, [0xa5; 4096]).expect("ours"),
        |file| fs::write(file, [7; 13]).expect("ours"),
    ];
    for end in [Broker::stop, Broker::kill] {
        let (mut broker, id) = written(SEVERAL_SEGMENTS);
        let mut client = broker.client();
        let large = vec![b'x'; 700_000];
        for n in 0..4 {
            let batch = Batch::at(later() + i64::from(n), &[&large]).from_producer(id, 0, BATCHES + n);
            client.produced(TOPIC, 0, &batch);
        }
        let all = client.fetch_records(TOPIC, 0);
        for how in damages {
            end(&mut broker);
            damage_indexes(&broker, how);
            broker.restart();
            let mut client = broker.client();
            assert!(client.fetch_records(TOPIC, 0) == all, "the records are as they were");
            for record in &all {
                let data = client.fetch(TOPIC, 0, record.offset);
                let found = Batch::parse_all(data.records.expect("some").memory().expect("read"));
                assert_eq!(found[0].base_offset, record.offset);
            }
            let last = all.last().expect("some");
            assert_eq!(client.list_offset(TOPIC, 0, last.timestamp).offset, last.offset);
        }
    }
}

/// Returns a later timestamp than that of any record, so that a lookup by this time finds only a new record.
fn later() -> i64 {
    Batch::of(&["now"]).base_timestamp + 1000
}

/// The broker rebuilds lost snapshots of producers and lost checkpoints from the log.
#[test]
fn lost_snapshots_and_checkpoints_lose_no_record() {
    for end in [Broker::stop, Broker::kill] {
        let (mut broker, id) = written(&[]);
        end(&mut broker);
        for file in broker.partition_files(TOPIC, 0, "snapshot") {
            fs::write(file, b"nonsense").expect("ours");
        }
        for name in ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"] {
            fs::write(broker.data_dir().join(name), b"nonsense").expect("ours");
        }
        fs::write(broker.partition_dir(TOPIC, 0).join("leader-epoch-checkpoint"), b"nonsense").expect("ours");
        broker.restart();
        assert_recovered(&broker, id, BATCHES);
    }
}

/// The broker leaves files alone that are not its own.
#[test]
fn foreign_files_in_the_data_directory_stay() {
    let (mut broker, id) = written(&[]);
    broker.kill();
    let strange = [broker.data_dir().join("lost+found"), broker.data_dir().join("nobody-0")];
    strange.iter().for_each(|directory| fs::create_dir(directory).expect("ours"));
    fs::write(broker.data_dir().join("notes.txt"), b"mine").expect("ours");
    fs::write(broker.partition_dir(TOPIC, 0).join("notes.txt"), b"mine").expect("ours");
    broker.restart();
    assert_recovered(&broker, id, BATCHES);
    assert!(strange.iter().all(|directory| directory.is_dir()));
    assert_eq!(fs::read(broker.data_dir().join("notes.txt")).expect("still there"), b"mine");
}
