//! Redirects a consumer that reads a diskless partition to a broker in the consumer's own rack (KIP-392).
//!
//! Every broker that serves diskless topics can serve the partition. The redirect only keeps the traffic within the
//! consumer's rack, which is usually an availability zone. A broker never redirects a consumer of its own rack, so no
//! consumer is redirected twice.

use crate::api::shown;
use crate::node::MetadataServices;
use fullbore_control::{Image, Topic};
use fullbore_rules::cluster::Zones;
use fullbore_wire::Text;

/// A consumer that is in another rack than this broker.
#[derive(Clone)]
pub struct CrossRackClient {
    rack: Text,
    /// Index of the listener that the consumer connected to.
    listener: usize,
}

impl CrossRackClient {
    /// Returns the consumer if it may have to be redirected. Returns `None` if `rack` is empty or is this broker's own
    /// rack.
    ///
    /// The name is copied, because a slice of it would keep the request's whole frame in memory.
    pub fn of(metadata: &MetadataServices, listener: usize, rack: &Text) -> Option<Self> {
        let is_here = metadata.config.node.rack.as_deref() == Some(rack.as_str());
        (!rack.is_empty() && !is_here).then(|| Self { rack: Text::from(rack.as_str()), listener })
    }

    /// Returns a router that knows the brokers of this consumer's rack in `image`.
    pub fn router<'h>(&'h self, metadata: &'h MetadataServices, image: &'h Image) -> RackRouter<'h> {
        RackRouter { zones: shown::zones(metadata, image, self.listener), rack: &self.rack }
    }
}

/// Chooses the brokers in a consumer's rack to which the consumer is redirected.
pub struct RackRouter<'h> {
    zones: Zones<'h>,
    rack: &'h Text,
}

impl RackRouter<'_> {
    /// Returns the broker in the consumer's rack that should serve this partition. `None` if the partition is classic,
    /// or if the rack has no brokers.
    pub fn broker_of(&self, topic: &Topic, index: i32) -> Option<i32> {
        let is_diskless = topic.config.diskless && topic.partition(index).is_some();
        self.zones.broker_in(self.rack, shown::key(topic.id, index)).filter(|_| is_diskless)
    }
}
