//! Flags of `fullbore copy`.

use crate::client::key_value;
use crate::patience::Patience;
use crate::transactional::record_count;
use clap::Args;
use std::path::PathBuf;

/// Copy records of a topic to another one, each exactly once.
///
/// Records keep their key, value, headers, timestamp and order, and their partition if the target has as many; else the
/// key chooses it. They are written in transactions that also commit how far the group has read: after a crash, of this
/// command or of brokers, the next start goes on behind the last committed record. Readers at read_committed see each
/// record once.
///
/// Copiers of one group share the partitions. Without committed offsets the copy begins with the oldest record
/// (-X auto.offset.reset=latest: with the next one). It goes on until Ctrl-C or SIGTERM, which commits what was copied.
///
/// Records that retention or DeleteRecords removes before they are copied are skipped: each such range of offsets is
/// printed to standard error, and the command ends with status 1, whenever it ends. With -X auto.offset.reset=earliest
/// or latest that is no failure; with none the copy ends there.
///
/// Each copier needs a transactional id of its own, which should be the same after a restart: the next start then ends
/// at once what the last one left open. The default has the group and --group-instance-id, or the machine and the first
/// number that no other copier of the group has there.
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
    /// The consumer group that keeps how far the copy is.
    #[arg(short = 'G', long, value_name = "GROUP")]
    pub(super) group: String,
    /// Brokers to ask, host:port separated by commas [default: FULLBORE_BOOTSTRAP_SERVER, or localhost:9092].
    #[arg(short, long, value_name = "HOST:PORT,...")]
    pub(super) bootstrap_server: Option<String>,
    #[command(flatten)]
    pub(super) patience: Patience,
    /// A static member: it keeps its partitions while it is away for less than its session.
    #[arg(long, value_name = "ID")]
    pub(super) group_instance_id: Option<String>,
    /// classic: a member assigns; consumer: the broker assigns (KIP-848).
    #[arg(long, value_name = "PROTOCOL")]
    pub(super) group_protocol: Option<String>,
    /// The id of the transactions [default: fullbore-copy-GROUP-INSTANCE].
    #[arg(long, value_name = "ID")]
    pub(super) transactional_id: Option<String>,
    /// Commit after this many records [default: as many as come in --transaction-duration-ms].
    #[arg(long, value_name = "COUNT", value_parser = record_count, allow_negative_numbers = true)]
    pub(super) transaction_records: Option<u64>,
    /// Commit this long after the first record of a transaction.
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub(super) transaction_duration_ms: u64,
    /// Choose the partition by the key, as a producer does, though the target has as many partitions.
    #[arg(long)]
    pub(super) by_key: bool,
    /// End where the partitions ended when the copy began; one that its broker refuses is tried for 10 s. Other members
    /// of the group are waited for until theirs are copied, too, or for one session: one that has died leaves them to
    /// this one.
    #[arg(short, long)]
    pub(super) exit: bool,
    /// Print the counts at the end as a JSON object; {"error": SENTENCE} and {"note": SENTENCE} go to standard error.
    #[arg(short = 'J', long)]
    pub(super) json: bool,
    /// A file of properties of the consumer and the producer.
    #[arg(long, value_name = "FILE")]
    pub(super) command_config: Option<PathBuf>,
    /// A property of the consumer or the producer, before those of the file; may be repeated. docs/consumer.md and
    /// docs/producer.md have all of them.
    #[arg(short = 'X', long, visible_alias = "command-property", value_name = "KEY=VALUE", value_parser = key_value)]
    pub(super) property: Vec<(String, String)>,
}
