//! Tests of commands for which users of Kafka's tools, kcat and rpk look: offsets, deletion of records, leader
//! election, data directories of brokers, and the profile. The commands run as processes against a Fullbore broker.

mod tool_output;

use fullbore_tests::{Broker, NO_LISTENER, complaints};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use tool_output::{ToolOutput, output_of};

/// Returns a command whose environment variables name no cluster.
fn command(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.args(line.split_whitespace()).stdin(Stdio::null()).env("FULLBORE_PROFILE", "");
    command.env_remove("FULLBORE_BOOTSTRAP_SERVER");
    command
}

/// A broker with the topic `orders`, which has two partitions and three records in the first one.
struct Place {
    broker: Broker,
}

impl Place {
    fn new() -> Place {
        let place = Place { broker: Broker::start(&[]) };
        place.ok("topics create orders --partitions 2");
        let mut produce = command(&format!("produce -t orders -p 0 -b {}", place.broker.address()));
        let mut child = produce.stdin(Stdio::piped()).spawn().expect("it starts");
        child.stdin.take().expect("piped").write_all(b"a\nb\nc\n").expect("it reads");
        assert!(child.wait().expect("it ends").success());
        place
    }

    fn run(&self, line: &str) -> ToolOutput {
        output_of(command(&format!("{line} -b {}", self.broker.address())).output().expect("it starts"))
    }

    fn ok(&self, line: &str) -> String {
        tool_output::ok(line, self.run(line))
    }

    fn refused(&self, line: &str) -> String {
        tool_output::refused(line, self.run(line))
    }
}

#[test]
fn offsets_of_a_topic_are_those_of_kafkas_tool() {
    let place = Place::new();
    assert_eq!(place.ok("topics offsets orders"), "orders:0:3\norders:1:0\n");
    assert_eq!(place.ok("topics offsets --topic orders --time -2 --partitions 0"), "orders:0:0\n");
    let largest = place.ok("topics offsets orders --time max-timestamp");
    assert!(largest.starts_with("orders:0:") && largest.lines().count() == 1, "nothing of the empty one: {largest}");
    assert_eq!(place.ok("topics offsets orders --time 9999999999999"), "");
    let one = "{\"offsets\":[{\"topic\":\"orders\",\"partition\":0,\"offset\":3}],\"failed\":[]}\n";
    assert_eq!(place.ok("topics offsets orders --partitions 0 --json"), one);
    let reported = place.refused("topics offsets other");
    assert!(reported.contains("Topic 'other' does not exist"), "{reported}");
}

#[test]
fn a_name_without_a_topic_changes_nothing() {
    let place = Place::new();
    for command in ["delete", "alter --partitions 3", "describe", "offsets"] {
        let reported = place.refused(&format!("topics {command} orders ordres"));
        assert!(
            reported.contains("Topic 'ordres' does not exist as expected; `fullbore topics list` shows"),
            "{reported}"
        );
    }
    assert_eq!(place.ok("topics offsets orders"), "orders:0:3\norders:1:0\n");
    assert_eq!(place.ok("topics delete orders ordres --if-exists"), "Deleted topic orders.\n");
}

#[test]
fn a_partition_starts_after_its_deleted_records() {
    let place = Place::new();
    let reported = "Executing records delete operation\nRecords delete operation completed:\n\
                partition: orders-0\tlow_watermark: 2\n";
    assert_eq!(place.ok("topics delete-records orders --partition 0 --offset 2"), reported);
    assert_eq!(place.ok("topics offsets orders --time earliest"), "orders:0:2\norders:1:0\n");
    let refused = place.refused("topics delete-records orders --partition 0 --offset 9");
    assert!(refused.starts_with("fullbore: cannot delete records of partition 0 of topic 'orders'"), "{refused}");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("offsets.json");
    let listed = r#"{"partitions": [{"topic": "orders", "partition": 0, "offset": -1}], "version": 1}"#;
    std::fs::write(&file, listed).expect("written");
    let document = place.ok(&format!("topics delete-records --offset-json-file {} --json", file.display()));
    let deleted = "{\"deleted\":[{\"topic\":\"orders\",\"partition\":0,\"low_watermark\":3}],\"failed\":[]}\n";
    assert_eq!(document, deleted);
    let twice = r#"{"partitions": [{"topic": "orders", "partition": 0, "offset": 3},
        {"topic": "orders", "partition": 1, "offset": 0}, {"topic": "orders", "partition": 0, "offset": 2}]}"#;
    std::fs::write(&file, twice).expect("written");
    for command in ["delete-records --offset-json-file", "elect-leaders --path-to-json-file"] {
        let refused = place.refused(&format!("topics {command} {}", file.display()));
        assert!(refused.contains("partition 0 of 'orders' is there twice"), "{refused}");
    }
    let refused = place.refused("topics delete-records other --offset 0");
    assert!(refused.contains("other"), "{refused}");
}

#[test]
fn an_election_reports_that_the_preferred_replica_leads() {
    let place = Place::new();
    let reported = place.ok("topics elect-leaders orders --partition 0");
    assert_eq!(reported, "Valid replica already elected for partitions orders-0\n");
    let all = place.ok("topics elect-leaders --all-topic-partitions --election-type UNCLEAN");
    assert_eq!(all, "Valid replica already elected for all partitions\n");
    let document = place.ok("topics elect-leaders orders --partition 1 --json");
    assert_eq!(document, "{\"partitions\":[{\"topic\":\"orders\",\"partition\":1,\"outcome\":\"not_needed\"}]}\n");
    let refused = place.refused("topics elect-leaders orders --partition 7");
    assert_eq!(refused, "fullbore: topic 'orders' has no partition 7\n");
}

#[test]
fn brokers_topics_directories_and_apis_are_printed() {
    let place = Place::new();
    let info = place.ok("info");
    assert!(info.starts_with("Metadata for all topics (from "), "{info}");
    let partition = "    partition 1, leader 1, replicas: 1, isrs: 1\n";
    assert!(info.contains("  topic \"orders\" with 2 partitions:\n") && info.ends_with(partition), "{info}");
    let document = place.ok("info orders --json");
    assert!(document.contains("\"partition\":0,\"leader\":1,\"replicas\":[1],\"isr\":[1]"), "{document}");
    assert!(place.refused("info other").contains("other"));
    let directories = place.ok("log-dirs --describe --broker-list 1 --topic-list orders");
    let lines: Vec<&str> = directories.lines().collect();
    assert_eq!(lines[0], "Querying brokers for log directories information");
    assert!(lines[2].starts_with("{\"version\":1,\"brokers\":[{\"broker\":1,\"logDirs\":[{"), "{directories}");
    assert!(lines[2].contains("{\"partition\":\"orders-0\",\"size\":"), "{directories}");
    assert!(place.refused("log-dirs --broker-list 7").contains('7'));
    let versions = place.ok("api-versions");
    assert!(versions.contains(" (id: 1 rack: null isFenced: false) -> (\n\tProduce(0): "), "{versions}");
}

/// The error message about a broker that is not in the cluster, which has only broker 1.
const NO_BROKER: &str = "broker '9' does not exist or is not running; only broker 1 is running";

#[test]
fn absent_broker_topic_or_partition_is_refused_instead_of_an_empty_list() {
    let place = Place::new();
    for (line, reported) in [
        ("transactions find-hanging --broker-id 9", NO_BROKER),
        ("transactions find-hanging --broker-id 9 --topic orders", NO_BROKER),
        ("log-dirs --broker-list 9", NO_BROKER),
        ("transactions find-hanging --topic other", "topic 'other' does not exist"),
        ("transactions describe-producers --topic orders --partition 0 --broker-id 9", NO_BROKER),
        ("log-dirs --topic-list other", "topic 'other' does not exist"),
        ("log-dirs --topic-list orders,other --json", "topic 'other' does not exist"),
        ("topics offsets orders --partitions 9", "topic 'orders' has no partition 9"),
        ("topics offsets .* --partitions 0,9", "none of the topics has a partition 9"),
    ] {
        if line.contains(".*") {
            place.ok("topics create more");
        }
        let (status, stdout, stderr) = place.run(line);
        assert!(status == Some(1) && stdout.is_empty() && stderr.contains(reported), "{line}: {stdout}{stderr}");
    }
    assert!(place.ok("transactions find-hanging --broker-id 1").starts_with("Topic"));
}

#[test]
fn file_of_settings_has_no_end_it_is_refused() {
    let refusal = "/dev/zero: it is larger than 4194304 bytes";
    for line in [
        "configs alter --topic t --add-config-file /dev/zero -b 127.0.0.1:1",
        "topics list --command-config /dev/zero -b 127.0.0.1:1",
        "serve --config /dev/zero",
    ] {
        let (status, _, stderr) = output_of(command(line).output().expect("it starts"));
        assert!(status == Some(1) && stderr.contains(refusal), "{line}: {stderr}");
    }
    let (status, _, stderr) =
        output_of(command("topics list").env("FULLBORE_PROFILE", "/dev/zero").output().expect("starts"));
    assert!(status == Some(1) && stderr.contains(refusal), "{stderr}");
}

#[test]
fn a_cluster_is_named_by_property_variable_or_profile() {
    let place = Place::new();
    let requests = |line: &str, variables: &[(&str, &str)]| {
        let mut command = command(line);
        let (status, stdout, stderr) = output_of(command.envs(variables.iter().copied()).output().expect("it starts"));
        (status, stdout, complaints(&stderr))
    };
    let found = |stdout: &str| (Some(0), stdout.to_owned(), String::new());
    let address = place.broker.address();
    let own = format!("-X bootstrap.servers={address}");
    assert_eq!(requests(&format!("topics list {own}"), &[]), found("orders\n"));
    let variable = ("FULLBORE_BOOTSTRAP_SERVER", address);
    for (line, printed) in [
        ("topics list", "orders\n"),
        ("consume orders -o beginning -e", "a\nb\nc\n"),
        ("perf produce --topic orders --num-records 1 --record-size 1 --throughput -1 --json", ""),
    ] {
        let (status, stdout, stderr) = requests(line, &[variable]);
        assert_eq!((status, stderr.as_str()), (Some(0), ""), "{line}");
        assert!(stdout.starts_with(printed), "{line}: {stdout}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("in the directory")).expect("made");
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let profile = write("mine.properties", &format!("bootstrap.servers={address}\nlinger.ms=1\nfetch.min.bytes=1\n"));
    assert_eq!(requests("topics list", &[("FULLBORE_PROFILE", &profile)]), found("orders\n"));
    // The broker in this profile does not exist. A flag, the environment variable, and a file of properties must each
    // override the profile.
    let nobodys = write("fullbore/profile.properties", &format!("bootstrap.servers={NO_LISTENER}\nlinger.msec=1\n"));
    let home = directory.path().display().to_string();
    let (status, _, stderr) = requests("topics list", &[("FULLBORE_PROFILE", &nobodys)]);
    assert!(
        status == Some(1) && stderr.contains(NO_LISTENER) && stderr.contains("linger.msec: has no effect"),
        "{stderr}"
    );
    for (line, variables) in [
        (format!("topics list -b {address}"), vec![("FULLBORE_PROFILE", nobodys.as_str())]),
        ("topics list".to_owned(), vec![("FULLBORE_PROFILE", nobodys.as_str()), variable]),
        (format!("topics list --command-config {profile}"), vec![("FULLBORE_PROFILE", nobodys.as_str())]),
    ] {
        let (status, stdout, _) = requests(&line, &variables);
        assert_eq!((status, stdout.as_str()), (Some(0), "orders\n"), "{line}");
    }
    let (status, _, stderr) = output_of(
        command("topics list")
            .env_remove("FULLBORE_PROFILE")
            .env("XDG_CONFIG_HOME", &home)
            .output()
            .expect("it starts"),
    );
    assert!(status == Some(1) && stderr.contains(NO_LISTENER), "{stderr}");
    let (status, _, stderr) = requests("topics list", &[("FULLBORE_PROFILE", "/no/such.properties")]);
    assert!(status == Some(1) && stderr.contains("/no/such.properties"), "{stderr}");
}

/// Returns the completions that bash would offer for the last of these words.
fn completed(line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let mut requested = command("--");
    requested.args(&words).env("FULLBORE_COMPLETE", "bash").env("_CLAP_IFS", "\n");
    requested.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
    let (status, stdout, stderr) = output_of(requested.output().expect("it starts"));
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{line}");
    stdout.lines().map(|word| word.trim().to_owned()).collect()
}

#[test]
fn names_of_the_cluster_are_offered_as_completions() {
    let place = Place::new();
    place.ok("topics create other");
    place.ok("groups reset-offsets --group workers --topic orders --to-latest --execute");
    // Bash splits the address at its colons.
    let at = format!("-b {}", place.broker.address().replace(':', " : "));
    assert_eq!(completed(&format!("fullbore topics describe {at} --topic o")), ["orders", "other"]);
    assert_eq!(completed(&format!("fullbore consume {at} ord")), ["orders"]);
    assert_eq!(completed(&format!("fullbore groups describe {at} --group ")), ["workers"]);
    assert_eq!(completed(&format!("fullbore topics create {at} --topic o")), [""; 0]);
    assert_eq!(completed("fullbore topics describ"), ["describe"]);
    assert_eq!(completed(&format!("fullbore topics describe -b {NO_LISTENER} --topic o")), [""; 0], "nobody is asked");
}

#[test]
fn each_line_of_a_json_log_is_an_object() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data").display().to_string();
    let flags = "--listen PLAINTEXT://127.0.0.1:0 --set fullbore.admin.listener= --log-format json";
    let mut serve = command(&format!("serve --data-dir {data} {flags}"));
    let mut child = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut log = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    let greeting = log.by_ref().find(|line| line.contains("\"message\":\"listening\"")).expect("it listens");
    assert!(greeting.contains("\"level\":\"INFO\",\"target\":\"fullbore::serve\""), "{greeting}");
    assert!(greeting.contains("\"address\":\"127.0.0.1:") && greeting.contains("\"cluster_id\":\""), "{greeting}");
    assert!(Command::new("kill").arg(child.id().to_string()).status().expect("kill runs").success());
    for line in log {
        assert!(line.starts_with("{\"timestamp\":\"") && line.ends_with('}'), "{line}");
    }
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b""[..]));
    assert!(Path::new(&data).exists());
}
