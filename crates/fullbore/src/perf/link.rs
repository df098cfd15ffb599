//! `fullbore perf link` simulates a distance on one machine until a signal ends it. `fullbore_bench::link` delays and
//! transfers the bytes.

use crate::demo::figures::grouped;
use crate::failure::Failure;
use crate::output::{self, Format, line, words};
use crate::stop::Stop;
use clap::{ArgGroup, Args};
use fullbore_bench::link::namespaces::{self, ADDRESSES, MTU, Pair};
use fullbore_bench::link::relay::{CONNECTIONS_MAX, IN_FLIGHT_BYTES_MAX, LossStall, Relay, RelaySettings, Totals};
use fullbore_bench::link::{Shape, units};
use fullbore_bench::report::json::{object, string};
use fullbore_client::blocking::{BrokerAddress, Cluster};
use fullbore_wire::split_host_port;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The client id of the metadata request to the brokers behind a relay.
const CLIENT_ID: &str = "fullbore-link";
/// The MTU of Ethernet.
const MTU_DEFAULT: u32 = 1_500;

/// The minimum of the default stall after a loss. The default is a round trip, after which TCP can send a lost packet
/// again at the earliest.
const STALL_MIN: Duration = Duration::from_millis(10);

/// Put a distance between a client and a server on this machine, until Ctrl-C, and count the bytes that cross it.
///
/// With --listen and --to it is a relay. It listens at one address and connects to the other for each connection. It
/// holds every byte for half of --rtt in each direction, and also the start and the end of a connection. Any program
/// may use it, and it needs no privileges.
///
/// A relay hides the distance from TCP. Each connection is two local ones, with local windows and acknowledgements.
/// There is no slow start, small socket buffers are large enough, and no packet is lost (--loss-stall imitates the cost
/// of losses). connect() returns at once, since this machine answers it. A relay therefore shows what waiting for
/// responses costs a program, not what a distance costs TCP. All connections of a direction share its bandwidth. Bytes
/// beyond --buffer are not read from the sender until there is space, so that nothing is dropped.
///
/// With --namespaces it is a link with all of these effects on the kernel's TCP: two network namespaces, a TUN device
/// in each, and IP packets carried between them. It needs root and `ip`. Packets beyond --buffer are dropped, and
/// --loss drops some packets at random. TCP passes up to 64 KB at once to the device, as to a network card that splits
/// such data into packets (TSO). The link splits the data only if packets are lost or wait for the bandwidth. The
/// namespaces are removed at the end. The namespaces of a killed link are removed when a link of the same name starts.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  fullbore perf link --listen 127.0.0.1:19092 --to 127.0.0.1:9092 --rtt 150ms --bandwidth 200mbit
  fullbore perf link --namespaces near,far --rtt 150ms --loss 0.1%

Kafka clients connect to the address a broker advertises, so a broker behind a relay has to advertise the relay's:
  fullbore serve --listen 127.0.0.1:9092 --set advertised.listeners=PLAINTEXT://127.0.0.1:19092
and Apache Kafka, in server.properties:
  listeners=PLAINTEXT://127.0.0.1:9092
  advertised.listeners=PLAINTEXT://127.0.0.1:19092
Clients are then given 127.0.0.1:19092. A cluster needs a relay for each broker.")]
#[command(group = ArgGroup::new("kind").required(true).args(["listen", "namespaces"]))]
pub struct Link {
    /// For a relay: the address to listen on.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port, requires = "to")]
    listen: Option<String>,
    /// For a relay: the address to connect to.
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port, requires = "listen")]
    to: Option<String>,
    /// The names of two network namespaces, which this command creates with a link between them.
    #[arg(long, value_name = "A,B", value_parser = names)]
    namespaces: Option<[String; 2]>,
    /// The round-trip time: 150 or 150ms, 1.5s, 500us. Each direction takes half of it.
    #[arg(long, allow_hyphen_values = true, value_name = "TIME", value_parser = units::milliseconds)]
    rtt: Duration,
    /// The rate of each direction: 200mbit, 1gbit, 25MB/s [default: unlimited].
    #[arg(long, allow_hyphen_values = true, value_name = "RATE", value_parser = units::rate)]
    bandwidth: Option<u64>,
    /// The bytes that may wait for the bandwidth: 1MB, 64KiB [default: those that the link carries in a round trip].
    #[arg(long, allow_hyphen_values = true, value_name = "SIZE", value_parser = units::size, requires = "bandwidth")]
    buffer: Option<u64>,
    /// The largest additional random delay, which keeps the order: 5 or 5ms.
    #[arg(long, allow_hyphen_values = true, value_name = "TIME", value_parser = units::milliseconds, default_value = "0")]
    jitter: Duration,
    /// For a relay: the probability, for each 1,460 bytes, that one direction of a connection stalls, as after a lost
    /// packet: 0.1%. 0.1%:300ms also sets how long it stalls [default: the round trip, at least 10 ms].
    #[arg(long, allow_hyphen_values = true, value_name = "PROBABILITY[:TIME]", value_parser = loss_stall, conflicts_with = "namespaces")]
    loss_stall: Option<(f64, Option<Duration>)>,
    /// For a relay: the limit of bytes in flight in each direction of a connection, at which it stops to read from the
    /// sender [default: 64MiB].
    #[arg(long, allow_hyphen_values = true, value_name = "SIZE", value_parser = in_flight_max, conflicts_with = "namespaces")]
    in_flight_max: Option<u64>,
    /// For namespaces: the probability that a packet is lost, 0.1%.
    #[arg(long, allow_hyphen_values = true, value_name = "PROBABILITY", value_parser = units::probability, conflicts_with = "listen")]
    loss: Option<f64>,
    /// For namespaces: the bytes of the largest IP packet [default: 1500].
    #[arg(long, value_name = "BYTES", value_parser = mtu, conflicts_with = "listen")]
    mtu: Option<u32>,
    /// For a relay: print JSON, an object a line: {"kind": "listening", "address", "to"}, and at the end {"kind":
    /// "totals", "connections", "refused", "bytes_there", "bytes_back", "losses"}. Standard error gets errors as
    /// {"error": SENTENCE} and notes as {"note": SENTENCE}.
    #[arg(long, conflicts_with = "namespaces")]
    json: bool,
}

/// Runs the link until a signal.
pub fn run(args: Link) -> Result<(), Failure> {
    Format { json: args.json }.choose();
    let stop = Stop::at_signal(Box::new(|| {}))?;
    match (&args.namespaces, &args.listen, &args.to) {
        (Some(names), ..) => join(&args, names, &stop),
        (None, Some(listen), Some(to)) => relay(&args, listen, to, &stop),
        _ => Err(Failure::new("--listen needs --to")),
    }
}

fn relay(args: &Link, listen: &str, to: &str, stop: &Stop) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let totals = runtime.block_on(async {
        let relay = Relay::bind(listen, to, &args.relay_settings())
            .await
            .map_err(|error| Failure::new(format!("cannot listen on {listen}: {}", of_bind(&error))))?;
        let far = to.to_owned();
        let relay = relay.on_cut_off(move |error| {
            output::remark(format!(
                "cannot connect to {far}: {error}; connections are refused until a server listens there"
            ));
        });
        let (bound, far) = (relay.addr()?, to.to_owned());
        let relay = relay.on_kafka(move || drop(std::thread::spawn(move || look_for_detour(&far, bound))));
        let address = bound.to_string();
        words(&format!("Relay listening on {address}, to {to}; {}", args.shape().described()));
        if args.json {
            line(&object([("kind", string("listening")), ("address", string(&address)), ("to", string(to))]));
        }
        Ok::<_, Failure>(relay.run(stop.receiver()).await)
    })?;
    line(&if args.json { document(&totals) } else { summary(&totals) });
    Ok(())
}

/// Warns the user if the brokers behind the relay advertise other addresses, because clients then bypass the relay.
fn look_for_detour(to: &str, relay: SocketAddr) {
    // If the brokers do not respond, this prints no warning, because clients will get an error anyway.
    let Ok(brokers) = Cluster::new(to, CLIENT_ID).and_then(|mut cluster| cluster.brokers()) else { return };
    if let Some(detour) = detour(&brokers, relay) {
        output::remark(detour);
    }
}

/// Returns a warning if no broker advertises the relay's address. Compares only ports, because a host may have several
/// names.
fn detour(brokers: &[BrokerAddress], relay: SocketAddr) -> Option<String> {
    if brokers.iter().any(|broker| broker.port == i32::from(relay.port())) {
        return None;
    }
    let addresses: Vec<String> = brokers.iter().map(BrokerAddress::address).collect();
    (!addresses.is_empty()).then(|| {
        format!(
            "clients go around this relay, which then measures nothing: brokers send them to {}; start the broker with \
             --set advertised.listeners=PLAINTEXT://{relay}",
            addresses.join(", ")
        )
    })
}

/// Returns the reason why the relay cannot listen on an address, with the remedy if there is one.
fn of_bind(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is taken; stop the program that has it, or name another with --listen HOST:PORT".to_owned()
        }
        _ => error.to_string(),
    }
}

fn join(args: &Link, names: &[String; 2], stop: &Stop) -> Result<(), Failure> {
    let settings = namespaces::NamespaceSettings {
        names: names.clone(),
        shape: args.shape(),
        loss: args.loss.unwrap_or(0.0),
        mtu: args.mtu.unwrap_or(MTU_DEFAULT),
    };
    let lossy = args.loss.map(|loss| format!(", {}% of packets lost", loss * 100.0)).unwrap_or_default();
    let pair = Pair::new(settings)?;
    let ([a, b], [at_a, at_b]) = (pair.names(), ADDRESSES);
    line(&format!("Link from {a} ({at_a}) to {b} ({at_b}); {}{lossy}", args.shape().described()));
    line(&format!("  ip netns exec {b} fullbore serve --listen {at_b}:9092"));
    line(&format!("  ip netns exec {a} fullbore topics create --topic test --bootstrap-server {at_b}:9092"));
    let requested = stop.receiver();
    let outcome = pair.run(|| *requested.borrow());
    for ((from, to), counts) in [(a, b), (b, a)].into_iter().zip(pair.counts()) {
        let [packets, bytes, lost, dropped] =
            [&counts.packets, &counts.bytes, &counts.lost, &counts.dropped].map(|count| grouped(count.load(Relaxed)));
        line(&format!("{from} to {to}: {packets} packets of {bytes} bytes; {lost} lost, {dropped} dropped"));
    }
    Ok(outcome?)
}

fn document(totals: &Totals) -> String {
    object([
        ("kind", string("totals")),
        ("connections", totals.connections.to_string()),
        ("refused", totals.refused.to_string()),
        ("bytes_there", totals.bytes_there.to_string()),
        ("bytes_back", totals.bytes_back.to_string()),
        ("losses", totals.stalls.to_string()),
    ])
}

fn summary(totals: &Totals) -> String {
    format!(
        "{} connections, {} of them refused; {} bytes to the server, {} bytes back; {} losses imitated",
        grouped(totals.connections),
        grouped(totals.refused),
        grouped(totals.bytes_there),
        grouped(totals.bytes_back),
        grouped(totals.stalls)
    )
}

impl Link {
    fn shape(&self) -> Shape {
        Shape { rtt: self.rtt, bandwidth: self.bandwidth, buffer: self.buffer, jitter: self.jitter }
    }

    fn relay_settings(&self) -> RelaySettings {
        let loss_stall = self.loss_stall.map(|(probability, stall)| LossStall {
            probability,
            stall: stall.unwrap_or_else(|| self.rtt.max(STALL_MIN)),
        });
        RelaySettings {
            shape: self.shape(),
            loss_stall,
            in_flight_max: self.in_flight_max.map_or(IN_FLIGHT_BYTES_MAX, |bytes| bytes as usize),
            connections_max: CONNECTIONS_MAX,
        }
    }
}

fn host_port(text: &str) -> Result<String, String> {
    match split_host_port(text) {
        Some((host, _)) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err("must be HOST:PORT, or [::1]:PORT".to_owned()),
    }
}

fn names(text: &str) -> Result<[String; 2], String> {
    match text.split_once(',') {
        Some((a, b)) if !a.is_empty() && !b.is_empty() && !b.contains(',') => Ok([a.to_owned(), b.to_owned()]),
        _ => Err("must be two names, A,B".to_owned()),
    }
}

fn mtu(text: &str) -> Result<u32, String> {
    let allowed = || format!("must be from {} to {}", MTU.start(), MTU.end());
    text.parse().ok().filter(|mtu| MTU.contains(mtu)).ok_or_else(allowed)
}

fn loss_stall(text: &str) -> Result<(f64, Option<Duration>), String> {
    let (probability, stall) = match text.split_once(':') {
        Some((probability, stall)) => (probability, Some(units::duration(stall)?)),
        None => (text, None),
    };
    Ok((units::probability(probability)?, stall))
}

/// Parses the limit of bytes in flight. It is at most 1 GiB, because the relay holds these bytes in memory.
fn in_flight_max(text: &str) -> Result<u64, String> {
    let bytes = units::size(text)?;
    if (1 << 10..=16 * IN_FLIGHT_BYTES_MAX as u64).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("must be from 1KiB to 1GiB".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        link: Link,
    }

    fn parse(flags: &str) -> Result<RelaySettings, String> {
        let line = crate::command_line::parsed::<Line>(std::iter::once("link").chain(flags.split_whitespace()));
        line.map(|line| line.link.relay_settings()).map_err(|error| error.to_string())
    }

    const LEAST: &str = "--listen 127.0.0.1:0 --to a:1 --rtt";

    #[test]
    fn units_of_a_link_are_parsed() {
        let settings = parse(&format!("{LEAST} 150ms --bandwidth 200mbit --buffer 1MB --jitter 5ms")).expect("flags");
        let shape = settings.shape;
        assert_eq!((shape.rtt, shape.bandwidth), (Duration::from_millis(150), Some(25_000_000)));
        assert_eq!((shape.buffer, shape.jitter), (Some(1_000_000), Duration::from_millis(5)));
        assert_eq!(settings.in_flight_max, IN_FLIGHT_BYTES_MAX);
    }

    #[test]
    fn a_loss_stalls_for_a_round_trip_by_default() {
        let of = |flags: &str| parse(&format!("{LEAST} {flags}")).expect(flags).loss_stall.expect("given");
        let (by_rtt, least) = (of("150ms --loss-stall 0.1%"), of("0 --loss-stall 0.1%"));
        assert_eq!((by_rtt.probability, by_rtt.stall, least.stall), (0.001, Duration::from_millis(150), STALL_MIN));
        assert_eq!(of("150ms --loss-stall 0.01:1s").stall, Duration::from_secs(1));
    }

    #[test]
    fn a_malformed_flag_of_a_link_is_refused_with_the_allowed_values() {
        for (flags, reported) in [
            ("150x", "must be a duration with its unit, such as 150ms"),
            ("150ms --bandwidth 200mbps", "must be a rate with its unit, such as 200mbit"),
            ("150ms --loss-stall 100%", "below 100%"),
            ("150ms --loss-stall 1%:x", "must be a duration"),
            ("150ms --buffer 1MB", "--bandwidth"),
            ("150ms --in-flight-max 1", "from 1KiB to 1GiB"),
        ] {
            let refusal = parse(&format!("{LEAST} {flags}")).expect_err(flags);
            assert!(refusal.contains(reported), "{refusal}");
        }
        for (flags, reported) in [
            ("--rtt 1ms", "<--listen <HOST:PORT>|--namespaces <A,B>>"),
            ("--listen a:1 --rtt 1ms", "--to <HOST:PORT>"),
            ("--namespaces a,b --listen a:1 --to b:1 --rtt 1ms", "cannot be used with"),
            ("--namespaces a --rtt 1ms", "must be two names, A,B"),
            ("--namespaces a,b --rtt 1ms --mtu 100", "must be from 576 to 65535"),
            ("--namespaces a,b --rtt 1ms --loss-stall 1%", "cannot be used with"),
            ("--listen a:1 --to b:1 --rtt 1ms --loss 1%", "cannot be used with"),
        ] {
            let refusal = parse(flags).expect_err(flags);
            assert!(refusal.contains(reported), "{refusal}");
        }
        assert_eq!(host_port("[::1]:9092").as_deref(), Ok("[::1]:9092"));
        for address in ["nowhere", ":1", "host:", "host:65536", "::1:9092"] {
            assert_eq!(host_port(address), Err("must be HOST:PORT, or [::1]:PORT".to_owned()), "{address}");
        }
    }
}
