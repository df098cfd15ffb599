//! The flags of `fullbore copy`.

use crate::client::key_value;
use crate::patience::Patience;
use crate::transactional::record_count;
use clap::Args;
use std::path::PathBuf;

/// Copy records of a topic to another topic, each exactly once.
///
/// Records keep their key, value, headers, timestamp and order. They keep their partition if the target has at least as
/// many partitions; otherwise the key chooses the partition. Records are written in transactions that also commit the
/// group's position. After a crash of this command or of brokers, the next start continues after the last committed
/// record. Readers at read_committed see each record once.
///
/// Copiers of one group share the partitions. Without committed offsets the copy starts with the oldest record (-X
/// auto.offset.reset=latest: with the next one). It continues until Ctrl-C or SIGTERM, which commits the copied
/// records.
///
/// Records that retention or DeleteRecords removes before they are copied are skipped. Each such range of offsets is
/// printed to standard error, and the command ends with status 1. With -X auto.offset.reset=earliest or latest the
/// status stays 0; with none the copy ends at the first such range.
///
/// Each copier needs its own transactional id. The id should be the same after a restart, so that the next start ends
/// the transaction that the last one left open. The default consists of the group and --group-instance-id. Without that
/// flag, it consists of the group, the machine, and the first number that no other copier of the group has there.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore copy --from orders --to orders-copy --group copier
  fullbore copy --from orders --to archive --group archive --exit     up to the present end
  fullbore copy --from a --to b --group g --transaction-records 100 -X compression.type=zstd")]
pub struct CopyArgs {
    /// The topic to read.
    #[arg(long, value_name = "TOPIC")]
    pub(super) from: String,
    /// The topic to write.
    #[arg(long, value_name = "TOPIC")]
    pub(super) to: String,
    /// The consumer group that keeps the position of the copy.
    #[arg(short = 'G', long, value_name = "GROUP")]
    pub(super) group: String,
    /// Bootstrap brokers, host:port separated by commas [default: FULLBORE_BOOTSTRAP_SERVER, or localhost:9092].
    #[arg(short, long, value_name = "HOST:PORT,...")]
    pub(super) bootstrap_server: Option<String>,
    #[command(flatten)]
    pub(super) patience: Patience,
    /// The id of a static member, which keeps its partitions while it is away for less than its session timeout.
    #[arg(long, value_name = "ID")]
    pub(super) group_instance_id: Option<String>,
    /// The group's protocol: classic, in which a member assigns the partitions, or consumer, in which the broker does
    /// (KIP-848).
    #[arg(long, value_name = "PROTOCOL")]
    pub(super) group_protocol: Option<String>,
    /// The transactional id [default: fullbore-copy-GROUP-INSTANCE].
    #[arg(long, value_name = "ID")]
    pub(super) transactional_id: Option<String>,
    /// Commit after this many records [default: all that arrive in --transaction-duration-ms].
    #[arg(long, value_name = "COUNT", value_parser = record_count)]
    pub(super) transaction_records: Option<u64>,
    /// Commit this many milliseconds after the first record of a transaction.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub(super) transaction_duration_ms: u64,
    /// Choose the partition by the key, as a producer does, even if the target has as many partitions.
    #[arg(long)]
    pub(super) by_key: bool,
    /// End at the log ends that the partitions had at the start. A partition that has no leader, or whose broker
    /// refuses to read it, is retried for --timeout. The copier also waits until other members have copied their
    /// partitions, or for one session timeout, after which it gets the partitions of a dead member.
    #[arg(short, long)]
    pub(super) exit: bool,
    /// Print the counts at the end as a JSON object; {"error": SENTENCE} and {"note": SENTENCE} go to standard error.
    #[arg(short = 'J', long)]
    pub(super) json: bool,
    /// A file of properties of the consumer and the producer.
    #[arg(long, value_name = "FILE")]
    pub(super) command_config: Option<PathBuf>,
    /// A property of the consumer or the producer, which overrides the file; may be repeated. See docs/consumer.md and
    /// docs/producer.md.
    #[arg(short = 'X', long, visible_alias = "command-property", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(super) property: Vec<(String, String)>,
}
