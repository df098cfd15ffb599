//! Power losses of a single machine. The file system is left as a power loss would leave it ([`Disk`]). Skipped without
//! root.

use fullbore_tests::{Batch, Broker, Disk, Random, another_boot, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::describe_log_dirs::DescribeLogDirsRequest;
use std::fs::{self, File};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TOPIC: &str = "cut";
/// The size of a record. A batch covers several pages.
const RECORD: usize = 40_000;
const PAGE: u64 = 4096;
const SOON: Duration = Duration::from_secs(20);

/// Makes the system write back a range of a file, as it may do at any time.
fn write_back(path: &Path, from: u64, len: Option<NonZeroU64>) {
    let file = File::options().write(true).open(path).expect("ours");
    rustix::fs::fadvise(&file, from, len, rustix::fs::Advice::DontNeed).expect("a file");
}

/// A partition with flushed and unflushed batches. The power of its disk has not failed yet.
struct Running {
    disk: Disk,
    broker: Broker,
    id: i64,
    flushed: i32,
    sent: i32,
}

impl Running {
    fn start(flushed: i32, sent: i32, configs: &[(&str, &str)]) -> Option<Running> {
        let disk = Disk::make()?;
        let mut broker = Broker::start_in(&disk.data(), &[]);
        let mut client = broker.client();
        client.create_topic(TOPIC, 1, configs);
        let id = client.init_producer_id();
        (0..flushed).for_each(|n| assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, n, RECORD)), i64::from(n)));
        broker.stop();
        broker.restart();
        let mut client = broker.client();
        (flushed..sent)
            .for_each(|n| assert_eq!(client.produced(TOPIC, 0, &Batch::numbered(id, n, RECORD)), i64::from(n)));
        broker.kill();
        Some(Running { disk, broker, id, flushed, sent })
    }

    fn segments(&self) -> Vec<PathBuf> {
        self.broker.partition_files(TOPIC, 0, "log")
    }

    /// Checks the partition after a power loss and a restart. It must have all flushed batches, perhaps followed by
    /// more without a gap, and its producer must be able to continue. Returns the number of batches.
    fn check(&self, broker: &Broker) -> i32 {
        let mut client = broker.client();
        let end = client.list_offset(TOPIC, 0, -1);
        assert_eq!(end.error_code, ErrorCode::NONE);
        let kept = i32::try_from(end.offset).expect("few");
        assert!((self.flushed..=self.sent).contains(&kept), "{kept} of {} to {}", self.flushed, self.sent);
        let found = client.fetch_records(TOPIC, 0);
        assert_eq!(found.len(), kept as usize);
        for (n, record) in (0..).zip(&found) {
            assert!(
                record.offset == i64::from(n) && record.value == Batch::numbered(self.id, n, RECORD).records[0].value,
                "record {n}"
            );
        }
        if kept > 0 {
            let last = Batch::numbered(self.id, kept - 1, RECORD);
            assert_eq!(client.produced(TOPIC, 0, &last), i64::from(kept) - 1, "the last one is known");
        }
        assert_eq!(
            client.produced(TOPIC, 0, &Batch::numbered(self.id, kept, RECORD)),
            i64::from(kept),
            "the next one follows"
        );
        kept
    }
}

#[test]
fn hole_in_a_log_is_cut_off_after_a_power_loss_and_refused_in_the_same_boot() {
    let Some(running) = Running::start(5, 25, &[]) else { return };
    let path = running.segments().remove(0);
    let whole = fs::read(&path).expect("ours");
    let half = whole.len() as u64 / 2 / PAGE * PAGE;
    let size_of_copy = |disk: &Disk| fs::metadata(in_copy(&running.disk, disk, &path)).map_or(0, |file| file.len());
    let mut copy = None;
    wait_until("the second half alone is on the disk", SOON, || {
        write_back(&path, half, None);
        running.disk.commit();
        let cut = running.disk.cut_power();
        let is_long = size_of_copy(&cut) == whole.len() as u64;
        copy = is_long.then_some(cut);
        is_long
    });
    let copy = copy.expect("waited for it");
    let cut_path = in_copy(&running.disk, &copy, &path);
    let damaged = fs::read(&cut_path).expect("ours");
    assert!(damaged != whole && damaged[half as usize..] == whole[half as usize..], "no hole in front of the half");

    let mut broker = Broker::start_in(&copy.data(), &[]);
    assert_eq!(broker.client().list_offset(TOPIC, 0, -1).error_code, ErrorCode::KAFKA_STORAGE_ERROR);
    broker.wait_for_stderr(&cut_path.display().to_string());
    broker.kill();
    assert!(fs::read(&cut_path).expect("ours") == damaged, "nothing is changed");

    another_boot(broker.data_dir());
    broker.restart();
    assert_eq!(running.check(&broker), running.flushed);
    let aside = cut_path.with_file_name(format!("{:020}.log.aside-1", running.flushed));
    for expected in [cut_path.display().to_string(), aside.display().to_string(), "5..25".to_owned()] {
        broker.wait_for_stderr(&expected);
    }
    let directory = broker.client().call(&DescribeLogDirsRequest::default(), 5).results.remove(0);
    let reported =
        directory.topics.iter().flat_map(|topic| &topic.partitions).map(|partition| partition.set_aside_bytes);
    assert_eq!(
        reported.sum::<i64>(),
        fs::metadata(&aside).expect("there").len() as i64,
        "it is told without another start"
    );
    let kept_len = whole.len() / running.sent as usize * running.flushed as usize;
    assert!(fs::read(aside).expect("there") == damaged[kept_len..], "the bytes from the cut on");
}

/// Returns the path in `copy` of a file that is on `disk`.
fn in_copy(disk: &Disk, copy: &Disk, path: &Path) -> PathBuf {
    copy.path().join(path.strip_prefix(disk.path()).expect("on this disk"))
}

/// A segment has a few batches. The system may have written back any of its pages before the power loss.
#[test]
fn partition_continues_after_a_power_loss_with_any_pages_written() {
    let first = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64;
    for seed in (0..super::rounds().div_ceil(10)).map(|n| first.wrapping_add(n)) {
        eprintln!("seed {seed}");
        let mut random = Random::new(seed);
        let flushed = random.below(10) as i32;
        let sent = flushed + random.between(1, 25);
        let Some(running) = Running::start(flushed, sent, &[("segment.bytes", "1048576")]) else { return };
        let segments = running.segments();
        let whole = random.below(segments.len() + 1);
        for (at, path) in segments.iter().enumerate() {
            if at < whole {
                write_back(path, 0, None);
                continue;
            }
            let pages = fs::metadata(path).expect("ours").len() as usize / PAGE as usize + 1;
            for piece in 0..random.below(4) {
                // In the first segment that is not written back completely, the first piece begins at the segment's
                // start. Otherwise this start would nearly always be missing, and recovery would truncate the log
                // there.
                let from = if at == whole && piece == 0 { 0 } else { random.below(pages) };
                let count = random.between(1, pages + 1) as u64;
                write_back(path, from as u64 * PAGE, NonZeroU64::new(count * PAGE));
            }
        }
        running.disk.commit();
        let copy = running.disk.cut_power();
        let mut broker = Broker::start_in(&copy.data(), &[]);
        broker.kill();
        another_boot(broker.data_dir());
        broker.restart();
        let kept = running.check(&broker);
        let aside = fs::read_dir(broker.partition_dir(TOPIC, 0))
            .expect("there")
            .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().contains(".aside-")));
        eprintln!("{flushed} flushed, {sent} sent, {kept} kept, {} files aside", aside.count());
    }
}
