//! Caches pieces that were read recently or are being read.
//!
//! Invariant: there are at most [`SLOTS_MAX`] slots. A slot that was not used for [`KEPT_FOR`] is removed soon after.

use super::direct::boundary_before;
use super::piece::{Piece, Pieces, end_of};
use fullbore_host::task;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

/// Maximum number of slots. Fewer pieces fit into the cache than may be in memory, so cached pieces never block a read.
const SLOTS_MAX: usize = 16;
/// Maximum number of slots whose pieces were read ahead but not requested yet. This also limits how many readers can
/// read ahead at a time.
const AHEAD_MAX: usize = 8;
/// How long a piece stays at least after it was last used.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// How long a slot must be idle before its piece may be replaced by another one.
const IDLE: Duration = Duration::from_millis(200);

/// The read-ahead cache of one broker.
#[derive(Default)]
pub struct ReadAheadCache {
    /// The slots. The one used last is at the end.
    kept: Vec<ShelvedPiece>,
    /// A reference to the cache itself. The tasks that remove unused slots need it.
    own: Weak<Mutex<ReadAheadCache>>,
}

struct ShelvedPiece {
    slot: Arc<Slot>,
    used: Instant,
    /// False if the piece was read ahead and has not been requested yet.
    is_requested: bool,
}

/// A slot of the cache. Its bytes end at the next multiple of [`PIECE_MAX`](super::direct::PIECE_MAX) after `from`, or
/// at the first byte that could still change when the slot was created.
pub struct Slot {
    file: Arc<File>,
    from: u64,
    end: u64,
    piece: OnceCell<Arc<Piece>>,
}

impl Slot {
    fn new(shelf: &Weak<Mutex<ReadAheadCache>>, file: &Arc<File>, position: u64, settled: u64) -> Arc<Slot> {
        let (from, end) = (boundary_before(position), end_of(position).min(settled));
        let slot = Arc::new(Slot { file: Arc::clone(file), from, end, piece: OnceCell::new() });
        task::spawn(take_down_unused(Weak::clone(shelf), Arc::downgrade(&slot)));
        slot
    }

    fn is_of(&self, file: &Arc<File>) -> bool {
        Arc::ptr_eq(&self.file, file)
    }

    /// Returns true if the slot has the byte at `position`, or will have it once it is read.
    fn has(&self, file: &Arc<File>, position: u64) -> bool {
        self.is_of(file) && (self.from..self.end).contains(&position)
    }

    fn is_before(&self, other: &Slot) -> bool {
        self.end == other.from && self.is_of(&other.file)
    }

    /// Returns the piece, and reads it if necessary.
    pub async fn piece(&self, pieces: &Pieces) -> io::Result<Arc<Piece>> {
        self.piece.get_or_try_init(|| pieces.read(Arc::clone(&self.file), self.from, self.end)).await.cloned()
    }
}

impl ReadAheadCache {
    /// Creates an empty cache.
    pub fn new() -> Arc<Mutex<ReadAheadCache>> {
        Arc::new_cyclic(|own| Mutex::new(ReadAheadCache { kept: Vec::new(), own: Weak::clone(own) }))
    }

    /// Returns the slot with the byte at `position`, and adds one if necessary. Returns `None` if other readers use all
    /// slots.
    pub fn slot_at(&mut self, file: &Arc<File>, position: u64, settled: u64) -> Option<Arc<Slot>> {
        let at = self.kept.iter().position(|kept| kept.slot.has(file, position));
        let slot = match at {
            Some(at) => self.kept.remove(at).slot,
            None if self.make_room() => Slot::new(&self.own, file, position, settled),
            None => return None,
        };
        self.kept.push(ShelvedPiece { slot: Arc::clone(&slot), used: Instant::now(), is_requested: true });
        Some(slot)
    }

    /// Returns true if there is a free slot. If all slots are in use, first removes a slot whose reader has gone on to
    /// the next piece. If there is none, removes the slot that has been idle for longest, if that is at least [`IDLE`].
    fn make_room(&mut self) -> bool {
        if self.kept.len() < SLOTS_MAX {
            return true;
        }
        let is_past =
            |kept: &ShelvedPiece| self.kept.iter().any(|next| next.is_requested && kept.slot.is_before(&next.slot));
        let is_idle = |kept: &ShelvedPiece| kept.used.elapsed() >= IDLE;
        let Some(at) = self.kept.iter().position(is_past).or_else(|| self.kept.iter().position(is_idle)) else {
            return false;
        };
        self.kept.remove(at);
        true
    }

    /// Returns true if a slot has the byte at `position`.
    #[cfg(test)]
    pub fn has(&self, file: &Arc<File>, position: u64) -> bool {
        self.slots().any(|slot| slot.has(file, position))
    }

    /// Returns true if the bytes just before the slot are also cached, which shows that a reader is reading the file in
    /// order.
    pub fn has_before(&self, slot: &Slot) -> bool {
        self.slots().any(|other| other.is_before(slot))
    }

    /// Returns the piece with the byte at `position`, if it has been read.
    pub fn read_at(&self, file: &File, position: u64) -> Option<Arc<Piece>> {
        let of_file = self.slots().filter(|slot| std::ptr::eq(Arc::as_ptr(&slot.file), file));
        let pieces = of_file.filter_map(|slot| slot.piece.get());
        pieces.filter(|piece| (piece.from..piece.end()).contains(&position)).last().cloned()
    }

    /// Returns a new slot for the bytes after `slot`. Returns `None` if the cache already has these bytes, or if
    /// readers use all slots. Also returns `None` if the pieces of [`AHEAD_MAX`] slots were read ahead but not
    /// requested yet.
    pub fn slot_after(&mut self, slot: &Slot, settled: u64) -> Option<Arc<Slot>> {
        let is_here = self.slots().any(|other| other.has(&slot.file, slot.end));
        let ahead = self.kept.iter().filter(|kept| !kept.is_requested).count();
        if is_here || ahead >= AHEAD_MAX || !self.make_room() {
            return None;
        }
        let next = Slot::new(&self.own, &slot.file, slot.end, settled);
        self.kept.push(ShelvedPiece { slot: Arc::clone(&next), used: Instant::now(), is_requested: false });
        Some(next)
    }

    fn slots(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.kept.iter().map(|kept| &kept.slot)
    }
}

/// Removes the slot once it is unused. Ends when the slot or the cache no longer exists.
async fn take_down_unused(shelf: Weak<Mutex<ReadAheadCache>>, slot: Weak<Slot>) {
    while slot.strong_count() > 0 {
        tokio::time::sleep(KEPT_FOR).await;
        let is_unused = |kept: &ShelvedPiece| {
            std::ptr::eq(Arc::as_ptr(&kept.slot), slot.as_ptr()) && kept.used.elapsed() >= KEPT_FOR
        };
        let Some(shelf) = shelf.upgrade() else { return };
        shelf.lock().kept.retain(|kept| !is_unused(kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct_io::direct::PIECE_MAX;

    const MIB: u64 = PIECE_MAX as u64;

    /// Returns the number of bytes read from the disk for each requested byte. `readers` readers take turns and request
    /// 1 MiB each, as a consumer of this number of partitions does.
    fn cost(readers: u64) -> f64 {
        let file = Arc::new(tempfile::tempfile().expect("temporary file"));
        let (mut shelf, settled) = (ReadAheadCache::default(), u64::MAX);
        let (mut slots, mut alone, mut requested) = (Vec::new(), 0, 0);
        for round in 0..12 {
            for position in (0..readers).map(|reader| reader * 100 * MIB + 500_000 + round * MIB) {
                for (from, upto) in [(position, end_of(position)), (end_of(position), position + MIB)] {
                    requested += upto - from;
                    let Some(slot) = shelf.slot_at(&file, from, settled) else {
                        alone += upto - from;
                        continue;
                    };
                    let next = shelf.slot_after(&slot, settled);
                    slots.extend([Some(slot), next].into_iter().flatten());
                }
            }
        }
        slots.sort_by_key(Arc::as_ptr);
        slots.dedup_by_key(|slot| Arc::as_ptr(slot));
        (slots.iter().map(|slot| slot.end - slot.from).sum::<u64>() + alone) as f64 / requested as f64
    }

    #[tokio::test]
    async fn many_readers_in_turn_cause_few_unused_reads() {
        for readers in [1, 4, 5, 6, 8, 9, 20, 100] {
            let cost = cost(readers);
            assert!(cost < 1.3, "{readers} readers: {cost:.2} bytes read for each that is asked for");
        }
    }
}
