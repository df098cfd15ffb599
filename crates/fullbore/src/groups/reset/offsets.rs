//! The new offsets of a reset.

use fullbore_wire::Text;
use std::collections::BTreeMap;

/// The new offsets of a group, by topic and partition.
pub type ResetOffsets = BTreeMap<(Text, i32), i64>;
