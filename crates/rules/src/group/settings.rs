//! Settings of groups.

use super::{classic, consumer};

/// Settings of groups.
#[derive(Clone, Copy, Debug)]
pub struct GroupSettings {
    /// The settings of the classic protocol.
    pub classic: classic::ClassicGroupSettings,
    /// The settings of the consumer protocol.
    pub consumer: consumer::ConsumerGroupSettings,
}
