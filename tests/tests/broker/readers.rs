//! `fullbore consume` while the broker has faults. The command prints the records that are readable, and reports why it
//! waits for the others.

use crate::disk_full::SmallDisk;
use crate::diskless_lost::files;
use bytes::{Bytes, BytesMut};
use fullbore_tests::{Batch, Broker, NO_RETENTION, binary, produce_request, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::batch::{BatchBuilder, Compression, Stamp, crc32c};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TOPIC: &str = "read";
const TOPIC_RESOURCE: i8 = 2;
const SOON: Duration = Duration::from_secs(60);
/// A position inside a batch's first record, after the header.
const IN_THE_FIRST_RECORD: u64 = 64;

/// A running command and the lines that it has printed so far.
struct Reader {
    child: Child,
    stdout: Lines,
    stderr: Lines,
}

type Lines = Arc<Mutex<Vec<String>>>;

fn lines_of(pipe: impl Read + Send + 'static) -> Lines {
    let lines = Lines::default();
    let into = lines.clone();
    std::thread::spawn(move || {
        let read = BufReader::new(pipe).lines().map_while(Result::ok);
        read.for_each(|line| into.lock().expect("no holder panics").push(line));
    });
    lines
}

impl Reader {
    fn start(broker: &Broker, flags: &[&str]) -> Reader {
        let mut command = Command::new(binary());
        command.args(["consume", "--topic", TOPIC, "--from-beginning", "--bootstrap-server"]);
        command.arg(broker.addr().to_string()).args(flags);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stdout = lines_of(child.stdout.take().expect("piped"));
        let stderr = lines_of(child.stderr.take().expect("piped"));
        Reader { child, stdout, stderr }
    }

    fn read(&self) -> Vec<String> {
        let mut lines = self.stdout.lock().expect("no holder panics").clone();
        lines.sort();
        lines
    }

    fn reported(&self) -> Vec<String> {
        self.stderr.lock().expect("no holder panics").clone()
    }

    fn waits_for(&self, what: &str, is_so: impl Fn(&Reader) -> bool) {
        wait_until(what, SOON, || is_so(self));
    }

    fn wait_for_reports(&self, words: &[&str]) {
        self.waits_for(&format!("told {words:?}"), |reader| {
            reader.reported().iter().any(|line| words.iter().all(|word| line.contains(word)))
        });
    }

    fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("our child");
    }

    /// Waits until the command ends. Returns its exit status and its last line on standard error.
    fn ended(mut self) -> (Option<i32>, String) {
        let mut status = None;
        wait_until("it ends", SOON, || {
            status = self.child.try_wait().expect("our child");
            status.is_some()
        });
        let pipe = self.stderr.clone();
        // The thread that reads standard error may get the last lines a moment after the command's end. After the last
        // line, it drops its handle.
        wait_until("its words are read", SOON, || Arc::strong_count(&pipe) == 2);
        (status.and_then(|status| status.code()), self.reported().pop().unwrap_or_default())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The child process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("it has read {:?} and told {:?}", self.read(), self.reported());
        }
    }
}

/// Starts a broker with a topic. Each partition has one record, whose value is the number of the partition.
fn written(partitions: i32) -> Broker {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0", NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic(TOPIC, partitions, &[]);
    for partition in 0..partitions {
        client.produced(TOPIC, partition, &Batch::of(&[partition.to_string()]));
    }
    broker
}

fn numbers(partitions: std::ops::Range<i32>) -> Vec<String> {
    let mut numbers: Vec<String> = partitions.map(|number| number.to_string()).collect();
    numbers.sort();
    numbers
}

/// Damages a batch of partition 0. Undamaged batches come after it, so the partition cannot be opened.
fn with_a_damaged_partition() -> Broker {
    let mut broker = written(3);
    let mut client = broker.client();
    for _ in 0..20 {
        client.produced(TOPIC, 0, &Batch::of(&["behind"]));
    }
    broker.kill();
    break_the_first_record(&broker);
    broker.restart();
    broker
}

fn break_the_first_record(broker: &Broker) {
    let path = broker.partition_files(TOPIC, 0, "log").pop().expect("a segment");
    let file = std::fs::File::options().read(true).write(true).open(path).expect("ours");
    let mut byte = [0];
    file.read_exact_at(&mut byte, IN_THE_FIRST_RECORD).expect("it is there");
    file.write_all_at(&[byte[0] ^ 0x10], IN_THE_FIRST_RECORD).expect("ours");
}

#[test]
fn damaged_partition_is_reported_and_the_others_are_read() {
    let broker = with_a_damaged_partition();
    for flags in [&[][..], &["--group", "a"], &["--group", "b", "--group-protocol", "consumer"]] {
        let reader = Reader::start(&broker, flags);
        reader.waits_for("the others", |reader| reader.read().len() >= 2);
        reader.wait_for_reports(&["partition 0 of topic 'read'", "KAFKA_STORAGE_ERROR"]);
        let mut client = broker.client();
        client.produced(TOPIC, 1, &Batch::of(&["later"]));
        reader.waits_for("what comes later", |reader| reader.read().contains(&"later".to_owned()));
        reader.terminate();
        let (status, reported) = reader.ended();
        assert_eq!(status, Some(1), "{flags:?}: {reported}");
        let words = ["fullbore: ", "partition 0 of topic 'read'", "KAFKA_STORAGE_ERROR", "records were written"];
        assert!(words.iter().all(|word| reported.contains(word)), "{flags:?}: {reported}");
    }
}

#[test]
fn reading_to_the_end_skips_a_damaged_partition_and_fails() {
    let broker = with_a_damaged_partition();
    for flags in [&["--exit"][..], &["--exit", "--group", "g"], &["--timeout-ms", "6000"]] {
        let reader = Reader::start(&broker, flags);
        reader.waits_for("the others", |reader| reader.read() == ["1", "2"]);
        let (status, reported) = reader.ended();
        assert_eq!(status, Some(1), "{flags:?}: {reported}");
        assert!(
            reported.contains("partition 0 of topic 'read'") && reported.contains("KAFKA_STORAGE_ERROR"),
            "{reported}"
        );
    }
}

#[test]
fn reading_to_the_end_beside_another_member_reports_the_unread_partitions() {
    let broker = written(4);
    let one = Reader::start(&broker, &["--group", "g"]);
    one.waits_for("all of it", |reader| reader.read().len() == 4);
    let two = Reader::start(&broker, &["--group", "g", "--exit"]);
    let (status, reported) = two.ended();
    assert_eq!(status, Some(0), "{reported}");
    assert!(reported.starts_with("2 of 4 partitions belong to other members of the group"), "{reported}");
    drop(one);
}

#[test]
fn wrong_checksum_stops_its_partition_and_no_other() {
    let broker = written(3);
    break_the_first_record(&broker);
    for flags in [&["--exit"][..], &["--exit", "--group", "g"]] {
        let reader = Reader::start(&broker, flags);
        reader.waits_for("the others", |reader| reader.read() == ["1", "2"]);
        let (status, reported) = reader.ended();
        assert_eq!(status, Some(1), "{flags:?}: {reported}");
        assert!(reported.contains("partition 0 of topic 'read' has a broken batch at offset 0"), "{reported}");
    }
}

/// Returns a batch that lacks its last byte but has a correct checksum.
fn cut_short(codec: Compression, value: &[u8]) -> Bytes {
    let mut builder = BatchBuilder::new(BytesMut::new(), codec, None);
    builder.append(1_700_000_000_000, None, Some(value), &[]);
    let (mut bytes, _) = builder.seal(Stamp::NONE).expect("sealed");
    bytes.truncate(bytes.len() - 1);
    let length = i32::try_from(bytes.len() - 12).expect("small");
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    let crc = crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    bytes.freeze()
}

#[test]
fn bad_batch_of_a_producer_is_named_and_skipped_with_skip_bad_batches() {
    let broker = written(2);
    let mut client = broker.client();
    client.set_config(TOPIC_RESOURCE, TOPIC, "fullbore.produce.validation", "header");
    for codec in [Compression::Zstd, Compression::Gzip] {
        let request = produce_request(TOPIC, 0, cut_short(codec, b"lost"));
        let response = client.call(&request, 9);
        assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::NONE);
    }
    client.produced(TOPIC, 0, &Batch::of(&["behind"]));
    for flags in [&["--exit"][..], &["--exit", "--group", "g"]] {
        let reader = Reader::start(&broker, flags);
        reader.waits_for("what is before it and the other partition", |reader| reader.read() == ["0", "1"]);
        let (status, reported) = reader.ended();
        assert_eq!(status, Some(1), "{flags:?}: {reported}");
        let words = "the producer's batch at offset 1 of partition 0 of topic 'read' cannot be read: ";
        assert!(reported.contains(words) && !reported.contains("disk"), "{reported}");
    }
    for flags in [&["--exit"][..], &["--exit", "--group", "h"]] {
        let reader = Reader::start(&broker, &[flags, &["--skip-bad-batches"]].concat());
        reader.waits_for("what is behind it", |reader| reader.read() == ["0", "1", "behind"]);
        reader.wait_for_reports(&["skipped the producer's batch at offsets 1 to 1 of partition 0"]);
        assert_eq!(reader.ended().0, Some(0), "{flags:?}");
    }
}

/// Starts a broker whose store has lost one object, which had records 1 and 2 with the timestamp 2000. Records 0 and 3
/// are readable.
fn with_a_lost_object() -> Broker {
    let mut broker = Broker::start(&["group.initial.rebalance.delay.ms=0", NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[("diskless.enable", "true")]);
    let objects = broker.data_dir().join("diskless");
    client.produced(TOPIC, 0, &Batch::at(1000, &["0"]));
    let before = files(&objects);
    client.produced(TOPIC, 0, &Batch::at(2000, &["1", "2"]));
    let gone: Vec<_> = files(&objects).into_iter().filter(|file| !before.contains(file)).collect();
    client.produced(TOPIC, 0, &Batch::at(3000, &["3"]));
    broker.stop();
    assert_eq!(gone.len(), 1, "{gone:?}");
    std::fs::remove_file(&gone[0]).expect("removed");
    broker.restart();
    broker
}

/// Regression: the command printed nothing and ended with success after fifteen seconds.
#[test]
fn lost_object_fails_offsets_by_time_with_partition_and_error() {
    let broker = with_a_lost_object();
    let offsets = |flags: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["topics", "offsets", TOPIC, "--bootstrap-server", &broker.addr().to_string()]).args(flags);
        let output = command.output().expect("run");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    assert_eq!(offsets(&["--time", "3000"]).1, format!("{TOPIC}:0:3\n"));
    let error = "cannot find the offset in partition 0 of topic 'read': KAFKA_STORAGE_ERROR: ";
    let (status, found, reported) = offsets(&["--time", "2000"]);
    assert!(status == Some(1) && found.is_empty(), "{status:?} {found}");
    let line = format!("Skip getting offsets for topic-partition {TOPIC}-0 due to error: {error}");
    assert!(reported.contains(&line), "{reported}");
    let (status, found, _) = offsets(&["--time", "2000", "--json"]);
    let document = format!("{{\"offsets\":[],\"failed\":[{{\"topic\":\"{TOPIC}\",\"partition\":0,\"error\":\"{error}");
    assert!(status == Some(1) && found.starts_with(&document), "{found}");
}

#[test]
fn lost_object_is_skipped_with_skip_bad_batches() {
    let broker = with_a_lost_object();
    let reader = Reader::start(&broker, &["--exit"]);
    reader.wait_for_reports(&["waiting: ", "KAFKA_STORAGE_ERROR"]);
    reader.waits_for("what is before it", |reader| reader.read() == ["0"]);
    drop(reader);
    for flags in [&["--exit"][..], &["--exit", "--group", "g"]] {
        let reader = Reader::start(&broker, &[flags, &["--skip-bad-batches"]].concat());
        reader.waits_for("what is behind it", |reader| reader.read() == ["0", "3"]);
        reader.wait_for_reports(&["skipped offsets 1 to 2 of partition 0 of topic 'read'", "object store"]);
        assert_eq!(reader.ended().0, Some(0), "{flags:?}");
    }
}

#[test]
fn broker_without_descriptors_serves_open_logs_and_later_the_rest() {
    const PARTITIONS: i32 = 100;
    let mut broker = written(PARTITIONS);
    broker.stop();
    broker.restart();
    // The broker gets enough descriptors for the connections of one consumer, and for some of the logs at a time.
    broker.leave_descriptors(40);
    let reader = Reader::start(&broker, &[]);
    reader.waits_for("some of the partitions", |reader| !reader.read().is_empty());
    broker.wait_for_stderr("cannot read a partition: clients get KAFKA_STORAGE_ERROR and retry");
    // When few descriptors are free, the broker closes a log soon after a read and can then open another one. On a
    // loaded machine, the command may therefore read all partitions without a wait that is long enough for a report.
    let is_reported =
        |line: &String| ["waiting: ", " of topic 'read'", "KAFKA_STORAGE_ERROR"].iter().all(|word| line.contains(word));
    reader.waits_for("a report or all partitions", |reader| {
        reader.reported().iter().any(is_reported) || reader.read() == numbers(0..PARTITIONS)
    });
    broker.allow_descriptors();
    reader.waits_for("all partitions", |reader| reader.read() == numbers(0..PARTITIONS));
    reader.terminate();
    let reported = reader.reported();
    let (status, last) = reader.ended();
    assert_eq!(status, Some(0), "{last}");
    // The broker may log one line a minute, and on a slow machine a wait may take more than a minute.
    assert!(reported.len() <= 3, "{reported:?}");
}

#[test]
fn group_refused_by_a_full_disk_is_reported_and_read_once_space_is_free() {
    for protocol in ["classic", "consumer"] {
        let Some(disk) = SmallDisk::mount(8 << 20) else { return };
        let broker = Broker::start_in(&disk.path().join("data"), &["group.initial.rebalance.delay.ms=0", NO_RETENTION]);
        let mut client = broker.client();
        client.create_topic(TOPIC, 1, &[]);
        client.produced(TOPIC, 0, &Batch::of(&["0"]));
        // The topic of the groups must exist before the disk is full.
        let group = FindCoordinatorRequest { key: "g".into(), ..Default::default() };
        assert_eq!(client.call(&group, 3).error_code, ErrorCode::NONE);
        let ballast = disk.path().join("ballast");
        assert!(std::fs::write(&ballast, vec![0; 16 << 20]).is_err(), "8 MiB hold less than 16");
        let reader = Reader::start(&broker, &["--group", "g", "--group-protocol", protocol]);
        reader.wait_for_reports(&["waiting: ", "group 'g'", "COORDINATOR_NOT_AVAILABLE"]);
        std::fs::remove_file(&ballast).expect("ours");
        reader.waits_for("the record", |reader| reader.read() == ["0"]);
        reader.terminate();
        let (status, reported) = reader.ended();
        assert_eq!(status, Some(0), "{protocol}: {reported}");
    }
}

/// Maximum size of decompressed records that a broker accepts.
const RECORDS_BYTES_MAX: usize = 256 << 20;
/// The length of each value in the batch below. By default, the producer of `copy` sends values of up to 1 MiB.
const VALUE_BYTES: usize = 1_000_000;

/// Returns a compressed batch that decompresses to the largest accepted size, and the number of its records.
fn largest_batch() -> (Bytes, usize) {
    let mut builder = BatchBuilder::new(BytesMut::new(), Compression::Zstd, None);
    let value = vec![b'v'; VALUE_BYTES];
    let (mut left, mut count) = (RECORDS_BYTES_MAX, 0);
    while left > 0 {
        // The other fields of a record take 11 bytes, and 12 from the 65th record on.
        let others = if count < 64 { 11 } else { 12 };
        let of_value = VALUE_BYTES.min(left - others);
        builder.append(1, None, Some(&value[..of_value]), &[]);
        (left, count) = (left - others - of_value, count + 1);
    }
    (builder.seal(Stamp::NONE).expect("sealed").0.freeze(), count)
}

/// The topic stores batches without compression, so a small request creates a batch of more than 256 MiB. A broker
/// sends the first batch of a fetch whole, even if it exceeds the limits of the fetch (KIP-74).
#[test]
fn batch_of_the_largest_size_is_read_by_consume_copy_and_perf_consume() {
    let broker = Broker::start(&["group.initial.rebalance.delay.ms=0", NO_RETENTION]);
    let mut client = broker.client();
    client.create_topic(TOPIC, 1, &[("max.message.bytes", "300000000"), ("compression.type", "uncompressed")]);
    client.create_topic("copied", 1, &[]);
    let (batch, count) = largest_batch();
    let response = client.call(&produce_request(TOPIC, 0, batch), 9);
    assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::NONE);
    client.produced(TOPIC, 0, &Batch::of(&["behind"]));
    let count = count + 1;
    let ran = |line: &str| {
        let mut command = Command::new(binary());
        command.args(line.split_whitespace()).args(["--bootstrap-server", &broker.addr().to_string()]);
        let output = command.output().expect("it starts");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let printed = ran(&format!("consume --topic {TOPIC} --from-beginning -e"));
    assert!(printed.ends_with(b"v\nbehind\n") && printed.len() > RECORDS_BYTES_MAX - 20 * count, "{}", printed.len());
    let copied = ran(&format!("copy --from {TOPIC} --to copied --group copier --exit"));
    assert!(String::from_utf8_lossy(&copied).contains(&format!("copied {count} records")));
    let measured = ran(&format!("perf consume --topic {TOPIC} --num-records {count}"));
    assert!(String::from_utf8_lossy(&measured).contains(&format!(", {count}, ")));
}
