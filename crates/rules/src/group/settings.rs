//! What of the broker's settings groups are held to.

use super::{classic, consumer};

/// What of the broker's settings groups are held to.
#[derive(Clone, Copy, Debug)]
pub struct GroupSettings {
    /// The settings of the classic protocol.
    pub classic: classic::ClassicGroupSettings,
    /// The settings of the consumer protocol.
    pub consumer: consumer::ConsumerGroupSettings,
}
