//! Which offsets may be kept: of topics there are, and as many as `fullbore.offsets.max`.
//!
//! Not who may commit them: that is rules/group's.

use fullbore_wire::ErrorCode;

use crate::control::command::CommitOffset;
use crate::control::image::Image;
use crate::control::offsets::GroupOffsets;

/// What becomes of the offsets of one commit.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Decided {
    pub accepted: Vec<CommitOffset>,
    /// Index and reason.
    pub refused: Vec<(usize, ErrorCode)>,
    /// How many of those accepted take a place.
    pub added: usize,
}

/// `held` is what the group has, `room` how many more the broker may hold. An offset that replaces one needs no room.
pub fn commit_offsets(image: &Image, held: Option<&GroupOffsets>, room: usize, wanted: Vec<CommitOffset>) -> Decided {
    let mut decided = Decided { accepted: Vec::with_capacity(wanted.len()), ..Decided::default() };
    for (index, offset) in wanted.into_iter().enumerate() {
        let before = held.and_then(|held| held.get(&offset.topic)?.get(&offset.partition));
        if image.topic_by_id(offset.topic).is_none() {
            decided.refused.push((index, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
        } else if before.is_some() {
            decided.accepted.push(offset);
        } else if decided.added < room {
            decided.added += 1;
            decided.accepted.push(offset);
        } else {
            decided.refused.push((index, ErrorCode::INVALID_COMMIT_OFFSET_SIZE));
        }
    }
    decided
}
