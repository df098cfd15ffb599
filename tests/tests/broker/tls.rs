//! SSL listeners: records and requests over TLS, client certificates, replaced certificates, and handshakes that are
//! never completed.

use fullbore_tests::pki::{Authority, Issued, write};
use fullbore_tests::{Batch, Broker, Client, Tls, bytes_of, serve_refused, wait_until};
use fullbore_wire::api::encode_request;
use fullbore_wire::apis::metadata::MetadataRequest;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(30);
const NAMES: [&str; 2] = ["127.0.0.1", "localhost"];

/// A broker with a plain and an SSL listener, its authority, and the directory of their files.
pub struct Secured {
    pub authority: Authority,
    pub directory: tempfile::TempDir,
    pub broker: Broker,
}

impl Secured {
    pub fn start(sets: &[&str]) -> Secured {
        let (authority, directory) = (Authority::new("ca"), tempfile::tempdir().expect("a directory"));
        let keystore = authority.broker(&NAMES).write(directory.path(), "broker.pem");
        write(directory.path(), "ca.pem", &authority.pem());
        let own = [
            "listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0".to_owned(),
            format!("ssl.keystore.location={}", keystore.display()),
        ];
        let given = sets.iter().map(|set| set.replace("DIRECTORY", directory.path().to_str().expect("UTF-8")));
        let all: Vec<String> = own.into_iter().chain(given).collect();
        let broker = Broker::start(&all.iter().map(String::as_str).collect::<Vec<_>>());
        Secured { authority, directory, broker }
    }

    pub fn addr(&self) -> SocketAddr {
        self.broker.addr_of("SSL")
    }

    fn tls(&self, identity: Option<&Issued>) -> Tls {
        Tls::new(&self.authority.pem(), identity)
    }

    pub fn client(&self) -> Client {
        Client::connect_tls(self.addr(), &self.tls(None))
    }

    /// Connects and sends a request. `None` if either fails. With TLS 1.3, the client notices a refusal only after its
    /// handshake.
    fn try_request(&self, identity: Option<&Issued>) -> Option<Client> {
        let mut client = Client::try_connect_tls(self.addr(), &self.tls(identity)).ok()?;
        client.try_send(&metadata_of_all(), 9).ok()?;
        client.try_receive::<MetadataRequest>(9)?;
        Some(client)
    }

    fn assert_serves(&self) {
        self.try_request(None).expect("an honest client is served");
    }
}

fn metadata_of_all() -> MetadataRequest {
    MetadataRequest { topics: None, ..Default::default() }
}

#[test]
fn records_are_unchanged_over_tls() {
    let secured = Secured::start(&["message.max.bytes=4194304"]);
    let mut client = secured.client();
    client.create_topic("secured", 1, &[("max.message.bytes", "4194304")]);
    client.produced("secured", 0, &Batch::of(&["one", "two"]));
    // Sizes around the limits of a TLS record (16 KiB) and of one read of the log (64 KiB).
    let sizes = [1, 16_383, 16_384, 16_385, 65_536, 3_000_000];
    for size in sizes {
        client.produced("secured", 0, &Batch::of(&[vec![(size % 251) as u8; size]]));
    }
    for reader in [&mut client, &mut secured.broker.client()] {
        let records = reader.fetch_records("secured", 0);
        assert_eq!((records[0].text(), records[1].text()), ("one".to_owned(), "two".to_owned()));
        let found: Vec<&[u8]> = records[2..].iter().map(|record| &record.value[..]).collect();
        let sent: Vec<Vec<u8>> = sizes.iter().map(|size| vec![(size % 251) as u8; *size]).collect();
        assert!(found == sent, "the bytes are the same");
    }
}

#[test]
fn clients_of_each_listener_get_its_address() {
    let secured = Secured::start(&[]);
    for (mut client, addr) in [(secured.client(), secured.addr()), (secured.broker.client(), secured.broker.addr())] {
        let brokers = client.call(&metadata_of_all(), 9).brokers;
        assert_eq!(brokers[0].port, i32::from(addr.port()));
    }
}

#[test]
fn requests_are_pipelined_over_tls() {
    let secured = Secured::start(&[]);
    let mut client = secured.client();
    client.create_topic("pipelined", 1, &[]);
    let batch = Batch::of(&[vec![b'x'; 1000]]);
    let sent: Vec<i32> = (0..200).map(|_| client.send_produce("pipelined", 0, &batch)).collect();
    for offset in 0..sent.len() {
        assert_eq!(client.receive_produced().base_offset, i64::try_from(offset).expect("small"));
    }
}

#[test]
fn client_certificates_none_requested_required() {
    for (auth, anonymous, stranger) in [("none", true, true), ("requested", true, false), ("required", false, false)] {
        let secured = Secured::start(&[&format!("ssl.client.auth={auth}"), "ssl.truststore.location=DIRECTORY/ca.pem"]);
        let known = secured.authority.client("known");
        let unknown = Authority::new("another").client("unknown");
        assert!(secured.try_request(Some(&known)).is_some(), "{auth}: a known certificate");
        assert_eq!(secured.try_request(None).is_some(), anonymous, "{auth}: no certificate");
        assert_eq!(secured.try_request(Some(&unknown)).is_some(), stranger, "{auth}: an unknown certificate");
        if auth == "required" {
            secured.broker.wait_for_stderr("the client showed no certificate, and ssl.client.auth=required");
        }
    }
}

#[test]
fn settings_of_one_listener_take_precedence() {
    let directory = tempfile::tempdir().expect("a directory");
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let (of_first, of_second) = (first.broker(&NAMES), second.broker(&NAMES));
    let for_all = of_first.write(directory.path(), "first.pem").display().to_string();
    let own = of_second.write(directory.path(), "second.pem").display().to_string();
    let broker = Broker::start(&[
        "listeners=PLAINTEXT://127.0.0.1:0,IN://127.0.0.1:0,OUT://127.0.0.1:0",
        "listener.security.protocol.map=IN:SSL,OUT:SSL",
        &format!("ssl.keystore.location={for_all}"),
        &format!("listener.name.out.ssl.keystore.location={own}"),
    ]);
    Client::connect_tls(broker.addr_of("IN"), &Tls::new(&first.pem(), None));
    Client::connect_tls(broker.addr_of("OUT"), &Tls::new(&second.pem(), None));
    assert!(Client::try_connect_tls(broker.addr_of("OUT"), &Tls::new(&first.pem(), None)).is_err());
}

#[test]
fn new_certificates_are_loaded_without_a_restart_and_bad_ones_are_refused() {
    let secured = Secured::start(&["fullbore.ssl.reload.interval.ms=20"]);
    let mut early = secured.client();
    let before = early.certificate();
    let directory = secured.directory.path();
    write(directory, "broker.pem", "neither key nor certificate");
    secured.broker.wait_for_stderr("the old ones stay");
    assert_eq!(secured.client().certificate(), before);
    secured.authority.broker(&NAMES).write(directory, "broker.pem");
    wait_until("the new certificate is shown", SOON, || secured.client().certificate() != before);
    early.call(&metadata_of_all(), 9);
    std::fs::remove_file(directory.join("broker.pem")).expect("it was there");
    wait_until("its loss is logged", SOON, || secured.broker.stderr().matches("the old ones stay").count() == 2);
    secured.assert_serves();
}

#[test]
fn certificates_that_expire_soon_are_logged_at_start_and_on_reload() {
    let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60 - 60);
    let secured = Secured::start(&["fullbore.ssl.reload.interval.ms=20"]);
    let renew = |issued: Issued| issued.write(secured.directory.path(), "broker.pem");
    let reported = |words: &str| secured.broker.stderr().matches(words).count();
    let is_new = |times| wait_until("it is new", SOON, || reported("new certificates are in use") == times);
    renew(secured.authority.broker_for(&NAMES, days(20)));
    secured.broker.wait_for_stderr(", in 19 days: clients refuse it from then on");
    renew(secured.authority.broker_for(&NAMES, days(32)));
    is_new(2);
    renew(secured.authority.expired_broker(&NAMES));
    secured.broker.wait_for_stderr("broker.pem: certificate 1 of 1 expired at 2001-01-01T00:00:00Z: clients refuse it");
    renew(secured.authority.broker(&NAMES));
    is_new(4);
    assert_eq!((reported("certificate 1 of 1 expires"), reported("certificate 1 of 1 expired")), (1, 1));

    let issued = secured.authority.broker_for(&NAMES, days(3));
    let (key, chain) =
        (format!("ssl.keystore.key={}", issued.key), format!("ssl.keystore.certificate.chain={}", issued.chain));
    let broker = Broker::start(&["listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0", &key, &chain]);
    broker.wait_for_stderr("ssl.keystore.certificate.chain: certificate 1 of 1 expires at ");
}

#[test]
fn a_plain_client_on_an_ssl_listener_is_closed_and_named() {
    let secured = Secured::start(&[]);
    let mut lost = Client::connect(secured.addr());
    lost.send_bytes(&bytes_of(&encode_request(&metadata_of_all(), 9, 0, None).expect("a request")));
    assert_eq!(lost.wait_for_close(), 0);
    secured.broker.wait_for_stderr("a plaintext client on an SSL listener");
    secured.assert_serves();
}

#[test]
fn a_tls_client_on_a_plain_listener_is_closed_and_named() {
    let secured = Secured::start(&[]);
    assert!(Client::try_connect_tls(secured.broker.addr(), &secured.tls(None)).is_err());
    secured.broker.wait_for_stderr("a TLS client on a plaintext listener");
    secured.assert_serves();
}

#[test]
fn garbage_closes_the_connection_at_every_stage_and_does_not_flood_the_log() {
    let secured = Secured::start(&[]);
    let beginnings: [&[u8]; 5] = [
        b"\x16\x03\x01\x00\x05hello",
        b"\x16\x03\x03\xff\xff",
        b"\x80\x2e\x01\x03\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x16; 5000],
    ];
    for bytes in beginnings.iter().cycle().take(100) {
        let mut socket = TcpStream::connect(secured.addr()).expect("it listens");
        socket.set_read_timeout(Some(SOON)).expect("open");
        let _ = socket.write_all(bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        // The client may get an alert before the connection ends.
        let _ = socket.read_to_end(&mut Vec::new());
    }
    let mut inside = secured.client();
    inside.send_bytes(b"\xff\xff\xff\xff");
    assert_eq!(inside.wait_for_close(), 0, "a bad frame inside of a session");
    secured.assert_serves();
    secured.broker.wait_for_stderr("TLS handshake failed");
    let warnings = secured.broker.stderr().matches("TLS handshake failed").count();
    assert!((1..20).contains(&warnings), "{warnings} warnings about 100 failures");
}

#[test]
fn stalled_handshakes_delay_no_other_client_and_end() {
    let secured = Secured::start(&["fullbore.ssl.handshake.timeout.ms=3000"]);
    let started = Instant::now();
    let stuck: Vec<TcpStream> = (0..200)
        .map(|n| {
            let mut socket = TcpStream::connect(secured.addr()).expect("it listens");
            // Half of the clients send nothing. The others send only the beginning of a handshake.
            socket.write_all(if n % 2 == 0 { b"" } else { b"\x16\x03\x01\x02\x00\x01" }).expect("open");
            socket
        })
        .collect();
    let mut client = secured.client();
    client.create_topic("free", 1, &[]);
    for offset in 0..50 {
        assert_eq!(client.produced("free", 0, &Batch::of(&["through"])), offset);
    }
    (0..10).for_each(|_| secured.assert_serves());
    for mut socket in stuck {
        socket.set_read_timeout(Some(SOON)).expect("open");
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).expect("closed by the broker, not by time");
    }
    assert!(started.elapsed() >= Duration::from_millis(2900), "they had their time");
    secured.broker.wait_for_stderr("no TLS handshake in 3s");
    client.call(&metadata_of_all(), 9);
}

#[test]
fn connections_count_against_limits_from_accept_on() {
    let secured = Secured::start(&["max.connections=3"]);
    let mut silent: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(secured.addr()).expect("it listens")).collect();
    wait_until("the fourth is refused", SOON, || Client::try_connect_tls(secured.addr(), &secured.tls(None)).is_err());
    silent.pop();
    wait_until("there is room again", SOON, || secured.try_request(None).is_some());
}

#[test]
fn silent_client_is_idle_before_and_after_its_handshake() {
    let secured = Secured::start(&["connections.max.idle.ms=500", "fullbore.ssl.handshake.timeout.ms=600000"]);
    let mut silent = Client::connect(secured.addr());
    let mut shaken = None;
    // The idle limit also applies to the handshake, which may therefore fail on a busy machine. The test then repeats
    // it.
    wait_until("a session", SOON, || {
        shaken = Client::try_connect_tls(secured.addr(), &secured.tls(None)).ok();
        shaken.is_some()
    });
    assert_eq!((silent.wait_for_close(), shaken.expect("a session").wait_for_close()), (0, 0));
}

#[test]
fn a_stop_does_not_wait_for_handshakes() {
    let mut secured = Secured::start(&[]);
    let _silent = TcpStream::connect(secured.addr()).expect("it listens");
    secured.assert_serves();
    let started = Instant::now();
    secured.broker.stop();
    // Clients may take longer than this for their handshake or their responses. The stop must not wait for silent ones.
    assert!(started.elapsed() < Duration::from_secs(9), "it waited for a silent client");
}

fn refusal(directory: &Path, sets: &[&str]) -> String {
    let sets: Vec<&str> = [&["listeners=SSL://127.0.0.1:0"], sets].concat();
    let refused = serve_refused(directory, &sets);
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    refused.stderr
}

#[test]
fn unsupported_tls_settings_refuse_the_start_in_one_line_without_secrets() {
    let directory = tempfile::tempdir().expect("a directory");
    let of = |sets: &[&str]| refusal(directory.path(), sets);
    let keystore = format!(
        "ssl.keystore.location={}",
        Authority::new("ca").broker(&NAMES).write(directory.path(), "k.pem").display()
    );
    assert!(of(&[]).contains("ssl.keystore.location: must be set for listener SSL"));
    assert!(of(&["ssl.keystore.type=JKS", &keystore]).contains("ssl.keystore.type=JKS: must be PEM"));
    assert!(of(&[&keystore, "ssl.client.auth=required"]).contains("ssl.truststore.location: must be set"));
    let password = of(&[&keystore, "ssl.keystore.password=TOPSECRET"]);
    assert!(
        password.contains("ssl.keystore.password: must be left out") && !password.contains("TOPSECRET"),
        "{password}"
    );
    let missing = of(&["ssl.keystore.location=/no/such.pem"]);
    assert!(missing.contains("ssl.keystore.location=/no/such.pem: No such file"), "{missing}");
    assert!(of(&["listeners=SASL_SSL://127.0.0.1:0"]).contains("SASL is not offered yet"));
    assert!(!directory.path().join("control.db").exists(), "nothing is left behind");
}

#[test]
fn secrets_are_not_described() {
    use fullbore_wire::apis::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
    let issued = Authority::new("ca").broker(&NAMES);
    let key = format!("ssl.keystore.key={}", issued.key);
    let chain = format!("ssl.keystore.certificate.chain={}", issued.chain);
    let broker = Broker::start(&[
        "listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        &key,
        &chain,
        "ssl.key.password=TOPSECRET",
    ]);
    let resource = DescribeConfigsResource { resource_type: 4, resource_name: "1".into(), ..Default::default() };
    let request = DescribeConfigsRequest { resources: vec![resource], include_synonyms: true, ..Default::default() };
    let result = broker.client().call(&request, 4).results.remove(0);
    for name in ["ssl.key.password", "ssl.keystore.key", "ssl.keystore.certificate.chain"] {
        let entry = result.configs.iter().find(|entry| entry.name == *name).expect(name);
        assert!(entry.is_sensitive && entry.value.is_none(), "{name}");
        assert!(entry.synonyms.iter().all(|synonym| synonym.value.is_none()), "{name}");
    }
    let shown = format!("{}{}{result:?}", broker.stdout(), broker.stderr());
    assert!(!shown.contains("TOPSECRET") && !shown.contains("PRIVATE KEY"), "{shown}");
}
