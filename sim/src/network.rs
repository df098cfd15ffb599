//! Connections: what is sent on one arrives in order, late, or not at all once it is broken.

use std::collections::{BTreeMap, BTreeSet};

/// Who is at an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Broker(i32),
    Database,
    Client(usize),
}

pub type ConnectionId = u64;

#[derive(Debug)]
struct Connection {
    ends: (Node, Node),
    /// When the last message to either end arrives: to the second, to the first.
    last_us: [i64; 2],
    /// Who has closed it, and takes nothing more.
    closed_by: Option<Node>,
}

#[derive(Debug, Default)]
pub struct Network {
    connections: BTreeMap<ConnectionId, Connection>,
    last: ConnectionId,
    /// Who cannot send to whom.
    cut: BTreeSet<(Node, Node)>,
    /// One way takes that long at least, us.
    delay_us: i64,
}

impl Network {
    /// Nobody is connected. One way takes `delay_us` at least.
    pub fn new(delay_us: i64) -> Network {
        Network { delay_us, ..Network::default() }
    }

    fn is_cut(&self, a: Node, b: Node) -> bool {
        self.cut.contains(&(a, b)) || self.cut.contains(&(b, a))
    }

    /// Returns true if a connection could be made.
    pub fn reaches(&self, a: Node, b: Node) -> bool {
        !self.is_cut(a, b)
    }

    pub fn open(&mut self, from: Node, to: Node) -> ConnectionId {
        self.last += 1;
        self.connections.insert(self.last, Connection { ends: (from, to), last_us: [0; 2], closed_by: None });
        self.last
    }

    /// When a message sent now by `from` arrives, and where; `None` if it never does.
    pub fn send(&mut self, id: ConnectionId, from: Node, now: i64, rng: &mut fastrand::Rng) -> Option<(Node, i64)> {
        let cut = &self.cut;
        let connection = self.connections.get_mut(&id)?;
        let (a, b) = connection.ends;
        let (to, way) = if from == a { (b, 0) } else { (a, 1) };
        if cut.contains(&(from, to)) {
            return None;
        }
        let jitter = match rng.u32(0..200) {
            0 => rng.i64(0..1_000_000),
            1..20 => rng.i64(0..10 * self.delay_us),
            _ => rng.i64(0..=self.delay_us),
        };
        let at = (now + self.delay_us + jitter).max(connection.last_us[way] + 1);
        connection.last_us[way] = at;
        Some((to, at))
    }

    /// Returns true if what was sent to this end arrives.
    pub fn is_open(&self, id: ConnectionId, to: Node) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.closed_by != Some(to))
    }

    /// One end closes a connection: who is at the other, and when what was sent before has arrived there.
    pub fn close(&mut self, id: ConnectionId, by: Node) -> Option<(Node, i64)> {
        let connection = self.connections.get_mut(&id).filter(|connection| connection.closed_by.is_none())?;
        connection.closed_by = Some(by);
        let (a, b) = connection.ends;
        Some(if by == a { (b, connection.last_us[0]) } else { (a, connection.last_us[1]) })
    }

    /// Breaks a connection, with all that is under way on it; its ends.
    pub fn break_off(&mut self, id: ConnectionId) -> Option<(Node, Node)> {
        self.connections.remove(&id).map(|connection| connection.ends)
    }

    /// What is sent on the connection arrives after this time.
    pub fn stall(&mut self, id: ConnectionId, until: i64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.last_us = connection.last_us.map(|last| last.max(until));
        }
    }

    /// The connections that this node has.
    pub fn of(&self, node: Node) -> Vec<ConnectionId> {
        let has =
            |(_, connection): &(&ConnectionId, &Connection)| connection.ends.0 == node || connection.ends.1 == node;
        self.connections.iter().filter(has).map(|(id, _)| *id).collect()
    }

    /// Nothing gets from one to the other any more. Who notices does so when an answer is overdue.
    pub fn cut(&mut self, from: Node, to: Node) {
        self.cut.insert((from, to));
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    pub fn any(&self, rng: &mut fastrand::Rng) -> Option<ConnectionId> {
        let count = self.connections.len();
        (count > 0).then(|| *self.connections.keys().nth(rng.usize(0..count)).expect("it is in range"))
    }
}
