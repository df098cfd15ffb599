//! The brokers of the cluster, as part of an image.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::cluster::Member;
use fullbore_rules::replica::{BrokerRegistration, Brokers};
use fullbore_wire::{Text, Uuid};

/// A registered broker (Kafka's `BrokerRegistration`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegisteredBroker {
    /// The broker's epoch and state, for decisions about replicas.
    pub registration: BrokerRegistration,
    /// The id of the broker's data directory.
    pub directory: Uuid,
    /// The random id of the broker's process (Kafka's incarnation id). Clients never see it.
    pub process: Uuid,
    /// The broker's `broker.rack`.
    pub rack: Option<Text>,
    /// True if the broker serves diskless topics, for which a broker in a cluster needs `diskless.storage`. False after
    /// the broker has reported that it cannot reach the object store.
    pub serves_diskless: bool,
    /// The addresses that clients use, by listener name.
    pub endpoints: BTreeMap<String, Endpoint>,
}

impl RegisteredBroker {
    /// Returns the broker in the form that `fullbore_rules::cluster` uses.
    pub fn member(&self) -> Member {
        let [directory, process] = [self.directory, self.process].map(|id| u128::from_be_bytes(id.0));
        Member { registration: self.registration, directory, process }
    }

    /// Returns the address that clients of this listener use, or `None` if the broker does not have the listener.
    pub fn endpoint(&self, listener: &str) -> Option<&Endpoint> {
        self.endpoints.get(listener)
    }
}

/// The host and port to which clients connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub host: Text,
    pub port: u16,
}

/// All brokers by id.
#[derive(Debug, Clone, Default)]
pub(super) struct Nodes {
    by_id: Arc<BTreeMap<i32, RegisteredBroker>>,
    registrations: Arc<Brokers>,
}

impl Nodes {
    pub fn by_id(&self) -> &BTreeMap<i32, RegisteredBroker> {
        &self.by_id
    }

    pub fn registrations(&self) -> &Arc<Brokers> {
        &self.registrations
    }

    /// Adds a broker, or replaces the one with the same id.
    pub fn put(&mut self, id: i32, node: RegisteredBroker) {
        Arc::make_mut(&mut self.registrations).insert(id, node.registration);
        Arc::make_mut(&mut self.by_id).insert(id, node);
    }
}
