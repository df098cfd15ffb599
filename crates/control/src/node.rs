//! Brokers of the cluster in an image.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::cluster::Member;
use fullbore_rules::replica::{BrokerRegistration, Brokers};
use fullbore_wire::{Text, Uuid};

/// Registered broker (Kafka's `BrokerRegistration`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegisteredBroker {
    /// Epoch and state of the broker, for decisions about replicas.
    pub registration: BrokerRegistration,
    /// Id of the broker's data directory.
    pub folder: Uuid,
    /// Id that the process drew at its start (Kafka's incarnation id). Clients never receive it.
    pub process: Uuid,
    /// Value of `broker.rack`.
    pub rack: Option<Text>,
    /// True if the broker serves diskless topics. A broker of a cluster needs `diskless.storage` for that, and must not
    /// have reported the loss of the object store.
    pub serves_diskless: bool,
    /// Endpoints by listener name.
    pub endpoints: BTreeMap<String, Endpoint>,
}

impl RegisteredBroker {
    /// Returns the broker for decisions of `fullbore_rules::cluster`.
    pub fn member(&self) -> Member {
        let [folder, process] = [self.folder, self.process].map(|id| u128::from_be_bytes(id.0));
        Member { registration: self.registration, folder, process }
    }

    /// Returns the endpoint for clients of this listener; `None` if the broker does not have the listener.
    pub fn endpoint(&self, listener: &str) -> Option<&Endpoint> {
        self.endpoints.get(listener)
    }
}

/// Host and port that clients receive.
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

    /// Adds a broker, or replaces the broker of the same id.
    pub fn put(&mut self, id: i32, node: RegisteredBroker) {
        Arc::make_mut(&mut self.registrations).insert(id, node.registration);
        Arc::make_mut(&mut self.by_id).insert(id, node);
    }
}
