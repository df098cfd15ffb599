//! `fullbore cluster` as a user runs it: brokers that share a PostgreSQL are started, killed and stopped. Needs
//! PostgreSQL's programs.

use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

/// The directory of a cluster. Dropping it stops the cluster's processes.
struct Cluster {
    directory: TempDir,
    port: u16,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster { directory: tempfile::tempdir().expect("a directory"), port: fullbore_tests::stable_ports_in_a_row(4) }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn run(&self, action: &str, flags: &[&str]) -> Output {
        let mut command = Command::new(fullbore_tests::binary());
        command.args(["cluster", action, "--data-dir"]).arg(self.path()).args(flags);
        command.output().expect("it runs")
    }

    fn ran(&self, action: &str, flags: &[&str]) -> String {
        let output = self.run(action, flags);
        assert!(output.status.success(), "{action}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    fn refused(&self, action: &str, flags: &[&str]) -> String {
        let output = self.run(action, flags);
        assert_eq!(output.status.code(), Some(1), "{action}");
        String::from_utf8(output.stderr).expect("text")
    }

    /// Returns the exit code, the output and the errors of `status`.
    fn status(&self, flags: &[&str]) -> (Option<i32>, String, String) {
        let output = self.run("status", flags);
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    fn up(&self, flags: &[&str]) -> String {
        let port = self.port.to_string();
        // The admin listener is disabled. Otherwise two concurrent tests would use the same port for it.
        self.ran("up", &[&["--port", &port, "--set", "fullbore.admin.listener="], flags].concat())
    }

    /// Returns the process id in the given file, which a broker or PostgreSQL has written.
    fn pid(&self, file: &str) -> Pid {
        let text = std::fs::read_to_string(self.path().join(file)).expect("there");
        Pid::from_raw(text.lines().next().expect("a line").parse().expect("a number")).expect("a pid")
    }

    fn topics(&self, line: &str) -> String {
        let mut command = Command::new(fullbore_tests::binary());
        command.arg("topics").args(line.split(' ')).args(["--bootstrap-server", &format!("127.0.0.1:{}", self.port)]);
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // If the test has failed, processes of its cluster may still run.
        let _ = self.run("down", &[]);
    }
}

#[test]
fn cluster_starts_recovers_from_kills_grows_stops_and_keeps_its_data() {
    let cluster = Cluster::new();
    let reported = cluster.up(&["--brokers", "3"]);
    assert!(reported.contains(" runs 3 brokers, bootstrap servers 127.0.0.1:"), "{reported}");
    cluster.topics("create --topic t --partitions 6 --replication-factor 3 --config min.insync.replicas=2");
    assert_eq!(cluster.topics("describe --topic t").matches("\tLeader: ").count(), 6);
    let postgres = cluster.pid("postgres/data/postmaster.pid");
    // A second `up` changes nothing.
    let first = cluster.pid("broker-1.pid");
    cluster.up(&[]);
    assert_eq!((cluster.pid("broker-1.pid"), cluster.pid("postgres/data/postmaster.pid")), (first, postgres));
    // Another `up` starts only the processes that were killed.
    let second = cluster.pid("broker-2.pid");
    kill_process(second, Signal::KILL).expect("it runs");
    kill_process(postgres, Signal::KILL).expect("it runs");
    fullbore_tests::wait_until("they are gone", std::time::Duration::from_secs(60), || {
        cluster.status(&[]).1.matches(" stopped ").count() == 2
    });
    let reported = cluster.refused("up", &["--brokers", "2"]);
    assert!(reported.contains("has 3 brokers, which have replicas"), "{reported}");
    cluster.up(&["--brokers", "4"]);
    assert!(cluster.pid("broker-1.pid") == first && cluster.pid("broker-2.pid") != second);
    assert_eq!(cluster.ran("status", &["--json"]).matches("\"state\":\"running\",\"pid\":").count(), 5);
    let file = cluster.path().join("broker-2.properties");
    let admin = |action: &str| {
        let mut command = Command::new(fullbore_tests::binary());
        let output = command.args(["admin", action, "--config"]).arg(&file).output().expect("it runs");
        (output.status.success(), String::from_utf8(output.stdout).expect("text"))
    };
    let (is_well, reported) = admin("check");
    assert!(is_well && reported.contains(" broker 4 (epoch ") && !reported.contains("WRONG"), "{reported}");
    let (is_well, reported) = admin("migrate");
    assert!(is_well && reported.ends_with(", which this Fullbore needs.\n"), "{reported}");
    let reported = cluster.ran("down", &[]);
    assert!(reported.starts_with("Stopped brokers 1, 2, 3, 4 and PostgreSQL; the data stay in "), "{reported}");
    let status = cluster.run("status", &[]);
    assert_eq!(status.status.code(), Some(1), "nothing runs");
    assert_eq!(String::from_utf8_lossy(&status.stdout).matches(" stopped ").count(), 5);
    assert!(String::from_utf8_lossy(&status.stderr).starts_with("fullbore: no broker is running in "));
    cluster.up(&["--set", "num.partitions=2"]);
    assert_eq!(cluster.topics("describe --topic t").matches("\tReplicas: ").count(), 6);
    let file = std::fs::read_to_string(cluster.path().join("broker-4.properties")).expect("there");
    assert!(file.contains("\nnum.partitions=2\n") && file.contains("\nnode.id=4\n"), "{file}");
}

#[test]
fn broker_is_frozen_down_ends_in_time_and_names_its_process() {
    let cluster = Cluster::new();
    cluster.up(&["--brokers", "2"]);
    let frozen = cluster.pid("broker-2.pid");
    kill_process(frozen, Signal::STOP).expect("it runs");
    let reported = cluster.refused("down", &["--timeout", "5000"]);
    let pid = frozen.as_raw_nonzero();
    // The message also names broker 1, before broker 2, if broker 1 is still handing over its partitions.
    let expected = format!(
        "broker 2 (pid {pid}) has not ended within 5s, because a signal has stopped it; `kill -CONT {pid}` lets it \
         end, and `kill -9 {pid}` ends it at once\n"
    );
    assert!(reported.ends_with(&expected), "{reported}");
    kill_process(frozen, Signal::CONT).expect("it runs");
    assert!(cluster.ran("down", &[]).contains("PostgreSQL; the data stay in "));
}

/// Frozen processes and brokers without their database still run, but `status` must report them.
#[test]
fn process_hangs_or_database_ends_status_fails_and_names_it() {
    let cluster = Cluster::new();
    let started = cluster.up(&["--brokers", "2", "--json", "--set", "control.plane.timeout.ms=4000"]);
    assert_eq!(started.matches("\"state\":\"running\"").count(), 3, "{started}");
    let hangs = std::time::Duration::from_secs(120);
    fullbore_tests::wait_until("all run", hangs, || cluster.status(&[]).1.matches(" running ").count() == 3);
    let (broker, postgres) = (cluster.pid("broker-2.pid"), cluster.pid("postgres/data/postmaster.pid"));
    // On a busy machine, a process that does not hang may respond too late as well. The status is therefore read
    // repeatedly.
    let says = |words: &str, count: usize, problem: &str| {
        for (flags, shown) in [(&[][..], format!(" {words} ")), (&["--json"][..], format!("\"state\":\"{words}\""))] {
            let what = format!("{words} {count} times: {problem}");
            fullbore_tests::wait_until(&what, hangs, || {
                let began = std::time::Instant::now();
                let (code, printed, reported) = cluster.status(flags);
                assert!(began.elapsed() < std::time::Duration::from_secs(60), "it is bounded");
                let results = reported.lines().filter(|line| !line.contains("waiting: ")).count();
                assert!(code == Some(1) && results == 1, "{words}: {printed}{reported}");
                printed.matches(&shown).count() == count && reported.contains(problem)
            });
        }
    };
    kill_process(broker, Signal::STOP).expect("it runs");
    let pid = broker.as_raw_nonzero();
    let frozen =
        format!("broker 2 (pid {pid}) does not answer, because a signal has stopped it, and `kill -CONT {pid}`");
    says("does not answer", 1, &frozen);
    let reported = cluster.status(&["--timeout", "4000"]).2;
    let waits = |line: &str| line.starts_with("waiting: no answer from ") && line.contains("broker 2");
    let ends = |line: &str| line.ends_with("; --timeout ends this after 4s");
    assert!(reported.lines().any(|line| waits(line) && ends(line)), "{reported}");
    kill_process(broker, Signal::CONT).expect("it runs");
    kill_process(postgres, Signal::STOP).expect("it runs");
    says("does not answer", 1, &format!("PostgreSQL (pid {}) does not answer, because", postgres.as_raw_nonzero()));
    kill_process(postgres, Signal::CONT).expect("it runs");
    kill_process(postgres, Signal::KILL).expect("it runs");
    let is_gone = || cluster.status(&[]).1.contains(" stopped ");
    fullbore_tests::wait_until("it is gone", std::time::Duration::from_secs(60), is_gone);
    says("has no database", 2, "broker 1 has no database, and its log is ");
    says("stopped", 1, "PostgreSQL is stopped, and `fullbore cluster up` starts it");
}

#[test]
fn file_of_a_broker_is_emptied_up_names_it_and_the_missing_key_at_once() {
    let cluster = Cluster::new();
    cluster.up(&["--brokers", "2"]);
    let file = cluster.path().join("broker-2.properties");
    std::fs::write(&file, "").expect("written");
    let says = |action: &str| {
        let reported = cluster.refused(action, &[]);
        let place = "/broker-2.properties: it has no `listeners`; restore the file, or remove it and let ";
        assert!(reported.starts_with("fullbore: cannot use ") && reported.contains(place), "{reported}");
        assert_eq!(reported.lines().count(), 1, "no wait is reported");
    };
    ["up", "status"].iter().for_each(|action| says(action));
    cluster.ran("down", &[]);
    says("up");
    std::fs::remove_file(&file).expect("ours");
    cluster.up(&["--brokers", "2"]);
    assert!(std::fs::read_to_string(&file).expect("there").contains(&format!(":{}\n", cluster.port + 1)));
}

/// Checks the defaults for a new user. Topics survive the loss of one of three brokers, and `up` prints the address of
/// the metrics.
#[test]
fn new_cluster_replicates_topics_and_prints_its_metrics_address() {
    let cluster = Cluster::new();
    let (port, metrics) = (cluster.port.to_string(), fullbore_tests::stable_ports(1)[0]);
    let listener = format!("fullbore.admin.listener=localhost:{metrics}");
    let reported = cluster.ran("up", &["--brokers", "1", "--port", &port, "--set", &listener]);
    assert!(
        reported.lines().any(|line| line == format!("  metrics  http://localhost:{metrics}/metrics")),
        "{reported}"
    );
    let state = cluster.ran("status", &["--json"]);
    assert!(state.contains(&format!("\"metrics\":\"http://localhost:{metrics}/metrics\"")), "{state}");
    cluster.topics("create --topic t --partitions 1");
    assert!(cluster.topics("describe --topic t").contains("ReplicationFactor: 1\t"));

    let three = Cluster::new();
    let reported = three.up(&["--brokers", "3"]);
    assert!(!reported.contains("metrics  ") && !reported.contains("--replication-factor"), "{reported}");
    three.topics("create --topic t --partitions 2");
    let described = three.topics("describe --topic t");
    assert!(described.contains("ReplicationFactor: 3\t"), "{described}");
    kill_process(three.pid("broker-2.pid"), Signal::KILL).expect("it runs");
    let at: Vec<String> = [0, 2].iter().map(|more| format!("127.0.0.1:{}", three.port + more)).collect();
    let script = "echo hello | $0 produce --topic t --bootstrap-server $1 -X acks=all && \
        $0 consume --topic t --from-beginning --exit --bootstrap-server $1";
    let output = Command::new("sh").args(["-c", script]).arg(fullbore_tests::binary()).arg(at.join(",")).output();
    let output = output.expect("there is a shell");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out == "hello\n", "{out}{error}");
}

#[test]
fn cluster_of_one_broker_has_groups() {
    let cluster = Cluster::new();
    cluster.up(&["--brokers", "1"]);
    cluster.topics("create --topic t --partitions 1");
    let at = format!("127.0.0.1:{}", cluster.port);
    let script = "echo hello | $0 produce --topic t --bootstrap-server $1 && \
        $0 consume --topic t --group g --from-beginning --max-messages 1 --bootstrap-server $1 && \
        $0 groups describe --group g --bootstrap-server $1";
    let output = Command::new("sh").args(["-c", script]).arg(fullbore_tests::binary()).arg(&at).output();
    let output = output.expect("there is a shell");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.starts_with("hello\n"), "{out}{error}");
    assert!(out.lines().any(|line| line.starts_with("g ") && line.split_whitespace().nth(5) == Some("0")), "{out}");
}

#[test]
fn failed_up_prints_one_line_and_leaves_nothing_running() {
    let cluster = Cluster::new();
    let port = cluster.port.to_string();
    let taken = TcpListener::bind(("127.0.0.1", cluster.port + 1)).expect("free before");
    let reported = cluster.refused("up", &["--port", &port]);
    assert!(reported.contains("broker 2 cannot listen on 127.0.0.1:") && reported.lines().count() == 1, "{reported}");
    drop(taken);
    let metrics = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let admin = metrics.local_addr().expect("bound");
    let reported = cluster.refused("up", &["--port", &port, "--set", &format!("fullbore.admin.listener={admin}")]);
    assert!(
        reported.starts_with(&format!("fullbore: broker 1 cannot listen on {admin} for its metrics: ")),
        "{reported}"
    );
    assert!(
        reported.contains("choose another first port with --set fullbore.admin.listener=127.0.0.1:PORT"),
        "{reported}"
    );
    drop(metrics);
    let reported = cluster.refused("up", &["--port", &port, "--set", "num.partitions=x"]);
    assert!(reported.starts_with("fullbore: --set num.partitions=x: must be"), "{reported}");
    assert!(std::fs::read_dir(cluster.path()).expect("there").next().is_none(), "nothing was made");
    // No database listens at this address. The error must not contain the password.
    let nowhere = ["--port", &port, "--brokers", "1", "--control-plane", "postgres://ann:secret@127.0.0.1:1/x"];
    let no_retry = ["--set", "initial.broker.registration.timeout.ms=0"];
    let reported = cluster.refused("up", &[&nowhere[..], &no_retry].concat());
    assert!(
        reported.starts_with("fullbore: broker 1 ended with status 1; ") && !reported.contains("secret"),
        "{reported}"
    );
    assert!(!cluster.path().join("broker-1.properties").exists());
    let reported = cluster.refused("status", &[]);
    assert!(reported.contains("there is no cluster in "), "{reported}");
}
