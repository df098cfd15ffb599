//! Times fetches from partition 0 of a topic whose log has many aborted transactions.
//!
//! - `fill BOOTSTRAP TOPIC COUNT [long]` aborts COUNT transactions of one record each, one after the other. With
//!   `long`, one more transaction stays open during all of them; `fill` commits it only after it has measured fetches
//!   as `measure` does.
//! - `measure BOOTSTRAP TOPIC FETCHES` fetches 1 MiB from random offsets, FETCHES times at each isolation level.
//!
//! This example is not a part of the program `fullbore`. Its figures are in docs/benchmarks.md.

use fullbore_client::Security;
use fullbore_client::blocking::Connection;
use fullbore_producer::{Producer, ProducerRecord};
use fullbore_wire::Text;
use fullbore_wire::apis::fetch::{FetchPartition, FetchRequest, FetchTopic};
use fullbore_wire::apis::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use hdrhistogram::Histogram;
use std::error::Error;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The newest version of Fetch that identifies topics by name instead of by id.
const FETCH: i16 = 12;
const BYTES: i32 = 1 << 20;
/// How many fetches are made while the long transaction is open.
const OPEN_FETCHES: usize = 2_000;

type Failure = Box<dyn Error + Send + Sync>;

/// Partition 0 of a topic, and where its log begins and ends.
struct Log {
    connection: Connection,
    topic: Text,
    start: i64,
    end: i64,
}

impl Log {
    fn open(bootstrap: &str, topic: &str) -> Result<Log, Failure> {
        let mut connection = Connection::connect(bootstrap, "aborted_fetches", &Security::default())?;
        let topic = Text::from(topic);
        let mut offset = |timestamp| -> Result<i64, Failure> {
            let partition = ListOffsetsPartition { timestamp, ..Default::default() };
            let of = ListOffsetsTopic { name: topic.clone(), partitions: vec![partition], ..Default::default() };
            let request = ListOffsetsRequest { replica_id: -1, topics: vec![of], ..Default::default() };
            let answer = connection.call_up_to(&request, 5)?;
            let found = answer.topics.first().and_then(|topic| topic.partitions.first());
            Ok(found.ok_or("no offset")?.offset)
        };
        let (start, end) = (offset(-2)?, offset(-1)?);
        Ok(Log { connection, topic, start, end })
    }

    /// Returns how many aborted transactions the response has, and the size of its records.
    fn fetch(&mut self, isolation_level: i8, fetch_offset: i64) -> Result<(usize, usize), Failure> {
        let partition = FetchPartition { fetch_offset, partition_max_bytes: BYTES, ..Default::default() };
        let topic = FetchTopic { topic: self.topic.clone(), partitions: vec![partition], ..Default::default() };
        let request = FetchRequest { isolation_level, max_bytes: BYTES, topics: vec![topic], ..Default::default() };
        let answer = self.connection.call_up_to(&request, FETCH)?;
        let read = answer.responses.first().and_then(|topic| topic.partitions.first()).ok_or("no partition")?;
        match read.error_code.is_err() {
            true => Err(format!("fetch at {fetch_offset}: {}", read.error_code).into()),
            false => Ok((
                read.aborted_transactions.as_ref().map_or(0, Vec::len),
                read.records.as_ref().map_or(0, |records| records.len()),
            )),
        }
    }

    fn measure(&mut self, when: &str, fetches: usize) -> Result<(), Failure> {
        let range = u64::try_from(self.end - self.start)?.max(1);
        for (isolation_level, name) in [(1, "read_committed"), (0, "read_uncommitted")] {
            let (mut taken, mut place, mut aborted) = (Histogram::<u64>::new(3)?, 1_u64, 0);
            for _ in 0..fetches {
                // This is Knuth's generator, whose upper bits are random enough to choose offsets.
                place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let offset = self.start + i64::try_from((place >> 20) % range)?;
                let began = Instant::now();
                aborted += self.fetch(isolation_level, offset)?.0;
                taken.record(u64::try_from(began.elapsed().as_nanos())?)?;
            }
            let ms = |quantile| taken.value_at_quantile(quantile) as f64 / 1e6;
            println!(
                "{when}, {name}: p50 {:.3} ms, p99 {:.3} ms, max {:.3} ms; {:.1} aborted an answer",
                ms(0.5),
                ms(0.99),
                ms(1.0),
                aborted as f64 / fetches as f64
            );
        }
        Ok(())
    }
}

fn producer(bootstrap: &str, id: &str) -> Result<Producer, Failure> {
    let properties = [
        ("bootstrap.servers", bootstrap),
        ("transactional.id", id),
        ("transaction.timeout.ms", "900000"),
        ("linger.ms", "0"),
    ];
    Ok(Producer::from_properties(properties)?)
}

async fn fill(bootstrap: &str, topic: &str, count: usize, is_long: bool) -> Result<(), Failure> {
    let unique = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let long = producer(bootstrap, &format!("long-{unique}"))?;
    let open = match is_long {
        true => {
            long.init_transactions().await?;
            let open = long.begin().await?;
            open.send(ProducerRecord::new(topic, b"long").partition(0)).await?.await?;
            Some(open)
        }
        false => None,
    };
    let short = producer(bootstrap, &format!("short-{unique}"))?;
    short.init_transactions().await?;
    for _ in 0..count {
        let transaction = short.begin().await?;
        transaction.send(ProducerRecord::new(topic, b"aborted").partition(0)).await?.await?;
        transaction.abort().await?;
    }
    if let Some(open) = open {
        tokio::task::block_in_place(|| Log::open(bootstrap, topic)?.measure("one open", OPEN_FETCHES))?;
        open.commit().await?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["fill", bootstrap, topic, count] => run(fill(bootstrap, topic, count.parse()?, false)),
        ["fill", bootstrap, topic, count, "long"] => run(fill(bootstrap, topic, count.parse()?, true)),
        ["measure", bootstrap, topic, fetches] => Log::open(bootstrap, topic)?.measure("none open", fetches.parse()?),
        _ => Err("fill BOOTSTRAP TOPIC COUNT [long] | measure BOOTSTRAP TOPIC FETCHES".into()),
    }
}

fn run(filling: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?.block_on(filling)
}
