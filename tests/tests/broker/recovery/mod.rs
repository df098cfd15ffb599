//! Random recovery. A round writes known records, kills the broker and damages files at random. After the restart, the
//! records are compared with the acknowledged ones.
//!
//! `FULLBORE_RECOVERY_ROUNDS` is the number of rounds (by default 8, in `make soak` 400). A failed round prints its
//! seed, and `FULLBORE_RECOVERY_SEED` replays it. Damage that is chosen by hand is tested in `damage`.
//!
//! Nothing else may be lost than the following:
//! - Damage in the newest segment loses its records from the first damaged batch on. The partition becomes unavailable
//!   instead if a whole batch follows the damage, or if flushed bytes are damaged. A log line then names the file, and
//!   the file stays unchanged. After a reboot, the partition becomes unavailable only if both conditions hold. If only
//!   one holds, the bytes from the first damaged batch on are moved to another file.
//! - Damage in the tail of `control.db-wal` loses the topics that were created last, in order. Committed offsets are
//!   not affected, because they are in a topic.
//! - Damage in indexes, producer snapshots, checkpoints and `control.db-shm` loses nothing.
//!
//! Kafka's text files have no checksum, so a broker cannot notice a changed number in a checkpoint. A smaller log start
//! brings back records that DeleteRecords had deleted. A larger recovery point leaves batches unchecked, so the tests
//! do not damage both a recovery point and a segment. Of the two files that have a log start, the tests damage only
//! one.

mod damage;
mod model;
mod power_loss;

use damage::{Damaged, Plan};
use fullbore_tests::{Broker, Client, Random, another_boot};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use model::{Control, Log};

const TOPICS: [&str; 2] = ["early", "other"];
const PARTITIONS: i32 = 2;
/// A topic that is created concurrently with other requests.
const LATE: &str = "late";
/// Settings with which a segment has only a few batches, and an index entry for each of them except the first.
const CONFIGS: &[(&str, &str)] = &[("segment.index.bytes", "120"), ("index.interval.bytes", "0")];
/// Maximum number of transactions that damage in the last 4 KiB of the write-ahead log can lose. Each transaction has
/// at least one frame, and a frame is slightly longer than 4 KiB.
const TRANSACTIONS_LOST_MAX: usize = 2;

fn rounds() -> u64 {
    fullbore_tests::rounds("FULLBORE_RECOVERY_ROUNDS", 8, 400) as u64
}

#[test]
fn acknowledged_records_survive_random_damage() {
    if let Ok(seed) = std::env::var("FULLBORE_RECOVERY_SEED") {
        return round(seed.parse().expect("FULLBORE_RECOVERY_SEED is a number"));
    }
    let first = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
    for seed in (0..rounds()).map(|n| first.wrapping_add(n)) {
        let failed = std::panic::catch_unwind(|| round(seed)).err();
        if let Some(why) = failed {
            eprintln!("this was FULLBORE_RECOVERY_SEED={seed}");
            std::panic::resume_unwind(why);
        }
    }
}

/// The records and offsets that one round has written.
struct Written {
    logs: Vec<Log>,
    control: Control,
}

impl Written {
    fn new(client: &mut Client) -> Written {
        let mut control = Control::default();
        // Creates the topic of the groups first, so that the damaged tail of the write-ahead log does not contain its
        // creation.
        client.call(&FindCoordinatorRequest { key: "group 0".into(), ..Default::default() }, 3);
        TOPICS.iter().for_each(|topic| control.create(client, topic, PARTITIONS, CONFIGS));
        let partitions = TOPICS.iter().flat_map(|topic| (0..PARTITIONS).map(move |partition| (topic, partition)));
        let logs = partitions.map(|(topic, partition)| Log::new(topic, partition, client.init_producer_id())).collect();
        Written { logs, control }
    }

    /// Writes some batches to every partition and commits offsets between them.
    fn go_on(&mut self, client: &mut Client, random: &mut Random) {
        for _ in 0..random.between(1, 5) {
            for log in &mut self.logs {
                (0..random.below(12)).for_each(|_| log.append(client, random));
                self.control.commit(client, random.below(4), log.topic, log.partition, log.end());
            }
        }
    }

    fn delete_some(&mut self, client: &mut Client, random: &mut Random) {
        let count = self.logs.len();
        self.logs[random.below(count)].delete_some(client, random);
    }
}

fn round(seed: u64) {
    let mut random = Random::new(seed);
    let mut broker = Broker::start(&[]);
    let mut written = Written::new(&mut broker.client());
    written.go_on(&mut broker.client(), &mut random);
    if random.below(3) > 0 {
        written.delete_some(&mut broker.client(), &mut random);
    }
    if random.below(3) > 0 {
        broker.stop();
        broker.restart();
    }
    written.control.create(&mut broker.client(), LATE, 1, &[]);
    written.go_on(&mut broker.client(), &mut random);
    let is_clean = random.below(5) == 0;
    if is_clean {
        broker.stop();
    } else {
        let mut client = broker.client();
        written.logs.iter_mut().for_each(|log| log.send(&mut client, &mut random));
        broker.kill();
    }
    written.logs.iter_mut().for_each(|log| log.look(&broker));
    let reboots = !is_clean && random.below(2) == 0;
    if reboots {
        another_boot(broker.data_dir());
        written.logs.iter_mut().for_each(|log| log.reboot());
    }
    let plan = Plan::choose(&broker, &mut random, is_clean);
    let damaged = plan.carry_out(&mut written.logs, &mut random);
    let how = if is_clean { "stopped" } else { "killed" };
    eprintln!("seed {seed}, {how}{}: {damaged}", if reboots { ", another boot" } else { "" });
    broker.restart();
    let lost_max = if damaged.wal { TRANSACTIONS_LOST_MAX } else { 0 };
    written.control.check(&mut broker.client(), lost_max);
    check(&broker, &written.logs, &damaged, &mut random);
    written.logs.retain(Log::is_refused);
    if !written.logs.is_empty() {
        broker.kill();
        written.logs.iter_mut().for_each(Log::restore);
        broker.restart();
        check(&broker, &written.logs, &damaged, &mut random);
    }
}

fn check(broker: &Broker, logs: &[Log], damaged: &Damaged, random: &mut Random) {
    let mut client = broker.client();
    logs.iter().for_each(|log| log.check(broker, &mut client, damaged.log_starts, random));
    crate::assert_serves(broker);
}

/// Writes `batches` batches to one partition and kills the broker. Returns the broker and the model of the partition.
fn killed(batches: usize) -> (Broker, Log) {
    let mut broker = Broker::start(&[]);
    let mut client = broker.client();
    Control::default().create(&mut client, TOPICS[0], PARTITIONS, CONFIGS);
    let mut log = Log::new(TOPICS[0], 0, client.init_producer_id());
    let mut random = Random::new(1);
    (0..batches).for_each(|_| log.append(&mut client, &mut random));
    broker.kill();
    log.look(&broker);
    (broker, log)
}

fn assert_as_expected(broker: &Broker, log: &Log) {
    log.check(broker, &mut broker.client(), false, &mut Random::new(1));
}

#[test]
#[should_panic(expected = "the end of")]
fn lost_records_fail_the_recovery_check() {
    let (mut broker, log) = killed(40);
    let newest = broker.partition_files(log.topic, 0, "log").pop().expect("a segment");
    std::fs::File::options().write(true).open(newest).expect("ours").set_len(0).expect("shorter");
    broker.restart();
    assert_as_expected(&broker, &log);
}

#[test]
#[should_panic(expected = "differ")]
fn forged_record_fails_the_recovery_check() {
    let (mut broker, mut log) = killed(40);
    log.forge_last();
    broker.restart();
    assert_as_expected(&broker, &log);
}

#[test]
#[should_panic(expected = "found, and committed")]
fn forged_offset_fails_the_recovery_check() {
    let broker = Broker::start(&[]);
    let mut client = broker.client();
    let mut control = Control::default();
    control.create(&mut client, TOPICS[0], 1, &[]);
    control.commit(&mut client, 0, TOPICS[0], 0, 5);
    control.commit(&mut client, 1, TOPICS[0], 0, 6);
    control.forge_last(7);
    control.check(&mut client, 1);
}

/// The checksum does not cover the offset at the beginning of a batch, so damage there needs its own check.
#[test]
fn flipped_bit_in_the_offset_of_a_batch_is_damage() {
    for back in [1, 2] {
        let (mut broker, mut log) = killed(8);
        let damaged = log.flip_in_batch_from_the_end(back, 6, 0x01);
        broker.restart();
        let expected = if back == 1 { ErrorCode::NONE } else { ErrorCode::KAFKA_STORAGE_ERROR };
        assert_eq!(broker.client().list_offset(log.topic, 0, -1).error_code, expected, "{damaged}");
        assert_as_expected(&broker, &log);
    }
}
