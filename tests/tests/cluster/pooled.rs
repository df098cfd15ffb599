//! A cluster that reaches its database through a pooler in transaction mode.

use fullbore_tests::pgbouncer::PgBouncer;
use fullbore_tests::postgres::PostgresServer;
use fullbore_tests::{Cluster, ClusterPlan};

use crate::diskless;
use crate::faults::{ALL, befalls_each, with_topic};
use crate::workload::produced_while;

/// Plans a cluster whose brokers know only the address of the pooler.
fn behind(pooler: &PgBouncer) -> ClusterPlan {
    let mut plan = ClusterPlan::new(ALL.len(), &["broker.session.timeout.ms=2000"]);
    let url = format!("postgres://anybody@{}/{}", pooler.address(), plan.database());
    (0..ALL.len()).for_each(|index| plan.set(index, "control.plane", &url));
    plan
}

fn is_killed(cluster: &mut Cluster, id: i32) {
    cluster.broker(id).kill();
    let others: Vec<i32> = ALL.into_iter().filter(|other| *other != id).collect();
    cluster.wait_for_brokers(&others);
}

#[test]
fn killed_broker_behind_a_pooler_loses_no_record() {
    let pooler = PgBouncer::start(PostgresServer::shared().address(), true);
    befalls_each(with_topic(behind(&pooler).start()), &[1, 2], |cluster, load, id| {
        is_killed(cluster, id);
        load.goes_on();
        cluster.broker(id).restart();
    });
}

#[test]
fn killed_broker_behind_a_pooler_loses_no_diskless_record() {
    let pooler = PgBouncer::start(PostgresServer::shared().address(), false);
    let mut shared = diskless::shared_by(behind(&pooler), 3);
    produced_while(&mut shared.cluster, diskless::TOPIC, |cluster, load| {
        is_killed(cluster, 2);
        load.goes_on();
        cluster.broker(2).restart();
        cluster.wait_for_brokers(&ALL);
        load.goes_on();
    });
}
