//! A record to be sent, as the application hands it over.

pub use fullbore_wire::batch::Header;

/// A record to be sent. It borrows everything; `send` copies the bytes once, into their batch.
#[derive(Clone, Copy, Debug)]
pub struct ProducerRecord<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The partition, or `None` to have it chosen by the key, or uniformly.
    pub partition: Option<i32>,
    /// The key, or null.
    pub key: Option<&'a [u8]>,
    /// The value, or null.
    pub value: Option<&'a [u8]>,
    /// Headers in order; keys may repeat.
    pub headers: &'a [Header<'a>],
    /// Milliseconds since 1970, or `None` for now.
    pub timestamp: Option<i64>,
}

impl<'a> ProducerRecord<'a> {
    /// A record with a value and nothing else.
    pub fn new(topic: &'a str, value: &'a [u8]) -> Self {
        ProducerRecord { topic, partition: None, key: None, value: Some(value), headers: &[], timestamp: None }
    }

    /// With a key.
    #[must_use]
    pub fn key(self, key: &'a [u8]) -> Self {
        ProducerRecord { key: Some(key), ..self }
    }

    /// To this partition.
    #[must_use]
    pub fn partition(self, partition: i32) -> Self {
        ProducerRecord { partition: Some(partition), ..self }
    }

    /// With these headers.
    #[must_use]
    pub fn headers(self, headers: &'a [Header<'a>]) -> Self {
        ProducerRecord { headers, ..self }
    }

    /// With this time, in milliseconds since 1970.
    #[must_use]
    pub fn timestamp(self, timestamp: i64) -> Self {
        ProducerRecord { timestamp: Some(timestamp), ..self }
    }
}
