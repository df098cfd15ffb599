//! Sends the broker's heartbeats over a second database connection, at a fixed interval. The response to a heartbeat
//! contains the last heartbeats of other brokers and the newest metadata version. Over the same connection, the
//! database notifies the broker of each new commit.
//!
//! The failure detector, which evaluates these heartbeats on other brokers, is in `membership`. Heartbeats have their
//! own thread and never take the metadata lock. So they are sent on time even during long transactions and on a busy
//! broker. All ages are measured by the database's clock. Invariant: a response belongs to a heartbeat that was
//! written.

use fullbore_host::task;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fullbore_wire::Uuid;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::super::change::Version;
use super::super::heartbeat::{HeartbeatAnswer, PeerHeartbeat};
use super::super::notes::Notes;
use super::read::{NEWEST, version};
use super::write::CHANNEL;
use fullbore_db::StoreError;
use fullbore_db::calls::CountedCalls;
use fullbore_db::postgres::PostgresSession;
use fullbore_db::postgres::Server;
use fullbore_db::postgres::known_changes::{CHANGE_COUNTS, ChangeCounts, change_counts};
use fullbore_db::postgres::rows::{Rows, id, next, number};
use fullbore_db::postgres::statements::literal;
use fullbore_db::postgres::{QueryError, damaged};
use fullbore_host::log_rate_limit::LogRateLimit;

/// Minimum pause between two attempts to connect. The pause doubles with each failed attempt.
const PAUSE_MIN: Duration = Duration::from_millis(50);
/// Maximum pause between two attempts to connect.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Session settings for heartbeats. A commit does not wait for the database's disk, since a power loss that erases a
/// heartbeat does no harm.
const SETTINGS: &str = "-c synchronous_commit=off";

/// The reason why a session for heartbeats has ended.
enum SessionEnd {
    Failed(QueryError),
    /// The database lacks commits that this broker knows.
    LacksCommits(StoreError),
}

impl From<QueryError> for SessionEnd {
    fn from(error: QueryError) -> Self {
        Self::Failed(error)
    }
}

/// The running heartbeats. A drop of this value ends their thread.
pub struct Heartbeats {
    received: watch::Receiver<HeartbeatAnswer>,
    /// Ends the thread when it is dropped.
    _stop: watch::Sender<()>,
}

struct HeartbeatSender<K, B> {
    server: Arc<Server>,
    broker_id: i32,
    process: Uuid,
    every: Duration,
    number: u64,
    /// The pause before the next attempt to connect.
    pause: Duration,
    notes: Notes,
    known: K,
    behind: Arc<B>,
    received: watch::Sender<HeartbeatAnswer>,
    vain: LogRateLimit,
    /// Limits the rate of the warning about an older copy of the database. It is separate from `vain`, the limit for
    /// warnings about failed heartbeats, because the outage before a restore has used up that limit.
    went_back: LogRateLimit,
}

impl Heartbeats {
    /// Starts the heartbeats of the broker `broker_id`, which runs as `process`. `notes` provides the numbers in the
    /// data directory, and `known` returns the newest version of this broker. The thread calls `behind` with each newer
    /// version that the database reports. Neither `known` nor `behind` may block.
    ///
    /// # Errors
    /// Returns the system's error if the thread cannot be started.
    pub fn start(
        server: Arc<Server>,
        broker_id: i32,
        process: Uuid,
        every: Duration,
        notes: Notes,
        known: impl Fn() -> Option<Version> + Send + Sync + Clone + 'static,
        behind: impl Fn(u64) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (stop, mut stopped) = watch::channel(());
        let (sender, received) = watch::channel(HeartbeatAnswer::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (behind, vain, went_back) = (Arc::new(behind), LogRateLimit::default(), LogRateLimit::default());
        let mut sending = HeartbeatSender {
            server,
            broker_id,
            process,
            every,
            number: 0,
            pause: PAUSE_MIN,
            notes,
            known,
            behind,
            received: sender,
            vain,
            went_back,
        };
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped.changed() => {}
                    () = sending.run() => {}
                }
            });
        };
        std::thread::Builder::new().name("beats".to_owned()).spawn(work)?;
        Ok(Self { received, _stop: stop })
    }

    /// Returns a receiver of the response to the last heartbeat. The response is empty at first. Responses of a
    /// database that was restored from an older backup are ignored.
    pub fn received(&self) -> watch::Receiver<HeartbeatAnswer> {
        self.received.clone()
    }
}

impl<K, B> HeartbeatSender<K, B>
where
    K: Fn() -> Option<Version> + Send + Sync + Clone + 'static,
    B: Fn(u64) + Send + Sync + 'static,
{
    /// Sends heartbeats until the future is dropped. Reconnects when the connection fails, and when the database lacks
    /// commits. The new connection may reach the newest database, for example at another host.
    async fn run(&mut self) {
        self.count(|calls| calls.begin_to_heartbeat(self.server.call_max + self.every));
        loop {
            let Err(end) = self.connected().await;
            self.count(CountedCalls::heartbeat_failed);
            match end {
                SessionEnd::Failed(error) => log_failure(&self.vain, &error.words),
                SessionEnd::LacksCommits(error) => log_failure(&self.went_back, &error.to_string()),
            }
            sleep(self.pause).await;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }

    /// Sends heartbeats over one connection, until it fails or its database lacks commits.
    async fn connected(&mut self) -> Result<std::convert::Infallible, SessionEnd> {
        let (notify, mut notified) = watch::channel(0);
        let session = PostgresSession::open(&self.server, SETTINGS, notify).await?;
        session.query(&self.greeting(), self.server.call_max).await?;
        let (known, behind) = (self.known.clone(), Arc::clone(&self.behind));
        // This task ends when the connection ends.
        task::spawn(async move {
            while notified.changed().await.is_ok() {
                let newest = *notified.borrow_and_update();
                if known().is_none_or(|known| known.number < newest) {
                    behind(newest);
                }
            }
        });
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let noted = self.notes.next().await;
            let (known, changes) = ((self.known)(), self.server.changes.counts());
            let answers = session.query(&self.heartbeat(known, noted), self.server.call_max).await?;
            let answer = Answer::read(answers).map_err(|error| QueryError::lost(error.to_string()))?;
            self.number += 1;
            let went_back = known.filter(|known| answer.lacks(*known)).map(|known| StoreError::WentBack(known.number));
            let checked = went_back.map_or_else(|| self.server.changes.check(&changes, &answer.changes), Err);
            if let Err(error) = checked {
                self.server.hosts.begin_after(session.host());
                return Err(SessionEnd::LacksCommits(error));
            }
            self.pause = PAUSE_MIN;
            if known.is_none_or(|known| known.number < answer.newest.number) {
                (self.behind)(answer.newest.number);
            }
            self.count(|calls| calls.heartbeat_answered(answer.newest.number));
            self.received.send_replace(answer.heartbeat_answer);
        }
    }

    fn count(&self, what: impl FnOnce(&CountedCalls)) {
        if let Some(calls) = &self.server.counted {
            what(calls);
        }
    }

    /// Returns the first statements of a session. They subscribe to notifications, and delete old heartbeats of this
    /// broker's earlier processes. Commits before the subscription are not missed, because the response to the first
    /// heartbeat contains the newest version.
    fn greeting(&self) -> String {
        let (broker, process) = (self.broker_id, literal(&self.process));
        format!(
            "LISTEN {CHANNEL};
             DELETE FROM fullbore.beats WHERE broker_id = {broker} AND process <> {process}
               AND at < clock_timestamp() - interval '10 minutes'"
        )
    }

    fn heartbeat(&self, known: Option<Version>, noted: u64) -> String {
        let (broker, process, number) = (self.broker_id, literal(&self.process), self.number + 1);
        let known = known.map_or(0, |known| known.number);
        format!(
            "INSERT INTO fullbore.beats (broker_id, process, number, version, at, noted)
               VALUES ({broker}, {process}, {number}, {known}, clock_timestamp(), {noted})
               ON CONFLICT (broker_id, process) DO UPDATE
                 SET number = excluded.number, version = excluded.version, at = excluded.at,
                   noted = greatest(beats.noted, excluded.noted);
             SELECT broker_id, process, version,
               greatest(0, ceil(extract(epoch FROM clock_timestamp() - at) * 1000))::bigint, number FROM fullbore.beats;
             {NEWEST};
             SELECT version, mark FROM fullbore.versions WHERE version = {known};
             {CHANGE_COUNTS}"
        )
    }
}

fn log_failure(kind: &LogRateLimit, reason: &str) {
    if let Some(left_out) = kind.due() {
        tracing::warn!(
            reason,
            left_out,
            "cannot send heartbeats to the database: other brokers fence this broker once its session expires; retrying"
        );
    }
}

/// The database's response to a heartbeat.
struct Answer {
    heartbeat_answer: HeartbeatAnswer,
    /// The newest metadata version in the database.
    newest: Version,
    /// The version in the database with the same number as the broker's newest version, or `None` if there is none.
    same: Option<Version>,
    /// The number of changes to diskless topics that each broker has committed.
    changes: ChangeCounts,
}

impl Answer {
    fn read(answers: Vec<Rows>) -> Result<Self, StoreError> {
        let mut answers = answers.into_iter();
        let mut peers = Vec::new();
        for row in next(&mut answers)? {
            let (process, version) = (id(&row, 1)?, number::<i64>(&row, 2)?);
            let version = u64::try_from(version).unwrap_or(0);
            let heartbeat = number::<i64>(&row, 4)?.cast_unsigned();
            peers.push(PeerHeartbeat {
                id: number(&row, 0)?,
                process,
                number: heartbeat,
                age_ms: number(&row, 3)?,
                version,
            });
        }
        let newest =
            version(next(&mut answers)?.first().ok_or_else(|| damaged("the row of the newest version is missing"))?)?;
        let same = next(&mut answers)?.first().map(version).transpose()?;
        let changes = change_counts(&next(&mut answers)?)?;
        Ok(Self { heartbeat_answer: HeartbeatAnswer { peers }, newest, same, changes })
    }

    /// Returns true if the database lacks `known`, the broker's newest version. The database is then an older copy or a
    /// different one.
    fn lacks(&self, known: Version) -> bool {
        match self.same {
            Some(same) => same != known,
            None => known.number > self.newest.number,
        }
    }
}
