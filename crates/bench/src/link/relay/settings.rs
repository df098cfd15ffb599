//! How a relay is to behave.

use crate::link::Shape;
use std::time::Duration;

/// What a lost packet costs: everything behind it waits until it has been sent again.
#[derive(Debug, Clone, Copy)]
pub struct LossStall {
    /// The probability that a packet of 1,460 bytes is lost.
    pub probability: f64,
    /// How much later it comes.
    pub stall: Duration,
}

/// How a relay behaves.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// Distance and bandwidth.
    pub shape: Shape,
    /// Losses, if any.
    pub loss_stall: Option<LossStall>,
    /// Bytes under way per connection and direction; a connection with so many is not read from.
    pub in_flight_max: usize,
    /// Connections at a time; one more is closed at once.
    pub connections_max: usize,
}
