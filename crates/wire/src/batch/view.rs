//! A view of a record batch (magic 2), which is read in place without a copy.
//!
//! The layout (`DefaultRecordBatch` in Kafka) is: base offset i64, length i32, leader epoch i32, magic i8, CRC-32C u32
//! of all later bytes. These are: attributes i16, last offset delta i32, base and max timestamp i64, producer id i64,
//! producer epoch i16, base sequence i32, record count i32, records. The checksum does not cover the base offset and
//! the leader epoch, so a broker can set them. Invariant: a `BatchView` has exactly one whole batch.

/// Size of the header before the records, in bytes.
pub const HEADER_LEN: usize = 61;
/// Position after the length field. `length` counts the bytes from here.
pub(super) const LENGTH_END: usize = 12;
/// Position after the checksum. The checksum covers the bytes from here.
pub(super) const CRC_END: usize = 21;
/// Bit 4 of the attributes. It is set if the batch belongs to a transaction.
pub(super) const TRANSACTIONAL: i16 = 0x10;
/// Bit 5 of the attributes. It is set if the batch has control records.
pub(super) const CONTROL: i16 = 0x20;

/// The reason why bytes are not a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes end before the end of the batch.
    #[error("the batch is cut short")]
    Truncated,
    /// The length in the header is one that no batch can have.
    #[error("batch length {0} is not valid")]
    Length(i32),
    /// The magic is not 2. Since Kafka 4.0, no broker accepts the older magics 0 and 1.
    #[error("magic {0} is not supported")]
    Magic(i8),
    /// The checksum does not match.
    #[error("checksum is {actual:#010x}, the header has {expected:#010x}")]
    Crc {
        /// The checksum in the header.
        expected: u32,
        /// The checksum computed from the bytes.
        actual: u32,
    },
    /// The compression type is 5, 6 or 7, which do not exist.
    #[error("compression type {0} does not exist")]
    Compression(u8),
    /// The record count and the last offset delta disagree, or a record is malformed.
    #[error("a record is not valid: {0}")]
    Record(&'static str),
    /// After decompression, the records are larger than the caller allows.
    #[error("records are larger than {0} bytes when decompressed")]
    TooLarge(usize),
    /// The codec has failed or does not accept the bytes.
    #[error("records do not decompress")]
    Decompress,
    /// The compressed data is not valid for the codec.
    #[error("records do not decompress: {0}")]
    Malformed(&'static str),
    /// A block or a window is too large to decompress the batch piece by piece. Contains the largest allowed size in
    /// bytes.
    #[error("records need more than {0} bytes of memory at once when decompressed")]
    Memory(usize),
}

/// The codec of a batch's records (bits 0-2 of the attributes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Compression {
    /// No compression.
    #[default]
    None = 0,
    /// gzip.
    Gzip = 1,
    /// Snappy in the xerial framing.
    Snappy = 2,
    /// LZ4 frames.
    Lz4 = 3,
    /// Zstandard.
    Zstd = 4,
}

/// The source of the timestamps (bit 3 of the attributes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// Each record has a timestamp from the producer.
    CreateTime,
    /// The broker has set the max timestamp, which applies to every record.
    LogAppendTime,
}

/// Computes the CRC-32C (Castagnoli) of bytes.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Computes the CRC-32C of bytes that are divided into pieces.
pub(super) fn crc32c_of<'a>(first: &[u8], rest: impl Iterator<Item = &'a [u8]>) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(first);
    rest.for_each(|piece| digest.update(piece));
    digest.finalize() as u32
}

/// A view of a whole batch.
#[derive(Clone, Copy)]
pub struct BatchView<'a>(&'a [u8]);

impl<'a> BatchView<'a> {
    /// Returns a view of the batch at the start of `bytes`. Anything after the batch is ignored. The length and the
    /// magic are checked, but not the checksum.
    ///
    /// # Errors
    /// Returns [`BatchError::Truncated`], [`BatchError::Length`] or [`BatchError::Magic`] if `bytes` do not begin with
    /// a batch of magic 2.
    pub fn first(bytes: &'a [u8]) -> Result<Self, BatchError> {
        let len = Self::peek_len(bytes)?;
        if bytes.len() < len {
            return Err(BatchError::Truncated);
        }
        Ok(BatchView(&bytes[..len]))
    }

    /// Returns the length of the whole batch that begins with `header`. `header` needs at least 17 bytes, so that it
    /// includes the magic.
    ///
    /// # Errors
    /// Fails like [`BatchView::first`].
    pub fn peek_len(header: &[u8]) -> Result<usize, BatchError> {
        if header.len() < 17 {
            return Err(BatchError::Truncated);
        }
        let length = i32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        match header[16] as i8 {
            2 => {}
            // Batches of magic 0 and 1 have other minimum lengths, but they are refused anyway.
            magic => return Err(BatchError::Magic(magic)),
        }
        if length < (HEADER_LEN - LENGTH_END) as i32 {
            return Err(BatchError::Length(length));
        }
        Ok(length as usize + LENGTH_END)
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..at + N].try_into().expect("a view holds a whole header")
    }

    /// Returns the bytes of the whole batch.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
    /// Returns the size of the whole batch in bytes.
    pub fn size(&self) -> usize {
        self.0.len()
    }
    /// Returns the offset of the first record.
    pub fn base_offset(&self) -> i64 {
        i64::from_be_bytes(self.array(0))
    }
    /// Returns the epoch of the leader that appended the batch.
    pub fn partition_leader_epoch(&self) -> i32 {
        i32::from_be_bytes(self.array(12))
    }
    /// Returns the checksum in the header.
    pub fn crc(&self) -> u32 {
        u32::from_be_bytes(self.array(17))
    }
    /// Returns the attributes, which have the codec, the timestamp type and the flags.
    pub fn attributes(&self) -> i16 {
        i16::from_be_bytes(self.array(21))
    }
    /// Returns the offset of the last record minus that of the first.
    pub fn last_offset_delta(&self) -> i32 {
        i32::from_be_bytes(self.array(23))
    }
    /// Returns the base timestamp in milliseconds. The records' deltas are relative to it.
    pub fn base_timestamp(&self) -> i64 {
        i64::from_be_bytes(self.array(27))
    }
    /// Returns the largest timestamp, in milliseconds.
    pub fn max_timestamp(&self) -> i64 {
        i64::from_be_bytes(self.array(35))
    }
    /// Returns the producer id, or -1.
    pub fn producer_id(&self) -> i64 {
        i64::from_be_bytes(self.array(43))
    }
    /// Returns the producer epoch, or -1.
    pub fn producer_epoch(&self) -> i16 {
        i16::from_be_bytes(self.array(51))
    }
    /// Returns the sequence number of the first record, or -1.
    pub fn base_sequence(&self) -> i32 {
        i32::from_be_bytes(self.array(53))
    }
    /// Returns the record count in the header.
    pub fn record_count(&self) -> i32 {
        i32::from_be_bytes(self.array(57))
    }
    /// Returns the bytes of the records, which are compressed with [`BatchView::compression`].
    pub fn payload(&self) -> &'a [u8] {
        &self.0[HEADER_LEN..]
    }
    /// Returns the offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset().wrapping_add(i64::from(self.last_offset_delta()))
    }
    /// Returns true if the batch belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes() & TRANSACTIONAL != 0
    }
    /// Returns true if the batch has control records, such as a transaction marker.
    pub fn is_control(&self) -> bool {
        self.attributes() & CONTROL != 0
    }
    /// Returns the source of the timestamps: the producer or the broker.
    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes() & 0x08 == 0 { TimestampType::CreateTime } else { TimestampType::LogAppendTime }
    }

    /// Returns the codec of the payload.
    ///
    /// # Errors
    /// Returns [`BatchError::Compression`] if the codec does not exist.
    pub fn compression(&self) -> Result<Compression, BatchError> {
        match self.attributes() as u8 & 7 {
            0 => Ok(Compression::None),
            1 => Ok(Compression::Gzip),
            2 => Ok(Compression::Snappy),
            3 => Ok(Compression::Lz4),
            4 => Ok(Compression::Zstd),
            other => Err(BatchError::Compression(other)),
        }
    }

    /// Verifies the checksum.
    ///
    /// # Errors
    /// Returns [`BatchError::Crc`] if the checksum does not match.
    pub fn check_crc(&self) -> Result<(), BatchError> {
        let (expected, actual) = (self.crc(), crc32c(&self.0[CRC_END..]));
        if expected == actual { Ok(()) } else { Err(BatchError::Crc { expected, actual }) }
    }
}
