//! Finds the partitions that have no leader. `fullbore admin check` reports them.
//!
//! This module does not change the database. Invariant: everything is read in one snapshot.

use std::time::Duration;

use tokio::sync::watch;

use super::READ_ONLY;
use super::check::Finding;
use super::read::ids;
use fullbore_config::PlaneSettings;
use fullbore_db::postgres::PostgresSession;
use fullbore_db::postgres::Server;
use fullbore_db::postgres::rows::{flag, next, number, optional_number, text};

/// A broker that has sent no heartbeat for this time counts as down.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Partitions without a leader.
#[derive(Debug, Default)]
struct Offline {
    count: u64,
    /// The name of one of these partitions.
    first: Option<String>,
}

impl Offline {
    fn add(&mut self, topic: &str, first: i32, count: u64) {
        self.count += count;
        self.first.get_or_insert_with(|| format!("{topic}-{first}"));
    }
}

/// Returns findings about the partitions without a leader. A diskless partition needs no leader. `starting` is the
/// broker on whose machine the check runs. If that broker is down, a separate finding lists the partitions that wait
/// for it. Blocks for at most about twice the configured time limit.
pub fn find_offline(settings: &PlaneSettings, starting: Option<i32>) -> Vec<Finding> {
    let server = match Server::new(settings, "fullbore admin check") {
        Ok(server) => server,
        Err(bad) => return vec![Finding::Setting(bad.0)],
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return vec![Finding::Unreachable(error.to_string())],
    };
    runtime.block_on(look_up(&server, starting)).unwrap_or_else(|finding| vec![finding])
}

async fn look_up(server: &Server, starting: Option<i32>) -> Result<Vec<Finding>, Finding> {
    let session = PostgresSession::open(server, "", watch::channel(0).0).await?;
    let mut answers = session.query(&questions(), server.call_max).await?.into_iter();
    let mut live = Vec::new();
    for row in next(&mut answers)? {
        let age_ms: Option<i64> = optional_number(&row, 2)?;
        let is_received = age_ms.is_some_and(|ms| Duration::from_millis(ms.max(0).unsigned_abs()) < SILENCE_MAX);
        if is_received && !flag(&row, 1)? {
            live.push(number::<i32>(&row, 0)?);
        }
    }
    let starting = starting.filter(|id| !live.contains(id));
    let (mut offline, mut waiting) = (Offline::default(), Offline::default());
    for row in next(&mut answers)? {
        let (replicas, isr, elr) = (ids(&row, 3)?, ids(&row, 4)?, ids(&row, 5)?);
        // If the ISR and the ELR are empty, the partition gets a leader only after its replicas have reported their log
        // ends. The check counts all replicas, even if only those in `lost` must report.
        let wanted = if isr.is_empty() && elr.is_empty() { replicas } else { [isr, elr].concat() };
        let waits = starting.is_some_and(|id| wanted.contains(&id));
        let kind = if waits { &mut waiting } else { &mut offline };
        kind.add(text(&row, 0)?, number(&row, 1)?, number(&row, 2)?);
    }
    let has_live_broker = !live.is_empty();
    let offline = offline.first.map(|first| Finding::Offline { count: offline.count, first, has_live_broker });
    let count = waiting.count;
    let waiting = waiting.first.zip(starting);
    let waiting = waiting.map(|(first, node_id)| Finding::OfflineUntilStart { count, first, node_id });
    Ok(offline.into_iter().chain(waiting).collect())
}

fn questions() -> String {
    format!(
        "{READ_ONLY};
         SELECT brokers.broker_id, fenced OR shutting_down,
             ceil(extract(epoch FROM clock_timestamp() - at) * 1000)::bigint
           FROM fullbore.brokers LEFT JOIN fullbore.beats USING (broker_id, process);
         SELECT name, first, count, replicas, isr, elr
           FROM fullbore.partitions JOIN fullbore.topics ON id = topic_id LEFT JOIN fullbore.brokers ON broker_id = leader
           WHERE fenced IS NOT FALSE AND {IS_CLASSIC}
           ORDER BY name, first;
         COMMIT"
    )
}

/// An SQL condition on a row of `fullbore.topics` that is true for classic topics. Each diskless topic has this
/// override.
pub const IS_CLASSIC: &str = "NOT EXISTS (SELECT FROM fullbore.topic_configs AS config
    WHERE config.topic_id = topics.id AND config.name = 'diskless.enable' AND config.value = 'true')";
