//! Tests of several brokers that share a database. Each broker has its own data directory.

use std::time::Duration;

use fullbore_tests::{Proxy, wait_until};

use super::postgres::store_of;
use super::*;
use crate::identity::{ClusterDirectory, FILE};
use fullbore_host::start_retries::{StartRetries, StartStop};
use fullbore_tests::postgres::Database;

const HANGS: Duration = Duration::from_secs(120);

fn of_cluster(directory: &Path, id: i32, url: &str, more: &str) -> Result<Opened, OpenError> {
    try_open(directory, &format!("node.id={id}\ncontrol.plane={url}\n{more}"))
}

fn refused(directory: &Path, id: i32, url: &str) -> String {
    let reported = of_cluster(directory, id, url, "").err().expect("refused").to_string();
    assert!(!reported.contains('\n'), "{reported}");
    reported
}

/// Starts brokers with the ids 1 to `count`.
fn cluster(database: &Database, count: i32) -> Vec<(tempfile::TempDir, Opened)> {
    let start = |id| {
        let directory = tempfile::tempdir().expect("tempdir");
        let opened = of_cluster(directory.path(), id, &database.url(), "").expect("opens");
        (directory, opened)
    };
    (1..=count).map(start).collect()
}

fn knows(control: &Control, topic: &str) -> bool {
    control.image().topic(topic).is_some()
}

/// The first broker has its own limit. The second broker does not have this limit, and creates a topic that contradicts
/// it. The first broker must still apply that commit and all later ones.
#[tokio::test]
async fn broker_follows_commits_despite_a_topic_that_contradicts_its_settings() {
    let database = Database::create();
    let brokers = cluster(&database, 2);
    let (first, second) = (&brokers[0].1.control, &brokers[1].1.control);
    let most = "log.cleaner.max.compaction.lag.ms";
    alter_broker(first, BrokerScope::This, most, set("1000")).await.expect("it has none of its own");
    let lag = |name: &str| CreateTopic {
        configs: vec![("min.compaction.lag.ms".into(), Some("5000".into()))],
        ..wanted(name)
    };
    create(second, vec![lag("t")]).await.remove(0).expect("the other one's setting is not known here");
    create(second, vec![wanted("u")]).await.remove(0).expect("created");
    wait_until("it goes on", HANGS, || knows(first, "u"));
    let of = |control: &Control| control.image().topic("t").expect("there").config.min_compaction_lag_ms;
    assert_eq!((of(first), of(second)), (1000, 5000));
    let refused = create(first, vec![lag("v")]).await.remove(0).expect_err("it knows its own");
    assert_eq!(refused.code, ErrorCode::INVALID_CONFIG);
    create(first, vec![wanted("w")]).await.remove(0).expect("it decides on other things");
    alter(second, "t", "min.compaction.lag.ms", set("10")).await.expect("put right");
    wait_until("it has what was set", HANGS, || of(first) == 10);
}

#[tokio::test]
async fn change_of_one_broker_is_shown_by_all_brokers() {
    let database = Database::create();
    let brokers = cluster(&database, 3);
    let controls: Vec<&Control> = brokers.iter().map(|(_, opened)| &opened.control).collect();
    assert!(controls.iter().all(|control| control.cluster_id() == controls[0].cluster_id()));
    for (at, control) in controls.iter().enumerate() {
        let name = format!("t{at}");
        create(control, vec![wanted(&name)]).await.remove(0).expect("created");
        for other in &controls {
            wait_until("all show it", HANGS, || knows(other, &name));
        }
    }
    let ids: BTreeSet<i64> = {
        let mut ids = BTreeSet::new();
        for control in &controls {
            ids.insert(control.init_producer_id().await.expect("an id"));
        }
        ids
    };
    assert_eq!(ids.len(), 3);
    let everybody = controls[0].image().nodes().iter().map(|(id, node)| (*id, node.process)).collect::<BTreeSet<_>>();
    for control in &controls {
        let heartbeats = control.heartbeats().expect("a cluster");
        let receives = |heartbeat_answer: &HeartbeatAnswer| {
            let version = control.image().epoch();
            let shown = heartbeat_answer.peers.iter().all(|peer| peer.version == version && peer.age_ms < 10_000);
            shown
                && heartbeat_answer.peers.iter().map(|peer| (peer.id, peer.process)).collect::<BTreeSet<_>>()
                    == everybody
        };
        wait_until("it hears all of them", HANGS, || receives(&heartbeats.borrow()));
    }
    let images: Vec<String> =
        controls.iter().map(|control| format!("{:?}", control.image().topics().collect::<Vec<_>>())).collect();
    assert!(images.iter().all(|image| *image == images[0]));
}

#[tokio::test]
async fn directory_belongs_to_one_broker_of_one_cluster() {
    let (database, another) = (Database::create(), Database::create());
    let mut brokers = cluster(&database, 2);
    drop(cluster(&another, 1));
    let (first, opened) = brokers.remove(0);
    let epoch = opened.control.broker_epoch();
    let live = tempfile::tempdir().expect("tempdir");
    let lives = "A broker with node.id=1 is running with another data directory, or with a newer state of this one.";
    assert_eq!(refused(live.path(), 1, &database.url()), lives);
    assert!(!live.path().join(FILE).exists(), "it may be another broker's yet");
    drop(opened);
    let file = first.path().join(FILE);
    let reported = refused(first.path(), 3, &database.url());
    assert_eq!(reported, format!("{} belongs to node.id=1, but node.id=3 is set", file.display()));
    let reported = refused(first.path(), 1, &another.url());
    assert!(
        reported.starts_with(&format!("{} belongs to cluster ", file.display())) && reported.contains(another.name()),
        "{reported}"
    );
    let reported = refusal(first.path(), "");
    assert!(
        reported.starts_with(&format!("{} marks this directory as that of a broker in a cluster", file.display())),
        "{reported}"
    );
    let alone = tempfile::tempdir().expect("tempdir");
    drop(open(alone.path()));
    assert!(
        refused(alone.path(), 4, &database.url())
            .contains("control.db marks this directory as that of a standalone broker")
    );
    std::fs::write(alone.path().join("x"), "").expect("written");
    let again = of_cluster(first.path(), 1, &database.url(), "").expect("opens");
    assert!(again.control.broker_epoch() > epoch);
    drop(again);
    std::fs::write(&file, "cluster.id=x\n").expect("written");
    assert!(
        refused(first.path(), 1, &database.url())
            .starts_with(&format!("{} cannot be used: it is damaged", file.display()))
    );
}

#[tokio::test]
async fn silent_broker_is_replaced_from_another_directory_without_a_running_broker() {
    let database = Database::create();
    let directories = [tempfile::tempdir(), tempfile::tempdir()].map(|directory| directory.expect("tempdir"));
    let setting = "broker.session.timeout.ms=1000\n";
    let opened = of_cluster(directories[0].path(), 1, &database.url(), setting).expect("opens");
    let (epoch, process) = (opened.control.broker_epoch(), opened.control.process());
    let heartbeats = opened.control.heartbeats().expect("a cluster");
    wait_until("it beats", HANGS, || heartbeats.borrow().peers.iter().any(|peer| peer.process == process));
    // A drop of the control plane ends the broker without a controlled shutdown, like a kill.
    drop(opened);
    let opened = of_cluster(directories[1].path(), 1, &database.url(), setting).expect("opens");
    assert!(opened.control.broker_epoch() > epoch);
    assert!(directories[1].path().join(FILE).exists());
}

/// Opens the control plane of a broker with a new directory in another thread, which returns the broker's epoch.
fn start_in_thread(text: String, retries: StartRetries) -> JoinHandle<Result<i64, String>> {
    std::thread::spawn(move || {
        let directory = tempfile::tempdir().expect("tempdir");
        let lock = DirectoryLock::take(directory.path()).expect("a new directory");
        let space = Arc::new(DiskSpace::open(lock.directory(), 0));
        let arrival = RegistrationInfo { retries, ..RegistrationInfo::nowhere() };
        let opened = Control::open(broker(&text), &lock, space, arrival);
        opened.map(|(control, _)| control.broker_epoch()).map_err(|error| error.to_string())
    })
}

/// Regression: a start that watched the heartbeats of a former process did not end at SIGTERM.
#[tokio::test]
async fn stop_of_a_start_ends_the_takeover_of_a_silent_broker() {
    let database = Database::create();
    drop(cluster(&database, 1));
    let stop = StartStop::default();
    // The start would watch the heartbeats for this session of ten hours.
    let text = format!("node.id=1\ncontrol.plane={}\nbroker.session.timeout.ms=36000000", database.url());
    let starting = start_in_thread(text, StartRetries::new(HANGS, stop.clone()));
    let watching = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'fullbore 1'
        AND query LIKE 'SELECT number FROM fullbore.beats%'";
    wait_until("the start watches the heartbeats", HANGS, || database.run(watching) == "1");
    stop.request();
    wait_until("the start ends", HANGS, || starting.is_finished());
    let reported = starting.join().expect("no panic").expect_err("it was stopped");
    assert_eq!(reported, "the start of broker 1 was stopped before the broker was registered");
}

/// Another broker holds the metadata lock for longer than a call may take. The start must wait for a later attempt.
#[tokio::test]
async fn start_after_a_lock_timeout_registers_once_the_lock_is_free() {
    let database = Database::create();
    drop(cluster(&database, 1));
    let mut holder = database.server().session(database.name());
    holder.query("BEGIN; SELECT version FROM fullbore.cluster FOR UPDATE");
    let text = format!("node.id=7\ncontrol.plane={}\ncontrol.plane.timeout.ms=1000", database.url());
    let starting = start_in_thread(text, StartRetries::new(HANGS, StartStop::default()));
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'fullbore 7' AND wait_event_type = 'Lock'";
    wait_until("the start waits for the lock", HANGS, || database.run(waiting) == "1");
    wait_until("its call times out", HANGS, || database.run(waiting) == "0");
    holder.query("ROLLBACK");
    let epoch = starting.join().expect("no panic").expect("registered");
    assert!(epoch > 1, "{epoch}");
}

#[tokio::test]
async fn database_restored_from_an_older_copy_is_not_used() {
    let database = Database::create();
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = of_cluster(directory.path(), 1, &database.url(), "").expect("opens");
    create(&opened.control, vec![wanted("t")]).await.remove(0).expect("created");
    let seen = opened.control.image().version().expect("there");
    drop(opened);
    assert_eq!(ClusterDirectory::read(directory.path()).expect("readable").expect("there").seen, Some(seen));
    // Now the database looks like a restored copy with as many versions as before, but with another nonce.
    let other_nonce =
        "UPDATE fullbore.versions SET mark = mark # 1 WHERE version = (SELECT max(version) FROM fullbore.versions)";
    database.run(other_nonce);
    let reported = refused(directory.path(), 1, &database.url());
    assert!(
        reported.contains(&format!(
            "the database does not know version {}: it was set back to an older state, or it is another database; restore",
            seen.number
        )),
        "{reported}"
    );
    assert!(reported.starts_with("postgres://127.0.0.1:"), "{reported}");
    database.run(other_nonce);
    let opened = of_cluster(directory.path(), 1, &database.url(), "").expect("opens");
    database.run(other_nonce);
    let refused = create(&opened.control, vec![wanted("u")]).await;
    assert_eq!(codes(&refused), [Some(ErrorCode::REQUEST_TIMED_OUT)]);
    assert!(knows(&opened.control, "t") && opened.control.init_producer_id().await.is_ok(), "as without a database");
}

/// The failure detector must not consider other brokers failed because of heartbeats in an older copy.
#[tokio::test]
async fn database_lacks_changes_to_diskless_topics_its_heartbeats_do_not_count() {
    let database = Database::create();
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = of_cluster(directory.path(), 1, &database.url(), "").expect("opens");
    let heartbeats = opened.control.heartbeats().expect("a cluster");
    let process = opened.control.process();
    let last = || heartbeats.borrow().peers.iter().find(|peer| peer.process == process).map_or(0, |peer| peer.number);
    let sent = || database.run("SELECT number FROM fullbore.beats").parse::<u64>().expect("a number");
    let goes_on = |what: &str, number: &dyn Fn() -> u64| {
        let before = number();
        wait_until(what, HANGS, || number() > before + 2);
    };
    database.run("INSERT INTO fullbore.diskless_brokers VALUES (2, 5)");
    goes_on("the broker reads the number", &last);
    database.run("UPDATE fullbore.diskless_brokers SET counter = 4");
    goes_on("no heartbeat is under way that began before", &sent);
    let before = last();
    goes_on("the broker sends heartbeats to the copy", &sent);
    assert_eq!(last(), before);
    let refused = create(&opened.control, vec![wanted("t")]).await;
    assert_eq!(codes(&refused), [Some(ErrorCode::REQUEST_TIMED_OUT)]);
    database.run("UPDATE fullbore.diskless_brokers SET counter = 5");
    goes_on("its heartbeats count again", &last);
    create(&opened.control, vec![wanted("t")]).await.remove(0).expect("created");
}

#[tokio::test]
async fn commands_are_refused_in_time_while_the_database_is_silent() {
    let database = Database::create();
    let relay = Proxy::start();
    relay.lead_to(database.server().address());
    let url = format!("postgres://postgres@{}/{}", relay.address, database.name());
    let directory = tempfile::tempdir().expect("tempdir");
    let opened = of_cluster(directory.path(), 1, &url, "control.plane.timeout.ms=3000").expect("opens");
    relay.stall(Duration::from_secs(3600));
    let started = Instant::now();
    let commands: Vec<_> = (0..2_000)
        .map(|number| {
            let control = opened.control.clone();
            tokio::spawn(async move { codes(&create(&control, vec![wanted(&format!("t{number}"))]).await) })
        })
        .collect();
    for command in commands {
        assert_eq!(command.await.expect("no panic"), [Some(ErrorCode::REQUEST_TIMED_OUT)]);
    }
    // The broker waits for only one unanswered request and one failed connection attempt. If it waited for each
    // command, the commands would last 6,000 s.
    assert!(started.elapsed() < HANGS, "{:?}", started.elapsed());
    assert!(opened.control.init_producer_id().await.is_ok(), "from the block at hand");
    relay.cut();
}

/// Measures the time until another broker shows a change: `cargo test --workspace --lib -- --ignored --nocapture
/// until_others`.
#[tokio::test]
#[ignore = "a measurement"]
async fn until_others_show_a_change() {
    let database = Database::create();
    let brokers = cluster(&database, 3);
    let mut images: Vec<_> = brokers[1..].iter().map(|(_, opened)| opened.control.watch()).collect();
    let (mut committed, mut shown) = (Vec::new(), Vec::new());
    for number in 0..1_000 {
        let name = format!("t{number}");
        let started = Instant::now();
        create(&brokers[0].1.control, vec![wanted(&name)]).await.remove(0).expect("created");
        let answered = Instant::now();
        committed.push(answered - started);
        for images in &mut images {
            images.wait_for(|image| image.topic(&name).is_some()).await.expect("open");
            shown.push(answered.elapsed());
        }
    }
    for (what, times) in [("answered", &mut committed), ("shown by another, from then on", &mut shown)] {
        times.sort();
        let at = |share: usize| times[times.len() * share / 1000];
        println!("{what}: p50 {:?}, p99 {:?}, p99.9 {:?}", at(500), at(990), at(999));
    }
}

/// Measures a transaction that changes 3,000 registrations: first those of consecutive partitions, then those of
/// scattered ones.
#[test]
#[ignore = "a measurement"]
fn many_partitions_change() {
    use super::super::change::Change;
    use fullbore_rules::replica::PartitionRegistration;
    let database = Database::create();
    let (mut owner, images) = registered(store_of(&database), Box::new(random_id));
    let wanted = CreateTopic { num_partitions: 3_000, ..wanted("t") };
    let create = TopicsCommand::Create(CreateTopics { topics: vec![wanted], validate_only: false });
    owner.transact(|draft| draft.topics(&create)).expect("done");
    let topic = images.borrow().topic("t").expect("there").id;
    let (mut late, late_images) = registered(store_of(&database), Box::new(random_id));
    owner.catch_up();
    for (round, stretch) in [3_000, 1, 2, 10].into_iter().enumerate() {
        let of = |number: usize| {
            let (leader, isr) = (Some((number % 3) as i32), vec![1, 2, round as i32]);
            Arc::new(PartitionRegistration { replicas: vec![0, 1, 2], isr, leader, ..Default::default() })
        };
        // Leave one partition unchanged between two stretches.
        let changes: Vec<Change> = (0..3_000)
            .step_by(stretch + 1)
            .map(|first| Change::PartitionsChanged {
                topic,
                first,
                partitions: (first..(first + stretch).min(3_000)).map(of).collect(),
            })
            .collect();
        let (count, newest) = (changes.len(), images.borrow().version());
        let started = Instant::now();
        let (transaction, _) = owner.store.begin(newest).expect("begun");
        let version = super::super::change::Version { number: images.borrow().epoch() + 1, nonce: 1 };
        use super::super::store::Transaction;
        transaction.commit(&changes, version).expect("committed");
        let committed = started.elapsed();
        late.catch_up();
        println!(
            "{count} stretches of {stretch}: committed in {committed:?}, {:?} until another shows it",
            started.elapsed()
        );
        owner.catch_up();
        assert_eq!(late_images.borrow().epoch(), images.borrow().epoch());
    }
}

/// Runs three idle brokers for a while, and measures how much work they cause in PostgreSQL.
#[tokio::test]
#[ignore = "a measurement"]
async fn three_brokers_idle() {
    let database = Database::create();
    let brokers = cluster(&database, 3);
    let ticks = || -> u64 {
        let pids = database.run("SELECT pid FROM pg_stat_activity");
        let of = |pid: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields: Vec<u64> = stat.split(' ').filter_map(|field| field.parse().ok()).collect();
            fields.get(11).copied().unwrap_or(0) + fields.get(12).copied().unwrap_or(0)
        };
        pids.lines().map(of).sum()
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(30));
    println!("{} ticks of 10 ms in 30 s", ticks() - before);
    drop(brokers);
}
