//! A connection for a thread that blocks, with one request at a time. It is opened on demand, and reopened after it has
//! ended.
//!
//! Not here: the statements. Invariants: every call ends within a time limit. After a failed attempt to connect, calls
//! during a pause of at most `PAUSE_MAX` get the last error. The connection may be dropped anywhere, also in a task of
//! another runtime.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::error::AskError;
use super::rows::Rows;
use super::server::Server;
use super::session::PostgresSession;

/// Shortest pause after a failed attempt to connect.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// Longest pause after a failed attempt to connect.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Database, connected or not.
pub struct DatabaseConnection {
    server: Arc<Server>,
    /// Runtime that drives the session while a caller waits; `None` only during the drop.
    runtime: Option<Runtime>,
    session: Option<PostgresSession>,
    /// Time of the last failed attempt to connect, the pause after it, and its error.
    vain: Option<(Instant, Duration, AskError)>,
}

impl DatabaseConnection {
    /// Returns a connection that is not open yet.
    ///
    /// # Errors
    /// Errors of the system if no runtime can be created.
    pub fn new(server: Arc<Server>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { server, runtime: Some(runtime), session: None, vain: None })
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Opens a session unless one is open, within the time limit of one call.
    pub fn connect(&mut self) -> Result<(), AskError> {
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
                let error = AskError { is_certain: true, ..error };
                self.vain = Some((Instant::now(), pause, error.clone()));
                Err(error)
            }
        }
    }

    /// Runs `work` over the open session. Returns None if no session is open.
    pub fn with_session<'a, F: Future>(
        &'a self,
        work: impl FnOnce(&'a PostgresSession, Duration) -> F,
    ) -> Option<F::Output> {
        let session = self.session.as_ref()?;
        Some(self.block_on(work(session, self.server.call_max)))
    }

    /// Sends statements over the open session. After an error the session is closed, since its state is unknown.
    pub fn ask(&mut self, statements: &str) -> Result<Vec<Rows>, AskError> {
        let Some(asked) = self.with_session(|session, call_max| session.ask(statements, call_max)) else {
            return Err(AskError::not_asked("the connection was closed"));
        };
        if asked.is_err() {
            self.hang_up();
        }
        asked
    }

    /// Sends statements that begin a transaction, or that may be repeated. If the open session has ended, sends them
    /// again over a new session.
    pub fn begin_with(&mut self, statements: &str) -> Result<Vec<Rows>, AskError> {
        let was_connected = self.session.is_some();
        self.connect()?;
        match self.ask(statements) {
            Err(error) if was_connected && error.is_of_connection() => {
                self.connect()?;
                self.ask(statements)
            }
            asked => asked,
        }
    }

    /// Ends the open transaction, if any, without writing it.
    pub fn roll_back(&mut self) {
        if self.session.is_some() {
            // If this fails, `ask` closes the session, and the transaction ends with it.
            let _ = self.ask("ROLLBACK");
        }
    }

    /// Closes the session, and ends its current statement.
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
            // Drops the task that owns the socket, without waiting for it.
            runtime.shutdown_background();
        }
    }
}
