//! Measures the offset commits per second of a broker, or of the cluster that it belongs to. Arguments: HOST:PORT
//! CONNECTIONS IN_FLIGHT SECONDS.
//!
//! Each connection has its own group and commits at that group's coordinator, one partition per request. The connection
//! sends IN_FLIGHT requests together once all earlier requests have responses. With IN_FLIGHT=1 the connection behaves
//! like a consumer with `commitSync`, and otherwise like one with `commitAsync`. Requests are encoded once, and later
//! only their offsets are replaced, so that the client's own work hardly limits the rate.
//!
//! This example is not a part of the program `fullbore`. `bench/compare commit` runs it against two brokers in turn.

use fullbore_wire::api::{Request, decode_response, encode_request};
use fullbore_wire::apis::create_topics::{CreatableTopic, CreateTopicsRequest};
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::offset_commit::{OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use fullbore_wire::{ErrorCode, Part, Text};
use hdrhistogram::Histogram;
use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum number of threads that share the connections.
const THREADS_MAX: usize = 2;
/// Maximum number of bytes of one read.
const READ_MAX: usize = 16 * 1024;
/// The version of OffsetCommit. It identifies topics by name instead of by id, and every current broker serves it.
const COMMIT: i16 = 8;
const WARM_UP: Duration = Duration::from_secs(2);
/// A placeholder for the committed offset in the encoded request. A search for this number finds the bytes to replace.
const MARK: i64 = 0x0102_0304_0506_0708;

type Failure = Box<dyn Error + Send + Sync>;

struct Connection {
    stream: TcpStream,
    /// The requests that are sent together.
    requests: Vec<u8>,
    /// The byte positions of the committed offsets in `requests`.
    offsets_at: Vec<usize>,
    offset: i64,
    sent: Instant,
    received: Vec<u8>,
}

fn encoded<R: Request>(request: &R, version: i16) -> Result<Vec<u8>, Failure> {
    let frame = encode_request(request, version, 0, Some(&Text::from_static("commit_rate")))?;
    Ok(frame
        .parts
        .iter()
        .flat_map(|part| if let Part::Bytes(bytes) = part { bytes.to_vec() } else { vec![] })
        .collect())
}

/// Returns the next frame without its length prefix. Reads as many bytes as are available, so that few reads are
/// needed, and leaves those after the frame in `buffer`.
fn read_frame(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Result<Vec<u8>, Failure> {
    loop {
        if let Some((length, rest)) = buffer.split_first_chunk()
            && let length = usize::try_from(i32::from_be_bytes(*length))?
            && length <= rest.len()
        {
            let frame = rest[..length].to_vec();
            buffer.drain(..4 + length);
            return Ok(frame);
        }
        let filled = buffer.len();
        buffer.resize(filled + READ_MAX, 0);
        let count = stream.read(&mut buffer[filled..])?;
        buffer.truncate(filled + count);
        if count == 0 {
            return Err("the broker closed the connection".into());
        }
    }
}

fn call<R: Request>(stream: &mut TcpStream, request: &R, version: i16) -> Result<R::Response, Failure> {
    stream.write_all(&encoded(request, version)?)?;
    let frame = read_frame(stream, &mut Vec::new())?;
    Ok(decode_response::<R>(frame.into(), version).map_err(|error| format!("{error}"))?.1)
}

impl Connection {
    fn open(addr: &str, group: &str, topic: &str, in_flight: usize) -> Result<Connection, Failure> {
        let mut stream = TcpStream::connect(addr)?;
        let partition = OffsetCommitRequestPartition { committed_offset: MARK, ..Default::default() };
        let topic =
            OffsetCommitRequestTopic { name: Text::from(topic), partitions: vec![partition], ..Default::default() };
        let commit = OffsetCommitRequest { group_id: Text::from(group), topics: vec![topic], ..Default::default() };
        let request = encoded(&commit, COMMIT)?;
        let offset_at =
            request.windows(8).position(|bytes| bytes == MARK.to_be_bytes()).ok_or("no offset in the request")?;
        let deadline = Instant::now() + Duration::from_secs(60);
        let find = FindCoordinatorRequest { coordinator_keys: vec![Text::from(group)], ..Default::default() };
        loop {
            let found = call(&mut stream, &find, 4)?.coordinators.remove(0);
            let committed = if found.error_code.is_err() {
                found.error_code
            } else {
                stream = TcpStream::connect(format!("{}:{}", found.host, found.port))?;
                stream.set_nodelay(true)?;
                call(&mut stream, &commit, COMMIT)?.topics[0].partitions[0].error_code
            };
            match committed {
                ErrorCode::NONE => break,
                code if Instant::now() > deadline => {
                    return Err(format!("coordinator: {}, commit: {code}", found.error_code).into());
                }
                _ => std::thread::sleep(Duration::from_millis(100)),
            }
        }
        let offsets_at = (0..in_flight).map(|number| number * request.len() + offset_at).collect();
        let requests = request.repeat(in_flight);
        Ok(Connection { stream, requests, offsets_at, offset: 0, sent: Instant::now(), received: Vec::new() })
    }

    fn send(&mut self) -> Result<(), Failure> {
        for at in &self.offsets_at {
            self.offset += 1;
            self.requests[*at..*at + 8].copy_from_slice(&self.offset.to_be_bytes());
        }
        self.sent = Instant::now();
        Ok(self.stream.write_all(&self.requests)?)
    }

    /// Receives the next response and returns its latency.
    fn receive(&mut self) -> Result<Duration, Failure> {
        let frame = read_frame(&mut self.stream, &mut self.received)?;
        let took = self.sent.elapsed();
        let (_, response) =
            decode_response::<OffsetCommitRequest>(frame.into(), COMMIT).map_err(|error| format!("{error}"))?;
        match response.topics[0].partitions[0].error_code {
            ErrorCode::NONE => Ok(took),
            code => Err(format!("a commit failed: {code}").into()),
        }
    }
}

/// Sends requests on all connections and receives the responses, again and again until the time `until`. Returns the
/// latencies of the requests that were sent from the time `from` on.
fn drive(mut connections: Vec<Connection>, from: Instant, until: Instant) -> Result<Histogram<u64>, Failure> {
    let mut taken = Histogram::new_with_max(60_000_000_000, 3)?;
    while Instant::now() < until {
        for connection in &mut connections {
            connection.send()?;
        }
        for connection in &mut connections {
            for _ in 0..connection.offsets_at.len() {
                let took = connection.receive()?;
                if connection.sent >= from {
                    taken.record(u64::try_from(took.as_nanos())?)?;
                }
            }
        }
    }
    Ok(taken)
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [addr, connections, in_flight, seconds] = &args[..] else {
        return Err("HOST:PORT CONNECTIONS IN_FLIGHT SECONDS".into());
    };
    let (connections, in_flight) = (connections.parse::<usize>()?, in_flight.parse::<usize>()?);
    let seconds = seconds.parse::<u64>()?;
    let unique = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let topic = format!("commits-{unique}");
    let new = CreatableTopic {
        name: Text::from(topic.as_str()),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let create = CreateTopicsRequest { topics: vec![new], timeout_ms: 30_000, ..Default::default() };
    let created = call(&mut TcpStream::connect(addr)?, &create, 7)?.topics[0].error_code;
    if created.is_err() {
        return Err(format!("{topic}: {created}").into());
    }
    let mut shares: Vec<Vec<Connection>> = (0..connections.min(THREADS_MAX)).map(|_| Vec::new()).collect();
    let threads = shares.len();
    for number in 0..connections {
        shares[number % threads].push(Connection::open(addr, &format!("{topic}-{number}"), &topic, in_flight)?);
    }
    let from = Instant::now() + WARM_UP;
    let until = from + Duration::from_secs(seconds);
    let drivers: Vec<_> =
        shares.into_iter().map(|share| std::thread::spawn(move || drive(share, from, until))).collect();
    let mut taken = Histogram::<u64>::new_with_max(60_000_000_000, 3)?;
    for driver in drivers {
        taken.add(driver.join().map_err(|_| "a thread panicked")??)?;
    }
    let rate = taken.len() / seconds;
    let at = |quantile| taken.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "{connections} connections, {in_flight} in flight: {rate} commits/s, p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, max {:.0} us",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    Ok(())
}
