//! Transactional ids in `__transaction_state`, as Kafka's transaction coordinator writes them.
//!
//! Every record has the whole state of an id. A record of an unknown type is read as unknown, and so is a value of an
//! unknown version. Kafka's loader skips such records. The meaning of the states is decided elsewhere.
//!
//! Source: TransactionLogKey.json, TransactionLogValue.json, `TransactionLog` and `TransactionState` of Kafka 4.3.
//!
//! Invariant: a decoded record takes memory in proportion to its length, and can be encoded in the version that it was
//! read in.

use super::{HEAD, message, reader};
use crate::codec::{Codec, Version};
use crate::message::message;
use crate::{DecodeError, EncodeError, Text};
use bytes::Bytes;
use std::ops::RangeInclusive;

message! {
    /// The transactional id.
    pub struct TransactionLogKey {
        /// The id.
        transactional_id: Text, 0..;
    }

    /// The state of a transactional id. Version 1 is flexible and added the fields of KIP-890, all of which are tagged.
    pub struct TransactionLogValue {
        /// The producer id.
        producer_id: i64, 0..;
        /// The producer id of the previous transaction, or -1.
        previous_producer_id: i64, 1.., default -1, tag 0;
        /// The producer id that the producer was given for its next transaction, or -1.
        next_producer_id: i64, 1.., default -1, tag 1;
        /// The producer epoch.
        producer_epoch: i16, 0..;
        /// The epoch of `next_producer_id`, or -1. Kafka 4.3 reads the field and never writes it.
        next_producer_epoch: i16, 1.., default -1, tag 3;
        /// The timeout of the transaction, in milliseconds.
        transaction_timeout_ms: i32, 0..;
        /// The state: 0 Empty, 1 Ongoing, 2 PrepareCommit, 3 PrepareAbort, 4 CompleteCommit, 5 CompleteAbort, 6 Dead,
        /// 7 PrepareEpochFence.
        transaction_status: i8, 0..;
        /// The topics of the transaction; null in state Empty.
        transaction_partitions: Option<Vec<PartitionsSchema>>, 0..;
        /// When the state last changed, in milliseconds since 1970.
        transaction_last_update_timestamp_ms: i64, 0..;
        /// When the transaction began, in milliseconds since 1970, or -1.
        transaction_start_timestamp_ms: i64, 0..;
        /// The level of the feature `transaction.version` that the client uses.
        client_transaction_version: i16, 1.., tag 2;
    }

    /// The partitions of a topic.
    pub struct PartitionsSchema {
        /// The topic name.
        topic: Text, 0..;
        /// The partitions.
        partition_ids: Vec<i32>, 0..;
    }
}

impl TransactionLogKey {
    /// The record type at the beginning of the key.
    pub const TYPE: i16 = 0;
    /// The version of the fields.
    pub const VERSION: Version = Version { number: 0, flexible: false };
}

impl TransactionLogValue {
    /// The versions that exist.
    pub const VERSIONS: RangeInclusive<i16> = 0..=1;

    /// Returns version `number` with its form: flexible or not.
    pub fn in_version(number: i16) -> Version {
        Version { number, flexible: number >= 1 }
    }

    /// Returns the version in which Kafka writes values at this level of the feature `transaction.version`
    /// (`TransactionVersion.transactionLogValueVersion`).
    pub fn version_at(transaction_version: i16) -> i16 {
        i16::from(transaction_version >= 1)
    }
}

/// A record in `__transaction_state`.
#[derive(Clone, Debug, PartialEq)]
pub enum TransactionLogRecord {
    /// The state of a transactional id, or a tombstone for it.
    Transaction(TransactionLogKey, Option<TransactionLogValue>),
    /// A value of an unknown version, with the id, the version, and the rest of the value.
    UnknownValue(TransactionLogKey, i16, Bytes),
    /// A record of another type, with the type, the rest of the key, and the whole value.
    Unknown(i16, Bytes, Option<Bytes>),
}

impl TransactionLogRecord {
    /// Reads a record. A record without a value is a tombstone. Strings are slices of the key and the value. Bytes
    /// after the last field are ignored, as in Kafka.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if the key is incomplete, or if the value is incomplete and its version is known.
    pub fn decode(key: Bytes, value: Option<Bytes>) -> Result<TransactionLogRecord, DecodeError> {
        let mut key = reader(key);
        let code = i16::decode(&mut key, HEAD)?;
        if code != TransactionLogKey::TYPE {
            return Ok(TransactionLogRecord::Unknown(code, key.rest(), value));
        }
        let key = TransactionLogKey::decode(&mut key, TransactionLogKey::VERSION)?;
        let Some(value) = value else { return Ok(TransactionLogRecord::Transaction(key, None)) };
        let mut value = reader(value);
        let number = i16::decode(&mut value, HEAD)?;
        if !TransactionLogValue::VERSIONS.contains(&number) {
            return Ok(TransactionLogRecord::UnknownValue(key, number, value.rest()));
        }
        let value = TransactionLogValue::decode(&mut value, TransactionLogValue::in_version(number))?;
        Ok(TransactionLogRecord::Transaction(key, Some(value)))
    }

    /// Returns the bytes of the key and of the value, in `version` ([`TransactionLogValue::version_at`]). Version 0 has
    /// no tagged fields. Unknown records keep their bytes.
    ///
    /// # Errors
    /// Returns [`EncodeError::Version`] if the version does not exist, and [`EncodeError::TooLong`] if a field is too
    /// long.
    pub fn encode(&self, version: i16) -> Result<(Bytes, Option<Bytes>), EncodeError> {
        let encode_key = |key| message(TransactionLogKey::TYPE, key, TransactionLogKey::VERSION);
        match self {
            TransactionLogRecord::Transaction(key, None) => Ok((encode_key(key)?, None)),
            TransactionLogRecord::Transaction(key, Some(value)) => {
                if !TransactionLogValue::VERSIONS.contains(&version) {
                    return Err(EncodeError::Version(version));
                }
                let value = message(version, value, TransactionLogValue::in_version(version))?;
                Ok((encode_key(key)?, Some(value)))
            }
            TransactionLogRecord::UnknownValue(key, version, rest) => {
                Ok((encode_key(key)?, Some(behind(*version, rest))))
            }
            TransactionLogRecord::Unknown(code, rest, value) => Ok((behind(*code, rest), value.clone())),
        }
    }
}

/// Returns the 16 bits of a type or version, followed by `bytes`.
fn behind(begins: i16, rest: &[u8]) -> Bytes {
    [&begins.to_be_bytes()[..], rest].concat().into()
}
