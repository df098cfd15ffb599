//! The brokers of the cluster, as an image has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_rules::cluster::Member;
use fullbore_rules::replica::{BrokerRegistration, Brokers};
use fullbore_wire::{Text, Uuid};

/// Registered broker (Kafka's `BrokerRegistration`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegisteredBroker {
    /// Epoch and state, for decisions about replicas.
    pub registration: BrokerRegistration,
    /// The data folder, by the id that is written in it.
    pub folder: Uuid,
    /// The process, by the number it drew when it started (Kafka's incarnation id). Only brokers know it.
    pub process: Uuid,
    /// broker.rack
    pub rack: Option<Text>,
    /// True if it serves diskless topics: one of a cluster needs diskless.storage, and has not reported that it has
    /// lost the store.
    pub serves_diskless: bool,
    /// Endpoint of each listener, by its name.
    pub endpoints: BTreeMap<String, Endpoint>,
}

impl RegisteredBroker {
    /// Returns the broker as `rules` have it.
    pub fn member(&self) -> Member {
        let [folder, process] = [self.folder, self.process].map(|id| u128::from_be_bytes(id.0));
        Member { registration: self.registration, folder, process }
    }

    /// Returns the endpoint for clients of this listener.
    pub fn endpoint(&self, listener: &str) -> Option<&Endpoint> {
        self.endpoints.get(listener)
    }
}

/// Host and port as clients are told them.
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

    /// Adds a broker, or replaces the one of the same id.
    pub fn put(&mut self, id: i32, node: RegisteredBroker) {
        Arc::make_mut(&mut self.registrations).insert(id, node.registration);
        Arc::make_mut(&mut self.by_id).insert(id, node);
    }
}
