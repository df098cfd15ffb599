//! A connection to the database, and one question at a time.
//!
//! Not what rows say, which is `rows`'. Invariant: every call ends within a time limit. A question is a text of statements, sent at once;
//! each answer is the rows of those that have rows, in their order.

use crate::task;
use std::future::poll_fn;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, SimpleQueryMessage};

use super::error::AskError;
use super::rows::Rows;
use super::server::Server;
use crate::metrics::CountedCalls;

/// Beyond the time that the server has itself, so that it can say what it was.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);

/// An open connection, driven by a task of the runtime in which it was opened.
pub struct PostgresSession {
    client: Client,
    driven: JoinHandle<()>,
    counted: Option<CountedCalls>,
}

impl PostgresSession {
    /// Connects. What the server notifies of is the newest of `notified`.
    pub async fn open(server: &Server, settings: &str, notified: watch::Sender<u64>) -> Result<Self, AskError> {
        let opened = Self::connected(server, settings, notified).await;
        if let (Err(_), Some(calls)) = (&opened, &server.counted) {
            calls.failed();
        }
        opened
    }

    async fn connected(server: &Server, settings: &str, notified: watch::Sender<u64>) -> Result<Self, AskError> {
        let (config, encrypted) = server.session(settings).map_err(|bad| AskError::not_asked(bad.0))?;
        let connecting = config.connect(encrypted);
        let connected = timeout(server.call_max, connecting).await;
        let too_long = |_| AskError::slow(format!("no connection within {} ms", server.call_max.as_millis()));
        let (client, mut connection) = connected.map_err(too_long)??;
        let driven = task::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(told) = message
                    && let Ok(version) = told.payload().parse::<u64>()
                {
                    notified.send_if_modified(|newest| {
                        let is_newer = version > *newest;
                        *newest = version.max(*newest);
                        is_newer
                    });
                }
            }
        });
        Ok(Self { client, driven, counted: server.counted.clone() })
    }

    /// Asks, and waits for all answers, at most a second longer than a statement may take.
    pub async fn ask(&self, statements: &str, statement_max: Duration) -> Result<Vec<Rows>, AskError> {
        let started = Instant::now();
        let asked = self.answers(statements, statement_max).await;
        match (&asked, &self.counted) {
            (Ok(_), Some(calls)) => calls.answered(started.elapsed()),
            (Err(_), Some(calls)) => calls.failed(),
            _ => {}
        }
        asked
    }

    async fn answers(&self, statements: &str, statement_max: Duration) -> Result<Vec<Rows>, AskError> {
        if self.client.is_closed() {
            return Err(AskError::not_asked("the connection was closed"));
        }
        let limit = statement_max + ANSWER_MARGIN;
        let asked = timeout(limit, self.client.simple_query(statements)).await;
        let messages = asked.map_err(|_| AskError::slow(format!("no answer within {} ms", limit.as_millis())))??;
        let mut answers: Vec<Rows> = Vec::new();
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(_) => answers.push(Vec::new()),
                SimpleQueryMessage::Row(row) => answers.last_mut().expect("columns come before rows").push(row),
                _ => {}
            }
        }
        Ok(answers)
    }

    /// Ends it, and what it was doing.
    pub async fn close(self) {
        drop(self.client);
        self.driven.abort();
        let _ = self.driven.await;
    }
}
