//! Clusters of earlier releases under the present brokers. A fixture has a dump of the database, three data directories
//! and a store.
//!
//! The checks are in `fullbore_tests::Fixture`. The data of standalone brokers is tested in `broker`.

use fullbore_tests::{Client, Cluster, ClusterPlan, Fixture, WAITING, binary};
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::{ErrorCode, Text};
use std::process::Command;

const BROKERS: usize = 3;

/// Starts a cluster on the fixture of each release and runs `check`. The brokers have the settings [`WAITING`].
/// `replaced` may replace one of them.
fn for_each(replaced: Option<(&str, &str)>, check: impl Fn(&Fixture, &Cluster)) {
    for fixture in Fixture::of_releases("cluster") {
        let mut plan = ClusterPlan::with_own_postgres(BROKERS, &WAITING);
        let dump = std::fs::read_to_string(fixture.path("cluster/database.sql")).expect("a dump");
        plan.postgres().run(plan.database(), &dump);
        migrate(&fixture, &plan);
        let store = fixture.path("cluster/diskless");
        for index in 0..BROKERS {
            configure(&mut plan, index, &properties(&fixture, index));
            plan.set(index, "diskless.storage", store.to_str().expect("a path"));
            replaced.iter().for_each(|(key, value)| plan.set(index, key, value));
        }
        let directories: Vec<_> = (1..=BROKERS).map(|id| fixture.path(&format!("cluster/broker-{id}"))).collect();
        let cluster = plan.in_directories(&directories).start();
        for topic in ["replicated", "ledger", "__consumer_offsets", "__transaction_state"] {
            cluster.wait_for_isr(1, topic, BROKERS);
        }
        check(&fixture, &cluster);
    }
}

/// Returns the content of a broker's properties file, which `cluster up` wrote.
fn properties(fixture: &Fixture, index: usize) -> String {
    std::fs::read_to_string(fixture.path(&format!("cluster/broker-{}.properties", index + 1))).expect("settings")
}

/// Upgrades the schema of the restored database by the steps in docs/operating.md.
fn migrate(fixture: &Fixture, plan: &ClusterPlan) {
    let url = plan.postgres().url(plan.database());
    let restored = |line: &str| match line.split_once('=') {
        Some(("control.plane", _)) => format!("control.plane={url}\n"),
        _ => format!("{line}\n"),
    };
    let file = fixture.path("migrate.properties");
    std::fs::write(&file, properties(fixture, 0).lines().map(restored).collect::<String>()).expect("written");
    let mut command = Command::new(binary());
    let output = command.args(["admin", "migrate", "--config"]).arg(&file).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Sets a broker's settings to those in its properties file. Leaves out addresses and paths, which are those of the
/// machine that wrote the file.
fn configure(plan: &mut ClusterPlan, index: usize, properties: &str) {
    for (key, value) in properties.lines().filter_map(|line| line.split_once('=')) {
        if !["control.plane", "diskless.storage", "fullbore.admin.listener", "listeners", "log.dirs"].contains(&key) {
            plan.set(index, key, value);
        }
    }
}

/// Connects to the leader of a topic's partition 0.
fn leader(cluster: &Cluster, topic: &str) -> Client {
    Client::connect(cluster.address(cluster.wait_for_leader(1, topic, 0, -1)))
}

/// Connects to the coordinator of a transactional id.
fn coordinator(cluster: &Cluster, id: &str) -> Client {
    let mut client = Client::connect(cluster.address(1));
    let request = FindCoordinatorRequest { key_type: 1, coordinator_keys: vec![Text::from(id)], ..Default::default() };
    let found = client.call(&request, 4).coordinators.remove(0);
    assert_eq!(found.error_code, ErrorCode::NONE, "{id}");
    Client::connect(cluster.address(found.node_id))
}

#[test]
fn database_and_directories_of_an_earlier_release_read_as_their_manifest() {
    for_each(None, |fixture, cluster| fixture.assert_described(&cluster.bootstrap()));
}

#[test]
fn producers_of_an_earlier_release_continue_with_their_next_sequence_in_a_cluster() {
    for_each(None, |fixture, cluster| fixture.assert_producers_continue(|topic| leader(cluster, topic)));
}

#[test]
fn groups_of_an_earlier_release_continue_at_their_committed_offsets_in_a_cluster() {
    for_each(None, |fixture, cluster| fixture.assert_groups_continue(&cluster.bootstrap()));
}

#[test]
fn open_transactions_of_an_earlier_release_are_aborted_by_their_successors_in_a_cluster() {
    for_each(None, |fixture, cluster| {
        fixture.assert_successors_abort(|id| coordinator(cluster, id), |topic| leader(cluster, topic));
    });
}

#[test]
fn open_transactions_of_an_earlier_release_are_aborted_by_their_timeouts_in_a_cluster() {
    let often = ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "100");
    for_each(Some(often), |fixture, cluster| fixture.assert_timeouts_abort(|topic| leader(cluster, topic)));
}
