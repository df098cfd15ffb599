//! Converts values of the index to SQL literals, and result rows to values. All values are numbers or bytes. Invariant:
//! a literal stands for exactly its value, and a row with an impossible value causes an error.
//!
//! The values are numbers and bytes. Invariant: a literal stands for exactly its value, and a row with an impossible
//! value is an error.

use std::fmt::{Display, Write};

use fullbore_rules::commit::{AppendedBatches, BatchRun};
use fullbore_rules::sequence::AbortedTransaction;

use super::super::damaged;
use super::super::packed::{unpack_offset, unpack_producer, unpack_run};
use super::super::store::{PartitionRow, ProducerRow, ProducerRowPlace};
use fullbore_db::StoreError;
use fullbore_db::postgres::rows::{DatabaseRow, Rows, flag, number, text};

/// The results of several statements, with a set of rows for each statement.
pub type IndexAnswers = std::vec::IntoIter<Rows>;

/// The values of an object's `state` column.
pub const REGISTERED: i64 = 0;
pub const LIVE: i64 = 1;
pub const UNUSED: i64 = 2;
pub const DELETED: i64 = 3;
pub const DELETE_FAILED: i64 = 4;

/// The columns of a partition in `fullbore.diskless_partitions AS p`.
pub const PARTITION: &str =
    "p.id, p.log_start, p.next_offset, p.bytes, p.max_timestamp, p.has_forgotten, p.batches_retained, p.expired_to,
     coalesce(p.first_unstable, -1), p.aborted_to";
/// The columns of an extent.
pub const RUN: &str = "partition, object, base_offset, position, max_timestamp_so_far, encode(batches, 'hex')";
/// The columns of a producer's row in `fullbore.diskless_producers AS r`.
pub const PRODUCER: &str = "r.partition, r.producer_id, r.written_ms, encode(r.batches, 'hex')";

/// The columns of an aborted transaction.
pub const ABORTED: &str = "producer_id, first_offset, last_offset, last_stable_offset";

/// An expression for the time of the database, in ms since 1970.
pub const CLOCK_MS: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// Returns an array literal of numbers, or of byte strings that were converted with [`hex`].
pub fn array(values: impl Iterator<Item = impl Display>) -> String {
    let mut literal = String::from("'{");
    for (at, value) in values.enumerate() {
        let comma = if at > 0 { "," } else { "" };
        write!(literal, "{comma}{value}").expect("a text takes everything");
    }
    literal.push_str("}'");
    literal
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

pub fn unhex(digits: &str) -> Result<Vec<u8>, StoreError> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => Some((digit(high)? * 16 + digit(low)?) as u8),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| damaged("a text is not hexadecimal"))
}

/// Reads a row whose columns are [`PARTITION`].
pub fn partition(row: &DatabaseRow) -> Result<PartitionRow, StoreError> {
    Ok(PartitionRow {
        id: number(row, 0)?,
        log_start: number(row, 1)?,
        next_offset: number(row, 2)?,
        bytes: number(row, 3)?,
        max_timestamp: number(row, 4)?,
        has_forgotten: flag(row, 5)?,
        window: number(row, 6)?,
        expired_to: number(row, 7)?,
        first_unstable: Some(number(row, 8)?).filter(|first| *first >= 0),
        aborted_to: number(row, 9)?,
    })
}

/// Reads a row whose columns are [`RUN`].
pub fn run(row: &DatabaseRow) -> Result<BatchRun, StoreError> {
    Ok(BatchRun {
        partition: number(row, 0)?,
        object: number(row, 1)?,
        base_offset: number(row, 2)?,
        position: number(row, 3)?,
        max_timestamp_so_far: number(row, 4)?,
        batches: unpack_run(&unhex(text(row, 5)?)?)?,
    })
}

/// Reads a row whose columns are [`ABORTED`].
pub fn aborted(row: &DatabaseRow) -> Result<AbortedTransaction, StoreError> {
    Ok(AbortedTransaction {
        producer_id: number(row, 0)?,
        first_offset: number(row, 1)?,
        last_offset: number(row, 2)?,
        last_stable_offset: number(row, 3)?,
    })
}

/// Reads a row whose columns are [`PRODUCER`].
pub fn producer(row: &DatabaseRow) -> Result<ProducerRow, StoreError> {
    let (partition, producer_id) = (number(row, 0)?, number(row, 1)?);
    let batches = unpack_producer(producer_id, &unhex(text(row, 3)?)?)?;
    Ok(ProducerRow { batches: AppendedBatches { partition, producer_id, batches }, written_ms: number(row, 2)? })
}

/// Reads a row with three columns: the first offset of a producer's row, the producer id, and the offset of the last
/// batch in that row. The last column has hexadecimal digits.
pub fn producer_place(row: &DatabaseRow) -> Result<ProducerRowPlace, StoreError> {
    let last_base_offset = unpack_offset(&unhex(text(row, 2)?)?)?;
    Ok(ProducerRowPlace { base_offset: number(row, 0)?, last_base_offset, producer_id: number(row, 1)? })
}

/// Converts each row of an answer with `read`.
pub fn each<T>(rows: &Rows, read: impl Fn(&DatabaseRow) -> Result<T, StoreError>) -> Result<Vec<T>, StoreError> {
    rows.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_the_same_as_digits_and_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(unhex(&hex(&bytes)).expect("digits"), bytes);
        assert_eq!(hex(&[0, 10, 255]), "000aff");
        for wrong in ["0", "0g", "é"] {
            unhex(wrong).expect_err(wrong);
        }
        assert_eq!(array([1, -2].into_iter()), "'{1,-2}'");
        assert_eq!(array(std::iter::empty::<i64>()), "'{}'");
    }
}
