//! `fullbore copy` copies the records of a topic to another topic, each exactly once.
//!
//! A fetcher reads a record from its leader (`fullbore_client::consume`), [`intake`] queues it, and [`transfer`] writes
//! it. The same transaction also commits the group's offset after the record. [`follow`] is the member of the group,
//! [`trouble`] classifies failures, [`instance`] chooses the transactional id.

mod args;
mod deleted;
mod follow;
mod instance;
mod intake;
mod transfer;
mod trouble;

pub use args::CopyArgs;

use crate::client::{self, bootstrap_servers, client_properties};
use crate::failure::Failure;
use crate::output;
use crate::properties::BOOTSTRAP_SERVERS;
use crate::stop::Stop;
use crate::transactional::{TRANSACTIONAL_ID, check_ids};
use crate::waiting;
use follow::{CopyEnd, Follow};
use fullbore_bench::report::json::object;
use fullbore_client::ConsumerConfig;
use fullbore_client::consume::StartOffset;
use fullbore_client::group::{GroupConfig, Member};
use fullbore_config::Properties;
use fullbore_producer::{Producer, ProducerConfig, config};
use instance::InstanceId;
use intake::Intake;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use transfer::{CopyCounts, Transfer, TransferPlan};

/// The client id if no property names one.
const CLIENT_ID: &str = "fullbore-copy";
/// The default transaction timeout, as in Kafka Streams. If a copier dies and is not restarted, its open transaction
/// delays readers of the target for this time.
const TRANSACTION_TIMEOUT_MS: &str = "10000";
const TRANSACTION_TIMEOUT: &str = "transaction.timeout.ms";
const OFFSET_RESET: &str = "auto.offset.reset";

/// Runs the command.
pub fn run(args: CopyArgs) -> Result<(), Failure> {
    output::Format { json: args.json }.choose();
    args.check()?;
    let stop = Stop::at_signal(Box::new(|| {}))?;
    let own = |key: &str| ConsumerConfig::settings().any(|setting| setting.name == key);
    let notice = |key: &str| if own(key) { None } else { config::notice(key) };
    let properties = client_properties(args.command_config.as_deref(), &args.property, &notice)?;
    check_ids(args.transactional_id.as_deref(), &args.property)?;
    let settings = args.settings(&properties)?;
    let instance = InstanceId::choose(
        args.transactional_id.as_deref().or_else(|| properties.get(TRANSACTIONAL_ID)),
        &args.group,
        settings.group.instance.as_deref(),
    )?;
    let producer_config = args.producer(&properties, &instance)?;
    let clusters = || client::cluster(args.bootstrap_server.as_deref(), &properties, CLIENT_ID, args.patience);
    let mut cluster = clusters()?;
    let keeps_partition = args.keeps_partition(&mut cluster)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let producer = Producer::new(producer_config.clone())?;
    waiting::for_producer(&producer, &runtime, &producer_config.bootstrap_servers.join(","), args.patience)?;
    let member = Member::start(settings.group.clone(), clusters()?, clusters()?)?;
    let plan = TransferPlan {
        producer: producer_config,
        from: args.from.clone(),
        to: args.to.clone(),
        group: args.group.clone(),
        instance: settings.group.instance.as_ref().map(ToString::to_string),
        view: member.view(),
        keeps_partition,
        records_max: args.transaction_records.unwrap_or(u64::MAX),
        duration: Duration::from_millis(args.transaction_duration_ms),
        stop: stop.clone(),
    };
    let (intake, started) = (Arc::<Intake>::default(), Instant::now());
    let transfer = Transfer::start(plan, producer, intake.clone())?;
    let (transfer, progress) = (&transfer, Default::default());
    let of = Follow {
        cluster: &mut cluster,
        member,
        transfer,
        intake,
        args: &args,
        settings: &settings,
        stop: &stop,
        progress,
    };
    let outcome = of.copy();
    let deleted = outcome.as_ref().map_or(0, |end| end.deleted);
    args.report(&transfer.counts, deleted, started.elapsed());
    args.verdict(outcome?, &transfer.counts, properties.get(OFFSET_RESET).is_some())
}

impl CopyArgs {
    fn check(&self) -> Result<(), Failure> {
        if self.group.is_empty() {
            return Err(Failure::usage("--group: must not be empty"));
        }
        if self.from == self.to {
            return Err(Failure::usage(format!(
                "cannot copy topic '{}' to itself: the copy would never end; name another one with --to",
                self.from
            )));
        }
        Ok(())
    }

    /// Returns the settings of the consumer.
    fn settings(&self, properties: &Properties) -> Result<ConsumerConfig, Failure> {
        let mut settings = ConsumerConfig::default();
        settings.fetch.reset = Some(StartOffset::Earliest);
        let flags = [("group.instance.id", &self.group_instance_id), ("group.protocol", &self.group_protocol)];
        let flags = flags.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
        for (key, value) in properties.iter().chain(flags) {
            // `set` returns false for properties of the producer, and for those that all clients have.
            settings.set(key, value)?;
        }
        settings.fetch.read_committed = true;
        let (group, topics) = (self.group.as_str().into(), vec![self.from.as_str().into()]);
        settings.group = GroupConfig { group, topics, require_stable: true, ..settings.group };
        Ok(settings)
    }

    /// Returns the settings of the producer.
    fn producer(&self, properties: &Properties, instance: &InstanceId) -> Result<ProducerConfig, Failure> {
        let mut properties = properties.clone();
        properties.set(TRANSACTIONAL_ID, instance.transactional_id.as_str());
        if properties.get(TRANSACTION_TIMEOUT).is_none() {
            properties.set(TRANSACTION_TIMEOUT, TRANSACTION_TIMEOUT_MS);
        }
        let servers = bootstrap_servers(self.bootstrap_server.as_deref(), &properties);
        properties.set(BOOTSTRAP_SERVERS, servers);
        if properties.get("client.id").is_none() {
            properties.set("client.id", CLIENT_ID);
        }
        Ok(ProducerConfig::from_properties(properties.iter())?)
    }

    /// Returns true if records keep their partition, because the target has at least as many partitions and `--by-key`
    /// is not set.
    ///
    /// # Errors
    /// Fails if the source or the target does not exist.
    fn keeps_partition(&self, cluster: &mut fullbore_client::blocking::Cluster) -> Result<bool, Failure> {
        let source = follow::count(cluster, &self.from)?.ok_or_else(|| follow::missing(&self.from, None))?;
        let target = follow::count(cluster, &self.to)?.ok_or_else(|| follow::missing(&self.to, Some(source)))?;
        if target < source && !self.by_key {
            output::remark(format!(
                "topic '{}' has {target} partitions and '{}' has {source}: the key of each record chooses its partition",
                self.to, self.from
            ));
        }
        Ok(target >= source && !self.by_key)
    }

    fn report(&self, counts: &CopyCounts, deleted: u64, took: Duration) {
        let of = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let (records, transactions, rewinds) = (of(&counts.records), of(&counts.transactions), of(&counts.rewinds));
        if self.json {
            return output::line(&object([
                ("records", records.to_string()),
                ("transactions", transactions.to_string()),
                ("rewinds", rewinds.to_string()),
                ("deleted", deleted.to_string()),
                ("seconds", format!("{:.3}", took.as_secs_f64())),
            ]));
        }
        let rate = records as f64 / took.as_secs_f64().max(0.001);
        output::line(&format!(
            "copied {records} records in {transactions} transactions from {} to {}, {rate:.0} records/s",
            self.from, self.to
        ));
    }

    /// Returns the result of a copy. If records were deleted before they were copied, the copy has failed, unless
    /// auto.offset.reset is earliest or latest.
    fn verdict(&self, end: CopyEnd, counts: &CopyCounts, allows_deleted: bool) -> Result<(), Failure> {
        let CopyEnd { finished, unread, deleted } = end;
        let copied = || format!("{} records were copied", counts.records.load(Ordering::Relaxed));
        match unread {
            _ if self.exit && !finished => {
                Err(Failure::interrupted(format!("interrupted before the end; {}", copied())))
            }
            Some(unread) if finished => Err(Failure::new(format!("{}; {}", unread.trim_end_matches('.'), copied()))),
            _ if deleted > 0 && !allows_deleted => Err(Failure::new(format!(
                "records at {deleted} offsets of topic '{}' were deleted before they were copied; {}; with \
                 -X auto.offset.reset=earliest that is no failure",
                self.from,
                copied()
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
