//! New offsets of a reset.

use fullbore_wire::Text;
use std::collections::BTreeMap;

/// New offsets of a group, by topic and partition.
pub type ResetOffsets = BTreeMap<(Text, i32), i64>;
