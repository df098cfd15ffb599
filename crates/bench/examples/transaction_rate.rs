//! Measures the transactions per second of our producer. Arguments: BOOTSTRAP TOPIC PRODUCERS RECORDS SIZE SECONDS
//! [KEY=VALUE ...].
//!
//! Each producer has a transactional id of its own and commits RECORDS records of SIZE bytes per transaction. The
//! producer already gathers the records of the next transaction while it commits one. This example is not a part of the
//! program `fullbore`. `bench/compare tx-rate` runs it beside Java's producer (bench/java/TransactionBench.java).

use fullbore_producer::{Ending, Producer, ProducerConfig, ProducerRecord};
use hdrhistogram::Histogram;
use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const WARM_UP: Duration = Duration::from_secs(3);

type Failure = Box<dyn Error + Send + Sync>;

/// The load of one producer, and the interval whose transactions are measured. Earlier transactions are the warm-up.
#[derive(Clone)]
struct Load {
    topic: String,
    records: usize,
    payload: Vec<u8>,
    from: Instant,
    until: Instant,
}

/// Waits for a commit that began at `requested`. If the commit falls into the interval of the load, records how many
/// nanoseconds it took.
async fn settle(
    ending: Ending<'_>,
    requested: Instant,
    load: &Load,
    taken: &mut Histogram<u64>,
) -> Result<(), Failure> {
    ending.await?;
    let now = Instant::now();
    if requested >= load.from && now <= load.until {
        taken.record(u64::try_from((now - requested).as_nanos())?)?;
    }
    Ok(())
}

async fn drive(producer: Producer, load: Load) -> Result<Histogram<u64>, Failure> {
    let mut taken = Histogram::new_with_max(60_000_000_000, 3)?;
    producer.init_transactions().await?;
    let mut before = None;
    while Instant::now() < load.until {
        let transaction = producer.begin().await?;
        for _ in 0..load.records {
            drop(transaction.send(ProducerRecord::new(&load.topic, &load.payload)).await?);
        }
        let next = (transaction.commit(), Instant::now());
        if let Some((ending, requested)) = before.replace(next) {
            settle(ending, requested, &load, &mut taken).await?;
        }
    }
    if let Some((ending, requested)) = before {
        settle(ending, requested, &load, &mut taken).await?;
    }
    producer.close(Duration::from_secs(10)).await;
    Ok(taken)
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, topic, producers, records, size, seconds, properties @ ..] = &args[..] else {
        return Err("BOOTSTRAP TOPIC PRODUCERS RECORDS SIZE SECONDS [KEY=VALUE ...]".into());
    };
    let (producers, seconds) = (producers.parse::<usize>()?, seconds.parse::<u64>()?);
    let unique = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let from = Instant::now() + WARM_UP;
    let load = Load {
        topic: topic.clone(),
        records: records.parse()?,
        payload: vec![b'x'; size.parse()?],
        from,
        until: from + Duration::from_secs(seconds),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let taken = runtime.block_on(async move {
        let mut tasks = Vec::new();
        for number in 0..producers {
            let id = format!("rate-{unique}-{number}");
            let own = [("bootstrap.servers", bootstrap.as_str()), ("transactional.id", &id)];
            let more = properties.iter().filter_map(|property| property.split_once('='));
            let config = ProducerConfig::from_properties(own.into_iter().chain(more))?;
            let producer = Producer::in_runtime(config, tokio::runtime::Handle::current())?;
            tasks.push(tokio::task::spawn(drive(producer, load.clone())));
        }
        let mut all = Histogram::<u64>::new_with_max(60_000_000_000, 3)?;
        for task in tasks {
            all.add(task.await??)?;
        }
        Ok::<_, Failure>(all)
    })?;
    let ms = |quantile| taken.value_at_quantile(quantile) as f64 / 1e6;
    println!(
        "{:.1} transactions/s, commit p50 {:.3} ms, p99 {:.3} ms, max {:.3} ms",
        taken.len() as f64 / seconds as f64,
        ms(0.5),
        ms(0.99),
        ms(1.0)
    );
    Ok(())
}
