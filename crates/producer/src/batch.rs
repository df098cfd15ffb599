//! A batch, from its first record to its result. Records are added while the batch is open. Then it is closed, and
//! later sealed into the bytes that every attempt sends.
//!
//! Invariant: once sealed, the bytes change only when the window gives the batch another [`Stamp`].

use crate::delivery::{BatchOutcome, Delivery, Doubt, Written};
use crate::error::ProduceError;
use crate::pool::{Lease, PartitionShare, Shortage};
use crate::record::ProducerRecord;
use bytes::{Bytes, BytesMut};
use fullbore_wire::Records;
use fullbore_wire::batch::{
    BatchBuilder, BatchError, BatchView, ChunkedBuilder, Compression, HEADER_LEN, Header, Level, RecordIter,
    SealedChunks, Stamp, decompress, record_size_max, restamp_pieces,
};
use std::sync::Arc;
use std::time::Instant;

/// A batch that still accepts records.
pub(crate) struct OpenBatch {
    builder: ChunkedBuilder,
    lease: Lease,
    pub(crate) outcome: Arc<BatchOutcome>,
}

impl OpenBatch {
    /// Opens a batch and takes memory from the pool for a first record of `size` bytes.
    ///
    /// # Errors
    /// Returns [`Shortage`] if the pool or the partition's share of it lacks memory.
    pub(crate) fn new(
        share: &Arc<PartitionShare>,
        size: usize,
        compression: Compression,
        level: Level,
        outcome: impl FnOnce() -> Arc<BatchOutcome>,
    ) -> Result<Self, Shortage> {
        let (mut lease, mut builder) = (share.lease(), None::<ChunkedBuilder>);
        lease.take(share.chunks_for(HEADER_LEN + size), |chunk| match &mut builder {
            None => builder = Some(ChunkedBuilder::new(chunk, compression, level)),
            Some(builder) => builder.add_chunk(chunk),
        })?;
        let (builder, outcome) = (builder.ok_or(Shortage::Memory)?, outcome());
        let builder = if outcome.transaction().is_some() { builder.transactional() } else { builder };
        Ok(OpenBatch { builder, lease, outcome })
    }

    pub(crate) fn size(&self) -> usize {
        self.builder.size()
    }

    /// Returns how many more bytes fit into the chunks of the batch.
    pub(crate) fn room(&self) -> usize {
        self.builder.room()
    }

    /// Takes the chunks from the pool that a record of `size` bytes needs in addition to the present ones.
    ///
    /// # Errors
    /// Returns [`Shortage`] if the pool or the partition's share of it lacks memory.
    pub(crate) fn grow(&mut self, size: usize) -> Result<(), Shortage> {
        let chunks = self.lease.chunks_for(size - self.builder.room());
        self.lease.take(chunks, |chunk| self.builder.add_chunk(chunk))
    }

    /// Adds a record of at most `size` bytes, for which the caller has taken memory.
    pub(crate) fn append(&mut self, record: &ProducerRecord<'_>, timestamp: i64, size: usize) -> Delivery {
        let index = self.builder.record_count() as u32;
        self.builder.append(timestamp, record.key, record.value, record.headers, size);
        Delivery { outcome: self.outcome.clone(), index, timestamp }
    }

    /// Closes the batch to further records.
    pub(crate) fn close(self) -> ProducerBatch {
        let records = self.builder.record_count() as u32;
        self.outcome.close(records);
        let size = self.builder.size();
        let body = Body::Built { builder: self.builder, lease: self.lease };
        ProducerBatch {
            body: Some(body),
            size,
            uncompressed: size,
            records,
            first: 0,
            attempts: 0,
            ambiguous: false,
            doubt: None,
            outcome: self.outcome,
        }
    }
}

/// A closed batch, which waits for its first attempt or for a retry.
pub(crate) struct ProducerBatch {
    /// The records. `None` only after the codec has failed.
    body: Option<Body>,
    /// The size in bytes: before compression until the batch is sealed, and then on the wire.
    size: usize,
    /// The size before compression, in bytes.
    uncompressed: usize,
    pub(crate) records: u32,
    /// The index in `outcome` of this batch's first record. If a batch was split, its parts share `outcome`, and all
    /// but the first part have an index above 0.
    first: u32,
    pub(crate) attempts: u32,
    /// True if an earlier attempt may have been written to the log.
    pub(crate) ambiguous: bool,
    /// The guard that marks the batch as possibly written. It exists while an attempt is in flight or may be in the
    /// log.
    doubt: Option<Doubt>,
    pub(crate) outcome: Arc<BatchOutcome>,
}

/// The result of splitting a batch.
pub(crate) struct Parts {
    /// The smaller batches, in the order of the records.
    pub(crate) batches: Vec<ProducerBatch>,
    /// The size of a batch with only the largest record, in bytes before compression.
    pub(crate) largest_record: usize,
}

enum Body {
    Built { builder: ChunkedBuilder, lease: Lease },
    Sealed { pieces: Vec<Bytes>, stamp: Stamp },
}

/// The chunks of a sealed batch. They return to the pool when no attempt needs them any more.
struct Leased {
    chunks: Vec<BytesMut>,
    lease: Option<Lease>,
}

/// A chunk of a sealed batch, as a part of a request.
struct Piece {
    leased: Arc<Leased>,
    at: usize,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.leased.chunks[self.at]
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back(std::mem::take(&mut self.chunks));
        }
    }
}

impl Leased {
    /// Turns the chunks of a sealed batch into pieces of a request. Returns chunks without data to the pool. If the
    /// codec has written to memory of its own, that memory counts against buffer.memory instead of the chunks.
    fn pieces(sealed: SealedChunks, mut lease: Lease) -> Vec<Bytes> {
        if sealed.is_compressed {
            lease.exchange(sealed.spare, sealed.pieces.iter().map(BytesMut::len).sum());
        } else {
            lease.give_back_some(sealed.spare);
        }
        let count = sealed.pieces.len();
        let leased = Arc::new(Leased { chunks: sealed.pieces, lease: Some(lease) });
        (0..count).map(|at| Bytes::from_owner(Piece { leased: leased.clone(), at })).collect()
    }
}

impl ProducerBatch {
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the size before compression, in bytes.
    pub(crate) fn uncompressed(&self) -> usize {
        self.uncompressed
    }

    /// Returns the bytes to send, with `stamp`. The first call compresses the records and computes the checksum. Later
    /// calls return the same bytes unless the stamp has changed.
    ///
    /// # Errors
    /// Returns [`BatchError`] if the codec fails.
    pub(crate) fn seal(&mut self, stamp: Stamp) -> Result<Records, BatchError> {
        let pieces = match self.body.take().ok_or(BatchError::Decompress)? {
            Body::Built { builder, lease } => Leased::pieces(builder.seal(stamp)?, lease),
            Body::Sealed { pieces, stamp: old } if old == stamp => pieces,
            Body::Sealed { mut pieces, .. } => {
                let mut first = BytesMut::from(&pieces[0][..]);
                restamp_pieces(&mut first, pieces[1..].iter().map(|piece| &piece[..]), stamp);
                pieces[0] = first.freeze();
                pieces
            }
        };
        self.size = pieces.iter().map(Bytes::len).sum();
        let records = match &pieces[..] {
            [only] => Records::Memory(only.clone()),
            several => Records::Pieces(several.to_vec()),
        };
        self.body = Some(Body::Sealed { pieces, stamp });
        Ok(records)
    }

    /// Completes the records successfully, with their position in the log.
    pub(crate) fn succeed(&self, written: Written, now: Instant) {
        self.outcome.complete(self.first, self.records, Ok(written), now);
    }

    /// Completes the records with an error.
    pub(crate) fn fail(&self, error: ProduceError, now: Instant) {
        self.outcome.complete(self.first, self.records, Err(error), now);
    }

    /// Notes that an attempt begins. From now on the batch counts as possibly written, even if it is given up before
    /// the response.
    pub(crate) fn begin_attempt(&mut self) {
        self.attempts += 1;
        self.doubt.get_or_insert_with(|| self.outcome.doubt());
    }

    /// Notes whether the attempt that has just ended may be in the log. If the batch fails later, its error reports
    /// this to the application.
    pub(crate) fn note_attempt(&mut self, possibly_written: bool) {
        self.ambiguous |= possibly_written;
        if !self.ambiguous {
            self.doubt = None;
        }
    }

    /// Returns true if the batch is sealed, so that its size on the wire is known.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self.body, Some(Body::Sealed { .. }))
    }

    /// Splits the batch into parts of up to `each` bytes before compression. Returns `None` if the batch has a single
    /// record or is not sealed.
    pub(crate) fn split(&self, compression: Compression, level: Level, each: usize) -> Option<Parts> {
        let Some(Body::Sealed { pieces, .. }) = self.body.as_ref().filter(|_| self.records > 1) else { return None };
        let bytes = pieces.concat();
        let view = BatchView::first(&bytes).ok()?;
        let payload = decompress(view.compression().ok()?, view.payload(), self.uncompressed).ok()?;
        let next = || {
            let builder = BatchBuilder::new(BytesMut::with_capacity(each), compression, level);
            if view.is_transactional() { builder.transactional() } else { builder }
        };
        let (mut builder, mut first, mut parts, mut largest) = (next(), self.first, Vec::new(), 0);
        for (i, record) in RecordIter::new(&payload, view.record_count()).enumerate() {
            let record = record.ok()?;
            let headers: Vec<Header<'_>> = record.headers.map(|(key, value)| Header { key, value }).collect();
            let is_last = i + 1 == self.records as usize;
            let size = record_size_max(record.key, record.value, &headers);
            largest = largest.max(size);
            let full = builder.size() + size > each;
            if builder.record_count() > 0 && (full || (is_last && parts.is_empty())) {
                let part = self.part(std::mem::replace(&mut builder, next()), first)?;
                first += part.records;
                parts.push(part);
            }
            builder.append(record.timestamp(&view), record.key, record.value, &headers);
        }
        parts.push(self.part(builder, first)?);
        Some(Parts { batches: parts, largest_record: HEADER_LEN + largest })
    }

    /// Makes a part of this batch from `builder`, or returns `None` if the codec fails. The memory of the part is not
    /// taken from the pool, because few batches are split.
    fn part(&self, builder: BatchBuilder, first: u32) -> Option<ProducerBatch> {
        let (records, uncompressed) = (builder.record_count() as u32, builder.size());
        let (buffer, _) = builder.seal(Stamp::NONE).ok()?;
        let size = buffer.len();
        let body = Body::Sealed { pieces: vec![buffer.freeze()], stamp: Stamp::NONE };
        let outcome = self.outcome.clone();
        Some(ProducerBatch {
            body: Some(body),
            size,
            uncompressed,
            records,
            first,
            attempts: 0,
            ambiguous: false,
            doubt: None,
            outcome,
        })
    }
}
