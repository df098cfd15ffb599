//! Advice about a record that is too large for the producer or for its topic. It contains the command to type.
//!
//! Invariant: the advised limit is large enough for the record.

use fullbore_client::admin::{ResourceKind, describe_configs};
use fullbore_client::blocking::Cluster;
use fullbore_producer::ProduceError;
use fullbore_wire::ErrorCode;
use std::rc::Rc;

/// Advised sizes are multiples of this. Rounding up leaves room for incompressible bytes, which compression makes
/// longer.
const ROUND: usize = 1024;

/// Returns the advice to raise the producer's own limit. `size` is the necessary limit, if it is known.
pub fn for_producer(size: Option<usize>) -> String {
    let enough = size.map(|size| size.next_multiple_of(ROUND)).filter(|size| *size <= i32::MAX as usize);
    let bytes = enough.map_or_else(|| "BYTES".to_owned(), |size| size.to_string());
    format!("; raise it with --producer-property max.request.size={bytes}")
}

/// A record that the broker refused because of its size.
#[derive(Debug)]
pub struct TooLarge {
    topic: Rc<str>,
    size: usize,
    setting: &'static str,
}

impl TooLarge {
    /// Returns the record if the broker has refused it because of its size. `size` is the maximum size of a batch with
    /// only this record, in bytes.
    pub fn of(error: &ProduceError, topic: &Rc<str>, size: usize) -> Option<TooLarge> {
        let setting = match error {
            ProduceError::Broker { code: ErrorCode::MESSAGE_TOO_LARGE, .. } => "max.message.bytes",
            ProduceError::Broker { code: ErrorCode::RECORD_LIST_TOO_LARGE, .. } => "segment.bytes",
            _ => return None,
        };
        Some(TooLarge { topic: topic.clone(), size, setting })
    }

    /// Returns the advice: the record's size, the topic's limit if the cluster returns it, and the command that raises
    /// the limit. `at` has the flags that name the cluster.
    pub fn advice(&self, cluster: &mut Cluster, at: &str) -> String {
        let TooLarge { topic, size, setting } = self;
        let configs = describe_configs(cluster, (ResourceKind::Topic, topic)).unwrap_or_default();
        let limit = configs.into_iter().find(|config| config.name == **setting).and_then(|config| config.value);
        let limit = limit.map(|limit| format!(", and topic {topic} has {setting}={limit}")).unwrap_or_default();
        let enough = size.next_multiple_of(ROUND);
        format!(
            " (the record takes up to {size} bytes{limit}); raise it with `fullbore configs alter --topic {topic} \
             --add-config {setting}={enough}{at}`"
        )
    }
}
