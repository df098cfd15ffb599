//! A broker whose metadata is in PostgreSQL: how it works during an outage, and which errors it prints if it cannot
//! start.

use fullbore_tests::postgres::PostgresServer;
use fullbore_tests::{Batch, Broker, Client, produce_request, serve_refused, stable_ports, wait_until};
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use fullbore_wire::apis::init_producer_id::InitProducerIdRequest;
use fullbore_wire::{ErrorCode, Text};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

const HANGS: Duration = Duration::from_secs(120);
const PASSWORD: &str = "s3cr3t-w0rd";
const NO_RETRY: &str = "initial.broker.registration.timeout.ms=0";
/// The line of a start that waits for the database.
const RETRIES: &str = "cannot use the cluster's database yet";

fn create(client: &mut Client, name: &str) -> (ErrorCode, String) {
    let topic =
        CreatableTopic { name: Text::from(name), num_partitions: 1, replication_factor: 1, ..Default::default() };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 30_000, ..Default::default() };
    let answer = client.call(&request, 7).topics.remove(0);
    (answer.error_code, answer.error_message.map(|message| message.to_string()).unwrap_or_default())
}

fn produce(client: &mut Client, topic: &str) -> ErrorCode {
    let request = produce_request(topic, 0, Batch::of(&["one"]).bytes());
    client.call(&request, 9).responses.remove(0).partition_responses.remove(0).error_code
}

fn producer_id(client: &mut Client) -> i64 {
    let request = InitProducerIdRequest { transaction_timeout_ms: 60_000, ..Default::default() };
    let answer = client.call(&request, 4);
    assert_eq!(answer.error_code, ErrorCode::NONE);
    answer.producer_id
}

#[test]
fn broker_without_its_database_serves_records_and_changes_wait() {
    let server = PostgresServer::start();
    let database = server.database();
    server.run(
        &database,
        &format!("CREATE ROLE secretive LOGIN PASSWORD '{PASSWORD}'; GRANT ALL ON DATABASE {database} TO secretive"),
    );
    let url = format!("postgres://secretive:{PASSWORD}@{}/{database}", server.address());
    let plane = format!("control.plane={url}");
    let sets = [plane.as_str(), "control.plane.timeout.ms=4000"];
    let mut broker = Broker::start(&sets);
    let mut client = broker.client();
    assert_eq!(create(&mut client, "t").0, ErrorCode::NONE);
    assert_eq!(produce(&mut client, "t"), ErrorCode::NONE);
    let resource = DescribeConfigsResource { resource_type: 4, resource_name: Text::from("1"), ..Default::default() };
    let request = DescribeConfigsRequest { resources: vec![resource], include_synonyms: true, ..Default::default() };
    let described = format!("{:?}", client.call(&request, 4));
    assert!(described.contains("control.plane") && !described.contains(PASSWORD));
    let first = producer_id(&mut client);

    server.stop();
    let started = Instant::now();
    let (code, message) = create(&mut client, "u");
    assert!(code == ErrorCode::REQUEST_TIMED_OUT && started.elapsed() < HANGS, "{code:?}: {message}");
    assert_eq!(produce(&mut client, "t"), ErrorCode::NONE);
    assert_eq!(producer_id(&mut client), first + 1);
    broker.wait_for_stderr("cannot change the metadata");
    assert!(!broker.stderr().contains(PASSWORD));
    server.start_again();
    // An earlier attempt may have been carried out after its timeout.
    let created = [ErrorCode::NONE, ErrorCode::TOPIC_ALREADY_EXISTS];
    wait_until("it is found again", HANGS, || created.contains(&create(&mut client, "u").0));

    broker.kill();
    broker.restart();
    let mut client = broker.client();
    assert_eq!(create(&mut client, "t").0, ErrorCode::TOPIC_ALREADY_EXISTS);
    assert_eq!(client.latest("t", 0), 2);
    let reported = broker.stderr() + &broker.stdout();
    assert!(!reported.contains(PASSWORD), "{reported}");
    broker.stop();

    server.stop();
    let refused = serve_refused(broker.data_dir(), &[&sets[..], &[NO_RETRY]].concat());
    let lines: Vec<&str> = refused.stderr.lines().collect();
    assert!(!refused.status.success() && !refused.stderr.contains(PASSWORD), "{}", refused.stderr);
    let line = lines.last().expect("a line");
    assert!(line.contains(&format!("postgres://{}/{database}: ", server.address())), "{}", refused.stderr);
}

#[test]
fn start_during_a_database_outage_waits_for_the_database_or_a_signal() {
    let server = PostgresServer::start();
    let plane = format!("control.plane={}", server.url(&server.database()));
    let mut broker = Broker::start(&[&plane, "initial.broker.registration.timeout.ms=600000"]);
    assert_eq!(create(&mut broker.client(), "t").0, ErrorCode::NONE);
    broker.stop();

    server.stop();
    broker.begin_restart();
    broker.wait_for_stderr(RETRIES);
    broker.stop();

    broker.begin_restart();
    broker.wait_for_stderr(RETRIES);
    server.start_again();
    broker.wait_for_start();
    assert_eq!(create(&mut broker.client(), "t").0, ErrorCode::TOPIC_ALREADY_EXISTS);
}

/// Regression: clients connected to a broker that waited for its database, and got no answer.
#[test]
fn start_during_a_database_outage_refuses_clients_until_it_is_complete() {
    let server = PostgresServer::start();
    let plane = format!("control.plane={}", server.url(&server.database()));
    let port = stable_ports(1)[0];
    let listener = format!("listeners=PLAINTEXT://127.0.0.1:{port}");
    let mut broker = Broker::start(&[&plane, &listener, "initial.broker.registration.timeout.ms=600000"]);
    broker.stop();

    server.stop();
    broker.begin_restart();
    broker.wait_for_stderr(RETRIES);
    let refused = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect_err("it cannot answer yet");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    server.start_again();
    broker.wait_for_start();
    assert_eq!(create(&mut broker.client(), "t").0, ErrorCode::NONE);
}

/// Regression: the start ended at once, although Kubernetes and compose may create the name later than the broker.
#[test]
fn start_with_a_database_host_without_address_retries_and_names_host_remedy_and_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let plane = "control.plane=postgres://ann@no-such-host.invalid/x";
    let refused = serve_refused(directory.path(), &[plane, "initial.broker.registration.timeout.ms=5000"]);
    assert!(!refused.status.success() && refused.stderr.contains(RETRIES), "{}", refused.stderr);
    let line = refused.stderr.lines().last().expect("it names the reason");
    let begin = "fullbore: postgres://no-such-host.invalid:5432/x: as user ann: no address is known for the host \
                 no-such-host.invalid (";
    let remedy = "); create the name in the name service (in Kubernetes, its Service), or correct the host in \
                  control.plane; the start has tried for ";
    let is_reported = line.starts_with(begin) && line.contains(remedy);
    assert!(is_reported && line.ends_with(" s (initial.broker.registration.timeout.ms)"), "{}", refused.stderr);
}

#[test]
fn start_without_its_database_names_address_user_and_remedy() {
    let server = PostgresServer::shared();
    let database = server.database();
    server.run(&database, &format!("CREATE ROLE secretive LOGIN PASSWORD '{PASSWORD}'"));
    let address = server.address();
    let socket = "as user ann: /no/such/.s.PGSQL.5433: No such file or directory (os error 2); start PostgreSQL, or correct the socket's directory";
    let wrong = "password authentication failed for user \"secretive\"; check the user in control.plane, the password \
         in control.plane.password.file";
    let no_password = "as user secretive: password missing; name a file with the password in \
         control.plane.password.file";
    let no_file =
        "as user ann: control.plane.password.file=/no/such: No such file or directory (os error 2); the user that runs";
    let cases = [
        ("ann:s3cr3t-w0rd@%2Fno%2Fsuch:5433/x".to_owned(), NO_RETRY, "/no/such:5433/x", socket),
        (
            "ann:s3cr3t-w0rd@127.0.0.1:1/x".to_owned(),
            NO_RETRY,
            "127.0.0.1:1/x",
            "start PostgreSQL there, or correct host and port",
        ),
        ("ann@%2Fno%2Fsuch/x".to_owned(), "control.plane.password.file=/no/such", "/no/such:5432/x", no_file),
        (
            format!("postgres@{address}/nowhere"),
            "",
            &format!("{address}/nowhere"),
            "does not exist; create the database, or correct",
        ),
        (format!("secretive:wr0ng-w0rd@{address}/{database}"), "", &format!("{address}/{database}"), wrong),
        (format!("secretive@{address}/{database}"), "", &format!("{address}/{database}"), no_password),
    ];
    for (url, set, named, why) in cases {
        let directory = tempfile::tempdir().expect("a directory");
        let plane = format!("control.plane=postgres://{url}");
        let sets = [plane.as_str(), set];
        let refused = serve_refused(directory.path(), if set.is_empty() { &sets[..1] } else { &sets });
        let line = refused.stderr.lines().last().expect("it says why");
        let is_reported = line.starts_with(&format!("fullbore: postgres://{named}: as user ")) && line.contains(why);
        assert!(!refused.status.success() && is_reported && !refused.stderr.contains("w0rd"), "{}", refused.stderr);
        assert!(!refused.stderr.contains(RETRIES), "a retry would not help: {}", refused.stderr);
    }
}
