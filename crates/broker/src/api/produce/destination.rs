//! Where a batch goes, and when.

use crate::control::Topic;

/// The partition that a batch is for, and the time of the broker's clock.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    pub topic: &'a Topic,
    pub partition: i32,
    pub now_ms: i64,
}
