//! To which broker a consumer is sent for a diskless partition: that of its rack (KIP-392).
//!
//! Every broker can answer it. It is sent so that its records come from its own zone. Invariant: a broker sends nobody
//! of its own rack, so that nobody is sent twice.

use crate::api::shown;
use crate::node::Node;
use fullbore_control::{Image, Topic};
use fullbore_rules::cluster::Zones;
use fullbore_wire::Text;

/// A consumer that is in another rack than this broker.
#[derive(Clone)]
pub struct CrossRackClient {
    rack: Text,
    /// Over which it came.
    listener: usize,
}

impl CrossRackClient {
    /// The one of a fetch that names this rack, if it is one. The name is copied: a slice would keep all of the
    /// request's frame.
    pub fn of(broker: &Node, listener: usize, rack: &Text) -> Option<Self> {
        let is_here = broker.config.node.rack.as_deref() == Some(rack.as_str());
        (!rack.is_empty() && !is_here).then(|| Self { rack: Text::from(rack.as_str()), listener })
    }

    /// Its way home, by this image.
    pub fn router<'h>(&'h self, broker: &'h Node, image: &'h Image) -> RackRouter<'h> {
        RackRouter { zones: shown::zones(broker, image, self.listener), rack: &self.rack }
    }
}

/// The way to the brokers of one rack.
pub struct RackRouter<'h> {
    zones: Zones<'h>,
    rack: &'h Text,
}

impl RackRouter<'_> {
    /// The broker to ask for this partition, if there is one.
    pub fn broker_of(&self, topic: &Topic, index: i32) -> Option<i32> {
        let is_diskless = topic.config.diskless && topic.partition(index).is_some();
        self.zones.broker_in(self.rack, shown::key(topic.id, index)).filter(|_| is_diskless)
    }
}
