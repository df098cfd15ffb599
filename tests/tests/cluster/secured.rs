//! Brokers that use TLS among each other and, with a password, to their database. They work as without TLS and log no
//! secret.

use crate::faults::{ALL, TOPIC, befalls_each, with_topic};
use fullbore_tests::pki::{Authority, write};
use fullbore_tests::{Cluster, ClusterPlan, wait_until};
use std::time::Duration;
use tempfile::TempDir;

const PASSWORD: &str = "s3cr3t-w0rd";
const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];
const SOON: Duration = Duration::from_secs(120);

/// The key files, a plan that uses them, and the secrets that no log may contain.
struct Secured {
    directory: TempDir,
    plan: ClusterPlan,
    secrets: Vec<String>,
}

impl Secured {
    fn new() -> Secured {
        let (directory, authority) = (tempfile::tempdir().expect("a directory"), Authority::new("brokers"));
        let mut plan = ClusterPlan::with_own_postgres(3, &["replica.lag.time.max.ms=2000"]).with_peers_over("SSL");
        let (postgres, database) = (plan.postgres(), plan.database().to_owned());
        let role =
            format!("CREATE ROLE encrypted LOGIN PASSWORD '{PASSWORD}'; GRANT ALL ON DATABASE {database} TO encrypted");
        postgres.run(&database, &role);
        let trusted = write(directory.path(), "ca.pem", &authority.pem());
        let roots = write(directory.path(), "database.pem", postgres.authority());
        let password = write(directory.path(), "password", &format!("{PASSWORD}\n"));
        let at = postgres.address();
        let url = format!("postgres://encrypted@{at}/{database}?sslmode=verify-full&sslrootcert={}", roots.display());
        let mut secrets = vec![PASSWORD.to_owned()];
        for index in 0..3 {
            let issued = authority.broker(&NAMES);
            secrets.extend(issued.key.lines().filter(|line| line.len() > 30).map(str::to_owned));
            let keystore = issued.write(directory.path(), &format!("broker-{index}.pem"));
            plan.set(index, "ssl.keystore.location", &keystore.display().to_string());
            plan.set(index, "ssl.truststore.location", &trusted.display().to_string());
            plan.set(index, "control.plane", &url);
            plan.set(index, "control.plane.password.file", &password.display().to_string());
        }
        Secured { directory, plan, secrets }
    }
}

fn assert_unreported(cluster: &mut Cluster, secrets: &[String]) {
    for id in ALL {
        let reported = cluster.broker(id).stderr() + &cluster.broker(id).stdout();
        assert!(secrets.iter().all(|secret| !reported.contains(secret)), "{reported}");
    }
}

#[test]
fn killed_and_restarted_broker_over_tls_loses_no_record() {
    let Secured { directory: _directory, plan, secrets } = Secured::new();
    let cluster = with_topic(plan.start());
    befalls_each(cluster, &[1, 2], |cluster, load, id| {
        assert_unreported(cluster, &secrets);
        cluster.broker(id).kill();
        cluster.wait_for_isr(id % 3 + 1, TOPIC, 2);
        load.goes_on();
        cluster.broker(id).restart();
    });
}

#[test]
fn broker_with_another_authority_logs_it_once_per_leader_and_is_in_sync_as_leader() {
    let Secured { directory, mut plan, secrets } = Secured::new();
    let another = write(directory.path(), "another.pem", &Authority::new("another").pem());
    plan.set(2, "ssl.truststore.location", &another.display().to_string());
    let mut cluster = plan.start();
    cluster.create(TOPIC, 3, 3, &["min.insync.replicas=2"]);
    wait_until("broker 3 follows nobody", SOON, || {
        let partitions = cluster.partitions(1, TOPIC);
        partitions.iter().all(|of| of.isr_nodes.contains(&3) == (of.leader_id == 3) && of.isr_nodes.len() > 1)
    });
    for leader in [1, 2] {
        let of_leader = format!("leader={leader}");
        let is_it = |line: &&str| line.contains("cannot fetch from the leader") && line.contains(&of_leader);
        wait_until("it is told", SOON, || cluster.broker(3).stderr().lines().any(|line| is_it(&line)));
        let reported = cluster.broker(3).stderr();
        let lines: Vec<&str> = reported.lines().filter(is_it).collect();
        // Broker 3 logs this line while it is in sync, and perhaps again after it has left the ISR.
        assert!((1..=2).contains(&lines.len()) && lines.iter().all(|line| line.contains("certificate")), "{reported}");
    }
    let mut producing = cluster.producing(TOPIC);
    (0..100).for_each(|number| producing.line(&number.to_string(), "v"));
    assert_eq!(producing.finish().len(), 100);
    assert_unreported(&mut cluster, &secrets);
}
