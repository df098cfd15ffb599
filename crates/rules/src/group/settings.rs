//! Settings of the group coordinator.

use super::{classic, consumer};

#[derive(Clone, Copy, Debug)]
pub struct GroupSettings {
    /// Settings of the classic protocol.
    pub classic: classic::ClassicGroupSettings,
    /// Settings of the consumer protocol.
    pub consumer: consumer::ConsumerGroupSettings,
}
