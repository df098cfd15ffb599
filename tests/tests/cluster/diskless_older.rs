//! Older copies of the PostgreSQL that has the index of diskless topics. A broker that ran after the copy was made
//! refuses to start on it. A broker with a new directory starts, and overwrites no object.

use std::fs;
use std::process::Command;
use std::time::Duration;

use fullbore_tests::{Batch, Cluster, ClusterPlan, binary, produce_request, serve_refused, wait_until};
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::produce::ProduceRequest;
use tempfile::TempDir;

use crate::diskless::{CALL, SESSION, TOPIC, shared_by};
use crate::faults::ALL;

const CLASSIC: &str = "classic";
const BACK_MAX: Duration = Duration::from_secs(60);

/// Produces a record until the broker acknowledges it.
fn produced(cluster: &mut Cluster, broker: i32, text: &str) {
    wait_until("it is written", BACK_MAX, || {
        cluster.broker(broker).client().produce(TOPIC, 0, &Batch::of(&[text])).error_code == ErrorCode::NONE
    });
}

fn texts(cluster: &mut Cluster, broker: i32) -> Vec<String> {
    cluster.broker(broker).client().fetch_records(TOPIC, 0).iter().map(|record| record.text()).collect()
}

/// Starts the broker on its directory. The start must fail. Returns the last line of the broker's standard error.
fn refused(cluster: &mut Cluster, broker: i32) -> String {
    let sets: Vec<String> = cluster.sets_of(broker).to_vec();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let refused = serve_refused(cluster.broker(broker).data_dir(), &sets);
    assert!(!refused.status.success(), "{}", refused.stderr);
    refused.stderr.lines().last().expect("it says why").to_owned()
}

/// Runs `fullbore admin accept-copy`. Returns true if the command succeeds, and its output.
fn accept(cluster: &Cluster) -> (bool, String) {
    let url = cluster.sets_of(1).iter().find_map(|set| set.strip_prefix("control.plane=")).expect("set");
    let run = Command::new(binary()).args(["admin", "accept-copy", "--control-plane", url]).output();
    let output = run.expect("the binary starts");
    let printed = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).expect("text"));
    (output.status.success(), printed.concat())
}

/// After the copy was made, only diskless topics were written. The copy's metadata is therefore current, and only its
/// index is older.
#[test]
fn older_copy_of_the_index_refuses_a_broker_without_newer_commits() {
    let plan = ClusterPlan::with_own_postgres(3, &["broker.session.timeout.ms=30000", CALL]);
    let mut shared = shared_by(plan, 1);
    let cluster = &mut shared.cluster;
    produced(cluster, 1, "before");
    cluster.postgres().copy();
    produced(cluster, 2, "since");
    let received = cluster.query("SELECT counter FROM fullbore.diskless_brokers WHERE broker_id = 2");
    let noted = format!("broker.2={:020}\n", received.parse::<i64>().expect("a number"));
    let note = cluster.broker(1).data_dir().join("diskless-counter");
    wait_until("the first broker has noted what the second has committed", BACK_MAX, || {
        fs::read_to_string(&note).is_ok_and(|text| text.contains(&noted))
    });
    ALL.iter().for_each(|id| cluster.broker(*id).kill());
    cluster.postgres().swap();
    let line = refused(cluster, 1);
    assert!(line.contains("without the missing records") && line.contains("changes of broker 2"), "{line}");
    assert!(line.contains("fullbore admin accept-copy"), "it names the remedy: {line}");
    // Only the file `diskless-counter` shows that the index is older. Without this file, the broker starts.
    fs::remove_file(&note).expect("removed");
    cluster.broker(1).restart();
    assert_eq!(texts(cluster, 1), ["before"]);
    produced(cluster, 1, "other");
    assert_eq!(texts(cluster, 1), ["before", "other"]);
}

/// Regression: the copy has all metadata, so brokers that ran when it was restored changed the metadata in it. They
/// refused the newest database after that, even if they were restarted.
#[test]
fn older_copy_is_restored_while_brokers_run_its_metadata_stay_and_the_newest_continues() {
    let plan = ClusterPlan::with_own_postgres(3, &[SESSION, CALL]);
    let mut shared = shared_by(plan, 1);
    let cluster = &mut shared.cluster;
    cluster.create(CLASSIC, 1, 3, &["min.insync.replicas=2"]);
    cluster.wait_for_isr(2, CLASSIC, 3);
    produced(cluster, 1, "before");
    cluster.postgres().copy();
    produced(cluster, 2, "since");
    let counter = cluster.query("SELECT counter FROM fullbore.diskless_brokers WHERE broker_id = 2");
    let noted = format!("broker.2={:020}\n", counter.parse::<i64>().expect("a number"));
    let notes = [2, 3].map(|id| cluster.broker(id).data_dir().join("diskless-counter"));
    wait_until("brokers 2 and 3 have noted the newest change", BACK_MAX, || {
        notes.iter().all(|note| fs::read_to_string(note).is_ok_and(|text| text.contains(&noted)))
    });
    cluster.postgres().swap();
    let newest = "SELECT max(version) FROM fullbore.versions";
    let version = cluster.query(newest);
    cluster.broker(1).kill();
    // Brokers 2 and 3 send heartbeats to the copy for longer than a session, in which broker 1 is silent.
    let silent = "SELECT count(*) FROM fullbore.beats WHERE broker_id = 1 AND at > clock_timestamp() - interval '12 s'";
    wait_until("broker 1 is silent", BACK_MAX, || cluster.query(silent) == "0");
    for id in [2, 3] {
        cluster.broker(id).wait_for_stderr("committed changes of broker 2 to diskless topics");
    }
    let reported = cluster.refused(&["topics", "create", "--topic", "refused", "--partitions", "1"]);
    assert!(reported.contains("cannot be changed now"), "{reported}");
    assert_eq!(cluster.query(newest), version, "the copy is unchanged");
    cluster.postgres().swap();
    cluster.wait_for_brokers(&[2, 3]);
    for id in [2, 3] {
        cluster.wait_for_isr(id, CLASSIC, 2);
        produced(cluster, id, &format!("after {id}"));
    }
    cluster.create("later", 1, 2, &[]);
    cluster.broker(1).restart();
    cluster.wait_for_brokers(&ALL);
    cluster.wait_for_isr(1, CLASSIC, 3);
    produced(cluster, 1, "after 1");
    for id in ALL {
        assert_eq!(texts(cluster, id), ["before", "since", "after 2", "after 3", "after 1"], "broker {id}");
    }
}

/// Regression: the copy has all commits to diskless topics, and lacks only metadata. Brokers that ran when it was
/// restored committed records to it, and the newest database lacked these records.
#[test]
fn older_copy_lacks_metadata_only_no_record_is_committed_to_it() {
    let plan = ClusterPlan::with_own_postgres(3, &[SESSION, CALL]);
    let mut shared = shared_by(plan, 1);
    let cluster = &mut shared.cluster;
    produced(cluster, 1, "before");
    cluster.postgres().copy();
    cluster.wait_for_brokers(&ALL);
    cluster.create("since", 1, 3, &[]);
    for id in ALL {
        cluster.wait_for_isr(id, "since", 3);
    }
    cluster.postgres().swap();
    let committed = "SELECT sum(counter) FROM fullbore.diskless_brokers";
    let before = cluster.query(committed);
    for id in ALL {
        let refused = cluster.broker(id).client().produce(TOPIC, 0, &Batch::of(&["refused"]));
        assert_ne!(refused.error_code, ErrorCode::NONE, "broker {id}");
        cluster.broker(id).wait_for_stderr("cannot commit to the index of diskless topics");
    }
    assert_eq!(cluster.query(committed), before, "the copy is unchanged");
    cluster.postgres().swap();
    cluster.wait_for_brokers(&ALL);
    for id in ALL {
        produced(cluster, id, &format!("after {id}"));
    }
    for id in ALL {
        // Records that were refused may be committed once the newest database is back.
        let read = texts(cluster, id).into_iter().filter(|text| text != "refused").collect::<Vec<_>>();
        assert_eq!(read, ["before", "after 1", "after 2", "after 3"], "broker {id}");
    }
}

/// The clean stop of the brokers changes the metadata after the copy was made, so they have seen metadata that the copy
/// lacks. In the copy, only broker 1 is in sync, but it has ended before the newest records were written.
#[test]
fn older_copy_is_accepted_by_command_brokers_start_and_its_records_are_read() {
    let plan = ClusterPlan::with_own_postgres(3, &[SESSION, CALL]);
    let mut shared = shared_by(plan, 1);
    let cluster = &mut shared.cluster;
    cluster.create(CLASSIC, 1, 3, &[]);
    let classic = |cluster: &mut Cluster, running: &[i32], text: &str| {
        wait_until("it is written", BACK_MAX, || {
            running.iter().any(|id| {
                cluster.broker(*id).client().produce(CLASSIC, 0, &Batch::of(&[text])).error_code == ErrorCode::NONE
            })
        });
    };
    produced(cluster, 1, "before");
    classic(cluster, &ALL, "before");
    let note = cluster.broker(1).data_dir().join("diskless-counter");
    wait_until("broker 1 has noted its commit", BACK_MAX, || note.exists());
    [2, 3].iter().for_each(|id| cluster.broker(*id).kill());
    cluster.wait_for_isr(1, CLASSIC, 1);
    cluster.postgres().copy();
    [2, 3].iter().for_each(|id| cluster.broker(*id).restart());
    cluster.wait_for_isr(2, CLASSIC, 3);
    cluster.broker(1).kill();
    produced(cluster, 2, "since");
    classic(cluster, &[2, 3], "since");
    let (is_done, printed) = accept(cluster);
    assert!(!is_done && printed.contains("stop all brokers"), "{printed}");
    [2, 3].iter().for_each(|id| cluster.broker(*id).stop());
    cluster.postgres().swap();
    assert!(refused(cluster, 2).contains("fullbore admin accept-copy"));
    for id in ALL {
        fs::remove_file(cluster.broker(id).data_dir().join("diskless-counter")).expect("removed");
    }
    let line = refused(cluster, 2);
    assert!(line.contains("does not know version") && line.contains("fullbore admin accept-copy"), "{line}");
    wait_until("the last heartbeats are old", BACK_MAX, || {
        let (is_done, printed) = accept(cluster);
        assert!(is_done || printed.contains("stop all brokers"), "{printed}");
        is_done
    });
    // The broker without the newest classic records starts first. It must not become leader, although it is the only
    // live broker and the only member of the ISR in the copy.
    cluster.broker(1).restart();
    wait_until("broker 1 is registered", BACK_MAX, || {
        let fenced = "SELECT string_agg(fenced::int::text, '' ORDER BY broker_id) FROM fullbore.brokers";
        cluster.query(fenced) == "011"
    });
    wait_until("the partition has no leader", BACK_MAX, || cluster.partitions(1, CLASSIC)[0].leader_id == -1);
    [2, 3].iter().for_each(|id| cluster.broker(*id).restart());
    cluster.wait_for_brokers(&ALL);
    for id in ALL {
        assert_eq!(texts(cluster, id), ["before"], "broker {id}");
    }
    produced(cluster, 2, "other");
    assert_eq!(texts(cluster, 1), ["before", "other"]);
    classic(cluster, &ALL, "other");
    wait_until("all classic records are read", BACK_MAX, || {
        let read = cluster.consume(CLASSIC);
        read.iter().map(|record| record.value.clone()).collect::<Vec<_>>() == ["before", "since", "other"]
    });
}

/// A frozen broker sends no heartbeats, so the command cannot notice that the broker still runs. In this test the
/// broker leads a classic partition, and knows diskless records that the copy lacks.
#[test]
fn older_copy_is_accepted_while_a_broker_is_frozen_it_commits_nothing_and_ends() {
    let plan = ClusterPlan::with_own_postgres(3, &[SESSION, CALL]);
    let mut shared = shared_by(plan, 1);
    let cluster = &mut shared.cluster;
    cluster.run(&["topics", "create", "--topic", CLASSIC, "--replica-assignment", "3:1:2"]);
    cluster.wait_for_isr(3, CLASSIC, 3);
    produced(cluster, 3, "before");
    cluster.postgres().copy();
    produced(cluster, 3, "since");
    let mut clients = [TOPIC, CLASSIC].map(|topic| (topic, cluster.broker(3).client()));
    cluster.broker(3).freeze();
    [1, 2].iter().for_each(|id| cluster.broker(*id).kill());
    cluster.postgres().swap();
    wait_until("the copy is accepted", BACK_MAX, || accept(cluster).0);
    [1, 2].iter().for_each(|id| cluster.broker(*id).restart());
    cluster.wait_for_brokers(&[1, 2]);
    let others = ["other 1", "other 2", "other 3"];
    others.iter().for_each(|text| produced(cluster, 1, text));
    // The frozen broker reads these requests when it resumes.
    for (topic, client) in &mut clients {
        client.send(&produce_request(topic, 0, Batch::of(&["frozen"]).bytes()), 9);
    }
    cluster.broker(3).thaw();
    wait_until("the broker ends", BACK_MAX, || cluster.broker(3).has_ended());
    cluster.broker(3).wait_for_stderr("another process has replaced this process");
    for (topic, client) in &mut clients {
        let answer = client.try_receive::<ProduceRequest>(9);
        let code = answer.map(|(_, answer)| answer.responses[0].partition_responses[0].error_code);
        assert_ne!(code, Some(ErrorCode::NONE), "{topic}");
    }
    cluster.broker(3).wait_for_end();
    cluster.broker(3).restart();
    cluster.wait_for_brokers(&ALL);
    produced(cluster, 3, "after");
    for id in ALL {
        assert_eq!(texts(cluster, id), ["before", "other 1", "other 2", "other 3", "after"], "broker {id}");
    }
    cluster.wait_for_isr(1, CLASSIC, 3);
}

/// The brokers have new directories, so they cannot know of the changes that the copy lacks.
#[test]
fn new_brokers_on_an_older_copy_of_the_index_overwrite_no_newer_object() {
    let mut plan = ClusterPlan::with_own_postgres(1, &[SESSION, CALL]);
    let store = TempDir::new().expect("a directory");
    plan.set(0, "diskless.storage", store.path().to_str().expect("a path"));
    let mut cluster = plan.start();
    cluster.create(TOPIC, 1, 1, &["diskless.enable=true"]);
    let swapped = |cluster: &mut Cluster| {
        cluster.broker(1).kill();
        cluster.postgres().swap();
        let directory = cluster.broker(1).data_dir().to_owned();
        fs::remove_dir_all(&directory).expect("ours");
        fs::create_dir(&directory).expect("made");
        cluster.broker(1).restart();
    };
    let numbered = |what: &str, count: usize| (0..count).map(|number| format!("{what} {number}")).collect::<Vec<_>>();
    let newest = numbered("newest", 100);
    produced(&mut cluster, 1, &newest[0]);
    cluster.postgres().copy();
    newest[1..].iter().for_each(|text| produced(&mut cluster, 1, text));
    swapped(&mut cluster);
    assert_eq!(texts(&mut cluster, 1), newest[..1]);
    numbered("older", 200).iter().for_each(|text| produced(&mut cluster, 1, text));
    swapped(&mut cluster);
    assert_eq!(texts(&mut cluster, 1), newest);
}
