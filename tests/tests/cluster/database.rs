//! A database that is down, hangs, is slow, or is replaced by an older copy, while clients produce and consume.

use crate::faults::{ALL, TOPIC, under_fault, with_topic};
use crate::frozen::{SESSION, SESSION_MAX, epochs_of, nobody_is_held_for_dead};
use fullbore_tests::{Client, Cluster, ClusterPlan, Link, serve_refused, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use std::time::{Duration, Instant};

/// How long a change of the metadata waits for the database before it fails, with the timeout [`CALL`].
const REFUSED_MAX: Duration = Duration::from_secs(20);
const CALL: &str = "control.plane.timeout.ms=4000";
/// How soon a change must succeed after the database is back.
const BACK_MAX: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(60);

fn create(client: &mut Client, name: &str) -> ErrorCode {
    let topic = CreatableTopic { name: name.into(), num_partitions: 1, replication_factor: 3, ..Default::default() };
    client.call(&CreateTopicsRequest { topics: vec![topic], timeout_ms: 5_000, ..Default::default() }, 7).topics[0]
        .error_code
}

/// Creates the topic. Returns true if the topic exists now. An earlier request may have created it after its timeout.
fn is_created(client: &mut Client, name: &str) -> bool {
    [ErrorCode::NONE, ErrorCode::TOPIC_ALREADY_EXISTS].contains(&create(client, name))
}

fn with_own_postgres(sets: &[&str]) -> Cluster {
    with_topic(ClusterPlan::with_own_postgres(3, sets).start())
}

#[test]
fn stopped_database_does_not_stop_records() {
    under_fault(with_own_postgres(&[]), |cluster, load| {
        cluster.postgres().stop();
        let refused = cluster.refused(&["topics", "create", "--topic", "meanwhile", "--partitions", "1"]);
        assert!(refused.contains("cannot be changed now"), "{refused}");
        load.goes_on();
        cluster.postgres().start_again();
        cluster.create("afterwards", 1, 3, &[]);
    });
}

#[test]
fn hung_database_stops_no_records_and_fails_no_broker_afterwards() {
    under_fault(with_own_postgres(&[SESSION, CALL]), |cluster, load| {
        let epochs = epochs_of(cluster, 1, TOPIC);
        cluster.postgres().freeze();
        let hangs = Instant::now();
        for id in ALL {
            let requested = Instant::now();
            let refused = create(&mut cluster.broker(id).client(), "meanwhile");
            assert!(
                refused == ErrorCode::REQUEST_TIMED_OUT && requested.elapsed() < REFUSED_MAX,
                "{refused:?} {requested:?}"
            );
            load.goes_on_within(SOON);
        }
        wait_until("all sessions are over", SOON, || hangs.elapsed() > 2 * SESSION_MAX);
        load.goes_on_within(SOON);
        cluster.postgres().thaw();
        let mut client = cluster.broker(2).client();
        wait_until("topics can be made again", BACK_MAX, || is_created(&mut client, "afterwards"));
        nobody_is_held_for_dead(cluster, TOPIC, 2 * SESSION_MAX, &epochs);
    });
}

#[test]
fn slow_database_slows_changes_only() {
    let cluster = with_topic(ClusterPlan::new(3, &["broker.session.timeout.ms=6000"]).linked().start());
    under_fault(cluster, |cluster, load| {
        let epochs = epochs_of(cluster, 1, TOPIC);
        ALL.iter().for_each(|id| cluster.links().to_database(*id, Link::Slow(Duration::from_millis(500))));
        for id in ALL {
            assert_eq!(create(&mut cluster.broker(id).client(), &format!("slowly{id}")), ErrorCode::NONE);
            load.goes_on_within(SOON);
        }
        nobody_is_held_for_dead(cluster, TOPIC, 2 * SESSION_MAX, &epochs);
        cluster.links().heal();
        assert_eq!(create(&mut cluster.broker(1).client(), "fast"), ErrorCode::NONE);
    });
}

/// The database is replaced by an older copy. A running broker that has seen newer metadata must report the copy, and a
/// starting broker must refuse it.
#[test]
fn older_copy_of_the_database_is_refused() {
    under_fault(with_own_postgres(&[]), |cluster, load| {
        cluster.postgres().copy();
        wait_until("it is found again", BACK_MAX, || is_created(&mut cluster.broker(1).client(), "later"));
        // A broker recognises the copy only if it has seen metadata that the copy lacks. Waits until every broker has
        // seen such metadata.
        ALL.iter().for_each(|id| cluster.wait_for_isr(*id, "later", 3));
        cluster.postgres().swap();
        let went_back = "it was set back to an older state, or it is another database";
        for id in ALL {
            cluster.broker(id).wait_for_stderr(went_back);
            let refused = create(&mut cluster.broker(id).client(), "lost");
            assert_eq!(refused, ErrorCode::REQUEST_TIMED_OUT);
            assert_eq!(cluster.partitions(id, "later").len(), 1, "as without a database");
        }
        load.goes_on();
        cluster.broker(3).kill();
        let sets: Vec<String> = cluster.sets_of(3).to_vec();
        let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
        let refused = serve_refused(cluster.broker(3).data_dir(), &sets);
        let line = refused.stderr.lines().last().expect("it says why");
        assert!(!refused.status.success() && line.contains(went_back), "{}", refused.stderr);
        cluster.postgres().swap();
        cluster.broker(3).restart();
        wait_until("topics can be made again", BACK_MAX, || is_created(&mut cluster.broker(1).client(), "after"));
    });
}
