//! A metadata store in memory, for tests. Several brokers can share it like a database. Tests can inject faults.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::super::change::{Change, Version};
use super::super::store::{Commit, Progress, Store, Transaction};
use fullbore_db::{CommitError, StoreError};

/// A connection to the store.
#[derive(Clone, Default)]
pub struct Memory {
    shared: Arc<Shared>,
    /// True if readers get the whole state, and false if they get the missing commits one by one.
    reports_whole: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    commits: Vec<Commit>,
    is_locked: bool,
    /// Number of callers that wait for the lock.
    waiting: usize,
    fault: Option<Fault>,
    is_unreachable: bool,
    /// Names of the threads that have called the store.
    threads: BTreeSet<String>,
}

/// The moment at which the connection breaks during a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection breaks before the store receives the commit.
    Before,
    /// The connection breaks after the commit is made.
    After,
    /// The connection breaks before the store makes the commit. The store makes it later, while another caller waits
    /// for the lock.
    Meanwhile,
    /// The connection breaks after the commit is made, and the store stays unreachable.
    ForLong,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    fn wait_while(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.state(), |state| condition(state)).expect("no panic")
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = change(&mut self.state());
        self.changed.notify_all();
        changed
    }
}

impl Memory {
    /// Returns a connection to the same store. If `reports_whole` is true, readers get the whole state; otherwise they
    /// get the missing commits one by one.
    pub fn reporting(self, reports_whole: bool) -> Self {
        Self { reports_whole, ..self }
    }

    /// Injects a fault into the next commit.
    pub fn next_commit(&self, fault: Fault) {
        self.shared.change(|state| state.fault = Some(fault));
    }

    /// Returns false if [`Fault::ForLong`] has made the store unreachable. [`Memory::mend`] makes it reachable again.
    pub fn is_reachable(&self) -> bool {
        !self.shared.state().is_unreachable
    }

    /// Makes the store reachable again.
    pub fn mend(&self) {
        self.shared.change(|state| state.is_unreachable = false);
    }

    /// Returns all commits.
    pub fn commits(&self) -> Vec<Commit> {
        self.shared.state().commits.clone()
    }

    /// Removes all but the first `length` commits, as if an older copy had been restored.
    pub fn restore(&self, length: usize) {
        self.shared.change(|state| state.commits.truncate(length));
    }

    /// Takes the lock for another broker, and holds it until the caller drops the result.
    pub fn locked(&self) -> Held {
        self.shared.change(|state| state.waiting += 1);
        let mut state = self.shared.wait_while(|state| state.is_locked);
        state.waiting -= 1;
        state.is_locked = true;
        Held(Arc::clone(&self.shared))
    }

    /// Blocks until a caller waits for the lock.
    pub fn someone_waits(&self) {
        drop(self.shared.wait_while(|state| state.waiting == 0));
    }

    /// Returns the names of the threads that have called the store.
    pub fn threads(&self) -> BTreeSet<String> {
        self.shared.state().threads.clone()
    }
}

/// Holds the store's lock until it is dropped.
pub struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.change(|state| state.is_locked = false);
    }
}

impl Store for Memory {
    type Transaction<'a> = Held;

    fn begin(&mut self, at: Option<Version>) -> Result<(Held, Progress), StoreError> {
        let held = self.locked();
        let mut state = self.shared.state();
        state.threads.insert(std::thread::current().name().unwrap_or_default().to_owned());
        if state.is_unreachable {
            drop(state);
            return Err(StoreError::Failed("no route to host".to_owned()));
        }
        let known = match at {
            None => Some(0),
            Some(at) => state.commits.iter().position(|commit| commit.version == at).map(|position| position + 1),
        };
        let since = known.map(|known| state.commits[known..].to_vec());
        let all = state.commits.clone();
        drop(state);
        match (since, at) {
            (Some(since), _) if self.reports_whole && !since.is_empty() => {
                let version = since.last().expect("not empty").version;
                let changes = all.into_iter().flat_map(|commit| commit.changes).collect();
                Ok((held, Progress::Whole(Commit { version, changes })))
            }
            (Some(since), _) => Ok((held, Progress::Since(since))),
            (None, at) => Err(StoreError::WentBack(at.map_or(0, |at| at.number))),
        }
    }
}

impl Transaction for Held {
    fn includes(&mut self, version: Version) -> Result<bool, StoreError> {
        Ok(self.0.state().commits.iter().any(|commit| commit.version == version))
    }

    fn commit(self, changes: &[Change], version: Version) -> Result<(), CommitError> {
        let commit = Commit { version, changes: changes.to_vec() };
        let fault = self.0.change(|state| {
            let newest = state.commits.last().map_or(0, |commit| commit.version.number);
            assert_eq!(version.number, newest + 1, "it follows the newest");
            let fault = state.fault.take();
            match fault {
                Some(Fault::Before | Fault::Meanwhile) => {}
                _ => state.commits.push(commit.clone()),
            }
            state.is_unreachable = fault == Some(Fault::ForLong);
            fault
        });
        if fault == Some(Fault::Meanwhile) {
            std::thread::spawn(move || {
                drop(self.0.wait_while(|state| state.waiting == 0));
                self.0.change(|state| state.commits.push(commit));
            });
        }
        match fault {
            None => Ok(()),
            Some(_) => Err(CommitError::Unknown("connection reset by peer".to_owned())),
        }
    }
}
