//! Tests the relay between real sockets. The relay must deliver bytes unchanged, and never too early. No test measures
//! the relay's speed.

use fullbore_bench::link::Shape;
use fullbore_bench::link::relay::{CONNECTIONS_MAX, IN_FLIGHT_BYTES_MAX, LossStall, Relay, RelaySettings, Totals};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a test waits before it fails.
const PATIENCE: Duration = Duration::from_secs(60);
const RTT: Duration = Duration::from_millis(60);

fn settings() -> RelaySettings {
    RelaySettings {
        shape: Shape::default(),
        loss_stall: None,
        in_flight_max: IN_FLIGHT_BYTES_MAX,
        connections_max: CONNECTIONS_MAX,
    }
}

fn distant() -> RelaySettings {
    RelaySettings { shape: Shape { rtt: RTT, ..Shape::default() }, ..settings() }
}

/// A relay on its own thread, and the listener to which it connects.
struct Link {
    at: SocketAddr,
    server: TcpListener,
    stop: watch::Sender<bool>,
    thread: std::thread::JoinHandle<Totals>,
}

impl Link {
    fn new(settings: &RelaySettings) -> Link {
        let server = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let to = server.local_addr().expect("bound").to_string();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let relay = runtime.block_on(Relay::bind("127.0.0.1:0", &to, settings)).expect("a free port");
        let at = relay.addr().expect("bound");
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::spawn(move || runtime.block_on(relay.run(stopped)));
        Link { at, server, stop, thread }
    }

    fn connect(&self) -> TcpStream {
        patient(TcpStream::connect(self.at).expect("it listens"))
    }

    fn accept(&self) -> TcpStream {
        patient(self.server.accept().expect("the relay connects").0)
    }

    fn end(self) -> Totals {
        self.stop.send_replace(true);
        self.thread.join().expect("no panic")
    }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Returns bytes without repeated pieces, so that a test notices if the relay exchanges two pieces.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) * 31 + (i >> 8) * 7 + (i >> 16)) as u8).collect()
}

/// Sends the bytes in pieces of many sizes, and then ends the stream.
fn send(mut stream: &TcpStream, mut bytes: &[u8]) {
    for size in (1..).map(|round: usize| 1 + round * 7919 % 70_000) {
        let (piece, rest) = bytes.split_at(size.min(bytes.len()));
        stream.write_all(piece).expect("the relay reads");
        if rest.is_empty() {
            break;
        }
        bytes = rest;
    }
    stream.shutdown(Shutdown::Write).expect("open");
}

fn receive(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("everything comes");
    bytes
}

fn both_ways(settings: &RelaySettings, connections: usize) -> Totals {
    let link = Link::new(settings);
    for number in 0..connections {
        let (there, back) = (pattern(3_000_000, number), pattern(2_000_000, number + 100));
        let client = link.connect();
        let server = link.accept();
        std::thread::scope(|scope| {
            scope.spawn(|| send(&client, &there));
            scope.spawn(|| send(&server, &back));
            let at_server = scope.spawn(|| receive(&server));
            assert!(receive(&client) == back, "back");
            assert!(at_server.join().expect("no panic") == there, "there");
        });
    }
    link.end()
}

#[test]
fn bytes_arrive_unchanged_and_in_order_both_ways() {
    let jitter = Shape { rtt: Duration::from_millis(4), jitter: Duration::from_millis(10), ..Shape::default() };
    let narrow = Shape { bandwidth: Some(40_000_000), buffer: Some(10_000), ..Shape::default() };
    let stall = Some(LossStall { probability: 0.001, stall: Duration::from_millis(5) });
    let small = RelaySettings { in_flight_max: 200_000, ..distant() };
    let few = RelaySettings { in_flight_max: 1, ..settings() };
    let cases = [
        settings(),
        few,
        RelaySettings { shape: jitter, ..settings() },
        RelaySettings { shape: narrow, loss_stall: stall, ..settings() },
        small,
    ];
    for case in cases {
        let totals = both_ways(&case, 2);
        let expected =
            Totals { connections: 2, refused: 0, bytes_there: 6_000_000, bytes_back: 4_000_000, stalls: totals.stalls };
        assert_eq!(totals, expected, "{case:?}");
    }
}

#[test]
fn everything_sees_the_distance() {
    let link = Link::new(&distant());
    let started = Instant::now();
    let mut client = link.connect();
    // The client sends bytes before the relay has connected to the far end. They arrive together with the connection.
    client.write_all(b"ping").expect("open");
    let mut server = link.accept();
    assert!(started.elapsed() >= RTT / 2, "the connection: {:?}", started.elapsed());
    let mut four = [0; 4];
    server.read_exact(&mut four).expect("it comes");
    assert!(started.elapsed() >= RTT / 2 && &four == b"ping", "the first bytes: {:?}", started.elapsed());
    let answered = Instant::now();
    server.write_all(b"pong").expect("open");
    client.read_exact(&mut four).expect("it comes");
    assert!(answered.elapsed() >= RTT / 2 && &four == b"pong", "back: {:?}", answered.elapsed());
    for _ in 0..5 {
        let sent = Instant::now();
        client.write_all(b"ping").expect("open");
        server.read_exact(&mut four).expect("it comes");
        assert!(sent.elapsed() >= RTT / 2, "every byte: {:?}", sent.elapsed());
    }
    let ended = Instant::now();
    client.shutdown(Shutdown::Write).expect("open");
    assert_eq!(server.read(&mut four).expect("the end"), 0);
    assert!(ended.elapsed() >= RTT / 2, "the end: {:?}", ended.elapsed());
}

#[test]
fn the_other_half_stays_open() {
    let link = Link::new(&distant());
    let client = link.connect();
    client.shutdown(Shutdown::Write).expect("open");
    let server = link.accept();
    assert!(receive(&server).is_empty());
    let reply = pattern(1_000_000, 5);
    std::thread::scope(|scope| {
        scope.spawn(|| send(&server, &reply));
        assert!(receive(&client) == reply);
    });
    let totals = link.end();
    assert_eq!((totals.bytes_there, totals.bytes_back), (0, 1_000_000));
}

#[test]
fn a_refusal_of_the_far_end_arrives_after_a_round_trip() {
    let link = Link::new(&distant());
    let Link { at, server, stop, thread } = link;
    drop(server);
    let started = Instant::now();
    let mut client = patient(TcpStream::connect(at).expect("it listens"));
    let error = client.read(&mut [0; 1]).expect_err("nobody is there");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(started.elapsed() >= RTT, "{:?}", started.elapsed());
    stop.send_replace(true);
    assert_eq!(thread.join().expect("no panic").refused, 1);
}

#[test]
fn a_reset_crosses_too() {
    let link = Link::new(&distant());
    let mut client = link.connect();
    client.write_all(b"unread").expect("open");
    let server = link.accept();
    server.peek(&mut [0; 1]).expect("it comes");
    let reset = Instant::now();
    // If a socket is closed with unread bytes, it sends a reset.
    drop(server);
    let error = client.read(&mut [0; 1]).expect_err("reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(reset.elapsed() >= RTT / 2, "{:?}", reset.elapsed());
}

#[test]
fn a_full_lane_does_not_read() {
    let in_flight_max = 256 * 1024;
    let shape = Shape { rtt: 4 * PATIENCE, ..Shape::default() };
    let link = Link::new(&RelaySettings { shape, in_flight_max, ..settings() });
    let mut client = link.connect();
    // The round trip is longer than the test, so no byte arrives. The relay must stop reading at its limit, and then
    // the sender's writes time out.
    client.set_write_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let piece = pattern(64 * 1024, 0);
    let mut sent = 0;
    while sent < 256 << 20 {
        match client.write(&piece) {
            Ok(taken) => sent += taken,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(sent < 256 << 20, "the relay took everything");
    let read = link.end().bytes_there;
    // The last read may exceed the limit.
    assert!(read <= in_flight_max as u64 + 128 * 1024, "{read} bytes under way");
}

#[test]
fn connections_share_the_bandwidth_of_a_direction() {
    let rate = 2_000_000;
    let shape = Shape { bandwidth: Some(rate), buffer: Some(0), ..Shape::default() };
    let link = Link::new(&RelaySettings { shape, ..settings() });
    let (one, two) = (link.connect(), link.connect());
    let servers = [link.accept(), link.accept()];
    let bytes = pattern(200_000, 0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| send(&one, &bytes));
        scope.spawn(|| send(&two, &bytes));
        let read = servers.each_ref().map(|server| scope.spawn(move || receive(server)));
        assert!(read.map(|each| each.join().expect("no panic")).iter().all(|read| *read == bytes));
    });
    let least = Duration::from_secs_f64(2.0 * bytes.len() as f64 / rate as f64);
    assert!(started.elapsed() >= least, "{:?}, and {least:?} is the least", started.elapsed());
}

#[test]
fn a_loss_delays_the_bytes_behind_it() {
    let stall = Duration::from_millis(80);
    let loss_stall = Some(LossStall { probability: 0.999_999, stall });
    let link = Link::new(&RelaySettings { loss_stall, ..distant() });
    let mut client = link.connect();
    let mut server = link.accept();
    let sent = Instant::now();
    client.write_all(b"ping").expect("open");
    server.read_exact(&mut [0; 4]).expect("it comes");
    assert!(sent.elapsed() >= RTT / 2 + stall, "{:?}", sent.elapsed());
    assert_eq!(link.end().stalls, 1);
}

#[test]
fn one_connection_too_many_is_closed() {
    let link = Link::new(&RelaySettings { connections_max: 1, ..settings() });
    let mut first = link.connect();
    let mut server = link.accept();
    let mut second = link.connect();
    let closed = second.read(&mut [0; 1]);
    assert!(matches!(closed, Ok(0)) || closed.is_err(), "{closed:?}");
    first.write_all(b"x").expect("open");
    server.read_exact(&mut [0; 1]).expect("the first goes on");
    assert_eq!(link.end(), Totals { connections: 1, refused: 1, bytes_there: 1, bytes_back: 0, stalls: 0 });
}
