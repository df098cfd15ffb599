//! One batch on its way: open while records join, closed, then sealed into the bytes that every attempt sends.
//!
//! Invariant: once sealed, the bytes change only when the window gives the batch another stamp.

use crate::delivery::{BatchOutcome, Delivery, Doubt, Written};
use crate::error::ProduceError;
use crate::pool::{Class, Lease, Pool};
use crate::record::ProducerRecord;
use bytes::{Bytes, BytesMut};
use fullbore_wire::batch::{
    BatchBuilder, BatchError, BatchView, Compression, HEADER_LEN, Header, Level, RecordIter, Stamp, decompress, restamp,
};
use std::sync::Arc;
use std::time::Instant;

/// A batch that records join.
pub(crate) struct OpenBatch {
    builder: BatchBuilder,
    lease: Lease,
    pub(crate) outcome: Arc<BatchOutcome>,
}

impl OpenBatch {
    pub(crate) fn new(buffer: BytesMut, lease: Lease, codec: (Compression, Level), outcome: Arc<BatchOutcome>) -> Self {
        OpenBatch { builder: BatchBuilder::new(buffer, codec.0, codec.1), lease, outcome }
    }

    pub(crate) fn size(&self) -> usize {
        self.builder.size()
    }

    /// Bytes the buffer takes without growing.
    pub(crate) fn room(&self, pool: &Pool) -> usize {
        pool.size(self.lease.class()) - self.builder.size()
    }

    pub(crate) fn is_small(&self) -> bool {
        self.lease.class() == Class::Small
    }

    /// Continues in a larger buffer.
    pub(crate) fn grow(&mut self, buffer: BytesMut, lease: Lease) {
        let old = self.builder.move_to(buffer);
        std::mem::replace(&mut self.lease, lease).give_back(old);
    }

    /// Adds a record for which there is room.
    pub(crate) fn append(&mut self, record: &ProducerRecord<'_>, timestamp: i64) -> Delivery {
        let index = self.builder.record_count() as u32;
        self.builder.append(timestamp, record.key, record.value, record.headers);
        Delivery { outcome: self.outcome.clone(), index, timestamp }
    }

    /// No more records.
    pub(crate) fn close(self) -> ProducerBatch {
        let records = self.builder.record_count() as u32;
        self.outcome.close(records);
        let size = self.builder.size();
        let body = Body::Built { builder: self.builder, lease: self.lease };
        ProducerBatch {
            body: Some(body),
            size,
            records,
            first: 0,
            attempts: 0,
            ambiguous: false,
            doubt: None,
            outcome: self.outcome,
        }
    }
}

/// A batch that waits to be sent, or sent again.
pub(crate) struct ProducerBatch {
    /// `None` only when the codec failed.
    body: Option<Body>,
    /// Bytes before compression, or on the wire once sealed.
    size: usize,
    pub(crate) records: u32,
    /// The index of its first record in the outcome: above 0 for later parts of a split batch.
    first: u32,
    pub(crate) attempts: u32,
    /// Whether some earlier attempt may be in the log.
    pub(crate) ambiguous: bool,
    /// While an attempt is under way, or was and may be in the log.
    doubt: Option<Doubt>,
    pub(crate) outcome: Arc<BatchOutcome>,
}

enum Body {
    Built { builder: BatchBuilder, lease: Lease },
    Sealed { bytes: Bytes, stamp: Stamp },
}

/// Sealed bytes whose buffer returns to the pool when the last attempt is over.
struct Leased {
    buffer: BytesMut,
    lease: Option<Lease>,
}

impl AsRef<[u8]> for Leased {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back(std::mem::take(&mut self.buffer));
        }
    }
}

impl ProducerBatch {
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The bytes to send, stamped. The first call compresses and computes the checksum; later ones return the same
    /// bytes unless the stamp is another.
    ///
    /// # Errors
    /// When the codec fails.
    pub(crate) fn seal(&mut self, stamp: Stamp) -> Result<Bytes, BatchError> {
        let bytes = match self.body.take().ok_or(BatchError::Decompress)? {
            Body::Built { builder, lease } => {
                let (buffer, spare) = builder.seal(stamp)?;
                let leased = match spare {
                    None => Leased { buffer, lease: Some(lease) },
                    Some(spare) => {
                        lease.give_back(spare);
                        Leased { buffer, lease: None }
                    }
                };
                Bytes::from_owner(leased)
            }
            Body::Sealed { bytes, stamp: old } if old == stamp => bytes,
            Body::Sealed { bytes, .. } => {
                let mut copy = BytesMut::from(&bytes[..]);
                restamp(&mut copy, stamp);
                copy.freeze()
            }
        };
        self.size = bytes.len();
        self.body = Some(Body::Sealed { bytes: bytes.clone(), stamp });
        Ok(bytes)
    }

    /// Tells the batch's records where they are.
    pub(crate) fn succeed(&self, written: Written, now: Instant) {
        self.outcome.complete(self.first, self.records, Ok(written), now);
    }

    /// Tells the batch's records that they failed.
    pub(crate) fn fail(&self, error: ProduceError, now: Instant) {
        self.outcome.complete(self.first, self.records, Err(error), now);
    }

    /// Notes that an attempt begins, for who gives the batch up meanwhile.
    pub(crate) fn begin_attempt(&mut self) {
        self.attempts += 1;
        self.doubt.get_or_insert_with(|| self.outcome.doubt());
    }

    /// Notes what the attempt may have done, for who gives the batch up.
    pub(crate) fn note_attempt(&mut self, possibly_written: bool) {
        self.ambiguous |= possibly_written;
        if !self.ambiguous {
            self.doubt = None;
        }
    }

    /// Two halves by bytes, each with its own share of the records; `None` when it cannot be parted.
    pub(crate) fn split(&self, codec: (Compression, Level), uncompressed_max: usize) -> Option<Vec<ProducerBatch>> {
        let Some(Body::Sealed { bytes, .. }) = &self.body else { return None };
        let view = BatchView::first(bytes).ok()?;
        let payload = decompress(view.compression().ok()?, view.payload(), uncompressed_max).ok()?;
        let mut halves = Vec::with_capacity(2);
        let mut builder = BatchBuilder::new(BytesMut::with_capacity(bytes.len()), codec.0, codec.1);
        let mut first = self.first;
        for (i, record) in RecordIter::new(&payload, view.record_count()).enumerate() {
            let record = record.ok()?;
            let full = builder.size() - HEADER_LEN >= payload.len() / 2 || i + 1 == self.records as usize;
            if halves.is_empty() && i > 0 && full {
                let next = BatchBuilder::new(BytesMut::with_capacity(bytes.len()), codec.0, codec.1);
                let half = self.part(std::mem::replace(&mut builder, next), first)?;
                first += half.records;
                halves.push(half);
            }
            let headers: Vec<Header<'_>> = record.headers.map(|(key, value)| Header { key, value }).collect();
            builder.append(record.timestamp(&view), record.key, record.value, &headers);
        }
        halves.push(self.part(builder, first)?);
        (halves.len() == 2).then_some(halves)
    }

    /// A part of this batch; it lies outside of the pool, for the short time that splitting takes.
    fn part(&self, builder: BatchBuilder, first: u32) -> Option<ProducerBatch> {
        let (records, size) = (builder.record_count() as u32, builder.size());
        let (buffer, _) = builder.seal(Stamp::NONE).ok()?;
        let body = Body::Sealed { bytes: buffer.freeze(), stamp: Stamp::NONE };
        let outcome = self.outcome.clone();
        Some(ProducerBatch {
            body: Some(body),
            size,
            records,
            first,
            attempts: 0,
            ambiguous: false,
            doubt: None,
            outcome,
        })
    }
}
