//! A database connection for a blocking thread, with one request at a time. It is opened when it is first needed, and
//! again after it was closed or broken.
//!
//! Invariants: every call ends within a time limit. After a failed attempt to connect, calls fail with the same error
//! during a pause of at most `PAUSE_MAX`. The connection can be dropped anywhere, even in a task of another runtime.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::error::QueryError;
use super::rows::Rows;
use super::server::Server;
use super::session::PostgresSession;
use crate::StoreError;

/// Minimum pause after a failed attempt to connect. The pause doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Maximum pause after a failed attempt to connect.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A connection to a database, which may be open or closed.
pub struct DatabaseConnection {
    server: Arc<Server>,
    /// The runtime in which the session runs while a caller waits. `None` only during the drop of the connection.
    runtime: Option<Runtime>,
    session: Option<PostgresSession>,
    /// The last failed attempt to connect: its time, the pause after it, and its error.
    vain: Option<(Instant, Duration, QueryError)>,
}

impl DatabaseConnection {
    /// Creates a connection that is not open yet.
    ///
    /// # Errors
    /// Returns the system's error if the runtime cannot be created.
    pub fn new(server: Arc<Server>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { server, runtime: Some(runtime), session: None, vain: None })
    }

    /// Returns the server's address and settings.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Opens a session if none is open, within the time limit of one call. During the pause after a failed attempt,
    /// returns the error of that attempt at once.
    pub fn connect(&mut self) -> Result<(), QueryError> {
        if self.session.is_some() {
            return Ok(());
        }
        let pause = match &self.vain {
            Some((at, pause, error)) if at.elapsed() < *pause => return Err(error.clone()),
            Some((_, pause, _)) => (*pause * 2).min(PAUSE_MAX),
            None => PAUSE_MIN,
        };
        let nobody = watch::channel(0).0;
        match self.block_on(PostgresSession::open(&self.server, "", nobody)) {
            Ok(session) => {
                self.vain = None;
                self.session = Some(session);
                Ok(())
            }
            Err(error) => {
                let error = QueryError { is_certain: true, ..error };
                self.vain = Some((Instant::now(), pause, error.clone()));
                Err(error)
            }
        }
    }

    /// Runs `work` with the open session. Returns `None` if no session is open.
    pub fn with_session<'a, F: Future>(
        &'a self,
        work: impl FnOnce(&'a PostgresSession, Duration) -> F,
    ) -> Option<F::Output> {
        let session = self.session.as_ref()?;
        Some(self.block_on(work(session, self.server.call_max)))
    }

    /// Sends statements over the open session, and returns their rows. After an error, closes the session, since its
    /// state is unknown.
    pub fn query(&mut self, statements: &str) -> Result<Vec<Rows>, QueryError> {
        let Some(requested) = self.with_session(|session, call_max| session.query(statements, call_max)) else {
            return Err(QueryError::not_requested("the connection was closed"));
        };
        if requested.is_err() {
            self.hang_up();
        }
        requested
    }

    /// Sends statements that begin a transaction, or that can be repeated without harm. If the session has ended in the
    /// meantime, opens a new one and sends the statements again.
    pub fn begin_with(&mut self, statements: &str) -> Result<Vec<Rows>, QueryError> {
        let was_connected = self.session.is_some();
        self.connect()?;
        match self.query(statements) {
            Err(error) if was_connected && error.is_of_connection() => {
                self.connect()?;
                self.query(statements)
            }
            requested => requested,
        }
    }

    /// Rolls back the open transaction, if there is one.
    pub fn roll_back(&mut self) {
        if self.session.is_some() {
            // If this fails, `query` closes the session, which also ends the transaction.
            let _ = self.query("ROLLBACK");
        }
    }

    /// Closes the session if its database lacks commits. The next session begins with the next host, which may have the
    /// newest database.
    pub fn hang_up_if_behind<T>(&mut self, done: &Result<T, StoreError>) {
        if done.as_ref().is_err_and(StoreError::is_behind) {
            if let Some(session) = &self.session {
                self.server.hosts.begin_after(session.host());
            }
            self.hang_up();
        }
    }

    /// Closes the session and cancels its current statement.
    pub fn hang_up(&mut self) {
        if let Some(session) = self.session.take() {
            self.block_on(session.close());
        }
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.as_ref().expect("it is there until the drop").block_on(future)
    }
}

impl Drop for DatabaseConnection {
    fn drop(&mut self) {
        drop(self.session.take());
        if let Some(runtime) = self.runtime.take() {
            // Drop the task that owns the socket without waiting for it.
            runtime.shutdown_background();
        }
    }
}
