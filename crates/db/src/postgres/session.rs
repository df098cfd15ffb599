//! A session with the database, which handles one request at a time.
//!
//! A request is a text with one or more statements, which are sent at once. The response contains the rows of each
//! statement that returns rows, in the order of the statements. `rows` reads the values of these rows. Invariant: every
//! call ends once the server has been silent for a time limit.

use fullbore_host::task;
use std::borrow::Cow;
use std::future::poll_fn;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage};

use super::error::QueryError;
use super::rows::Rows;
use super::server::Server;
use super::settings::SessionSettings;
use crate::calls::CountedCalls;

/// How much longer a call waits than the server's own time limit. During this time, the server can report that a
/// statement exceeded its limit.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);

/// An open session. A task that drives the session's connection runs on the runtime in which the session was opened.
pub struct PostgresSession {
    client: Client,
    /// The index of the session's host in the URL.
    host: usize,
    driven: JoinHandle<()>,
    counted: Option<CountedCalls>,
    /// `SET LOCAL` statements that precede each request. Empty if the session's own settings take effect.
    in_transactions: String,
}

impl PostgresSession {
    /// Connects to the server. When the server notifies the session of a new version, the session sends this version to
    /// `notified`.
    pub async fn open(server: &Server, settings: &str, notified: watch::Sender<u64>) -> Result<Self, QueryError> {
        let opened = Self::connected(server, settings, notified).await;
        if let (Err(_), Some(calls)) = (&opened, &server.counted) {
            calls.failed();
        }
        opened
    }

    async fn connected(server: &Server, own: &str, notified: watch::Sender<u64>) -> Result<Self, QueryError> {
        let settings = SessionSettings::new(server.call_max, own);
        let opening = async {
            let session = Self::begun(server, &settings, notified).await?;
            let found = session.answers(&settings.question(), server.call_max).await?;
            let found = found.into_iter().next().unwrap_or_default();
            let are_in_force = settings.are_in_force(&found).map_err(QueryError::unusable)?;
            let in_transactions = if are_in_force { String::new() } else { settings.of_transaction() };
            Ok::<_, QueryError>(Self { in_transactions, ..session })
        };
        let too_long = |_| QueryError::slow(format!("no connection within {} ms", server.call_max.as_millis()));
        let session = timeout(server.call_max, opening).await.map_err(too_long)??;
        if session.is_pooled()
            && let Some(left_out) = server.pooled.due()
        {
            tracing::info!(
                database = server.name(),
                left_out,
                "a pooler is between this broker and its database: the broker sets its session settings in each \
                 transaction"
            );
        }
        Ok(session)
    }

    /// Connects to the first host that accepts the session. Returns the error of the last host if none of them does.
    async fn begun(
        server: &Server,
        settings: &SessionSettings,
        notified: watch::Sender<u64>,
    ) -> Result<Self, QueryError> {
        let host_max = server.host_max();
        let mut last = QueryError::not_requested("the URL has no host");
        for host in server.hosts.order() {
            match timeout(host_max, Self::begun_at(server, host, settings, notified.clone())).await {
                Ok(Ok(session)) => {
                    server.hosts.begin_with(host);
                    return Ok(session);
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = QueryError::slow(format!("no connection within {} ms", host_max.as_millis())),
            }
        }
        Err(last)
    }

    /// Connects to one host with the settings. If a pooler refuses them, connects again without them.
    async fn begun_at(
        server: &Server,
        host: usize,
        settings: &SessionSettings,
        notified: watch::Sender<u64>,
    ) -> Result<Self, QueryError> {
        let with = |settings| server.session(host, settings).map_err(|bad| QueryError::unusable(bad.0));
        let (config, encrypted) = with(Some(settings))?;
        let connected = match config.connect(encrypted).await {
            Err(error) if refuses_settings(&error) => {
                let (config, encrypted) = with(None)?;
                config.connect(encrypted).await
            }
            connected => connected,
        };
        let (client, mut connection) = connected?;
        let driven = task::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(notification) = message
                    && let Ok(version) = notification.payload().parse::<u64>()
                {
                    notified.send_if_modified(|newest| {
                        let is_newer = version > *newest;
                        *newest = version.max(*newest);
                        is_newer
                    });
                }
            }
        });
        Ok(Self { client, host, driven, counted: server.counted.clone(), in_transactions: String::new() })
    }

    /// Returns the index of the session's host in the URL.
    pub fn host(&self) -> usize {
        self.host
    }

    /// Returns true if a pooler does not pass the session's settings on to the server. In that case each transaction
    /// must set them again.
    pub fn is_pooled(&self) -> bool {
        !self.in_transactions.is_empty()
    }

    /// Sends the statements and waits for all responses. The wait for a single row or statement is limited to
    /// `statement_max` plus [`ANSWER_MARGIN`].
    pub async fn query(&self, statements: &str, statement_max: Duration) -> Result<Vec<Rows>, QueryError> {
        let started = Instant::now();
        let requested = self.answers(statements, statement_max).await;
        match (&requested, &self.counted) {
            (Ok(_), Some(calls)) => calls.answered(started.elapsed()),
            (Err(_), Some(calls)) => calls.failed(),
            _ => {}
        }
        requested
    }

    async fn answers(&self, statements: &str, statement_max: Duration) -> Result<Vec<Rows>, QueryError> {
        if self.client.is_closed() {
            return Err(QueryError::not_requested("the connection was closed"));
        }
        let limit = statement_max + ANSWER_MARGIN;
        // Send the settings before the statements, even before BEGIN. They then apply to the transaction that BEGIN
        // opens. Send ROLLBACK without settings, since a failed transaction accepts no other statement.
        let statements = match self.is_pooled() && !statements.starts_with("ROLLBACK") {
            true => Cow::Owned(format!("{}{statements}", self.in_transactions)),
            false => Cow::Borrowed(statements),
        };
        let silent = |_| QueryError::slow(format!("no answer within {} ms", limit.as_millis()));
        let requested = timeout(limit, self.client.simple_query_raw(&statements)).await;
        let mut messages = pin!(requested.map_err(silent)??);
        let mut answers: Vec<Rows> = Vec::new();
        // The limit applies to each message. Many rows may take longer in total.
        while let Some(message) = timeout(limit, messages.next()).await.map_err(silent)? {
            match message? {
                SimpleQueryMessage::RowDescription(_) => answers.push(Vec::new()),
                SimpleQueryMessage::Row(row) => answers.last_mut().expect("columns come before rows").push(row),
                _ => {}
            }
        }
        Ok(answers)
    }

    /// Closes the session and cancels its current statement.
    pub async fn close(self) {
        drop(self.client);
        self.driven.abort();
        let _ = self.driven.await;
    }
}

/// Returns true if a pooler refuses the settings of a new connection. The text is from PgBouncer.
fn refuses_settings(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|db_error| db_error.message().contains("unsupported startup parameter"))
}
