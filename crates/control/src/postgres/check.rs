//! Checks a database before a broker uses it, and returns all findings at once. Each finding is one line of text.
//!
//! The check changes nothing. Invariant: a finding counts as wrong if it would prevent a broker from starting, if
//! commits could be lost, or if partitions of a running cluster have no leader.

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fullbore_db::postgres::SqlState;
use tokio::sync::watch;

use super::read::version;
use fullbore_config::PlaneSettings;
use fullbore_db::StoreError;
use fullbore_db::postgres::PostgresSession;
use fullbore_db::postgres::QueryError;
use fullbore_db::postgres::Server;
use fullbore_db::postgres::rows::{DatabaseRow, Rows, flag, id, next, number, optional, optional_number, text};
use fullbore_db::postgres::schema::{self, FIRST_VERSION, Found, SCHEMA_VERSION, SchemaError};

/// The `server_version_num` of the oldest PostgreSQL version that is supported.
const OLDEST: i64 = 130_000;
/// Maximum difference between the clocks of the database and of this machine that the check does not report.
const CLOCKS_APART: Duration = Duration::from_secs(1);

/// A single result of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The URL is invalid, or a file that the URL names cannot be used.
    Setting(String),
    /// The server cannot be reached, or the connection failed for another reason.
    Unreachable(String),
    /// The server refuses the role or its password.
    Refused(String),
    /// TLS failed, or the server's certificate is not trusted.
    Encryption(String),
    NoDatabase(String),
    /// The server's version is too old.
    TooOld(String),
    /// The server is a standby, or is read only.
    ReadOnly(&'static str),
    /// The server has a setting with which commits may be lost.
    NotDurable(String),
    /// The database is empty. `may_create` is true if the role has the privilege to create the schema, which a broker
    /// does at its first start.
    Empty {
        may_create: bool,
    },
    ForeignSchema,
    UnreleasedSchema(i64),
    /// The schema was created by an older version of Fullbore.
    OlderSchema(i64),
    NewerSchema(i64),
    /// The role lacks a privilege on an object.
    Missing {
        privilege: String,
        on: String,
    },
    /// There is a pooler between the broker and the server. `is_shared` is true if its clients share server
    /// connections.
    Pooler {
        is_shared: bool,
    },
    /// The number of ms by which the database's clock is ahead of this machine's clock. Negative if it is behind.
    Clock(i64),
    /// The database contains rows that no broker can have written.
    Damaged(String),
    /// The database contains this cluster.
    Cluster {
        id: String,
        version: u64,
        topics: u64,
    },
    Broker(BrokerFound),
    /// Partitions have no leader. The broker that is about to start cannot lead them, so they stay offline until other
    /// brokers start.
    Offline {
        count: u64,
        /// The name of one of the partitions.
        first: String,
        /// False if the whole cluster is down.
        has_live_broker: bool,
    },
    /// Partitions have no leader. They stay offline until the broker `node_id` starts. The check runs on that broker's
    /// machine.
    OfflineUntilStart {
        count: u64,
        /// The name of one of the partitions.
        first: String,
        node_id: i32,
    },
}

/// A broker of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerFound {
    pub id: i32,
    pub epoch: i64,
    pub is_fenced: bool,
    pub is_shutting_down: bool,
    pub is_full: bool,
    /// The time since the last heartbeat of the broker's process, or `None` if it has sent none.
    pub last_heartbeat: Option<Duration>,
}

impl Finding {
    /// Returns true if the finding is a reason not to start a broker with this database. Also returns true if
    /// partitions of a running cluster are offline.
    pub fn is_wrong(&self) -> bool {
        match self {
            Self::Empty { may_create } => !may_create,
            Self::Offline { has_live_broker, .. } => *has_live_broker,
            Self::OfflineUntilStart { .. } => false,
            Self::Cluster { .. } | Self::Broker(_) | Self::Clock(_) | Self::Pooler { .. } => false,
            _ => true,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(reason) => write!(f, "control.plane: {reason}"),
            Self::Unreachable(reason) => write!(f, "no connection: {reason}"),
            Self::Refused(reason) => write!(f, "the server refuses the role: {reason}"),
            Self::Encryption(reason) => write!(f, "the connection has no TLS, which sslmode requires: {reason}"),
            Self::NoDatabase(reason) => write!(f, "{reason}; create it"),
            Self::TooOld(version) => write!(f, "PostgreSQL {version} is too old; version 13 or later is needed"),
            Self::ReadOnly(why) => write!(f, "the database cannot be written to: {why}"),
            Self::NotDurable(setting) => {
                write!(f, "{setting}=off: a crash of the database's machine loses committed changes")
            }
            Self::Empty { may_create: true } => {
                f.write_str("the database is empty; the first start of a broker fills it")
            }
            Self::Empty { may_create: false } => f.write_str(
                "the database is empty, and the role may not create a schema in it (GRANT CREATE ON DATABASE)",
            ),
            Self::ForeignSchema => f.write_str("the database has a schema named fullbore that another program created"),
            Self::UnreleasedSchema(found) => write!(
                f,
                "the database has schema {found} of a build before the first release, which this Fullbore neither \
                 reads nor upgrades; use another database"
            ),
            Self::OlderSchema(found) => {
                write!(
                    f,
                    "the database has schema {found}, and this Fullbore needs {SCHEMA_VERSION}: run fullbore admin \
                     migrate"
                )
            }
            Self::NewerSchema(found) => {
                write!(f, "the database has schema {found}, and this Fullbore knows schemas up to {SCHEMA_VERSION}")
            }
            Self::Missing { privilege, on } => write!(f, "the role has no privilege {privilege} on {on}"),
            Self::Pooler { is_shared: true } => f.write_str(
                "a pooler in transaction mode is between this machine and the database: brokers set their session \
                 settings in each transaction, and learn of each other's commits with the next heartbeat instead of \
                 at once",
            ),
            Self::Pooler { is_shared: false } => f.write_str(
                "a pooler between this machine and the database does not pass on session settings: brokers set them \
                 in each transaction",
            ),
            Self::Clock(ms) => write!(f, "the clock of the database is {ms} ms ahead of this machine's"),
            Self::Damaged(reason) => write!(f, "it is damaged: {reason}"),
            Self::Cluster { id, version, topics } => write!(f, "cluster {id}, version {version}, {topics} topics"),
            Self::Broker(broker) => broker.fmt(f),
            Self::Offline { count, first, .. } => write!(
                f,
                "{count} partitions have no leader, for example {first}: start the brokers of their replicas; \
                 `fullbore topics describe --unavailable-partitions` lists them"
            ),
            Self::OfflineUntilStart { count, first, node_id } => {
                write!(f, "{count} partitions have no leader until node.id={node_id} starts, for example {first}")
            }
        }
    }
}

impl fmt::Display for BrokerFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self {
            Self { is_fenced: true, .. } => "fenced",
            Self { is_shutting_down: true, .. } => "in controlled shutdown",
            Self { is_full: true, .. } => "its disk is full or hangs",
            _ => "in service",
        };
        write!(f, "broker {} (epoch {}): {state}, ", self.id, self.epoch)?;
        match self.last_heartbeat {
            Some(age) => write!(f, "last heartbeat {} ms ago", age.as_millis()),
            None => f.write_str("no heartbeat"),
        }
    }
}

impl From<StoreError> for Finding {
    fn from(error: StoreError) -> Self {
        Self::Damaged(error.to_string())
    }
}

impl From<QueryError> for Finding {
    fn from(error: QueryError) -> Self {
        let words = error.words.clone();
        let is_refused = [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION];
        match error.code {
            Some(code) if is_refused.contains(&code) => Self::Refused(words),
            Some(SqlState::INVALID_CATALOG_NAME) => Self::NoDatabase(words),
            None if ["TLS", "certificate"].iter().any(|word| words.contains(word)) => Self::Encryption(words),
            // The server requires a password, but the URL contains none. The client detects this itself, so the error
            // has no code of the server.
            None if words == "password missing" => Self::Refused(words),
            _ => Self::Unreachable(words),
        }
    }
}

/// Checks the configured database. Blocks for at most a few times the configured time limit.
pub fn check(settings: &PlaneSettings) -> Vec<Finding> {
    let server = match Server::new(settings, "fullbore admin check") {
        Ok(server) => server,
        Err(bad) => return vec![Finding::Setting(bad.0)],
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return vec![Finding::Unreachable(error.to_string())],
    };
    let mut findings = Vec::new();
    if let Err(last) = runtime.block_on(run_checks(&server, &mut findings)) {
        findings.push(last);
    }
    findings
}

/// Runs the checks and adds their findings. If a finding prevents further checks, returns that finding as the error.
async fn run_checks(server: &Server, findings: &mut Vec<Finding>) -> Result<(), Finding> {
    let session = PostgresSession::open(server, "", watch::channel(0).0).await?;
    of_server(&session, server, findings).await?;
    let is_shared = is_shared(&session, server).await?;
    if is_shared || session.is_pooled() {
        findings.push(Finding::Pooler { is_shared });
    }
    match schema::read(&session, server.call_max).await {
        Ok(Found::Empty) => {
            let may = "SELECT has_database_privilege(current_database(), 'CREATE')";
            let may_create = flag(&first(session.query(may, server.call_max).await?)?, 0)?;
            findings.push(Finding::Empty { may_create });
        }
        Ok(Found::EmptySchema) => {
            let may = "SELECT has_schema_privilege('fullbore', 'CREATE')";
            match flag(&first(session.query(may, server.call_max).await?)?, 0)? {
                true => findings.push(Finding::Empty { may_create: true }),
                false => findings.push(Finding::Missing { privilege: "CREATE".into(), on: "schema fullbore".into() }),
            }
        }
        Ok(Found::Foreign) => findings.push(Finding::ForeignSchema),
        Ok(Found::Version(SCHEMA_VERSION)) => of_cluster(&session, server, findings).await?,
        Ok(Found::Version(older)) if older < FIRST_VERSION => findings.push(Finding::UnreleasedSchema(older)),
        Ok(Found::Version(older)) if older < SCHEMA_VERSION => findings.push(Finding::OlderSchema(older)),
        Ok(Found::Version(newer)) => findings.push(Finding::NewerSchema(newer)),
        Err(SchemaError::Ask(error)) if error.code == Some(SqlState::INSUFFICIENT_PRIVILEGE) => {
            findings.push(Finding::Missing { privilege: "USAGE".into(), on: "schema fullbore, or its tables".into() });
        }
        Err(SchemaError::Ask(error)) => return Err(error.into()),
        Err(SchemaError::Read(error)) => return Err(error.into()),
        Err(_) => findings.push(Finding::ForeignSchema),
    }
    Ok(())
}

const OF_SERVER: &str = "SELECT current_setting('server_version_num'), current_setting('server_version'),
    pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
    (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

async fn of_server(session: &PostgresSession, server: &Server, findings: &mut Vec<Finding>) -> Result<(), Finding> {
    let before = SystemTime::now();
    let row = first(session.query(OF_SERVER, server.call_max).await?)?;
    let half_way = before + before.elapsed().unwrap_or_default() / 2;
    if number::<i64>(&row, 0)? < OLDEST {
        findings.push(Finding::TooOld(text(&row, 1)?.to_owned()));
    }
    if flag(&row, 2)? {
        findings.push(Finding::ReadOnly("the server is a standby, which follows another server"));
    }
    for (column, setting) in [(3, "fsync"), (4, "full_page_writes")] {
        if text(&row, column)? == "off" {
            findings.push(Finding::NotDurable(setting.to_owned()));
        }
    }
    let here_ms = half_way.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64);
    let ahead_ms = number::<i64>(&row, 5)? - here_ms;
    if ahead_ms.unsigned_abs() > CLOCKS_APART.as_millis() as u64 {
        findings.push(Finding::Clock(ahead_ms));
    }
    Ok(())
}

/// Returns true if a pooler lets its clients share server connections. The evidence is that two connections of this
/// check reach the same server process, or that one connection reaches several server processes.
async fn is_shared(session: &PostgresSession, server: &Server) -> Result<bool, Finding> {
    // Without a second connection, there is nothing to compare, for example because the role may open only one. The
    // connection then counts as not shared.
    let Ok(other) = PostgresSession::open(server, "", watch::channel(0).0).await else { return Ok(false) };
    let (mut ours, mut others) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..2 {
        for (session, processes) in [(session, &mut ours), (&other, &mut others)] {
            let row = first(session.query("SELECT pg_backend_pid()", server.call_max).await?)?;
            processes.insert(number::<i32>(&row, 0)?);
        }
    }
    other.close().await;
    Ok(ours.len() > 1 || others.len() > 1 || !ours.is_disjoint(&others))
}

const PRIVILEGES: &str = "SELECT privilege, relname FROM pg_catalog.pg_class,
      unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege
    WHERE relnamespace = to_regnamespace('fullbore') AND relkind = 'r'
      AND NOT has_table_privilege(pg_class.oid, privilege) ORDER BY relname, privilege";
const OF_CLUSTER: &str = "SELECT cluster.version, versions.mark, cluster_id, (SELECT count(*) FROM fullbore.topics)
      FROM fullbore.cluster LEFT JOIN fullbore.versions USING (version);
    SELECT brokers.broker_id, epoch, fenced, shutting_down,
        ceil(extract(epoch FROM clock_timestamp() - at) * 1000)::bigint, brokers.process, disk_full
      FROM fullbore.brokers LEFT JOIN fullbore.beats USING (broker_id, process) ORDER BY broker_id";

async fn of_cluster(session: &PostgresSession, server: &Server, findings: &mut Vec<Finding>) -> Result<(), Finding> {
    let missing = session.query(PRIVILEGES, server.call_max).await?;
    for row in next(&mut missing.into_iter())? {
        let on = format!("fullbore.{}", text(&row, 1)?);
        findings.push(Finding::Missing { privilege: text(&row, 0)?.to_owned(), on });
    }
    if findings.iter().any(|finding| matches!(finding, Finding::Missing { .. })) {
        return Ok(());
    }
    let mut answers = session.query(OF_CLUSTER, server.call_max).await?.into_iter();
    let rows = next(&mut answers)?;
    let row = rows.first().ok_or_else(|| Finding::Damaged("the row of the cluster is missing".to_owned()))?;
    if optional(row, 1)?.is_none() {
        return Err(Finding::Damaged(format!(
            "the changes of its newest metadata version, {}, are missing",
            text(row, 0)?
        )));
    }
    let newest = version(row)?;
    findings.push(Finding::Cluster { id: id(row, 2)?.to_string(), version: newest.number, topics: number(row, 3)? });
    for row in next(&mut answers)? {
        let age_ms: Option<i64> = optional_number(&row, 4)?;
        let last_heartbeat = age_ms.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs()));
        let (id, epoch, is_full) = (number(&row, 0)?, number(&row, 1)?, flag(&row, 6)?);
        let (is_fenced, is_shutting_down) = (flag(&row, 2)?, flag(&row, 3)?);
        let broker = BrokerFound { id, epoch, is_fenced, is_shutting_down, is_full, last_heartbeat };
        findings.push(Finding::Broker(broker));
    }
    Ok(())
}

fn first(answers: Vec<Rows>) -> Result<DatabaseRow, Finding> {
    let rows = next(&mut answers.into_iter())?;
    rows.into_iter().next().ok_or_else(|| Finding::Damaged("an answer is missing".to_owned()))
}
