//! Converts batches from the stored form to the form that clients get. The two forms differ only in the first 16 bytes
//! of a batch. The checksum does not cover these bytes, so it stays valid.
//!
//! In a stored batch, the offset field contains the object's id instead of an offset
//! ([`marked`](crate::pipeline::upload::marked)). A reader can therefore detect bytes of a wrong object.
//!
//! Invariant: a response consists of whole batches. Each batch has the leader epoch that the metadata has for its
//! partition.

use bytes::{BufMut, Bytes, BytesMut};
use fullbore_rules::commit::ObjectId;
use fullbore_wire::Records;
use fullbore_wire::batch::{BatchView, crc32c};
use std::sync::Arc;

use super::response_budget::ResponseBudget;

/// The leader epoch of batches in an object. Clients get the epoch of the partition instead.
pub const STORED_EPOCH: i32 = 0;
/// How many bytes at the front of a batch are rewritten for a client: the offset, the length and the leader epoch.
const FRONT: usize = 16;
/// The position of the object's id in a stored batch.
pub const MARK: std::ops::Range<usize> = 0..8;
/// The position of the checksum in a batch. The checksum covers all bytes after this position.
const CRC: std::ops::Range<usize> = 17..21;
/// Maximum size of a batch that is always copied, in bytes. Copying such a batch costs less than a separate write to
/// the socket.
const COPIED_MAX: usize = 4096;

/// Collects the batches of a response.
#[derive(Debug)]
pub struct Assembly {
    leader_epoch: i32,
    pieces: Vec<Bytes>,
    /// Copied bytes of the newest batches. They become one entry of `pieces` before a part is added that is not copied.
    copied: BytesMut,
}

impl Assembly {
    /// Creates an empty response. Its batches get the leader epoch `leader_epoch`.
    pub fn new(leader_epoch: i32) -> Assembly {
        Assembly { leader_epoch, pieces: Vec::new(), copied: BytesMut::new() }
    }

    /// Returns true if no batch was added.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.copied.is_empty()
    }

    /// Adds a batch with the offset `base_offset`, whose bytes are in `parts`. Copies the bytes if `is_copied` is true
    /// or the batch is small; otherwise the response references them.
    pub fn add(&mut self, base_offset: i64, parts: Vec<Bytes>, is_copied: bool) {
        let size: usize = parts.iter().map(Bytes::len).sum();
        let mut skipped = 0;
        // The length field counts the bytes after the first 12. This is the same in an object and in a response.
        let length = i32::try_from(size.saturating_sub(12)).unwrap_or(i32::MAX);
        self.copied.put_i64(base_offset);
        self.copied.put_i32(length);
        self.copied.put_i32(self.leader_epoch);
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

    /// Returns all batches as the records of a response. The response budget `given` counts their bytes as outstanding
    /// until the client has received them.
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

    /// Returns all batches as one contiguous buffer.
    pub fn finish_whole(self) -> Bytes {
        let mut pieces = self.into_pieces();
        if pieces.len() == 1 { pieces.remove(0) } else { Bytes::from(pieces.concat()) }
    }
}

/// Returns true if `parts` form exactly one batch with a correct checksum, and the batch was stored in `object`. A
/// batch of an older broker contains 0 instead of an object id, and is accepted as well.
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
    use fullbore_tests::Batch;

    use super::*;
    use crate::pipeline::upload::marked;

    #[test]
    fn batches_get_their_offsets_and_stay_intact() {
        let (small, large) = (Batch::sized(1).bytes(), Batch::sized(2 * COPIED_MAX).bytes());
        for at in [0, 3, FRONT - 1, FRONT, FRONT + 1, 40] {
            let mut assembly = Assembly::new(7);
            assembly.add(10, vec![small.clone()], false);
            assembly.add(11, vec![large.slice(..at), large.slice(at..)], at == 3);
            assembly.add(12, vec![small.slice(..at), small.slice(at..)], false);
            let all = assembly.finish_whole();
            let batches: Vec<_> = fullbore_wire::batch::batches(&all).map(|batch| batch.expect("whole")).collect();
            assert_eq!(batches.iter().map(BatchView::base_offset).collect::<Vec<_>>(), [10, 11, 12], "cut at {at}");
            assert!(batches.iter().all(|batch| batch.partition_leader_epoch() == 7), "cut at {at}");
            assert_eq!(batches[1].payload(), BatchView::first(&large).expect("whole").payload());
            assert!(
                batches.iter().all(|batch| is_intact(&[Bytes::copy_from_slice(batch.bytes())], batch.base_offset()))
            );
        }
    }

    #[test]
    fn stored_batch_is_altered_it_is_not_intact() {
        let good = Batch::of(&["records"]).bytes();
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
