//! The database: versions of the metadata, each with a mark, and the brokers' beats.
//!
//! A transaction is decided on the newest version, as the one lock has it, and takes no time of its own. What is lost
//! is on the way: the command, or the answer to its commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::replica::BrokerState;
use fullbore_wire::ErrorCode;

use crate::cluster::{Cluster, Command, Known, Snapshot};
use crate::fault::Fault;
use crate::message::{Beaten, Message, Note};

/// Of this many changes of brokers, one does not have the partition in its first piece.
const LATER_PIECES: u64 = 4;

#[derive(Debug)]
pub struct Database {
    versions: Vec<(u64, Arc<Cluster>)>,
    /// While an older copy is in its place: the versions that there really were.
    aside: Option<Vec<(u64, Arc<Cluster>)>>,
    /// The last beat of each.
    beats: BTreeMap<i32, i64>,
    /// The newest note of each process of a broker.
    notes: BTreeMap<(i32, u128), Note>,
    pub is_down: bool,
}

impl Database {
    pub fn new(cluster: Cluster, mark: u64) -> Database {
        let versions = vec![(mark, Arc::new(cluster))];
        Database { versions, aside: None, beats: BTreeMap::new(), notes: BTreeMap::new(), is_down: false }
    }

    pub fn newest(&self) -> Snapshot {
        let (mark, cluster) = self.versions.last().expect("there is a first version");
        Snapshot { number: self.versions.len(), mark: *mark, cluster: Arc::clone(cluster) }
    }

    /// The newest version, to a process that starts with a disk that knows this one; `None` where it cannot start.
    pub fn read(&self, known: Known) -> Option<Snapshot> {
        (!self.is_down && self.knows(known)).then(|| self.newest())
    }

    /// Returns true if the version is one of this database's.
    fn knows(&self, known: Known) -> bool {
        known.is_none_or(|(number, mark)| self.versions.get(number - 1).is_some_and(|(of, _)| *of == mark))
    }

    /// The newest note of this process.
    pub fn note_of(&self, id: i32, process: u128) -> Option<Note> {
        self.notes.get(&(id, process)).copied()
    }

    pub fn beat(&mut self, id: i32, known: Known, note: Note, now: i64) -> Message {
        if !self.knows(known) {
            return Message::WentBack;
        }
        self.beats.insert(id, now);
        let newest = self.notes.entry((id, note.process)).or_insert(note);
        if newest.beats < note.beats {
            *newest = note;
        }
        let others = self.beats.iter().filter(|(other, _)| **other != id);
        let ages = others.map(|(other, at)| (*other, now - at)).collect();
        Message::Beaten(Box::new(Beaten { snapshot: self.newest(), ages }))
    }

    /// Carries out a command; whether that made a new version.
    pub fn transact(
        &mut self,
        number: u64,
        command: &Command,
        known: Known,
        (now, mark): (i64, u64),
        fault: Option<Fault>,
    ) -> (Message, bool) {
        if !self.knows(known) {
            return (Message::WentBack, false);
        }
        let is_in_first_piece = !mark.is_multiple_of(LATER_PIECES);
        let decided = self.newest().cluster.decide(command, is_in_first_piece, fault);
        let (result, is_new) = match decided {
            Ok(Some(next)) => {
                self.versions.push((mark, Arc::new(next)));
                (Ok(()), true)
            }
            Ok(None) => (Ok(()), false),
            Err(error) => (Err(error), false),
        };
        if let (Command::Unfence(BrokerState { broker_id: id, .. }) | Command::Register { id, .. }, Ok(())) =
            (command, result)
        {
            self.beats.insert(*id, now);
        }
        (Message::Transacted { number, result, snapshot: self.newest() }, is_new)
    }

    /// An operator puts a copy in its place that is older by so many versions; nothing if one is there.
    pub fn restore_older(&mut self, by: usize) {
        if self.aside.is_none() && self.versions.len() > by {
            self.aside = Some(self.versions.clone());
            self.versions.truncate(self.versions.len() - by);
        }
    }

    /// The operator sees the mistake.
    pub fn restore_newest(&mut self) {
        if let Some(versions) = self.aside.take() {
            self.versions = versions;
        }
    }

    pub fn is_older(&self) -> bool {
        self.aside.is_some()
    }
}

/// What a command without an answer is told.
pub const UNKNOWN_OUTCOME: ErrorCode = ErrorCode::REQUEST_TIMED_OUT;
