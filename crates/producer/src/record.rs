//! Record to be sent, from the application.

pub use fullbore_wire::batch::Header;

/// Record to be sent. It borrows everything; `send` copies the bytes once, into their batch.
#[derive(Clone, Copy, Debug)]
pub struct ProducerRecord<'a> {
    /// Topic of the record.
    pub topic: &'a str,
    /// Partition, or `None` for a choice by the key, or uniformly.
    pub partition: Option<i32>,
    /// Key, or null.
    pub key: Option<&'a [u8]>,
    /// Value, or null.
    pub value: Option<&'a [u8]>,
    /// Headers in order; keys may repeat.
    pub headers: &'a [Header<'a>],
    /// Timestamp in milliseconds since 1970, or `None` for now.
    pub timestamp: Option<i64>,
}

impl<'a> ProducerRecord<'a> {
    /// Makes a record with a value and nothing else.
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
