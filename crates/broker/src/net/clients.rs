//! The list of open connections, through which the broker can disconnect clients even while the threads that serve them
//! hang.
//!
//! An entry does not keep its connection open, and is removed when the connection ends.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::stream::ClientStream;

/// The open connections of one broker.
#[derive(Default)]
pub struct Clients {
    open: Mutex<OpenClients>,
}

#[derive(Default)]
struct OpenClients {
    next: u64,
    streams: HashMap<u64, Weak<ClientStream>>,
}

/// The entry of an open connection. Dropping it removes the entry.
pub(super) struct Connected {
    clients: Arc<Clients>,
    number: u64,
}

impl Clients {
    /// Adds a connection.
    pub(super) fn enter(self: &Arc<Self>, stream: &Arc<ClientStream>) -> Connected {
        let mut open = self.open.lock();
        let number = open.next;
        open.next += 1;
        open.streams.insert(number, Arc::downgrade(stream));
        Connected { clients: Arc::clone(self), number }
    }

    /// Shuts down every connection in both directions, even if its thread hangs. Clients then use other brokers or
    /// reconnect. Does not block.
    pub fn hang_up(&self) {
        let open: Vec<_> = self.open.lock().streams.values().filter_map(Weak::upgrade).collect();
        open.iter().for_each(|stream| stream.shut_down());
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.clients.open.lock().streams.remove(&self.number);
    }
}
