//! The signals from which monitoring learns the state of a broker and of its database: metrics, and the probes that
//! direct clients or restart the broker.

use fullbore_tests::{Cluster, ClusterPlan, wait_until};
use std::time::Duration;

const SETS: [&str; 3] =
    ["fullbore.admin.listener=127.0.0.1:0", "control.plane.timeout.ms=4000", "broker.session.timeout.ms=4000"];
const SOON: Duration = Duration::from_secs(120);

/// Returns the value of a metric. `name` includes the labels. `None` if the page does not have the metric.
pub fn metric(cluster: &mut Cluster, id: i32, name: &str) -> Option<f64> {
    let page = cluster.broker(id).admin_page("/metrics");
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

fn wait_for(cluster: &mut Cluster, id: i32, name: &str, wanted: f64) {
    let what = format!("broker {id} shows {name} {wanted}");
    wait_until(&what, SOON, || metric(cluster, id, name) == Some(wanted));
}

/// Returns the status line and the body of the response to a probe.
fn requested(cluster: &mut Cluster, id: i32, path: &str) -> (String, String) {
    let answer = cluster.broker(id).admin_page(path);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

const UP: &str = "fullbore_control_plane_up";
const OK: &str = "HTTP/1.1 200 OK";

#[test]
fn database_outage_shows_in_metrics_and_keeps_the_probes_successful() {
    let mut cluster = ClusterPlan::with_own_postgres(2, &SETS).start();
    let failures = "fullbore_control_plane_call_failures_total{connection=\"beats\"}";
    for id in [1, 2] {
        wait_for(&mut cluster, id, UP, 1.0);
        wait_for(&mut cluster, id, "fullbore_control_plane_brokers", 2.0);
        wait_for(&mut cluster, id, "fullbore_control_plane_brokers_fenced", 0.0);
        wait_for(&mut cluster, id, "fullbore_control_plane_fenced", 0.0);
        assert_eq!(requested(&mut cluster, id, "/readyz"), (OK.to_owned(), "ok\n".to_owned()));
    }
    let count = "fullbore_control_plane_call_duration_seconds_count";
    for connection in ["metadata", "beats"] {
        let counted = metric(&mut cluster, 1, &format!("{count}{{connection=\"{connection}\"}}"));
        assert!(counted.is_some_and(|counted| counted > 0.0), "{connection}: {counted:?}");
    }
    cluster.create("t", 1, 2, &[]);
    let of_newest = |cluster: &mut Cluster| metric(cluster, 1, "fullbore_control_plane_newest_version");
    wait_until("the newest version is shown", SOON, || {
        of_newest(&mut cluster)
            .is_some_and(|version| metric(&mut cluster, 1, "fullbore_metadata_epoch") == Some(version))
    });
    // The database hangs. It accepts connections but does not respond.
    cluster.postgres().freeze();
    for id in [1, 2] {
        wait_for(&mut cluster, id, UP, 0.0);
        let (status, body) = requested(&mut cluster, id, "/readyz");
        assert!(
            status == OK && body.starts_with("ok\nthe database of the cluster has not answered this broker for "),
            "{status} {body}"
        );
        assert_eq!(requested(&mut cluster, id, "/livez"), (OK.to_owned(), "ok\n".to_owned()));
    }
    cluster.postgres().thaw();
    wait_for(&mut cluster, 1, UP, 1.0);
    let before = metric(&mut cluster, 1, failures).expect("counted");
    cluster.postgres().stop();
    wait_for(&mut cluster, 1, UP, 0.0);
    wait_until("more calls fail", SOON, || metric(&mut cluster, 1, failures).is_some_and(|now| now > before));
    let age = "fullbore_control_plane_answer_age_seconds";
    wait_until("the last answer is seen to be old", SOON, || metric(&mut cluster, 1, age).is_some_and(|age| age > 1.0));
    cluster.postgres().start_again();
    wait_for(&mut cluster, 1, UP, 1.0);
    cluster.broker(2).kill();
    wait_for(&mut cluster, 1, "fullbore_control_plane_brokers_fenced", 1.0);
    assert_eq!(metric(&mut cluster, 1, "fullbore_control_plane_fenced"), Some(0.0));
}
