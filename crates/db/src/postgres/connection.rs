//! A connection of a thread that blocks: had when it is needed, anew where it has ended, and one question at a time.
//!
//! Not what is asked. Invariants: every call ends within a time limit; while the server cannot be reached it is tried
//! once in a while, and who asks in between is told the same again. It may be dropped anywhere, in a task of another
//! runtime, too.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::error::AskError;
use super::rows::Rows;
use super::server::Server;
use super::session::PostgresSession;

/// After a vain attempt to connect, the next one is this much later at least, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A database, connected or not.
pub struct DatabaseConnection {
    server: Arc<Server>,
    /// Drives the session, while somebody waits for it; `None` once it is dropped.
    runtime: Option<Runtime>,
    session: Option<PostgresSession>,
    /// When it could not be reached, why, and how long to wait.
    vain: Option<(Instant, Duration, AskError)>,
}

impl DatabaseConnection {
    /// Not connected yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(server: Arc<Server>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { server, runtime: Some(runtime), session: None, vain: None })
    }

    /// Returns the server.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Opens a session, if there is none, within the time limit of one call.
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

    /// Does something over the session that there is.
    pub fn with_session<'a, F: Future>(
        &'a self,
        work: impl FnOnce(&'a PostgresSession, Duration) -> F,
    ) -> Option<F::Output> {
        let session = self.session.as_ref()?;
        Some(self.block_on(work(session, self.server.call_max)))
    }

    /// Asks over the session that there is. Whatever goes wrong, its state is not relied on any more.
    pub fn ask(&mut self, statements: &str) -> Result<Vec<Rows>, AskError> {
        let Some(asked) = self.with_session(|session, call_max| session.ask(statements, call_max)) else {
            return Err(AskError::not_asked("the connection was closed"));
        };
        if asked.is_err() {
            self.hang_up();
        }
        asked
    }

    /// Asks for something that begins a transaction, or may be asked for twice, over a new connection where the one at
    /// hand has ended meanwhile.
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

    /// Ends the transaction that is open, if there is one; nothing of it is written.
    pub fn roll_back(&mut self) {
        if self.session.is_some() {
            // Where it fails, the connection goes, and the transaction with it.
            let _ = self.ask("ROLLBACK");
        }
    }

    /// Ends the session, and what it was doing.
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
            // With it goes the task that has the socket. Nothing is waited for.
            runtime.shutdown_background();
        }
    }
}
