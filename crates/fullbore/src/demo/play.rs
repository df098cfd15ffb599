//! Streams records through a broker, which is started for the stream and stopped after it.

use super::distance::{Addresses, DistanceSettings, Distances};
use super::figures::{Figures, grouped, heading};
use super::progress::DemoProgress;
use super::stream::{DemoStream, Phase};
use crate::failure::Failure;
use crate::output::{line, words};
use crate::stop::Stop;
use fullbore_bench::report::json::{array, object};
use fullbore_broker::{Broker, StoreUse};
use fullbore_client::admin::create_topic;
use fullbore_client::blocking::Cluster;
use fullbore_config::{BrokerConfig, Properties};
use fullbore_producer::Producer;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;

/// The topic of the demo.
const TOPIC: &str = "demo";

/// The broker, topic, producer and phases of one demo.
pub struct Play {
    /// The settings of the broker.
    pub sets: Vec<(&'static str, String)>,
    /// The settings of the topic.
    pub configs: Vec<(String, String)>,
    /// The phases, which run one after another.
    pub phases: Vec<Phase>,
    /// The size of each record's value, in bytes.
    pub record_size: u32,
    /// The number of partitions of the topic.
    pub partitions: i32,
    /// The distance to the broker, or `None` for a direct connection.
    pub distance: Option<DistanceSettings>,
    /// The settings of the producer.
    pub producer: Vec<(&'static str, String)>,
}

/// The directory, runtime and stop request that the streams of a demo share.
pub struct Ground<'a> {
    /// The directory for the brokers' data.
    pub directory: &'a Path,
    /// The runtime of the brokers.
    pub runtime: &'a Runtime,
    /// The request to stop, which the user makes by Ctrl-C or another signal.
    pub stop: &'a Stop,
}

/// The result of one stream.
pub struct Played {
    /// How many records were verified.
    pub records: u64,
    /// The phases by name, each with its figures and its requests to the object store.
    pub phases: Vec<(&'static str, Figures, StoreUse)>,
}

impl Play {
    /// Starts a broker with its data in the directory `name`, runs the phases, and stops the broker.
    ///
    /// # Errors
    /// Fails if the broker does not start, if a record is not acknowledged or differs from the one that was sent, or if
    /// the user stops the command.
    pub fn on_a_broker(&self, name: &str, ground: &Ground<'_>) -> Result<Played, Failure> {
        let Ground { directory, runtime, .. } = *ground;
        let distances = self.distance.as_ref().map(|settings| Distances::new(settings, runtime)).transpose()?;
        let config = config(&directory.join(name), distances.as_ref(), &self.sets)?;
        let broker = runtime.block_on(Broker::start(config))?;
        words(&format!("Broker on {}, data in {}", broker.addr(), directory.display()));
        let direct = Addresses { producer: broker.addr().to_string(), reader: broker.addr().to_string() };
        let relayed = distances.map(|distances| distances.relay_to(broker.addrs(), runtime));
        let addresses = relayed.as_ref().map_or(&direct, |relayed| &relayed.addresses);
        let outcome = self.stream(addresses, || broker.store_use(), ground);
        drop(relayed);
        match ground.stop.is_requested() {
            // The demo removes the data anyway, so the broker's stop does not wait for a flush or for clients.
            true => drop(broker),
            false => runtime.block_on(broker.shutdown()),
        }
        outcome
    }

    fn stream(&self, at: &Addresses, store_use: impl Fn() -> StoreUse, ground: &Ground<'_>) -> Result<Played, Failure> {
        let runtime = ground.runtime;
        let mut cluster = Cluster::new(&at.reader, "fullbore-demo")?;
        create_topic(&mut cluster, TOPIC, Some(self.partitions), None, &self.configs)?;
        let settings = self.producer.iter().map(|(key, value)| (*key, value.as_str()));
        let producer = Producer::from_properties(settings.chain([("bootstrap.servers", at.producer.as_str())]))?;
        let mut stream = DemoStream::new(TOPIC, &mut cluster, self.record_size as usize)?;
        let mut phases = Vec::new();
        for phase in &self.phases {
            let before = store_use();
            let progress = DemoProgress::new(phase.name, phase.records, phase.limit);
            let figures = stream.run(phase, &mut cluster, &producer, runtime.handle(), &progress, ground.stop);
            progress.finish();
            phases.push((phase.name, figures?, store_use().since(&before)));
        }
        runtime.block_on(producer.close(Duration::from_secs(5)));
        Ok(Played { records: stream.verify_ends(&mut cluster)?, phases })
    }

    /// Returns the JSON document with the `documents` of the phases. `more` is an additional member.
    pub fn document(&self, records: u64, phases: Vec<String>, more: Option<(&'static str, String)>) -> String {
        let fields = [
            ("records", records.to_string()),
            ("record_size", self.record_size.to_string()),
            ("partitions", self.partitions.to_string()),
            ("phases", array(phases)),
        ];
        object(fields.into_iter().chain(more))
    }
}

impl Played {
    /// Prints the result for the user.
    pub fn print(&self, play: &Play) {
        line(&format!(
            "\nVerified: {} records of {} bytes on {} partitions, each read once, in order, byte for byte.\n",
            grouped(self.records),
            grouped(u64::from(play.record_size)),
            play.partitions
        ));
        let mut rows = heading();
        self.phases.iter().for_each(|(name, figures, _)| rows.extend(figures.rows(name)));
        line(&fullbore_bench::report::table(&rows));
    }
}

fn config(directory: &Path, distances: Option<&Distances>, sets: &[(&str, String)]) -> Result<BrokerConfig, Failure> {
    let mut properties = Properties::default();
    properties.set("log.dirs", directory.display().to_string());
    properties.set("listeners", "PLAINTEXT://127.0.0.1:0");
    properties.set("fullbore.admin.listener", "");
    if let Some(distances) = distances {
        distances.listeners().into_iter().for_each(|(key, value)| properties.set(key, value));
    }
    sets.iter().for_each(|(key, value)| properties.set(*key, value.clone()));
    Ok(BrokerConfig::from_properties(&properties)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_record_fails_the_verification() {
        let directory = tempfile::tempdir().expect("a directory");
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let broker = runtime
            .block_on(Broker::start(config(&directory.path().join("data"), None, &[]).expect("valid")))
            .expect("started");
        let address = broker.addr().to_string();
        let mut cluster = Cluster::new(&address, "test").expect("valid");
        create_topic(&mut cluster, TOPIC, Some(2), None, &[]).expect("created");
        let producer = Producer::from_properties([("bootstrap.servers", address.as_str())]).expect("started");
        let mut stream = DemoStream::new(TOPIC, &mut cluster, 64).expect("the topic exists");
        let phase = Phase::flat_out("test", 100);
        let (progress, stop) = (DemoProgress::new(phase.name, phase.records, phase.limit), Stop::new());
        stream.run(&phase, &mut cluster, &producer, runtime.handle(), &progress, &stop).expect("verified");
        assert_eq!(stream.verify_ends(&mut cluster).expect("nothing more"), 100);
        let stranger = fullbore_producer::ProducerRecord::new(TOPIC, b"x").partition(1);
        runtime.block_on(async { producer.send(stranger).await.expect("taken").await }).expect("written");
        let found = stream.verify_ends(&mut cluster).expect_err("one too many").to_string();
        assert_eq!(found, "partition 1: sent 50 records, read 50, and the log ends at 51");
        runtime.block_on(broker.shutdown());
    }
}
