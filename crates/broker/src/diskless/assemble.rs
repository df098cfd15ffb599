//! Batches as they are stored in an object, and as clients get them. Only the first 16 bytes of a batch are rewritten;
//! the checksum does not cover them.
//!
//! In an object, a batch has the object's id in place of its offset, so that bytes of another object are detected.
//!
//! Invariant: responses have whole batches, each with the leader epoch of diskless partitions.

use bytes::{BufMut, Bytes, BytesMut};
use fullbore_rules::commit::ObjectId;
use fullbore_wire::Records;
use fullbore_wire::batch::{BatchView, crc32c};
use std::sync::Arc;

use super::response_budget::ResponseBudget;

/// Leader epoch of every diskless partition.
pub const LEADER_EPOCH: i32 = 0;
/// Number of bytes at the front of a batch that are rewritten: offset, length, leader epoch.
const FRONT: usize = 16;
/// Bytes of a stored batch that contain the id of its object.
const MARK: std::ops::Range<usize> = 0..8;
/// Bytes of the checksum, which covers all bytes after it.
const CRC: std::ops::Range<usize> = 17..21;
/// Largest size in bytes of a batch that is always copied: a copy costs less than a separate write to the socket.
const COPIED_MAX: usize = 4096;

/// Batches of a response.
#[derive(Debug, Default)]
pub struct Assembly {
    pieces: Vec<Bytes>,
    /// Bytes copied since the last piece that was added by reference.
    copied: BytesMut,
}

impl Assembly {
    /// Returns true if there is no batch.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.copied.is_empty()
    }

    /// Adds a batch, given in parts, at `base_offset`. Copies its bytes if `is_copied` or if it is small; otherwise
    /// refers to them.
    pub fn add(&mut self, base_offset: i64, parts: Vec<Bytes>, is_copied: bool) {
        let size: usize = parts.iter().map(Bytes::len).sum();
        let mut skipped = 0;
        // The length field, which does not change, counts all bytes but the first 12.
        let length = i32::try_from(size.saturating_sub(12)).unwrap_or(i32::MAX);
        self.copied.put_i64(base_offset);
        self.copied.put_i32(length);
        self.copied.put_i32(LEADER_EPOCH);
        for part in parts {
            let cut = part.len().min(FRONT - skipped);
            skipped += cut;
            let rest = part.slice(cut..);
            if is_copied || size <= COPIED_MAX {
                self.copied.put_slice(&rest);
            } else if !rest.is_empty() {
                self.pieces.push(self.copied.split().freeze());
                self.pieces.push(rest);
            }
        }
    }

    /// Returns all batches as the records of a response. Their bytes count as outstanding in `given` until the client
    /// has taken them.
    pub fn finish(self, given: &Arc<ResponseBudget>) -> Records {
        let mut pieces: Vec<Bytes> = self.into_pieces().into_iter().map(|piece| given.give(piece)).collect();
        match pieces.len() {
            0 => Records::default(),
            1 => Records::Memory(pieces.remove(0)),
            _ => Records::Pieces(pieces),
        }
    }

    fn into_pieces(mut self) -> Vec<Bytes> {
        self.pieces.push(self.copied.freeze());
        self.pieces.retain(|piece| !piece.is_empty());
        self.pieces
    }

    /// Returns all batches in one piece.
    pub fn finish_whole(self) -> Bytes {
        let mut pieces = self.into_pieces();
        if pieces.len() == 1 { pieces.remove(0) } else { Bytes::from(pieces.concat()) }
    }
}

/// Returns a whole batch as it is stored in an object. Copies the batch only if its bytes are shared.
pub fn marked(batch: Bytes, object: ObjectId) -> Bytes {
    let mut batch = batch.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
    if let Some(mark) = batch.get_mut(MARK) {
        mark.copy_from_slice(&object.to_be_bytes());
    }
    batch.freeze()
}

/// Returns true if the parts are one whole batch that was put into `object`, and its checksum is right. A batch from an
/// older version of the broker has 0 in place of the object id, and also passes.
pub fn is_intact(parts: &[Bytes], object: ObjectId) -> bool {
    let whole;
    let batch = match parts {
        [one] => one,
        several => {
            whole = Bytes::from(several.concat());
            &whole
        }
    };
    let is_one = BatchView::first(batch).is_ok_and(|view| view.size() == batch.len());
    let is_of_object = batch.get(MARK).is_some_and(|mark| *mark == object.to_be_bytes() || *mark == [0; MARK.end]);
    is_one && is_of_object && batch.get(CRC.end..).is_some_and(|covered| crc32c(covered).to_be_bytes() == batch[CRC])
}

#[cfg(test)]
mod tests {
    use fullbore_wire::batch::{BatchBuilder, Compression, Stamp};

    use super::*;

    fn batch(value: &[u8]) -> Bytes {
        let mut builder = BatchBuilder::new(BytesMut::new(), Compression::None, None);
        builder.append(7, None, Some(value), &[]);
        builder.seal(Stamp::NONE).expect("sealed").0.freeze()
    }

    #[test]
    fn batches_get_their_offsets_and_stay_intact() {
        let (small, large) = (batch(b"x"), batch(&[5; 2 * COPIED_MAX]));
        for at in [0, 3, FRONT - 1, FRONT, FRONT + 1, 40] {
            let mut assembly = Assembly::default();
            assembly.add(10, vec![small.clone()], false);
            assembly.add(11, vec![large.slice(..at), large.slice(at..)], at == 3);
            assembly.add(12, vec![small.slice(..at), small.slice(at..)], false);
            let all = assembly.finish_whole();
            let batches: Vec<_> = fullbore_wire::batch::batches(&all).map(|batch| batch.expect("whole")).collect();
            assert_eq!(batches.iter().map(BatchView::base_offset).collect::<Vec<_>>(), [10, 11, 12], "cut at {at}");
            assert_eq!(batches[1].payload(), BatchView::first(&large).expect("whole").payload());
            assert!(
                batches.iter().all(|batch| is_intact(&[Bytes::copy_from_slice(batch.bytes())], batch.base_offset()))
            );
        }
    }

    #[test]
    fn stored_batch_is_altered_it_is_not_intact() {
        let good = batch(b"records");
        assert!(is_intact(std::slice::from_ref(&good), 5), "of an older broker");
        let good = marked(good, 5);
        assert!(is_intact(std::slice::from_ref(&good), 5) && !is_intact(std::slice::from_ref(&good), 6));
        for at in CRC.start..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 1;
            assert!(!is_intact(&[Bytes::from(bad)], 5), "byte {at}");
        }
        assert!(!is_intact(&[good.slice(..good.len() - 1)], 5) && !is_intact(&[good.clone(), good.clone()], 5));
        assert!(!is_intact(&[], 5));
    }
}
