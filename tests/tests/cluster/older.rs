//! All brokers stop. Then one of them starts with an older copy of its data directory, or with an empty one. The copy
//! may have been made while the broker ran, and the broker may have continued to run after that.

use crate::checked::checked;
use crate::frozen::SESSION;
use fullbore_tests::{Batch, Broker, Client, Cluster, serve_refused, wait_until};
use fullbore_wire::ErrorCode;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const TOPIC: &str = "older";
/// How many records are written before the copy is made, and how many after it.
const HALF: usize = 100;

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(copied.success(), "{} is copied", from.display());
}

/// Replaces the directory by a copy, or by an empty directory if `copied` is `None`.
fn put_back(copied: Option<&Path>, directory: &Path) {
    fs::remove_dir_all(directory).expect("ours");
    match copied {
        Some(copied) => copy(copied, directory),
        None => fs::create_dir(directory).expect("made"),
    }
}

/// Writes each record until a leader acknowledges it. The leader may change during this time, because a broker was
/// frozen.
fn write_half(cluster: &mut Cluster) {
    let id = cluster.broker(2).client().init_producer_id();
    for sequence in (0..).take(HALF) {
        let batch = Batch::of(&["v"]).from_producer(id, 0, sequence);
        wait_until("it is written", Duration::from_secs(60), || {
            let leader = cluster.wait_for_leader(2, TOPIC, 0, -1);
            Client::connect(cluster.address(leader)).produce(TOPIC, 0, &batch).error_code == ErrorCode::NONE
        });
    }
}

/// Starts three brokers and writes the first half of the records. All replicas have them.
fn half_full() -> Cluster {
    let mut cluster = Cluster::start(3, &[SESSION]);
    cluster.create(TOPIC, 1, 3, &[]);
    cluster.wait_for_isr(2, TOPIC, 3);
    write_half(&mut cluster);
    cluster
}

/// Starts three brokers and writes the first half of the records. Then stops, copies and restarts the first broker, and
/// writes the second half.
fn copied(copied: &Path) -> Cluster {
    let mut cluster = half_full();
    cluster.broker(1).stop();
    copy(cluster.broker(1).data_dir(), copied);
    cluster.broker(1).restart();
    cluster.wait_for_isr(2, TOPIC, 3);
    write_half(&mut cluster);
    cluster
}

/// Starts three brokers and writes the first half of the records. Then copies the directory of the first broker while
/// it runs, and writes the second half.
fn copied_while_it_runs(copied: &Path) -> Cluster {
    let mut cluster = half_full();
    cluster.broker(1).freeze();
    copy(cluster.broker(1).data_dir(), copied);
    let heartbeats =
        "SELECT number FROM fullbore.beats JOIN fullbore.brokers USING (broker_id, process) WHERE broker_id = 1";
    let sent = |cluster: &Cluster| -> u64 { cluster.query(heartbeats).parse().expect("a number") };
    let before = sent(&cluster);
    cluster.broker(1).thaw();
    cluster.wait_for_isr(2, TOPIC, 3);
    write_half(&mut cluster);
    // A copy of a running broker is recognised only by heartbeats that were sent later. One may have been in flight
    // when the copy was made, so the test waits for several.
    wait_until("it has beaten since", Duration::from_secs(60), || sent(&cluster) > before + 2);
    cluster
}

/// Starts the first broker and then the others. Checks that no record is lost.
fn nothing_is_missing(cluster: &mut Cluster) {
    for id in 1..=3 {
        cluster.broker(id).restart();
    }
    all_records_are_there(cluster);
}

fn all_records_are_there(cluster: &mut Cluster) {
    cluster.wait_for_isr(2, TOPIC, 3);
    let leader = cluster.wait_for_leader(2, TOPIC, 0, -1);
    let records = Client::connect(cluster.address(leader)).fetch_records(TOPIC, 0);
    assert_eq!(records.len(), 2 * HALF, "{leader} leads");
}

fn all_stop(cluster: &mut Cluster, first_is_last: bool) {
    match first_is_last {
        true => [3, 2, 1].iter().for_each(|id| cluster.broker(*id).stop()),
        false => (1..=3).for_each(|id| cluster.broker(id).kill()),
    }
}

/// Broker 1, the last member of the ISR, gets the older copy. `fullbore admin check` must recognise the copy, both
/// before and after the broker is considered failed. The broker must recognise it when it starts, and no record may be
/// lost.
fn older_directory_of_the_last_in_sync(copied: fn(&Path) -> Cluster) {
    let place = tempfile::tempdir().expect("a directory");
    let copied_to = place.path().join("copied");
    let mut cluster = copied(&copied_to);
    let directory = cluster.broker(1).data_dir().to_owned();
    let (is_well, reported) = checked(&cluster, &[], &copied_to);
    assert!(!is_well && reported.contains("it is an older copy: the broker with node.id=1 is running"), "{reported}");
    let (is_well, reported) = checked(&cluster, &[], &directory);
    assert!(is_well, "it runs: {reported}");
    all_stop(&mut cluster, true);
    let (is_well, reported) = checked(&cluster, &[], &directory);
    assert!(is_well, "{reported}");
    put_back(Some(&copied_to), &directory);
    wait_until("the check names the older copy, and has the broker for dead", Duration::from_secs(60), || {
        let (is_well, reported) = checked(&cluster, &[], &directory);
        assert!(!is_well && reported.contains("it is an older copy: the broker with node.id=1 "), "{reported}");
        reported.contains("has since used a newer state of this directory")
    });
    nothing_is_missing(&mut cluster);
    cluster.broker(1).wait_for_stderr("this data directory is an older copy");
    let (is_well, reported) = checked(&cluster, &[], &directory);
    assert!(is_well, "it is the newest by now: {reported}");
}

fn older_directory_after_all_were_killed(copied: fn(&Path) -> Cluster) {
    let place = tempfile::tempdir().expect("a directory");
    let copied_to = place.path().join("copied");
    let mut cluster = copied(&copied_to);
    all_stop(&mut cluster, false);
    let directory = cluster.broker(1).data_dir().to_owned();
    put_back(Some(&copied_to), &directory);
    nothing_is_missing(&mut cluster);
}

/// The other brokers are killed first. Their sessions expire, and broker 1 leads alone.
#[test]
fn copy_of_a_running_broker_that_is_killed_last_loses_no_record() {
    let place = tempfile::tempdir().expect("a directory");
    let copied_to = place.path().join("copied");
    let mut cluster = copied_while_it_runs(&copied_to);
    [3, 2].iter().for_each(|id| cluster.broker(*id).kill());
    cluster.wait_for_isr(1, TOPIC, 1);
    cluster.broker(1).kill();
    let directory = cluster.broker(1).data_dir().to_owned();
    put_back(Some(&copied_to), &directory);
    nothing_is_missing(&mut cluster);
}

#[test]
fn older_directory_of_the_last_in_sync_broker_loses_no_record_and_is_named() {
    older_directory_of_the_last_in_sync(copied);
}

#[test]
fn copy_of_a_running_broker_that_stops_last_loses_no_record_and_is_named() {
    older_directory_of_the_last_in_sync(copied_while_it_runs);
}

#[test]
fn older_directory_after_a_kill_of_all_brokers_loses_no_record() {
    older_directory_after_all_were_killed(copied);
}

#[test]
fn copy_of_a_running_broker_after_a_kill_of_all_brokers_loses_no_record() {
    older_directory_after_all_were_killed(copied_while_it_runs);
}

#[test]
fn empty_directory_of_the_last_in_sync_broker_loses_no_record() {
    let place = tempfile::tempdir().expect("a directory");
    let mut cluster = copied(&place.path().join("copied"));
    all_stop(&mut cluster, true);
    let directory = cluster.broker(1).data_dir().to_owned();
    put_back(None, &directory);
    let sets = cluster.sets_of(1).to_vec();
    let mut sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let refused = serve_refused(&directory, &sets);
    assert!(
        refused.stderr.contains("only complete replica of 1 partitions, for example older-0"),
        "{}",
        refused.stderr
    );
    assert!(!refused.status.success());
    sets.push("fullbore.lost.directory.accept=true");
    cluster.broker(1).restart_with(&sets);
    [2, 3].iter().for_each(|id| cluster.broker(*id).restart());
    all_records_are_there(&mut cluster);
}

/// The test covers two unusual contents of the directory's file `cluster`. In one, the broker noted its new process,
/// and was killed before the database had registered it. The other is from an earlier release, which noted no
/// processes.
#[test]
fn directory_of_the_registered_process_or_of_none_keeps_its_leader_epoch() {
    let mut cluster = Cluster::start(1, &[]);
    cluster.create(TOPIC, 1, 1, &[]);
    let file = cluster.broker(1).data_dir().join("cluster");
    cluster.broker(1).client().produced(TOPIC, 0, &Batch::of(&["v"]));
    let epoch = cluster.partitions(1, TOPIC)[0].leader_epoch;
    let change = |line: fn(&str, &str) -> Option<String>| {
        let content = fs::read_to_string(&file).expect("there");
        let joining = content.lines().find_map(|line| line.strip_prefix("joining=")).expect("it says so");
        let lines: Vec<String> = content.lines().filter_map(|of| line(of, joining)).collect();
        fs::write(&file, lines.join("\n") + "\n").expect("written");
    };
    let unanswered = |line: &str, joining: &str| match line.split_once('=') {
        Some(("process", _)) => Some(format!("process={joining}")),
        Some(("joining", _)) => Some("joining=AAAAAAAAAAAAAAAAAAAAAA".to_owned()),
        _ => Some(line.to_owned()),
    };
    let earlier = |line: &str, _: &str| {
        let is_new = ["process=", "joining="].iter().any(|key| line.starts_with(key));
        (!is_new).then(|| line.to_owned())
    };
    for left in [unanswered, earlier] {
        cluster.broker(1).kill();
        change(left);
        cluster.broker(1).restart();
        assert!(!cluster.broker(1).stderr().contains("older copy"));
        assert_eq!(cluster.partitions(1, TOPIC)[0].leader_epoch, epoch, "its log is the one that led");
    }
    let content = fs::read_to_string(&file).expect("there");
    assert!(content.contains("\nprocess=") && content.contains("\njoining="), "{content}");
}

#[test]
fn older_directory_of_a_lone_broker_is_used_with_its_database() {
    let place = tempfile::tempdir().expect("a directory");
    let copied_to = place.path().join("copied");
    let mut broker = Broker::start(&[]);
    broker.client().create_topic(TOPIC, 1, &[]);
    broker.client().produced(TOPIC, 0, &Batch::of(&["v"]));
    broker.stop();
    copy(broker.data_dir(), &copied_to);
    broker.restart();
    broker.client().produced(TOPIC, 0, &Batch::of(&["v"]));
    broker.stop();
    let directory = broker.data_dir().to_owned();
    put_back(Some(&copied_to), &directory);
    broker.restart();
    assert_eq!(broker.client().fetch_records(TOPIC, 0).len(), 1);
    assert_eq!(broker.client().produced(TOPIC, 0, &Batch::of(&["v"])), 1);
}

/// The only other replica never returns. After an unclean election the partition continues, without the records that
/// only that replica had.
#[test]
fn replica_lacks_committed_records_and_the_other_is_gone_it_leads_after_an_unclean_election() {
    let mut cluster = Cluster::start(3, &[SESSION]);
    cluster.create(TOPIC, 1, 2, &["min.insync.replicas=2"]);
    let (short, gone) = match *cluster.partitions(1, TOPIC)[0].replica_nodes {
        [short, gone] => (short, gone),
        ref replicas => panic!("{replicas:?}"),
    };
    let other = 6 - short - gone;
    cluster.wait_for_isr(other, TOPIC, 2);
    write_half(&mut cluster);
    let place = tempfile::tempdir().expect("a directory");
    let (log, copied) = (cluster.broker(short).data_dir().join(format!("{TOPIC}-0")), place.path().join("copied"));
    cluster.broker(short).freeze();
    copy(&log, &copied);
    cluster.broker(short).thaw();
    cluster.wait_for_isr(other, TOPIC, 2);
    write_half(&mut cluster);
    let checkpoint = cluster.broker(short).data_dir().join("replication-offset-checkpoint");
    let line = format!("{TOPIC} 0 {}", 2 * HALF);
    wait_until("the high watermark is on the disk", Duration::from_secs(60), || {
        fs::read_to_string(&checkpoint).is_ok_and(|text| text.lines().any(|found| found == line))
    });
    [short, gone].iter().for_each(|id| cluster.broker(*id).kill());
    let leader = |cluster: &Cluster| cluster.partitions(other, TOPIC)[0].leader_id;
    wait_until("no broker leads", Duration::from_secs(60), || leader(&cluster) == -1);
    put_back(Some(&copied), &log);
    cluster.broker(short).restart();
    wait_until("the log is refused", Duration::from_secs(60), || {
        cluster
            .broker(short)
            .stderr()
            .contains("the log ends at offset 100, but all records below offset 200 were committed")
    });
    wait_until("it resigns", Duration::from_secs(60), || leader(&cluster) == -1);
    cluster.run(&["topics", "elect-leaders", "--election-type", "unclean", "--topic", TOPIC, "--partition", "0"]);
    wait_until("it leads", Duration::from_secs(60), || leader(&cluster) == short);
    wait_until("its log is open", Duration::from_secs(60), || {
        cluster.run(&["topics", "offsets", "--topic", TOPIC]).contains(&format!("{TOPIC}:0:{HALF}"))
    });
    assert_eq!(cluster.broker(short).client().fetch_records(TOPIC, 0).len(), HALF);
}
