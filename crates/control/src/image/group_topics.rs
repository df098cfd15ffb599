//! Implements the trait through which groups of the consumer protocol look up topics of an image by name.

use fullbore_rules::group::consumer::Topics;
use fullbore_wire::Uuid;

use super::Image;

impl Topics for Image {
    fn version(&self) -> u64 {
        self.epoch()
    }

    fn find(&self, name: &str) -> Option<(Uuid, i32)> {
        self.topic(name).map(|topic| (topic.id, topic.partition_count()))
    }
}
