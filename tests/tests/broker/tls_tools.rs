//! Fullbore's tools over TLS: how they succeed, the message of each failure, and the protocol log.

use crate::tls::Secured;
use fullbore_tests::pki::{Authority, write};
use fullbore_tests::{Batch, Broker, binary, wait_until};
use std::fs::File;
use std::process::{Command, Output};
use std::time::Duration;

/// Runs the binary with these arguments. DIRECTORY and ADDRESS in them are replaced by those of the broker.
fn run(secured: &Secured, arguments: &str) -> Output {
    let directory = secured.directory.path().to_str().expect("UTF-8");
    let filled = arguments.replace("DIRECTORY", directory).replace("ADDRESS", &secured.addr().to_string());
    Command::new(binary()).args(filled.split_whitespace()).output().expect("the binary starts")
}

fn stdout(output: &Output) -> String {
    let reported = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{reported}\n{}", stderr(output));
    reported
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const SOON: Duration = Duration::from_secs(30);
const SSL: &str = "security.protocol=SSL ssl.truststore.location=DIRECTORY/ca.pem";

#[test]
fn topics_perf_produce_and_perf_consume_work_over_tls() {
    let sets = ["ssl.client.auth=required", "ssl.truststore.location=DIRECTORY/ca.pem"];
    let secured = Secured::start(&sets);
    secured.authority.client("tool").write(secured.directory.path(), "client.pem");
    let with = format!("{SSL} ssl.keystore.location=DIRECTORY/client.pem");
    let file = with.replace(' ', "\n").replace("DIRECTORY", secured.directory.path().to_str().expect("UTF-8"));
    write(secured.directory.path(), "client.properties", &file);
    let at = "--bootstrap-server ADDRESS";
    let of_file = "--command-config DIRECTORY/client.properties";
    stdout(&run(&secured, &format!("topics create --topic t --partitions 3 {at} {of_file}")));
    assert_eq!(stdout(&run(&secured, &format!("topics list {at} {of_file}"))), "t\n");
    let produce = "perf produce --topic t --num-records 20000 --record-size 1000 --throughput -1";
    let produced = stdout(&run(&secured, &format!("{produce} {at} --command-property {with}")));
    assert!(produced.contains("20000 records sent"), "{produced}");
    let consumed = stdout(&run(&secured, &format!("perf consume --topic t --num-records 20000 {at} {of_file}")));
    assert!(consumed.contains(", 20000, "), "{consumed}");
    let mut reader = secured.broker.client();
    let records: i64 = (0..3).map(|partition| reader.latest("t", partition)).sum();
    assert_eq!(records, 20_000);
}

/// The profile names the cluster and has the settings of TLS. A tool that ignores it cannot reach the broker.
#[test]
fn profile_names_a_cluster_with_tls_every_tool_uses_it() {
    let sets = ["ssl.client.auth=required", "ssl.truststore.location=DIRECTORY/ca.pem"];
    let secured = Secured::start(&sets);
    secured.authority.client("tool").write(secured.directory.path(), "client.pem");
    let directory = secured.directory.path().to_str().expect("UTF-8");
    let address = secured.addr().to_string();
    let with = format!("{SSL} ssl.keystore.location=DIRECTORY/client.pem bootstrap.servers={address}");
    write(secured.directory.path(), "profile", &with.replace(' ', "\n").replace("DIRECTORY", directory));
    for line in [
        "topics create --topic t --partitions 2",
        "topics create --topic copied --partitions 2",
        "topics list",
        "topics describe --topic t",
        "topics offsets t",
        "topics alter --topic t --partitions 3",
        "topics elect-leaders t --partition 0",
        "configs alter --topic t --add-config retention.ms=-1",
        "configs describe --topic t",
        "produce --topic t --transactional-id p",
        "consume --topic t --group g --from-beginning --exit",
        "copy --from t --to copied --group c --exit",
        "groups list",
        "groups describe --group g",
        "groups reset-offsets --group g --topic t --to-earliest --execute",
        "groups delete-offsets --group g --topic t",
        "groups delete --group g",
        "transactions list",
        "transactions describe --transactional-id p",
        "transactions describe-producers --topic t --partition 0",
        "transactions find-hanging --broker-id 1",
        "info",
        "log-dirs --describe",
        "api-versions",
        "perf produce --topic t --num-records 9 --record-size 9 --throughput -1",
        "perf consume --topic t --num-records 9",
        "perf sweep -b ADDRESS --over max.in.flight=1 --repeats 1 --num-records 9 --warmup 0s --output DIRECTORY/b",
        "perf sweep --against one=ADDRESS --over max.in.flight=1 --repeats 1 --num-records 9 --warmup 0s --output DIRECTORY/a",
        "topics delete --topic t",
    ] {
        let filled = line.replace("DIRECTORY", directory).replace("ADDRESS", &address);
        let mut command = Command::new(binary());
        command.args(filled.split_whitespace()).env("FULLBORE_PROFILE", secured.directory.path().join("profile"));
        let output = command.env_remove("FULLBORE_BOOTSTRAP_SERVER").stdin(records(directory)).output();
        let output = output.expect("the binary starts");
        assert!(output.status.success(), "{line}: {}", stderr(&output));
    }
}

/// Returns a file of three lines for the standard input of a tool.
fn records(directory: &str) -> File {
    let path = format!("{directory}/records");
    std::fs::write(&path, "a\nb\nc\n").expect("written");
    File::open(path).expect("just written")
}

#[test]
fn failed_session_is_reported_with_its_reason() {
    let secured = Secured::start(&["ssl.client.auth=required", "ssl.truststore.location=DIRECTORY/ca.pem"]);
    write(secured.directory.path(), "other.pem", &Authority::new("another").pem());
    write(secured.directory.path(), "client.pem", &secured.authority.client("tool").both());
    let identity = "ssl.keystore.location=DIRECTORY/client.pem";
    for (properties, expected) in [
        (SSL.to_owned(), "requires a client certificate"),
        (format!("security.protocol=SSL ssl.truststore.location=DIRECTORY/other.pem {identity}"), "unknown CA"),
        (format!("{SSL} ssl.keystore.location=DIRECTORY/no.pem"), "/no.pem: No such file"),
        (format!("{SSL} ssl.truststore.type=JKS"), "ssl.truststore.type=JKS: must be PEM"),
        ("ssl.truststore.location=DIRECTORY/ca.pem".to_owned(), "no effect without security.protocol=SSL"),
        ("security.protocol=SASL_SSL".to_owned(), "must be PLAINTEXT or SSL"),
    ] {
        for tool in ["perf produce --record-size 1 --throughput -1", "perf consume"] {
            let tool =
                format!("{tool} --topic t --num-records 1 --bootstrap-server ADDRESS --command-property {properties}");
            let output = run(&secured, &tool);
            assert_eq!(output.status.code(), Some(1), "{tool}: {}", stderr(&output));
            assert!(stderr(&output).contains(expected), "{tool}: {}", stderr(&output));
        }
    }
}

#[test]
fn broker_requires_certificates_the_command_of_its_greeting_works() {
    let secured = Secured::start(&[]);
    let file = |name: &str| secured.directory.path().join(name).display().to_string();
    secured.authority.client("tool").write(secured.directory.path(), "client.pem");
    let (keystore, truststore) = (file("broker.pem"), file("ca.pem"));
    let broker = Broker::start(&[
        "listeners=SSL://127.0.0.1:0",
        "ssl.client.auth=required",
        &format!("ssl.keystore.location={keystore}"),
        &format!("ssl.truststore.location={truststore}"),
    ]);
    let is_whole = |greeting: &str| greeting.contains("fullbore perf produce") && greeting.ends_with('\n');
    wait_until("it greets", SOON, || is_whole(&broker.stdout()));
    let greeting = broker.stdout();
    let command = greeting.lines().find_map(|line| line.trim().strip_prefix("fullbore ")).expect("a command");
    let command = command.replace("CA.pem", &truststore).replace("CLIENT.pem", &file("client.pem"));
    let produced = stdout(&run(&secured, &command.replace("--num-records 1000000", "--num-records 9")));
    assert!(produced.contains("9 records sent"), "{produced}");
    let kcat = "-X ssl.certificate.location=CLIENT.pem -X ssl.key.location=CLIENT.pem";
    assert!(greeting.contains(kcat), "{greeting}");
}

#[test]
fn host_names_are_verified_unless_disabled() {
    let secured = Secured::start(&[]);
    secured.authority.broker(&["kafka.example"]).write(secured.directory.path(), "elsewhere.pem");
    let elsewhere = secured.directory.path().join("elsewhere.pem");
    let keystore = format!("ssl.keystore.location={}", elsewhere.display());
    let broker = Broker::start(&["listeners=SSL://127.0.0.1:0", &keystore]);
    let list = |more: &str| {
        let directory = secured.directory.path().to_str().expect("UTF-8");
        let file = format!("{SSL} {more}").replace("DIRECTORY", directory).replace(' ', "\n");
        write(secured.directory.path(), "client.properties", &file);
        run(
            &secured,
            &format!("topics list --bootstrap-server {} --command-config DIRECTORY/client.properties", broker.addr()),
        )
    };
    let refused = stderr(&list(""));
    assert!(refused.contains("not for 127.0.0.1") && refused.contains("kafka.example"), "{refused}");
    stdout(&list("ssl.endpoint.identification.algorithm="));
}

#[test]
fn plain_tool_at_an_ssl_listener_and_the_reverse_fail_with_the_reason() {
    let secured = Secured::start(&[]);
    let plain = run(&secured, "topics list --bootstrap-server ADDRESS");
    assert_eq!(plain.status.code(), Some(1));
    assert!(stderr(&plain).contains("set security.protocol=SSL"), "{}", stderr(&plain));
    secured.broker.wait_for_stderr("a plaintext client on an SSL listener");
    let address = secured.broker.addr().to_string();
    let consume =
        format!("perf consume --topic t --num-records 1 --bootstrap-server {address} --command-property {SSL}");
    let secure = stderr(&run(&secured, &consume));
    assert!(secure.contains("is it an SSL listener?"), "{secure}");
}

/// Returns the value of a field in a log line.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let start = line.find(&format!("{name}=")).unwrap_or_else(|| panic!("no {name} in {line}")) + name.len() + 1;
    line[start..].split_whitespace().next().expect("a value").trim_matches('"')
}

#[test]
fn protocol_log_has_each_request_and_response_and_is_off_by_default() {
    let secured = Secured::start(&[]);
    secured.broker.client().create_topic("t", 1, &[]);
    secured.broker.client().produced("t", 0, &Batch::of(&["CONTENTS"]));
    let consume = format!("perf consume --topic t --num-records 1 --bootstrap-server ADDRESS --command-property {SSL}");
    let produce = format!(
        "perf produce --topic t --num-records 1 --record-size 10 --throughput -1 --bootstrap-server ADDRESS --command-property {SSL}"
    );
    let topics = format!("topics list --bootstrap-server {}", secured.broker.addr());
    for (tool, api) in [(&consume, "Fetch"), (&produce, "Produce"), (&topics, "Metadata")] {
        let silent = run(&secured, tool);
        assert!(silent.status.success() && !stderr(&silent).contains("request"), "{}", stderr(&silent));
        let loud = run(&secured, &format!("{tool} --debug protocol"));
        let log = stderr(&loud);
        let of = |what: &str| {
            let mut lines = log.lines().filter(|line| line.contains(what) && field(line, "api") == api);
            lines.next().unwrap_or_else(|| panic!("no {what} of {api} in {log}")).to_owned()
        };
        let (request, response) = (of("request"), of("response"));
        assert_eq!(field(&request, "correlation_id"), field(&response, "correlation_id"));
        assert_eq!(field(&request, "version"), field(&response, "version"));
        for (line, name) in [(&request, "bytes"), (&response, "bytes"), (&response, "rtt_us")] {
            assert!(field(line, name).parse::<u64>().expect("a number") > 0, "{line}");
        }
        assert!(!log.contains("CONTENTS"), "{log}");
    }
    assert!(!secured.broker.stderr().contains("fullbore::protocol"));
}

#[test]
fn the_brokers_protocol_log_has_the_service_time() {
    let broker = Broker::start(&["--debug=protocol"]);
    broker.client().create_topic("t", 1, &[]);
    broker.client().produced("t", 0, &Batch::of(&["CONTENTS"]));
    let line = |what: &str| {
        let reported = broker.stderr();
        let found = reported.lines().find(|line| line.contains(what) && field(line, "api") == "Produce");
        found.map(str::to_owned)
    };
    // The broker logs the response after sending it.
    wait_until("the broker has told of its answer", SOON, || line("service_us=").is_some());
    let (request, response) = (line("request").expect("told first"), line("response").expect("waited for"));
    let reported = broker.stderr();
    assert_eq!(field(&request, "correlation_id"), field(&response, "correlation_id"));
    assert!(!reported.contains("CONTENTS"));
}
