//! A broker that starts.

use fullbore_rules::replica::BrokerRegistration;

use super::super::change::Change;
use super::super::command::RegisterBroker;
use super::super::image::Image;
use super::super::node::RegisteredBroker;

/// The broker under a new epoch, which goes up with each start.
pub fn register(image: &Image, wanted: &RegisterBroker) -> Change {
    let epoch = image.node(wanted.id).map_or(0, |before| before.registration.epoch) + 1;
    let registration = BrokerRegistration { epoch, is_fenced: false, is_shutting_down: false };
    let node = RegisteredBroker { registration, rack: wanted.rack.clone(), endpoints: wanted.endpoints.clone() };
    Change::BrokerRegistered { id: wanted.id, node }
}
