//! Tests of `topics`, `configs` and `groups`, which run as processes against a Fullbore broker.
//! `tests/clients/fullbore.sh` runs the same cases against Apache Kafka and compares the lines with those of Kafka's
//! tools.

mod help;
#[path = "../tool_output/mod.rs"]
mod tool_output;

use fullbore_tests::{Broker, NO_LISTENER};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use tool_output::{ToolOutput, output_of};

fn fullbore(line: &str) -> ToolOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    output_of(command.args(line.split_whitespace()).stdin(Stdio::null()).output().expect("it starts"))
}

/// The broker to which the tested commands connect.
struct Place {
    broker: Broker,
}

impl Place {
    fn new() -> Place {
        Place { broker: Broker::start(&[]) }
    }

    fn run(&self, line: &str) -> ToolOutput {
        fullbore(&format!("{line} --bootstrap-server {}", self.broker.address()))
    }

    fn ok(&self, line: &str) -> String {
        tool_output::ok(line, self.run(line))
    }

    fn refused(&self, line: &str) -> String {
        tool_output::refused(line, self.run(line))
    }
}

#[test]
fn partitions_can_be_added_and_not_removed() {
    let place = Place::new();
    place.ok("topics create --topic a --partitions 2");
    let warned = place.ok("topics --alter --topic a --partitions 3");
    assert!(warned.starts_with("WARNING: If partitions are increased"), "{warned}");
    assert!(place.ok("topics describe --topic a").contains("PartitionCount: 3"));
    let reported = place.refused("topics alter --topic a --partitions 2");
    assert!(reported.contains("currently has 3 partition(s)") && reported.contains("never taken away"), "{reported}");
    let reported = place.refused("topics alter --topic b --partitions 2");
    assert!(reported.contains("Topic 'b' does not exist as expected; `fullbore topics list` shows"), "{reported}");
    assert_eq!(place.ok("topics alter --topic b --partitions 2 --if-exists --json"), "{\"altered\":[]}\n");
    place.ok("topics alter --topic a --partitions 5 --replica-assignment 1,1,1,1,1");
    let reported = place.refused("topics alter --topic a --partitions 6 --replica-assignment 1,1,1,1,1");
    assert!(reported.contains("is for 5 partitions and --partitions is 6"), "{reported}");
    let (status, stdout, stderr) = place.run("topics alter --topic a --partitions 6 --json");
    assert_eq!((status, stdout.as_str()), (Some(0), "{\"altered\":[{\"name\":\"a\",\"partition_count\":6}]}\n"));
    assert!(
        stderr.starts_with("{\"note\":\"WARNING: If partitions are increased") && stderr.lines().count() == 1,
        "{stderr}"
    );
}

#[test]
fn a_pattern_without_a_terminal_deletes_topics_only_with_yes() {
    let place = Place::new();
    for topic in ["test-1", "test-2", "other"] {
        place.ok(&format!("topics create --topic {topic}"));
    }
    place.ok("groups reset-offsets --group g --topic other --to-latest --execute");
    let (status, stdout, stderr) = place.run("topics delete --topic .*");
    let reported =
        "fullbore: '.*' is a pattern that matches 3 topics: other, test-1, test-2; add --yes to delete them\n";
    assert_eq!((status, stdout.as_str(), stderr.as_str()), (Some(2), "", reported));
    let (status, _, stderr) = place.run("topics alter --topic test-[1] --partitions 2 --json");
    let reported = "{\"error\":\"'test-[1]' is a pattern that matches 1 topic: test-1; add --yes to alter it\"}\n";
    assert_eq!((status, stderr.as_str()), (Some(2), reported));
    assert_eq!(place.ok("topics list"), "__consumer_offsets\nother\ntest-1\ntest-2\n");
    let reported = place.ok("topics alter --topic test-.* --partitions 2 --yes");
    assert!(
        reported.ends_with(
            "\nTopic test-1 has 2 partitions now, 1 before.\nTopic test-2 has 2 partitions now, 1 before.\n"
        )
    );
    assert_eq!(place.ok("topics delete --topic test-.* --yes"), "Deleted topic test-1.\nDeleted topic test-2.\n");
    assert_eq!(place.ok("topics delete --topic .* --yes"), "Deleted topic other.\n");
    let reported = place.refused("topics delete --topic .*offsets --yes");
    assert!(
        reported.contains("'.*offsets' matches only internal topics: __consumer_offsets; type the exact"),
        "{reported}"
    );
    assert_eq!(place.ok("topics list"), "__consumer_offsets\n");
    assert_eq!(place.ok("topics delete --topic __consumer_offsets"), "Deleted topic __consumer_offsets.\n");
}

#[test]
fn a_pattern_on_a_terminal_deletes_topics_after_a_yes() {
    let place = Place::new();
    ["test-1", "test-2"].iter().for_each(|topic| drop(place.ok(&format!("topics create --topic {topic}"))));
    let program = env!("CARGO_BIN_EXE_fullbore");
    let line = format!("{program} topics delete --topic 'test-.*' --bootstrap-server {}", place.broker.address());
    // The program `script` gives the command a terminal.
    let answered = |answer: &str| {
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = script.spawn().ok()?;
        let (mut stdin, mut stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let (mut printed, mut byte) = (Vec::new(), [0]);
        while !printed.ends_with(b"? [y/N] ") && stdout.read(&mut byte).expect("readable") > 0 {
            printed.push(byte[0]);
        }
        stdin.write_all(answer.as_bytes()).expect("it waits for an answer");
        stdout.read_to_end(&mut printed).expect("readable");
        let status = child.wait().expect("it ends").code();
        Some((status, String::from_utf8_lossy(&printed).replace('\r', "")))
    };
    let Some((status, printed)) = answered("n\n") else {
        println!("skipped: there is no `script`");
        return;
    };
    let requested = "'test-.*' is a pattern that matches 2 topics:\n  test-1\n  test-2\ndelete them? [y/N] ";
    assert!(status == Some(1) && printed.starts_with(requested), "{printed}");
    assert!(printed.contains("not confirmed: no topic was changed"), "{printed}");
    assert_eq!(place.ok("topics list"), "test-1\ntest-2\n");
    let (status, printed) = answered("y\n").expect("as before");
    assert!(status == Some(0) && printed.ends_with("Deleted topic test-1.\nDeleted topic test-2.\n"), "{printed}");
    assert_eq!(place.ok("topics list"), "");
}

#[test]
fn a_topic_is_diskless_from_its_creation_on() {
    let place = Place::new();
    place.ok("topics create --topic t --config diskless.enable=true");
    place.ok("topics create --topic u --config inkless.enable=true");
    for topic in ["t", "u"] {
        let reported = place.ok(&format!("topics describe --topic {topic}"));
        assert!(reported.contains("Configs: diskless.enable=true"), "{reported}");
        let reported = place.refused(&format!("configs alter --topic {topic} --delete-config diskless.enable"));
        assert!(reported.contains("is diskless and keeps diskless.enable=true"), "{reported}");
    }
    place.ok("configs alter --topic t --add-config min.insync.replicas=2");
    let flags = "--under-replicated-partitions --unavailable-partitions --under-min-isr-partitions";
    assert_eq!(place.ok(&format!("topics describe {flags}")), "", "it has no effect there");
    let reported = place.refused("topics create --topic v --config diskless.enable=true --replication-factor 2");
    assert!(reported.contains("the object store replicates"), "{reported}");
}

#[test]
fn internal_topics_are_described_unless_excluded() {
    let place = Place::new();
    place.ok("topics create --topic a");
    place.ok("groups reset-offsets --group g --topic a --to-latest --execute");
    assert_eq!(place.ok("topics list"), "__consumer_offsets\na\n");
    assert_eq!(place.ok("topics list --exclude-internal"), "a\n");
    let all = "{\"topics\":[{\"name\":\"__consumer_offsets\",\"is_internal\":true},\n{\"name\":\"a\",\"is_internal\":false}]}\n";
    assert_eq!(place.ok("topics list --json"), all);
    let described = |flags: &str| {
        let reported = place.ok(&format!("topics describe {flags}"));
        let topics =
            reported.lines().filter_map(|line| line.strip_prefix("Topic: ")).map(|line| line.split('\t').next());
        topics.flatten().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(described(""), ["__consumer_offsets", "a"]);
    assert_eq!(described("--exclude-internal"), ["a"]);
    // The number of partitions of `__consumer_offsets` determines the coordinator of each group, so partitions cannot
    // be added. The topic may be deleted. Groups then lose their offsets and start again.
    let refused = place.refused("topics alter --topic __consumer_offsets --partitions 60");
    assert!(refused.contains("it determines the partitions of groups"), "{refused}");
    place.ok("topics delete --topic __consumer_offsets");
    place.refused("groups describe --group g");
    assert_eq!(place.ok("groups list"), "");
    place.ok("groups reset-offsets --group h --topic a --to-latest --execute");
    assert_eq!(place.ok("groups list"), "h\n");
    assert!(place.ok("topics describe --topic __consumer_offsets").contains("PartitionCount: 50"));
}

#[test]
fn topics_are_printed_as_json() {
    let place = Place::new();
    assert_eq!(place.ok("topics create --topic a --config retention.ms=1000 --json"), "{\"created\":[\"a\"]}\n");
    assert_eq!(place.ok("topics create --topic a --if-not-exists --json"), "{\"created\":[]}\n");
    assert_eq!(place.ok("topics list --json"), "{\"topics\":[{\"name\":\"a\",\"is_internal\":false}]}\n");
    let described = place.ok("topics describe --topic a --json");
    let expected = "\"partition_count\":1,\"replication_factor\":1,\"configs\":{\"retention.ms\":\"1000\"},\"partitions\":\
                    [{\"partition\":0,\"leader\":1,\"replicas\":[1],\"isr\":[1],\"elr\":";
    assert!(described.contains(expected), "{described}");
    assert_eq!(place.ok("topics describe --unavailable-partitions --json"), "{\"topics\":[]}\n");
    assert_eq!(place.ok("topics delete --topic a --json"), "{\"deleted\":[\"a\"],\"failed\":[]}\n");
    let reported = place.refused("topics describe --topic a --json");
    assert!(reported.starts_with("{\"error\":\"Topic 'a' does not exist") && reported.ends_with("\"}\n"), "{reported}");
}

#[test]
fn configurations_are_set_shown_and_deleted() {
    let place = Place::new();
    place.ok("topics create --topic a");
    assert_eq!(place.ok("configs describe --topic a"), "Dynamic configs for topic a are:\n");
    let done = "Completed updating config for topic a.\n";
    let set = "--add-config retention.ms=1000,max.message.bytes=[2000000]";
    assert_eq!(place.ok(&format!("configs --alter --entity-type topics --entity-name a {set}")), done);
    let described = place.ok("configs --describe --topic a");
    let line =
        "\n  max.message.bytes=2000000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000000, ";
    assert!(described.contains(line) && described.contains("\n  retention.ms=1000 "), "{described}");
    let document = place.ok("configs describe --topic a --json");
    let start = "{\"entities\":[{\"type\":\"topic\",\"name\":\"a\",\"configs\":[{\"name\":\"max.message.bytes\",\"value\":\
                 \"2000000\",\"source\":\"DYNAMIC_TOPIC_CONFIG\",\"is_sensitive\":false,";
    assert!(document.starts_with(start), "{document}");
    assert_eq!(place.ok("configs alter --topic a --delete-config retention.ms,max.message.bytes"), done);
    assert_eq!(place.ok("configs describe --topic a").lines().count(), 1);
    let all = place.ok("configs describe --topic a --all");
    assert!(all.starts_with("All configs for topic a are:\n") && all.contains("\n  cleanup.policy=delete "), "{all}");
    let done = "Completed updating default config for brokers in the cluster.\n";
    assert_eq!(place.ok("configs alter --broker-defaults --add-config message.max.bytes=1500000"), done);
    let brokers = place.ok("configs describe --entity-type brokers");
    let expected =
        "Dynamic configs for broker 1 are:\nDefault configs for brokers in the cluster are:\n  message.max.bytes=";
    assert!(brokers.starts_with(expected), "{brokers}");
}

#[test]
fn invalid_configurations_are_refused_with_the_reason() {
    let place = Place::new();
    place.ok("topics create --topic a");
    for (line, reported) in [
        ("configs alter --topic a --add-config no.such.key=1", "no.such.key"),
        ("configs alter --topic a --add-config retention.ms=soon", "retention.ms"),
        ("configs alter --topic b --add-config retention.ms=1", "b"),
        ("configs alter --topic a", "nothing changes; give --add-config"),
        ("configs alter --topic a --delete-config no.such.key", "Invalid config(s): no.such.key; "),
        (
            "configs alter --topic a --add-config retention.ms=1 --delete-config no.such.key,segment.ms",
            "Invalid config(s): no.such.key,segment.ms; ",
        ),
        ("configs alter --broker-defaults --delete-config no.such.key", "Invalid config(s): no.such.key; "),
        ("configs alter --broker 1 --delete-config message.max.bytes", "Invalid config(s): message.max.bytes; "),
        ("configs alter --group g --delete-config no.such.key", "Invalid config(s): no.such.key; "),
        ("configs alter --broker-logger 1 --delete-config no.such.logger", "no.such.logger"),
        ("configs alter --topic a --add-config x=1 --delete-config x", "x is both set and deleted"),
        ("configs alter --entity-type topics --add-config x=1", "name the topic to alter"),
        ("configs alter --topic a --add-config-file /no/such", "/no/such"),
        ("configs describe --topic b", "The topic 'b' doesn't exist"),
        ("configs describe --broker 9", "The broker '9' doesn't exist"),
        (
            "configs alter --broker 9 --add-config message.max.bytes=1500000",
            "broker '9' does not exist or is not running",
        ),
        ("configs describe --entity-type users", "SCRAM credentials and quotas of users are not offered yet"),
        ("configs describe", "name an entity"),
    ] {
        let refusal = place.refused(line);
        assert!(refusal.contains(reported) && refusal.lines().count() == 1, "{line}: {refusal}");
    }
    assert_eq!(
        place.ok("configs describe --topic a").lines().count(),
        1,
        "nothing was set by a change that was refused"
    );
}

#[test]
fn a_groups_offsets_are_set_shown_and_deleted() {
    let place = Place::new();
    place.ok("topics create --topic a --partitions 2");
    place.ok("perf produce --topic a --num-records 100 --record-size 10 --throughput -1");
    assert_eq!(place.ok("groups list"), "");
    let reset = |flags: &str| place.run(&format!("groups reset-offsets --group g {flags}"));
    let (status, planned, stderr) = reset("--topic a --to-latest");
    assert!(status == Some(0) && planned.contains("\ng               a               0          "), "{planned}");
    assert!(stderr.starts_with("Nothing was changed; add --execute"), "{stderr}");
    assert_eq!(place.ok("groups list"), "", "it was only planned");

    place.ok("groups --reset-offsets --group g --topic a --to-earliest --execute");
    let lags = |described: &str| -> Vec<i64> {
        let lag = |line: &str| line.split_whitespace().nth(5)?.parse().ok();
        described.lines().filter_map(lag).collect()
    };
    let (status, described, stderr) = place.run("groups --describe --group g");
    assert_eq!((status, stderr.as_str()), (Some(0), "\nConsumer group 'g' has no active members.\n"));
    let before = lags(&described);
    assert_eq!((before.len(), before.iter().sum::<i64>()), (2, 100), "{described}");
    // All records may be in one partition, so the test looks for a partition that has records.
    let full = usize::from(before[0] == 0);
    place.ok(&format!("groups reset-offsets --group g --topic a:{full} --shift-by 1 --execute"));
    let (_, described, _) = place.run("groups describe --group g --offsets");
    let mut expected = before;
    expected[full] -= 1;
    assert_eq!(lags(&described), expected, "{described}");

    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("plan.csv").display().to_string();
    let exported = place.ok("groups reset-offsets --group g --all-topics --to-current --export --dry-run");
    std::fs::write(&file, &exported).expect("written");
    place.ok("groups reset-offsets --group g --all-topics --to-latest --execute");
    let (_, described, _) = place.run("groups describe --group g");
    assert_eq!(lags(&described), [0, 0], "{described}");
    place.ok(&format!("groups reset-offsets --group g --from-file {file} --execute"));
    assert_eq!(place.ok("groups reset-offsets --group g --all-topics --to-current --export --dry-run"), exported);

    let forgotten = place.ok("groups delete-offsets --group g --topic a:1");
    assert!(forgotten.starts_with("Request succeeded for deleting offsets from group g.\n\nTOPIC "), "{forgotten}");
    let (_, document, _) = place.run("groups describe --group g --json");
    assert!(
        document.contains("{\"topic\":\"a\",\"partition\":0,") && !document.contains("\"partition\":1"),
        "{document}"
    );
    let (_, state, _) = place.run("groups describe --group g --state");
    assert!(state.contains(" Empty                0\n"), "{state}");
    assert!(place.ok("groups list --state empty --type classic").contains("\ng "));
    let deleted = "Deletion of requested consumer groups ('g') was successful.\n";
    assert_eq!(place.ok("groups delete --group g"), deleted);
    let reported = place.refused("groups describe --group g");
    assert!(
        reported.contains("consumer group 'g' does not exist; `fullbore groups list` shows the existing groups"),
        "{reported}"
    );
}

/// A file names topics exactly, as `--topic` does. So both select an internal topic only by its exact name.
#[test]
fn internal_topic_in_a_file_of_offsets_is_reset_like_one_that_a_flag_names() {
    let place = Place::new();
    place.ok("topics create --topic a");
    // The first commit creates the internal topic.
    place.ok("groups reset-offsets --group g --topic a --to-latest --execute");
    let internal = "--topic __consumer_offsets:0";
    let committed = || place.ok(&format!("groups reset-offsets --group g {internal} --to-current --export --dry-run"));
    place.ok(&format!("groups reset-offsets --group g {internal} --to-earliest --execute"));
    let exported = committed();
    assert_eq!(exported, "__consumer_offsets,0,0\n");
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("plan.csv").display().to_string();
    std::fs::write(&file, &exported).expect("written");
    place.ok(&format!("groups delete-offsets --group g {internal}"));
    place.ok(&format!("groups reset-offsets --group g --from-file {file} --execute"));
    assert_eq!(committed(), exported);
    std::fs::write(&file, "__consumer_.*,0,0\n").expect("written");
    let reported = place.refused(&format!("groups reset-offsets --group g --from-file {file} --execute"));
    assert!(reported.contains("'__consumer_.*'"), "{reported}");
}

/// Returns, for each API, how many requests a command has sent and how many were in flight at most.
fn requests(protocol_log: &str) -> BTreeMap<String, (usize, usize)> {
    let (mut found, mut due) = (BTreeMap::<String, (usize, usize)>::new(), BTreeMap::<String, usize>::new());
    for line in protocol_log.lines() {
        let Some((_, api)) = line.split_once("api=\"") else { continue };
        let api = api.split('"').next().unwrap_or_default().to_owned();
        let under_way = due.entry(api.clone()).or_default();
        if line.contains("fullbore::protocol: request") {
            *under_way += 1;
            let (sent, most) = found.entry(api).or_default();
            (*sent, *most) = (*sent + 1, (*most).max(*under_way));
        } else {
            *under_way -= 1;
        }
    }
    found
}

#[test]
fn offsets_of_many_groups_are_reset_with_few_requests() {
    let place = Place::new();
    place.ok("topics create --topic a --partitions 2");
    let groups: String = (0..100).map(|number| format!(" --group g{number:03}")).collect();
    let reset = |flags: &str| {
        let (status, stdout, log) =
            place.run(&format!("groups reset-offsets{groups} {flags} --execute --debug protocol"));
        assert_eq!(status, Some(0), "{log}");
        let rows: Vec<&str> = stdout.lines().filter_map(|line| line.split_whitespace().next()).skip(1).collect();
        assert!(rows.len() == 200 && rows.is_sorted(), "{stdout}");
        let sent = requests(&log);
        let (commits, under_way) = sent["OffsetCommit"];
        assert!(commits == 100 && (2..=32).contains(&under_way), "{sent:?}");
        sent.into_iter()
            .filter(|(api, _)| api != "OffsetCommit" && api != "ApiVersions")
            .map(|(api, (sent, _))| (api, sent))
            .collect::<BTreeMap<String, usize>>()
    };
    let counts =
        |all: &[(&str, usize)]| all.iter().map(|(api, sent)| ((*api).to_owned(), *sent)).collect::<BTreeMap<_, _>>();
    // FindCoordinator is sent twice, for the description and for the commit. Metadata is also sent twice, for the
    // partitions and for their leaders.
    let first = reset("--topic a --to-latest");
    let described = [("ConsumerGroupDescribe", 1), ("DescribeGroups", 1), ("FindCoordinator", 2)];
    assert_eq!(first, counts(&[&described[..], &[("Metadata", 2), ("ListOffsets", 1)]].concat()));
    let shifted = reset("--all-topics --shift-by 1");
    let described = [("ConsumerGroupDescribe", 1), ("DescribeGroups", 1), ("FindCoordinator", 3), ("OffsetFetch", 1)];
    assert_eq!(shifted, counts(&[&described[..], &[("Metadata", 3), ("ListOffsets", 2)]].concat()));
}

#[test]
fn a_group_that_cannot_be_reset_does_not_stop_the_others() {
    let place = Place::new();
    place.ok("topics create --topic a");
    place.ok("groups reset-offsets --group g1 --group g3 --topic a --to-latest --execute");
    let line = "groups reset-offsets --group g3 --group g2 --group g1 --all-topics --to-earliest --execute --json";
    let (status, stdout, stderr) = place.run(line);
    assert!(status == Some(1) && stderr.contains("group 'g2' has no offsets"), "{stderr}");
    let group = |id: &str| {
        let offsets = "[{\"topic\":\"a\",\"partition\":0,\"new_offset\":0}]";
        format!("{{\"group\":\"{id}\",\"is_executed\":true,\"offsets\":{offsets}}}")
    };
    assert_eq!(stdout, format!("{{\"groups\":[{},\n{}]}}\n", group("g1"), group("g3")));
}

#[test]
fn invalid_offsets_are_refused_with_the_reason() {
    let place = Place::new();
    place.ok("topics create --topic a");
    for (flags, reported) in [
        (
            "reset-offsets --group g --topic a:7 --to-earliest",
            "partition 7 of topic 'a' does not exist; the topic has 1",
        ),
        ("reset-offsets --group g --topic b --to-earliest", "topic 'b' does not exist"),
        ("reset-offsets --group g --topic a --shift-by 1", "Cannot shift offset for partition a-0"),
        ("reset-offsets --group g --all-topics --to-earliest", "group 'g' has no offsets"),
        ("reset-offsets --group g --from-file /no/such", "/no/such"),
        ("delete --group g", "consumer group 'g' does not exist"),
        ("delete-offsets --group g --topic a", "consumer group 'g' does not exist"),
    ] {
        let refusal = place.refused(&format!("groups {flags}"));
        assert!(refusal.contains(reported) && refusal.lines().count() == 1, "{flags}: {refusal}");
    }
    let (status, stdout, stderr) =
        place.run("groups reset-offsets --group g --topic a --to-offset 50 --dry-run --json");
    assert!(
        stderr
            .contains("New offset (50) is higher than latest offset for topic partition a-0. Value will be set to 0.")
    );
    let planned = "{\"groups\":[{\"group\":\"g\",\"is_executed\":false,\"offsets\":[{\"topic\":\"a\",\"partition\":0,\
                   \"new_offset\":0}]}]}\n";
    assert_eq!((status, stdout.as_str()), (Some(0), planned));
}

#[test]
fn a_refused_connection_is_reported_at_once_in_either_form() {
    for command in ["topics list", "configs describe --entity-type brokers", "groups list", "groups delete --group g"] {
        let (status, _, stderr) = fullbore(&format!("{command} --bootstrap-server {NO_LISTENER}"));
        let reported = format!("fullbore: cannot connect to {NO_LISTENER}: Connection refused");
        assert!(status == Some(1) && stderr.starts_with(&reported) && stderr.contains("`fullbore serve`"), "{stderr}");
        let (status, stdout, stderr) = fullbore(&format!("{command} --json --bootstrap-server {NO_LISTENER}"));
        assert_eq!((status, stdout.as_str()), (Some(1), ""));
        assert!(stderr.starts_with("{\"error\":\"cannot connect to ") && stderr.ends_with("\"}\n"), "{stderr}");
    }
}

#[test]
fn an_unusable_address_is_reported_with_its_mistake() {
    let (status, _, stderr) = fullbore("topics list --bootstrap-server 127.0.0.1:99999");
    let reported = "fullbore: \"127.0.0.1:99999\" has a port above 65535; write --bootstrap-server localhost:9092";
    assert!(status == Some(1) && stderr.starts_with(reported), "{stderr}");
    // RFC 2606 guarantees that this name never resolves, with or without a name server.
    for command in ["topics list", "consume --topic t", "produce --topic t", "perf consume --topic t --num-records 1"] {
        let (status, _, stderr) = fullbore(&format!("{command} --bootstrap-server nowhere.invalid:9092"));
        assert_eq!(status, Some(1), "{command}: {stderr}");
        let reported = "cannot connect to nowhere.invalid:9092: no address is known for the host (";
        let next = "); correct the name in --bootstrap-server, or in advertised.listeners of the broker";
        assert!(stderr.contains(reported) && stderr.contains(next), "{command}: {stderr}");
    }
}

#[test]
fn a_time_with_a_unit_is_refused_with_the_number_to_write() {
    let place = Place::new();
    for command in [
        "topics create --topic a --config retention.ms=1h",
        "configs alter --broker-defaults --add-config log.retention.ms=1h",
    ] {
        let reported = place.refused(command);
        assert!(reported.trim_end().ends_with("; 1h is 3600000"), "{command}: {reported}");
    }
}

#[test]
fn perf_tools_print_json() {
    let place = Place::new();
    place.ok("topics create --topic a");
    let sent =
        place.ok("perf produce --topic a --num-records 50 --record-size 10 --throughput -1 --warmup-records 5 --json");
    let kinds = ["{\"kind\":\"summary\",\"records\":50,", "{\"kind\":\"steady_state\",\"records\":45,"];
    assert!(
        sent.lines().all(|line| line.starts_with("{\"kind\":")) && kinds.iter().all(|kind| sent.contains(kind)),
        "{sent}"
    );
    let read = place.ok("perf consume --topic a --num-records 50 --json");
    assert!(read.starts_with("{\"kind\":\"summary\",\"start_ms\":") && read.contains("\"records\":50,"), "{read}");
    assert_eq!(read.lines().count(), 1, "{read}");
    let some = place.ok("perf consume --topic a --num-records 20 --json");
    assert!(some.contains("\"records\":20,"), "no record more than asked for: {some}");
}

#[test]
fn a_demo_prints_json() {
    let (status, stdout, stderr) = fullbore("demo --records 200 --record-size 100 --json");
    assert_eq!((status, stdout.contains("Streaming")), (Some(0), false), "{stderr}");
    let start = "{\"records\":400,\"record_size\":100,\"partitions\":3,\"phases\":[{\"name\":\"as fast as it goes\",\"records\":200,";
    assert!(stdout.starts_with(start) && stdout.ends_with("}}]}\n"), "{stdout}");
}
