//! Checks the records of a batch while their bytes arrive in pieces (Kafka's `LogValidator`).
//!
//! Keys, values and headers are skipped. The layout is described in `record`. Invariant: the result does not depend on
//! how the bytes are divided into pieces. No bytes of a piece are stored, only numbers.

use super::super::record::{Timestamps, take_body, take_nullable};
use super::super::varint::{LEN_MAX, take, take_i32, unzigzag};
use super::super::view::{BatchError, BatchView};

/// The timestamp of a record that has none.
const NO_TIMESTAMP: i64 = -1;
const CUT: BatchError = BatchError::Record("a field ends after the record");
const ENDS_LATE: BatchError = BatchError::Record("the record ends after the batch");
const TRAILING: BatchError = BatchError::Record("bytes after the last record");
const AFTER_HEADERS: BatchError = BatchError::Record("bytes after the record's last header");
const UNORDERED: BatchError = BatchError::Record("the record's offset does not follow the one before");
const NEGATIVE: BatchError = BatchError::Record("the record's length is negative");
const NEGATIVE_FIELD: BatchError = BatchError::Record("a length is negative");
const NEGATIVE_HEADERS: BatchError = BatchError::Record("the record's header count is negative");
const NULL_HEADER: BatchError = BatchError::Record("a header key is null");
const TOO_FEW: BatchError = BatchError::Record("the batch has fewer records than its header counts");

/// The results of checking a valid batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedRecords {
    /// The earliest and the latest timestamp of the records.
    pub timestamps: Timestamps,
    /// True if at least one record has no key.
    pub has_null_key: bool,
    /// Size of the records without compression, in bytes.
    pub bytes: usize,
}

/// Checks the records of a batch. `payload` is the batch's payload without compression. Every field must be within its
/// record, and offset deltas must count up from 0. There must be as many records as the batch's header has, and no
/// bytes after them.
///
/// # Errors
/// Returns [`BatchError::Record`] if one of these rules is broken.
pub fn check_records(batch: &BatchView<'_>, payload: &[u8]) -> Result<CheckedRecords, BatchError> {
    let mut walk = RecordWalk::new(batch, usize::MAX);
    walk.push(payload)?;
    walk.finish()
}

/// The next field of the current record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Length,
    Attributes,
    TimestampDelta,
    OffsetDelta,
    KeyLength,
    ValueLength,
    HeaderCount,
    HeaderKeyLength,
    HeaderValueLength,
}

/// The state of a check of a batch's records, of which some bytes have not arrived yet.
#[derive(Debug)]
pub struct RecordWalk {
    base_timestamp: i64,
    /// The number of records in the batch's header.
    count: i32,
    bytes_max: usize,
    bytes: usize,
    /// How many records have been checked.
    walked: i32,
    earliest: i64,
    latest: i64,
    has_null_key: bool,
    field: Field,
    /// How many bytes of the current record have not been read or skipped.
    body_left: usize,
    /// How many bytes of a key, a value or a header must still be skipped.
    skip_left: usize,
    headers_left: i32,
    timestamp_delta: i64,
    is_keyless: bool,
    /// The bits of the number that is being read, and how many of its bytes were read.
    number: (u64, usize),
}

impl RecordWalk {
    /// Creates a check that begins with the first record of `batch`. The records may have at most `bytes_max` bytes.
    pub fn new(batch: &BatchView<'_>, bytes_max: usize) -> RecordWalk {
        RecordWalk {
            base_timestamp: batch.base_timestamp(),
            count: batch.record_count(),
            bytes_max,
            bytes: 0,
            walked: 0,
            earliest: i64::MAX,
            latest: NO_TIMESTAMP,
            has_null_key: false,
            field: Field::Length,
            body_left: 0,
            skip_left: 0,
            headers_left: 0,
            timestamp_delta: 0,
            is_keyless: false,
            number: (0, 0),
        }
    }

    /// Checks the next bytes.
    ///
    /// # Errors
    /// Returns [`BatchError::Record`] if a rule is broken, and [`BatchError::TooLarge`] if the limit is exceeded. The
    /// check must then be dropped.
    pub fn push(&mut self, mut piece: &[u8]) -> Result<(), BatchError> {
        self.bytes = self.bytes.saturating_add(piece.len());
        if self.bytes > self.bytes_max {
            return Err(BatchError::TooLarge(self.bytes_max));
        }
        loop {
            if self.is_between_records() {
                self.whole_records(&mut piece)?;
            }
            let skipped = self.skip_left.min(piece.len());
            self.skip_left -= skipped;
            let Some((&byte, rest)) = piece[skipped..].split_first() else { return Ok(()) };
            piece = rest;
            self.byte(byte)?;
        }
    }

    /// Ends the check after the last byte.
    ///
    /// # Errors
    /// Returns [`BatchError::Record`] if records are missing or incomplete.
    pub fn finish(self) -> Result<CheckedRecords, BatchError> {
        if !self.is_between_records() {
            return Err(ENDS_LATE);
        }
        if self.walked < self.count {
            return Err(TOO_FEW);
        }
        let earliest = if self.earliest == i64::MAX { NO_TIMESTAMP } else { self.earliest };
        let timestamps = Timestamps { earliest, latest: self.latest };
        Ok(CheckedRecords { timestamps, has_null_key: self.has_null_key, bytes: self.bytes })
    }

    fn is_between_records(&self) -> bool {
        self.field == Field::Length && self.skip_left == 0 && self.number.1 == 0
    }

    /// Checks the records that are completely in `piece`. All others are checked field by field.
    fn whole_records(&mut self, piece: &mut &[u8]) -> Result<(), BatchError> {
        while self.walked < self.count {
            let mut rest = *piece;
            let len = take_i32(&mut rest).and_then(|len| usize::try_from(len).ok());
            if len.is_none_or(|len| len > rest.len()) {
                break;
            }
            let (timestamp_delta, has_key) = check_record(piece, self.walked)?;
            self.count_record(timestamp_delta, has_key);
        }
        Ok(())
    }

    fn count_record(&mut self, timestamp_delta: i64, has_key: bool) {
        self.walked += 1;
        self.has_null_key |= !has_key;
        let timestamp = self.base_timestamp.wrapping_add(timestamp_delta);
        if timestamp != NO_TIMESTAMP {
            self.earliest = self.earliest.min(timestamp);
            self.latest = self.latest.max(timestamp);
        }
    }

    /// Reads the next byte of the current field, which is a number or the attributes.
    fn byte(&mut self, byte: u8) -> Result<(), BatchError> {
        match self.field {
            Field::Length if self.walked >= self.count => return Err(TRAILING),
            Field::Length => {}
            _ => self.body_left = self.body_left.checked_sub(1).ok_or(CUT)?,
        }
        if self.field == Field::Attributes {
            self.field = Field::TimestampDelta;
            return Ok(());
        }
        let (bits, len) = self.number;
        let bits = bits | u64::from(byte & 0x7f) << (7 * len);
        if byte >= 0x80 {
            self.number = (bits, len + 1);
            return if len + 1 < LEN_MAX { Ok(()) } else { Err(CUT) };
        }
        self.number = (0, 0);
        self.field = self.after(unzigzag(bits))?;
        Ok(())
    }

    /// Checks or stores the value of the current field, and returns the next field.
    fn after(&mut self, value: i64) -> Result<Field, BatchError> {
        let number = i32::try_from(value).map_err(|_| CUT);
        match self.field {
            Field::Length => {
                self.body_left = usize::try_from(number?).map_err(|_| NEGATIVE)?;
                Ok(Field::Attributes)
            }
            Field::Attributes => Ok(Field::TimestampDelta),
            Field::TimestampDelta => {
                self.timestamp_delta = value;
                Ok(Field::OffsetDelta)
            }
            Field::OffsetDelta if number? != self.walked => Err(UNORDERED),
            Field::OffsetDelta => Ok(Field::KeyLength),
            Field::KeyLength => {
                self.is_keyless = !self.pass_over(number?)?;
                Ok(Field::ValueLength)
            }
            Field::ValueLength => self.pass_over(number?).map(|_| Field::HeaderCount),
            Field::HeaderCount => {
                self.headers_left =
                    number.and_then(|count| if count < 0 { Err(NEGATIVE_HEADERS) } else { Ok(count) })?;
                self.next_header()
            }
            Field::HeaderKeyLength => match self.pass_over(number?)? {
                true => Ok(Field::HeaderValueLength),
                false => Err(NULL_HEADER),
            },
            Field::HeaderValueLength => {
                self.pass_over(number?)?;
                self.headers_left -= 1;
                self.next_header()
            }
        }
    }

    /// Prepares to skip a field of `len` bytes. Returns false if the field is null.
    fn pass_over(&mut self, len: i32) -> Result<bool, BatchError> {
        if len == -1 {
            return Ok(false);
        }
        self.skip_left = usize::try_from(len).map_err(|_| NEGATIVE_FIELD)?;
        self.body_left = self.body_left.checked_sub(self.skip_left).ok_or(CUT)?;
        Ok(true)
    }

    /// Returns the first field of the next header. After the last header, this is the first field of the next record.
    fn next_header(&mut self) -> Result<Field, BatchError> {
        if self.headers_left > 0 {
            return Ok(Field::HeaderKeyLength);
        }
        if self.body_left > 0 {
            return Err(AFTER_HEADERS);
        }
        self.count_record(self.timestamp_delta, !self.is_keyless);
        Ok(Field::Length)
    }
}

/// Checks a record. Returns its timestamp delta, and true if it has a key.
#[inline]
fn check_record(bytes: &mut &[u8], offset_delta: i32) -> Result<(i64, bool), BatchError> {
    let body = &mut take_body(bytes)?;
    *body = body.get(1..).ok_or(CUT)?;
    let timestamp_delta = take(body).ok_or(CUT)?;
    if take_i32(body).ok_or(CUT)? != offset_delta {
        return Err(UNORDERED);
    }
    let has_key = take_nullable(body)?.is_some();
    take_nullable(body)?;
    let headers = take_i32(body).ok_or(CUT)?;
    if headers < 0 {
        return Err(NEGATIVE_HEADERS);
    }
    for _ in 0..headers {
        take_nullable(body)?.ok_or(NULL_HEADER)?;
        take_nullable(body)?;
    }
    if body.is_empty() { Ok((timestamp_delta, has_key)) } else { Err(AFTER_HEADERS) }
}

#[cfg(test)]
mod tests {
    use super::super::super::{BatchBuilder, Header, Stamp};
    use super::*;
    use bytes::{Bytes, BytesMut};
    use proptest::prelude::*;

    fn sample() -> Bytes {
        let mut builder = BatchBuilder::new(BytesMut::new(), Default::default(), None);
        for at in 0..6_u8 {
            let value = [at; 300];
            let header = Header { key: b"of", value: (at % 2 == 0).then_some(&value[..5]) };
            let (key, value) = (&value[..20], &value[..usize::from(at) * 60]);
            let (key, value) = ((at != 3).then_some(key), (at != 2).then_some(value));
            builder.append(1000 - i64::from(at), key, value, &[header; 3][..usize::from(at % 4)]);
        }
        builder.seal(Stamp::NONE).expect("sealed").0.freeze()
    }

    fn walked(batch: &BatchView<'_>, payload: &[u8], piece: usize) -> Result<CheckedRecords, BatchError> {
        let mut walk = RecordWalk::new(batch, usize::MAX);
        payload.chunks(piece).try_for_each(|piece| walk.push(piece))?;
        walk.finish()
    }

    #[test]
    fn valid_records_cut_into_pieces_are_the_same_facts() {
        let bytes = sample();
        let batch = BatchView::first(&bytes).expect("a batch");
        let timestamps = Timestamps { earliest: 995, latest: 1000 };
        let expected = CheckedRecords { timestamps, has_null_key: true, bytes: batch.payload().len() };
        for piece in 1..=batch.payload().len() {
            assert_eq!(walked(&batch, batch.payload(), piece), Ok(expected), "pieces of {piece} bytes");
        }
    }

    #[test]
    fn records_cut_short_at_any_byte_are_refused() {
        let bytes = sample();
        let batch = BatchView::first(&bytes).expect("a batch");
        for len in 0..batch.payload().len() {
            let whole = walked(&batch, &batch.payload()[..len], usize::MAX);
            assert!(matches!(whole, Err(BatchError::Record(_))), "{len} bytes");
            assert!(walked(&batch, &batch.payload()[..len], 1).is_err(), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn damaged_records_cut_into_pieces_have_the_same_verdict(at: usize, byte: u8, piece in 1..400_usize) {
            let bytes = sample();
            let batch = BatchView::first(&bytes).expect("a batch");
            let mut payload = batch.payload().to_vec();
            let at = at % payload.len();
            payload[at] = byte;
            prop_assert_eq!(walked(&batch, &payload, piece).ok(), walked(&batch, &payload, usize::MAX).ok());
        }
    }
}
