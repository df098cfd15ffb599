//! Settings of a relay.

use crate::link::Shape;
use std::time::Duration;

/// Cost of a lost packet: all bytes behind it wait until it has been sent again.
#[derive(Debug, Clone, Copy)]
pub struct LossStall {
    /// Probability that a packet of 1,460 bytes is lost.
    pub probability: f64,
    /// Delay of the lost packet.
    pub stall: Duration,
}

/// Settings of a relay.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// Distance and bandwidth.
    pub shape: Shape,
    /// Losses, if any.
    pub loss_stall: Option<LossStall>,
    /// Most bytes under way per connection and direction; at this limit the connection is not read.
    pub in_flight_max: usize,
    /// Most connections at a time; a further one is closed at once.
    pub connections_max: usize,
}
