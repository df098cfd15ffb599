//! The simulated network. A connection delivers its messages in order, though possibly late, until it breaks.

use std::collections::{BTreeMap, BTreeSet};

use fullbore_schedules::Random;

/// A node of the network, which is one end of a connection.
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
    /// The arrival times of the last message in each direction: first from the first end to the second, then back.
    last_us: [i64; 2],
    /// The end that has closed the connection. It receives no more messages.
    closed_by: Option<Node>,
}

#[derive(Debug, Default)]
pub struct Network {
    connections: BTreeMap<ConnectionId, Connection>,
    last: ConnectionId,
    /// Pairs of nodes whose first node cannot send to the second.
    cut: BTreeSet<(Node, Node)>,
    /// The shortest delay of a message in one direction, in microseconds.
    delay_us: i64,
}

impl Network {
    /// Creates a network without connections. `delay_us` is the shortest delay of a message.
    pub fn new(delay_us: i64) -> Network {
        Network { delay_us, ..Network::default() }
    }

    fn is_cut(&self, a: Node, b: Node) -> bool {
        self.cut.contains(&(a, b)) || self.cut.contains(&(b, a))
    }

    /// Returns true if one node can open a connection to the other.
    pub fn reaches(&self, a: Node, b: Node) -> bool {
        !self.is_cut(a, b)
    }

    pub fn open(&mut self, from: Node, to: Node) -> ConnectionId {
        self.last += 1;
        self.connections.insert(self.last, Connection { ends: (from, to), last_us: [0; 2], closed_by: None });
        self.last
    }

    /// Sends a message from `from` now. Returns the receiver and the time of arrival. `None` if the message is lost.
    pub fn send(&mut self, id: ConnectionId, from: Node, now: i64, random: &mut Random) -> Option<(Node, i64)> {
        let cut = &self.cut;
        let connection = self.connections.get_mut(&id)?;
        let (a, b) = connection.ends;
        let (to, way) = if from == a { (b, 0) } else { (a, 1) };
        if cut.contains(&(from, to)) {
            return None;
        }
        let jitter = match random.below(200) {
            0 => random.between(0, 1_000_000),
            1..20 => random.between(0, 10 * self.delay_us),
            _ => random.between(0, self.delay_us + 1),
        };
        let at = (now + self.delay_us + jitter).max(connection.last_us[way] + 1);
        connection.last_us[way] = at;
        Some((to, at))
    }

    /// Returns true if messages to the end `to` still arrive.
    pub fn is_open(&self, id: ConnectionId, to: Node) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.closed_by != Some(to))
    }

    /// Closes a connection at one end. Returns the other end and the arrival time of the last message to it. `None` if
    /// the connection was already closed or broken.
    pub fn close(&mut self, id: ConnectionId, by: Node) -> Option<(Node, i64)> {
        let connection = self.connections.get_mut(&id).filter(|connection| connection.closed_by.is_none())?;
        connection.closed_by = Some(by);
        let (a, b) = connection.ends;
        Some(if by == a { (b, connection.last_us[0]) } else { (a, connection.last_us[1]) })
    }

    /// Breaks a connection, which loses all messages in flight. Returns its ends. `None` if it was already broken.
    pub fn break_off(&mut self, id: ConnectionId) -> Option<(Node, Node)> {
        self.connections.remove(&id).map(|connection| connection.ends)
    }

    /// Delays all further messages of a connection until after `until`.
    pub fn stall(&mut self, id: ConnectionId, until: i64) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.last_us = connection.last_us.map(|last| last.max(until));
        }
    }

    /// Returns the connections of the node `node`.
    pub fn of(&self, node: Node) -> Vec<ConnectionId> {
        let has =
            |(_, connection): &(&ConnectionId, &Connection)| connection.ends.0 == node || connection.ends.1 == node;
        self.connections.iter().filter(has).map(|(id, _)| *id).collect()
    }

    /// Drops all messages from the first node to the second. The nodes notice it only when a response is overdue.
    pub fn cut(&mut self, from: Node, to: Node) {
        self.cut.insert((from, to));
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    pub fn any(&self, random: &mut Random) -> Option<ConnectionId> {
        let count = self.connections.len();
        (count > 0).then(|| *self.connections.keys().nth(random.below(count)).expect("it is in range"))
    }
}
