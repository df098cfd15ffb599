//! Values whose reader can detect loss, repetition, disorder and damage. They have a sequence number per partition, a
//! filler that is computed from this number, and a checksum.
//!
//! A value begins with the sequence and the time of sending in microseconds (each a big-endian u64). A filler follows,
//! whose pseudo-random bytes depend on the sequence and the partition. The last field is the CRC-32C of all bytes
//! before it. Invariant: a reader that has accepted n values of a partition has read exactly the values 0 to n-1, in
//! order.

use super::payload::Random;
use fullbore_wire::batch::crc32c;

/// Minimum size of a value, in bytes.
pub const VALUE_LEN_MIN: usize = 8 + 8 + 4;

/// A fault that a reader has found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SequenceError {
    /// The value is too short, or its checksum does not match.
    #[error("partition {partition}: the value after sequence number {after} is damaged")]
    Damaged {
        /// The partition of the value.
        partition: i32,
        /// How many valid values were read before this one.
        after: u64,
    },
    /// The value is intact, but its number is not the expected one.
    #[error("partition {partition}: expected sequence number {expected}, read {actual}")]
    Order {
        /// The partition of the value.
        partition: i32,
        /// The number that was expected.
        expected: u64,
        /// The number that was read.
        actual: u64,
    },
    /// The checksum matches, but the filler is not the one of this partition and sequence number.
    #[error("partition {partition}: value {sequence} does not have the bytes that were sent")]
    Content {
        /// The partition of the value.
        partition: i32,
        /// The sequence number of the value.
        sequence: u64,
    },
}

fn filler(partition: i32, sequence: u64) -> Random {
    Random(sequence ^ ((partition as u64) << 40))
}

/// A writer of the values of one partition, in order.
pub struct SequenceWriter {
    partition: i32,
    next: u64,
    value: Box<[u8]>,
}

impl SequenceWriter {
    /// Creates a writer of values of `len` bytes, but at least [`VALUE_LEN_MIN`].
    pub fn new(partition: i32, len: usize) -> Self {
        SequenceWriter { partition, next: 0, value: vec![0; len.max(VALUE_LEN_MIN)].into() }
    }

    /// Returns the next value, which contains the time of sending.
    pub fn value(&mut self, sent_us: u64) -> &[u8] {
        let crc_at = self.value.len() - 4;
        self.value[..8].copy_from_slice(&self.next.to_be_bytes());
        self.value[8..16].copy_from_slice(&sent_us.to_be_bytes());
        let mut random = filler(self.partition, self.next);
        for chunk in self.value[16..crc_at].chunks_mut(8) {
            chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
        }
        let crc = crc32c(&self.value[..crc_at]);
        self.value[crc_at..].copy_from_slice(&crc.to_be_bytes());
        self.next += 1;
        &self.value
    }
}

/// A reader that checks the values of one partition, in the order in which they are read.
pub struct SequenceReader {
    partition: i32,
    next: u64,
}

impl SequenceReader {
    /// Creates a reader that expects the number 0.
    pub fn new(partition: i32) -> Self {
        SequenceReader { partition, next: 0 }
    }

    /// Accepts the next value. Returns its time of sending, in the writer's microseconds.
    ///
    /// # Errors
    /// Returns [`SequenceError`] if it is not exactly the next value.
    pub fn check(&mut self, value: &[u8]) -> Result<u64, SequenceError> {
        let damaged = SequenceError::Damaged { partition: self.partition, after: self.next };
        if value.len() < VALUE_LEN_MIN {
            return Err(damaged);
        }
        let (body, crc) = value.split_at(value.len() - 4);
        if crc != crc32c(body).to_be_bytes() {
            return Err(damaged);
        }
        let number = |at: usize| u64::from_be_bytes(body[at..at + 8].try_into().expect("eight bytes"));
        let sequence = number(0);
        if sequence != self.next {
            return Err(SequenceError::Order { partition: self.partition, expected: self.next, actual: sequence });
        }
        let mut random = filler(self.partition, sequence);
        if !body[16..].chunks(8).all(|chunk| *chunk == random.next().to_le_bytes()[..chunk.len()]) {
            return Err(SequenceError::Content { partition: self.partition, sequence });
        }
        self.next += 1;
        Ok(number(8))
    }

    /// Returns how many values were accepted.
    pub fn accepted(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_accepted_in_order() {
        for len in [VALUE_LEN_MIN, 21, 100, 1024] {
            let (mut writer, mut reader) = (SequenceWriter::new(3, len), SequenceReader::new(3));
            for sent_us in 0..100 {
                let value = writer.value(sent_us).to_vec();
                assert_eq!(value.len(), len);
                assert_eq!(reader.check(&value), Ok(sent_us));
            }
            assert_eq!(reader.accepted(), 100);
        }
    }

    #[test]
    fn every_mutation_of_a_value_is_found() {
        let mut writer = SequenceWriter::new(0, 64);
        let values: Vec<Vec<u8>> = (0..3).map(|_| writer.value(9).to_vec()).collect();
        let after_first = || {
            let mut reader = SequenceReader::new(0);
            reader.check(&values[0]).expect("right");
            reader
        };
        let order = |actual| Err(SequenceError::Order { partition: 0, expected: 1, actual });
        assert_eq!(after_first().check(&values[0]), order(0), "repeated");
        assert_eq!(after_first().check(&values[2]), order(2), "lost");
        for bit in 0..64 * 8 {
            let mut damaged = values[1].clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let found = after_first().check(&damaged);
            assert_eq!(found, Err(SequenceError::Damaged { partition: 0, after: 1 }), "bit {bit}");
        }
        assert!(after_first().check(&values[1][..40]).is_err(), "cut");
        let other_partition = SequenceWriter::new(1, 64).value(9).to_vec();
        let found = SequenceReader::new(0).check(&other_partition);
        assert_eq!(found, Err(SequenceError::Content { partition: 0, sequence: 0 }));
    }
}
