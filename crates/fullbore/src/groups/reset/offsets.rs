//! What a group is reset to.

use fullbore_wire::Text;
use std::collections::BTreeMap;

/// New offsets of a group, by topic and partition.
pub type ResetOffsets = BTreeMap<(Text, i32), i64>;
