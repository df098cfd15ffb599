//! The settings of a relay.

use crate::link::Shape;
use std::time::Duration;

/// The cost of a lost packet. All later bytes wait until the packet has been sent again.
#[derive(Debug, Clone, Copy)]
pub struct LossStall {
    /// The probability that a packet of 1,460 bytes is lost.
    pub probability: f64,
    /// How long the lost packet is delayed.
    pub stall: Duration,
}

/// The settings of a relay.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// The distance and the bandwidth.
    pub shape: Shape,
    /// The simulated losses, if there are any.
    pub loss_stall: Option<LossStall>,
    /// Maximum number of bytes in transit per connection and direction. At this limit the connection is not read.
    pub in_flight_max: usize,
    /// Maximum number of connections at a time. A further one is closed at once.
    pub connections_max: usize,
}
