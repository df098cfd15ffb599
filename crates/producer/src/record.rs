//! A record to be sent, as the application passes it.

pub use fullbore_wire::batch::Header;

/// A record to be sent. The record borrows its data, which `send` copies into a batch.
#[derive(Clone, Copy, Debug)]
pub struct ProducerRecord<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition. `None` chooses it by the key, or spreads records without a key over all partitions.
    pub partition: Option<i32>,
    /// The key, or null.
    pub key: Option<&'a [u8]>,
    /// The value, or null.
    pub value: Option<&'a [u8]>,
    /// The headers in order. Keys may repeat.
    pub headers: &'a [Header<'a>],
    /// The timestamp in milliseconds since 1970, or `None` for the present time.
    pub timestamp: Option<i64>,
}

impl<'a> ProducerRecord<'a> {
    /// Creates a record with a value and nothing else.
    pub fn new(topic: &'a str, value: &'a [u8]) -> Self {
        ProducerRecord { topic, partition: None, key: None, value: Some(value), headers: &[], timestamp: None }
    }

    /// Sets the key.
    #[must_use]
    pub fn key(self, key: &'a [u8]) -> Self {
        ProducerRecord { key: Some(key), ..self }
    }

    /// Sets the partition.
    #[must_use]
    pub fn partition(self, partition: i32) -> Self {
        ProducerRecord { partition: Some(partition), ..self }
    }

    /// Sets the headers.
    #[must_use]
    pub fn headers(self, headers: &'a [Header<'a>]) -> Self {
        ProducerRecord { headers, ..self }
    }

    /// Sets the timestamp, in milliseconds since 1970.
    #[must_use]
    pub fn timestamp(self, timestamp: i64) -> Self {
        ProducerRecord { timestamp: Some(timestamp), ..self }
    }
}
