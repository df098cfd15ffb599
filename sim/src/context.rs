//! State that all nodes of a simulation share: the time with the events to come, the network and the database.

use std::collections::BTreeMap;

use crate::chaos_event::ChaosEvent;
use crate::check::Check;
use crate::cluster::Command;
use crate::database::Database;
use crate::message::Message;
use crate::network::{ConnectionId, Network, Node};
use crate::settings::Settings;
use fullbore_schedules::{Random, Timeline};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// A broker sends a heartbeat. If a response of the database is overdue, the broker closes the connection.
    Heartbeat,
    /// A broker checks for lagging followers and flushes its log.
    Tick,
    /// A broker connects to the leader unless it is connected already.
    Follow,
    /// A broker responds to fetches that have waited long enough.
    Serve,
    /// A client sends records.
    Produce,
}

#[derive(Debug)]
pub enum Event {
    Deliver { to: Node, connection: ConnectionId, message: Message },
    Closed { to: Node, connection: ConnectionId },
    Timer { of: Node, life: u64, timer: Timer },
    Chaos(ChaosEvent),
}

/// State that all nodes of a simulation share.
#[derive(Debug)]
pub struct Context {
    pub timeline: Timeline<Event>,
    pub random: Random,
    pub settings: Settings,
    pub network: Network,
    pub database: Database,
    pub check: Check,
    /// The process of each running broker, by the broker's id.
    pub running: BTreeMap<i32, u64>,
    /// True if the response to the next commit is lost.
    pub loses_answer: bool,
}

impl Context {
    /// Creates the state of a simulation that has not started. No events are scheduled.
    pub fn new(settings: Settings, random: Random, database: Database, network: Network) -> Context {
        Context {
            timeline: Timeline::default(),
            random,
            settings,
            network,
            database,
            check: Check::new(settings),
            running: BTreeMap::new(),
            loses_answer: false,
        }
    }

    pub fn now(&self) -> i64 {
        self.timeline.now()
    }

    pub fn send(&mut self, connection: ConnectionId, from: Node, message: Message) {
        if let Some((to, at)) = self.network.send(connection, from, self.now(), &mut self.random) {
            self.timeline.schedule(at, Event::Deliver { to, connection, message });
        }
    }

    /// Opens a connection. `None` if the other end does not run or cannot be reached.
    pub fn open(&mut self, from: Node, to: Node) -> Option<ConnectionId> {
        let answers = match to {
            Node::Broker(id) => self.running.contains_key(&id),
            Node::Database => !self.database.is_down,
            Node::Client(_) => false,
        };
        (answers && self.network.reaches(from, to)).then(|| self.network.open(from, to))
    }

    /// Closes a connection. The other end notices after it has received all earlier messages.
    pub fn close(&mut self, connection: ConnectionId, by: Node) {
        if let Some((to, last)) = self.network.close(connection, by) {
            let at = last.max(self.now() + self.random.between(0, 20_000)) + 1;
            self.timeline.schedule(at, Event::Closed { to, connection });
        }
    }

    /// Breaks a connection. Both ends notice some time later.
    pub fn break_off(&mut self, connection: ConnectionId) {
        let Some((a, b)) = self.network.break_off(connection) else { return };
        for to in [a, b] {
            let at = self.now() + self.random.between(0, 20_000);
            self.timeline.schedule(at, Event::Closed { to, connection });
        }
    }

    /// Closes every connection of the node `of`.
    pub fn close_all(&mut self, of: Node) {
        for connection in self.network.of(of) {
            self.close(connection, of);
        }
    }

    pub fn after(&mut self, delay: i64, of: Node, life: u64, timer: Timer) {
        self.timeline.schedule(self.now() + delay, Event::Timer { of, life, timer });
    }

    pub fn schedule_chaos(&mut self, at: i64, what: ChaosEvent) {
        self.timeline.schedule(at, Event::Chaos(what));
    }

    /// Handles a message to the database.
    pub fn query_database(&mut self, connection: ConnectionId, message: Message) {
        if self.database.is_down {
            return self.close(connection, Node::Database);
        }
        match message {
            Message::Heartbeat { id, known, note } => {
                let answer = self.database.heartbeat(id, known, note, self.now());
                self.send(connection, Node::Database, answer);
            }
            Message::Transact { number, command, known } => {
                let nonce = self.random.next();
                let before = self.database.newest();
                let fault = self.settings.fault;
                let (answer, is_new) = self.database.transact(number, &command, known, (self.now(), nonce), fault);
                if is_new {
                    if let Command::Fence(whom) = &command
                        && self.running.contains_key(&whom.broker_id)
                    {
                        self.check.fenced(whom.broker_id, &before, self.now());
                    }
                    self.notify();
                }
                match is_new && std::mem::take(&mut self.loses_answer) {
                    true => self.close(connection, Node::Database),
                    false => self.send(connection, Node::Database, answer),
                }
            }
            _ => {}
        }
    }

    fn notify(&mut self) {
        for connection in self.network.of(Node::Database) {
            self.send(connection, Node::Database, Message::Notify);
        }
    }
}

/// An event that arrived while the process was paused. It is delivered when the process resumes.
#[derive(Debug)]
pub struct Held(pub Event);
