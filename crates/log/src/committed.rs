//! Leaves out aborted batches when a consumer reads with read_committed, so that they need not be sent.
//!
//! The client sees a gap in the offsets, as after compaction. Control batches are always sent, because the client needs
//! the markers to see where an aborted transaction ends. The last batch is also sent, because the client continues
//! after its offset.
//!
//! Invariant: a batch is left out only if it belongs to one of the given transactions.

use std::ops::Range;

use fullbore_wire::FileSlice;

use super::direct_io::{DirectReads, is_resident};
use super::scan::{Header, Scan};
use super::txn_index::AbortedTransaction;

/// Maximum number of aborted transactions for which a slice (the batches that one read returns) is scanned. If there
/// are more, each of them has only a few adjacent batches, and leaving these out would save little.
const TRANSACTIONS_MAX: usize = 64;
/// The slice is scanned only if aborted transactions cover at least this fraction of its offsets (one sixteenth).
const SPAN_SHARE: i64 = 16;
/// Maximum number of batches that are examined. The scan then costs at most a few percent of the response.
const BATCHES_MAX: usize = 128;
/// Minimum number of adjacent bytes that are worth leaving out, because each gap costs another system call.
const RUN_MIN: u64 = 32 * 1024;

/// Returns the parts of a slice that should be sent, in order. `offsets` are the offsets of the slice, which must
/// consist of complete batches. `aborted` lists the aborted transactions that have records in it. Never reads the disk:
/// a batch is sent if its header is neither in the page cache nor in `cold`.
pub fn without_aborted(
    slice: FileSlice,
    offsets: Range<i64>,
    aborted: &[AbortedTransaction],
    cold: &DirectReads,
) -> Vec<FileSlice> {
    if !is_worth_a_look(&offsets, aborted) {
        return vec![slice];
    }
    let left_out = runs(&slice, aborted, cold);
    let begins = [slice.position].into_iter().chain(left_out.iter().map(|run| run.end));
    let end = slice.position + u64::from(slice.len);
    let ends = left_out.iter().map(|run| run.start).chain([end]);
    let range = |(position, end): (u64, u64)| {
        let len = u32::try_from(end - position).unwrap_or(0);
        FileSlice { file: slice.file.clone(), position, len, settled: slice.settled }
    };
    begins.zip(ends).map(range).filter(|range| range.len > 0).collect()
}

fn is_worth_a_look(offsets: &Range<i64>, aborted: &[AbortedTransaction]) -> bool {
    if aborted.is_empty() || aborted.len() > TRANSACTIONS_MAX {
        return false;
    }
    let within = |entry: &AbortedTransaction| {
        entry.last_offset.min(offsets.end).saturating_sub(entry.first_offset.max(offsets.start)).max(0)
    };
    let span = aborted.iter().map(within).fold(0, i64::saturating_add);
    span.saturating_mul(SPAN_SHARE) >= offsets.end.saturating_sub(offsets.start)
}

/// Returns the byte ranges to leave out. If a batch header cannot be read, everything from this batch on is sent.
fn runs(slice: &FileSlice, aborted: &[AbortedTransaction], cold: &DirectReads) -> Vec<Range<u64>> {
    let end = slice.position + u64::from(slice.len);
    let mut scan = if is_resident(&slice.file, slice.position, slice.len as usize) {
        Scan::new(&slice.file, slice.position, end)
    } else {
        Scan::in_memory(cold, &slice.file, slice.position, end)
    };
    let (mut runs, mut run) = (Vec::new(), slice.position..slice.position);
    for _ in 0..BATCHES_MAX {
        let Ok(Some(batch)) = scan.next() else { break };
        let is_last = batch.end() >= end;
        if !is_last && is_aborted(&batch, aborted) {
            run.end = batch.end();
            continue;
        }
        if run.end - run.start >= RUN_MIN {
            runs.push(run);
        }
        run = batch.end()..batch.end();
    }
    // If the scan has not reached the last batch of the slice, it may have ended within a range of aborted batches.
    if run.end < end && run.end - run.start >= RUN_MIN {
        runs.push(run);
    }
    runs
}

fn is_aborted(batch: &Header, aborted: &[AbortedTransaction]) -> bool {
    let is_of = |entry: &AbortedTransaction| {
        entry.producer_id == batch.stamp.producer_id
            && (entry.first_offset..entry.last_offset).contains(&batch.base_offset)
    };
    batch.is_transactional && !batch.is_control && aborted.iter().any(is_of)
}

#[cfg(test)]
mod tests;
