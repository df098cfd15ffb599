//! Data written by earlier releases (`tests/fixtures/make`), and checks of an upgrade that the tests of a broker and of
//! a cluster share.
//!
//! Each test starts its own broker on the data. Invariant: every release in `tests/fixtures` has every fixture.

use crate::{Batch, Client, Protocol, Transactional, binary, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");
/// How long a started broker may take to load its former state, or to end a transaction.
const SOON: Duration = Duration::from_secs(180);

/// Settings with which a broker expires and compacts nothing by itself. Most expiration times are shorter than the age
/// of the fixtures, so with the defaults a broker would expire much at once.
pub const WAITING: [&str; 5] = [
    "log.cleaner.enable=false",
    "offsets.retention.minutes=2147483647",
    "producer.id.expiration.check.interval.ms=2147483647",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms=2147483647",
    "transaction.remove.expired.transaction.cleanup.interval.ms=2147483647",
];

/// The unpacked data of one release.
pub struct Fixture {
    directory: TempDir,
    manifest: String,
}

/// A producer that the manifest lists without an open transaction.
struct Producer<'a> {
    topic: &'a str,
    partition: i32,
    id: i64,
    epoch: i16,
    last_sequence: i32,
}

impl Fixture {
    /// Unpacks the fixture `name` of every release.
    pub fn of_releases(name: &str) -> Vec<Fixture> {
        let entries = std::fs::read_dir(FIXTURES).expect("fixtures").map(|entry| entry.expect("readable").path());
        let mut releases: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
        releases.sort();
        assert!(!releases.is_empty(), "no release in {FIXTURES}");
        releases.iter().map(|release| Fixture::unpacked(release, name)).collect()
    }

    fn unpacked(release: &Path, name: &str) -> Fixture {
        let directory = tempfile::tempdir().expect("a directory");
        let packed = release.join(format!("{name}.tar.gz"));
        let unpacked = Command::new("tar").arg("-xzf").arg(&packed).arg("-C").arg(directory.path()).status();
        assert!(unpacked.expect("tar runs").success(), "{} is unpacked", packed.display());
        // If the machine has rebooted since a broker was killed, the next start aborts its transactions, as after a
        // power loss. The present boot id prevents this.
        let (boot, now) = (directory.path().join("data/boot-id"), "/proc/sys/kernel/random/boot_id");
        if boot.exists() {
            std::fs::write(boot, std::fs::read(now).expect("Linux has it")).expect("written");
        }
        let manifest = std::fs::read_to_string(release.join(format!("{name}.manifest"))).expect("a manifest");
        Fixture { directory, manifest }
    }

    /// Returns the path of a file or directory of the fixture.
    pub fn path(&self, inner: &str) -> PathBuf {
        self.directory.path().join(inner)
    }

    /// Returns the lines of the manifest that begin with the word `kind`, each as its remaining fields.
    fn lines(&self, kind: &str) -> Vec<Vec<&str>> {
        let fields = self.manifest.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        fields.filter(|fields| fields[0] == kind).map(|fields| fields[1..].to_vec()).collect()
    }

    fn compacted(&self, topic: &str) -> bool {
        self.lines("config").contains(&vec!["topics", topic, "cleanup.policy=compact"])
    }

    /// Returns the producers that have no open transaction and have written to a topic that accepts records without a
    /// key.
    fn producers(&self) -> Vec<Producer<'_>> {
        let mut producers = Vec::new();
        for line in self.lines("producer") {
            let [topic, partition, id, epoch, _, last_sequence, _, open] = line[..] else { panic!("{line:?}") };
            let last_sequence = last_sequence.parse().expect("a sequence");
            if open == "None" && last_sequence >= 0 && !self.compacted(topic) {
                let (partition, id) = (partition.parse().expect("a number"), id.parse().expect("an id"));
                producers.push(Producer {
                    topic,
                    partition,
                    id,
                    epoch: epoch.parse().expect("an epoch"),
                    last_sequence,
                });
            }
        }
        producers
    }

    /// Returns each topic that has an open transaction, with the transactional id.
    fn open_transactions(&self) -> Vec<(&str, &str)> {
        let lines = self.lines("transaction").into_iter().filter(|line| line[3] == "Ongoing");
        lines.map(|line| (line[5].strip_suffix("-0").expect("partition 0"), line[0])).collect()
    }

    /// Checks that this release describes the data as the manifest does. The broker may need some time to load the
    /// data.
    pub fn assert_described(&self, bootstrap: &str) {
        let describe = || {
            let mut command = Command::new(Path::new(FIXTURES).join("describe"));
            let output = command.arg(binary()).arg(bootstrap).output().expect("bash");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).expect("text")
        };
        let deadline = std::time::Instant::now() + SOON;
        let mut found = describe();
        while found != self.manifest && std::time::Instant::now() < deadline {
            found = describe();
        }
        let differs = |(found, listed): &(&str, &str)| found != listed;
        let first = found.lines().zip(self.manifest.lines()).find(differs);
        assert!(found == self.manifest, "{first:?}:\n{found}");
    }

    /// Checks that each producer's last batch is recognised as a duplicate, and that its next sequence is accepted.
    pub fn assert_producers_continue(&self, client: impl Fn(&str) -> Client) {
        let producers = self.producers();
        assert!(producers.len() >= 3, "producers of a manifest");
        for Producer { topic, partition, id, epoch, last_sequence } in producers {
            let mut client = client(topic);
            let batches = client.fetch_batches(topic, partition);
            let is_last = |batch: &&Batch| batch.producer_id == id && batch.marker.is_none();
            let last = batches.iter().rev().find(is_last).expect("a batch of the producer");
            let count = last.record_count.expect("parsed");
            assert_eq!((last.producer_epoch, last.base_sequence + count - 1), (epoch, last_sequence), "{topic}: {id}");
            let values = vec!["again"; usize::try_from(count).expect("a count")];
            let again = Batch::of(&values).from_producer(id, epoch, last.base_sequence);
            assert_eq!(client.produced(topic, partition, &again), last.base_offset, "{topic}: {id} is known");
            let next = Batch::of(&["next"]).from_producer(id, epoch, last_sequence + 1);
            let end = client.latest(topic, partition);
            assert_eq!(client.produced(topic, partition, &next), end, "{topic}: {id} continues");
        }
    }

    /// Starts a new producer with the id of each open transaction. The producer must abort the transaction and commit a
    /// transaction of its own.
    pub fn assert_successors_abort(&self, coordinator: impl Fn(&str) -> Client, client: impl Fn(&str) -> Client) {
        for (topic, id) in self.open_transactions() {
            let mut coordinator = coordinator(id);
            let mut successor = Transactional::begin(&mut coordinator, id, Protocol::New);
            self.assert_aborts(topic, &client);
            successor.write(&mut client(topic), topic, 0, &["successor"]);
            successor.end(&mut coordinator, true);
            wait_until("the successor's record is committed", SOON, || {
                client(topic).committed_texts(topic, 0).last().is_some_and(|text| text == "successor")
            });
        }
    }

    /// Waits until a read_committed reader gets the records that it got before, followed by those after the open
    /// transaction.
    pub fn assert_aborts(&self, topic: &str, client: impl Fn(&str) -> Client) {
        let mut client = client(topic);
        wait_until(&format!("the open transaction of {topic} is aborted"), SOON, || {
            client.stable(topic, 0) == client.latest(topic, 0)
        });
        let offsets = |kind| -> Vec<String> {
            self.lines(kind).iter().filter(|line| line[0] == topic).map(|line| line[2].to_owned()).collect()
        };
        let committed = client.committed_records(topic, 0);
        let found: Vec<String> = committed.iter().map(|record| record.offset.to_string()).collect();
        let before = offsets("committed");
        assert!(found.starts_with(&before) && found.len() > before.len(), "{topic}: {found:?} after {before:?}");
        let open = |fields: &Vec<&str>| fields[0] == topic && fields[4] == "open";
        let open: Vec<String> = self.lines("record").into_iter().filter(open).map(|line| line[2].to_owned()).collect();
        assert_eq!(open.len(), 2, "{topic}: records of the open transaction");
        assert!(!open.iter().any(|offset| found.contains(offset)), "{topic}: {found:?} without {open:?}");
    }

    /// Waits until the timeout aborts every open transaction.
    pub fn assert_timeouts_abort(&self, client: impl Fn(&str) -> Client) {
        let open = self.open_transactions();
        assert!(!open.is_empty(), "a manifest has an open transaction");
        open.iter().for_each(|(topic, _)| self.assert_aborts(topic, &client));
    }

    /// Checks that a new member of each group continues at the committed offset and reads no earlier record.
    pub fn assert_groups_continue(&self, bootstrap: &str) {
        let groups = self.lines("offset");
        assert_eq!(groups.len(), 2, "a group of each protocol");
        for [group, topic, _, offset] in groups.iter().map(|line| [line[0], line[1], line[2], line[3]]) {
            let mut command = Command::new(binary());
            command.args(["consume", "-b", bootstrap, "-t", topic, "-G", group, "--group-protocol", group]);
            let output = command.args(["-c", "1", "--from-beginning", "-f", "%o"]).output().expect("it runs");
            assert_eq!(String::from_utf8_lossy(&output.stdout), offset, "{group} at {topic}");
        }
    }
}
