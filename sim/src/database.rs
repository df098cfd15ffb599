//! The simulated database. It stores the versions of the metadata, each with a nonce, and the brokers' heartbeats.
//!
//! A transaction takes no time and is decided on the newest version, as under the single lock of the real database.
//! Only messages can be lost, either a command or the response to its commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::replica::BrokerState;
use fullbore_wire::ErrorCode;

use crate::cluster::{Cluster, Command, SeenVersion, Snapshot};
use crate::fault::Fault;
use crate::message::{HeartbeatAnswer, Message, Note};

/// A change of a broker's state is decided in pieces. In one of this many changes, the partition is in a later piece
/// ([`Cluster::decide`]).
const LATER_PIECES: u64 = 4;

#[derive(Debug)]
pub struct Database {
    versions: Vec<(u64, Arc<Cluster>)>,
    /// The real versions, set aside while an older copy replaces them. `None` if no copy is in use.
    aside: Option<Vec<(u64, Arc<Cluster>)>>,
    /// The time of each broker's last heartbeat.
    heartbeats: BTreeMap<i32, i64>,
    /// The disk state in the newest heartbeat of each process of each broker.
    notes: BTreeMap<(i32, u128), Note>,
    pub is_down: bool,
}

impl Database {
    pub fn new(cluster: Cluster, nonce: u64) -> Database {
        let versions = vec![(nonce, Arc::new(cluster))];
        Database { versions, aside: None, heartbeats: BTreeMap::new(), notes: BTreeMap::new(), is_down: false }
    }

    pub fn newest(&self) -> Snapshot {
        let (nonce, cluster) = self.versions.last().expect("there is a first version");
        Snapshot { number: self.versions.len(), nonce: *nonce, cluster: Arc::clone(cluster) }
    }

    /// Returns the newest version to a process whose disk knows the version `known`. `None` if the database is down or
    /// does not have that version.
    pub fn read(&self, known: SeenVersion) -> Option<Snapshot> {
        (!self.is_down && self.knows(known)).then(|| self.newest())
    }

    /// Returns true if this database has the version `known`.
    fn knows(&self, known: SeenVersion) -> bool {
        known.is_none_or(|(number, nonce)| self.versions.get(number - 1).is_some_and(|(of, _)| *of == nonce))
    }

    /// Returns the disk state in the newest heartbeat of a process. `None` if the process has sent no heartbeat.
    pub fn note_of(&self, id: i32, process: u128) -> Option<Note> {
        self.notes.get(&(id, process)).copied()
    }

    pub fn heartbeat(&mut self, id: i32, known: SeenVersion, note: Note, now: i64) -> Message {
        if !self.knows(known) {
            return Message::WentBack;
        }
        self.heartbeats.insert(id, now);
        let newest = self.notes.entry((id, note.process)).or_insert(note);
        if newest.heartbeats < note.heartbeats {
            *newest = note;
        }
        let others = self.heartbeats.iter().filter(|(other, _)| **other != id);
        let ages = others.map(|(other, at)| (*other, now - at)).collect();
        Message::HeartbeatAnswer(Box::new(HeartbeatAnswer { snapshot: self.newest(), ages }))
    }

    /// Carries out a command. Returns the response, and true if the command created a new version.
    pub fn transact(
        &mut self,
        number: u64,
        command: &Command,
        known: SeenVersion,
        (now, nonce): (i64, u64),
        fault: Option<Fault>,
    ) -> (Message, bool) {
        if !self.knows(known) {
            return (Message::WentBack, false);
        }
        let is_in_first_piece = !nonce.is_multiple_of(LATER_PIECES);
        let decided = self.newest().cluster.decide(command, is_in_first_piece, fault);
        let (result, is_new) = match decided {
            Ok(Some(next)) => {
                self.versions.push((nonce, Arc::new(next)));
                (Ok(()), true)
            }
            Ok(None) => (Ok(()), false),
            Err(error) => (Err(error), false),
        };
        if let (Command::Unfence(BrokerState { broker_id: id, .. }) | Command::Register { id, .. }, Ok(())) =
            (command, result)
        {
            self.heartbeats.insert(*id, now);
        }
        (Message::Transacted { number, result, snapshot: self.newest() }, is_new)
    }

    /// Replaces the versions by a copy that is older by `by` versions, as an operator might. Does nothing if a copy is
    /// in use already.
    pub fn restore_older(&mut self, by: usize) {
        if self.aside.is_none() && self.versions.len() > by {
            self.aside = Some(self.versions.clone());
            self.versions.truncate(self.versions.len() - by);
        }
    }

    /// Restores the real versions, as an operator does after noticing that the copy is old.
    pub fn restore_newest(&mut self) {
        if let Some(versions) = self.aside.take() {
            self.versions = versions;
        }
    }

    pub fn is_older(&self) -> bool {
        self.aside.is_some()
    }
}

/// The error code for a command whose outcome is unknown, because the response was lost.
pub const UNKNOWN_OUTCOME: ErrorCode = ErrorCode::REQUEST_TIMED_OUT;
