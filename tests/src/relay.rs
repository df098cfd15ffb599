//! Links between the processes of a cluster. A test can cut, hold or slow down each link separately.
//!
//! A relay stands in front of each listener. The client id in the first request of a connection names the follower that
//! connects. To cut a single direction, a test holds the responses. Relays work without network namespaces and
//! therefore without root.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::spawn;
use std::time::Duration;

/// The sender id for connections that are not from a follower.
const ANYBODY: i32 = 0;

/// The state of a link, which decides whether bytes on it pass, wait or are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Open,
    /// All connections are closed, and new ones are closed at once.
    Cut,
    /// Bytes in both directions wait until the link is open again.
    Held,
    /// Requests pass, while responses wait until the link is open again.
    AnswersHeld,
    /// Requests pass with this delay.
    Slow(Duration),
}

/// A relay in front of one listener.
pub struct Relay {
    /// The address to which the other processes connect.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    links: BTreeMap<i32, Link>,
    sockets: Vec<(i32, TcpStream)>,
}

impl State {
    fn link(&self, from: i32) -> Link {
        self.links.get(&from).copied().unwrap_or(Link::Open)
    }
}

impl Relay {
    /// Starts a relay to `target`.
    pub fn to(target: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared { target, state: Mutex::default(), changed: Condvar::new() });
        let relay = Relay { address, shared: Arc::clone(&shared) };
        spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                spawn(move || shared.serve(client));
            }
        });
        relay
    }

    /// Sets the link of the follower `from`. `None` stands for all connections that are not from a follower.
    pub fn set(&self, from: Option<i32>, link: Link) {
        let from = from.unwrap_or(ANYBODY);
        let mut state = self.shared.state.lock().expect("not poisoned");
        state.links.insert(from, link);
        if link == Link::Cut {
            let (ended, left) = std::mem::take(&mut state.sockets).into_iter().partition(|(of, _)| *of == from);
            state.sockets = left;
            let ended: Vec<(i32, TcpStream)> = ended;
            // The sockets may already be closed.
            ended.iter().for_each(|(_, socket)| _ = socket.shutdown(Shutdown::Both));
        }
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn serve(&self, mut client: TcpStream) {
        let mut first = [0; 16 * 1024];
        let Ok(len @ 1..) = client.read(&mut first) else { return };
        let from = broker_in(&first[..len]).unwrap_or(ANYBODY);
        if self.passes(from, false).is_none() {
            return;
        }
        let Ok(mut server) = TcpStream::connect(self.target) else { return };
        // Without Nagle's algorithm, small packets do not wait for an acknowledgement.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let copy = |socket: &TcpStream| socket.try_clone().expect("a descriptor");
        {
            let mut state = self.state.lock().expect("not poisoned");
            if state.link(from) == Link::Cut {
                return;
            }
            state.sockets.extend([(from, copy(&client)), (from, copy(&server))]);
        }
        if server.write_all(&first[..len]).is_err() {
            return;
        }
        let (mut answers, mut requester) = (copy(&server), copy(&client));
        std::thread::scope(|scope| {
            scope.spawn(|| self.pass(from, true, &mut answers, &mut requester));
            self.pass(from, false, &mut client, &mut server);
        });
    }

    fn pass(&self, from: i32, are_answers: bool, source: &mut TcpStream, sink: &mut TcpStream) {
        let mut buffer = [0; 16 * 1024];
        while let Ok(len @ 1..) = source.read(&mut buffer) {
            if self.passes(from, are_answers).is_none() || sink.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = (source.shutdown(Shutdown::Both), sink.shutdown(Shutdown::Both));
    }

    /// Waits until the link lets bytes pass. `None` if the link is cut.
    fn passes(&self, from: i32, are_answers: bool) -> Option<()> {
        let mut state = self.state.lock().expect("not poisoned");
        loop {
            match state.link(from) {
                Link::Open => return Some(()),
                Link::AnswersHeld if !are_answers => return Some(()),
                Link::Cut => return None,
                Link::Slow(delay) => {
                    drop(state);
                    std::thread::sleep(if are_answers { Duration::ZERO } else { delay });
                    return Some(());
                }
                Link::Held | Link::AnswersHeld => state = self.changed.wait(state).expect("not poisoned"),
            }
        }
    }
}

/// Reads the follower's broker id from the first request of a connection. The client id is `broker-1-fetcher` for
/// broker 1. `None` if the connection is not from a follower.
fn broker_in(first: &[u8]) -> Option<i32> {
    // The client id follows after the length, API key, version and correlation id.
    let len = i16::from_be_bytes(first.get(12..14)?.try_into().ok()?);
    let client_id = std::str::from_utf8(first.get(14..14 + usize::try_from(len).ok()?)?).ok()?;
    client_id.strip_prefix("broker-")?.split('-').next()?.parse().ok()
}

/// The links of a cluster's brokers to each other and to their database.
pub struct Links {
    /// Relays in front of the listeners between brokers, one per broker.
    pub(crate) peers: Vec<Relay>,
    /// Relays in front of the database, one per broker.
    pub(crate) databases: Vec<Relay>,
}

impl Links {
    fn ids(&self) -> impl Iterator<Item = i32> + use<> {
        1..=i32::try_from(self.peers.len()).expect("few")
    }

    fn at(id: i32) -> usize {
        usize::try_from(id - 1).expect("ids begin with 1")
    }

    /// Sets the link over which the broker `from` sends requests to the broker `to`.
    pub fn between(&self, from: i32, to: i32, link: Link) {
        self.peers[Links::at(to)].set(Some(from), link);
    }

    /// Sets the links between the broker `id` and all others, in both directions.
    pub fn of(&self, id: i32, link: Link) {
        for other in self.ids().filter(|other| *other != id) {
            self.between(id, other, link);
            self.between(other, id, link);
        }
    }

    /// Sets the link of the broker `id` to the database.
    pub fn to_database(&self, id: i32, link: Link) {
        self.databases[Links::at(id)].set(None, link);
    }

    /// Opens all links.
    pub fn heal(&self) {
        for id in self.ids() {
            self.of(id, Link::Open);
            self.to_database(id, Link::Open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::broker_in;

    #[test]
    fn first_request_of_a_connection_names_the_follower() {
        let request = |client_id: &[u8]| [&[0; 13], &[client_id.len() as u8][..], client_id, &[0, 200]].concat();
        assert_eq!(broker_in(&request(b"broker-1-fetcher")), Some(1));
        assert_eq!(broker_in(&request(b"broker-12-fetcher")), Some(12));
        assert_eq!(broker_in(&request(b"fullbore")), None);
        assert_eq!(broker_in(&[0, 0, 0, 8, 4, 210, 22, 47]), None);
    }
}
