//! Sends records as fast as it can: `blast host:port topic records size [key=value ...]`.

use fullbore_producer::{Producer, ProducerRecord};
use std::time::{Duration, Instant};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [bootstrap, topic, records, size, settings @ ..] = args.as_slice() else {
        eprintln!("blast host:port topic records size [key=value ...]");
        std::process::exit(2);
    };
    let records: u64 = records.parse().expect("records is a number");
    let payload = vec![b'x'; size.parse().expect("size is a number")];
    let settings = settings.iter().filter_map(|setting| setting.split_once('='));
    let all = [("bootstrap.servers", bootstrap.as_str())].into_iter().chain(settings);
    let producer = Producer::from_properties(all).unwrap_or_else(|error| panic!("{error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async move {
        producer.partitions(topic).await.unwrap_or_else(|error| panic!("{error}"));
        let started = Instant::now();
        let mut waits = Duration::ZERO;
        for _ in 0..records {
            let record = ProducerRecord::new(topic, &payload);
            if producer.try_send(record).is_err() {
                let from = Instant::now();
                drop(producer.send(record).await.unwrap_or_else(|error| panic!("{error}")));
                waits += from.elapsed();
            }
        }
        let cpu = cpu_ns();
        producer.flush().await;
        let took = started.elapsed().as_secs_f64();
        let rate = records as f64 / took;
        println!(
            "{rate:.0} records/s, {:.1} MB/s; a send costs {:.0} ns of this thread's CPU and waits {:.0} ns",
            rate * payload.len() as f64 / 1e6,
            cpu / records as f64,
            waits.as_nanos() as f64 / records as f64,
        );
        producer.close(Duration::from_secs(10)).await;
    });
}

/// Returns the processor time that this thread has used, in nanoseconds, or NaN on systems other than Linux.
fn cpu_ns() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(f64::NAN)
}
