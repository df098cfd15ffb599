//! The pieces that were read lately, or are being read.
//!
//! Invariant: at most [`SLOTS_MAX`], each used within [`KEPT_FOR`] or about to go.

use super::direct::{boundary_before, is_on_disk};
use super::{PIECE_MAX, Piece};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

/// Fewer than the pieces there may be, so that what is kept never keeps anybody waiting.
const SLOTS_MAX: usize = 16;
/// Slots of pieces that nobody has asked for yet. As many readers have their next piece read meanwhile.
const AHEAD_MAX: usize = 8;
/// How long a piece that nobody reads stays.
const KEPT_FOR: Duration = Duration::from_secs(1);

pub static SHELF: Mutex<Shelf> = Mutex::new(Shelf { kept: Vec::new() });

/// The last used at the end.
pub struct Shelf {
    kept: Vec<Kept>,
}

struct Kept {
    slot: Arc<Slot>,
    used: Instant,
    /// False of what was read ahead.
    is_asked: bool,
}

/// The place of a piece: what a file has from `from` up to the next multiple of [`PIECE_MAX`].
pub struct Slot {
    file: Arc<File>,
    from: u64,
    piece: OnceCell<Arc<Piece>>,
}

impl Slot {
    fn new(file: &Arc<File>, position: u64) -> Arc<Slot> {
        let slot = Slot { file: Arc::clone(file), from: boundary_before(position), piece: OnceCell::new() };
        let slot = Arc::new(slot);
        tokio::spawn(take_down_unused(Arc::downgrade(&slot)));
        slot
    }

    pub fn from(&self) -> u64 {
        self.from
    }

    /// Where the next one begins.
    pub fn end(&self) -> u64 {
        end_of(self.from)
    }

    fn is_of(&self, file: &Arc<File>) -> bool {
        Arc::ptr_eq(&self.file, file)
    }

    /// Whether it has the byte at `position`, or will have it once it is read.
    fn has(&self, file: &Arc<File>, position: u64) -> bool {
        let end = self.piece.get().map_or(self.end(), |piece| piece.end());
        self.is_of(file) && (self.from..end).contains(&position)
    }

    /// The piece, read now or before. It has what lies before `upto`, and the rest if only the disk has that.
    pub async fn piece(&self, upto: u64) -> io::Result<Arc<Piece>> {
        let read = || {
            let asked = upto.clamp(self.from, self.end());
            let is_rest_settled = || is_on_disk(&self.file, asked..self.end());
            let end = if asked < self.end() && is_rest_settled() { self.end() } else { asked };
            Piece::read(Arc::clone(&self.file), self.from, end)
        };
        self.piece.get_or_try_init(read).await.cloned()
    }
}

/// Where the piece with the byte at `position` ends.
pub fn end_of(position: u64) -> u64 {
    (position / PIECE_MAX as u64 + 1) * PIECE_MAX as u64
}

impl Shelf {
    /// The slot with the byte at `position`, from now on at the latest.
    pub fn slot_at(&mut self, file: &Arc<File>, position: u64) -> Arc<Slot> {
        let at = self.kept.iter().position(|kept| kept.slot.has(file, position));
        let slot = match at {
            Some(at) => self.kept.remove(at).slot,
            None => Slot::new(file, position),
        };
        self.put(&slot, true);
        slot
    }

    /// Whether there is a slot with the byte at `position`.
    #[cfg(test)]
    pub fn has(&self, file: &Arc<File>, position: u64) -> bool {
        self.slots().any(|slot| slot.has(file, position))
    }

    /// Whether what lies before the slot is here, too: then somebody reads on.
    pub fn has_before(&self, slot: &Slot) -> bool {
        slot.from > 0 && self.slots().any(|other| other.is_of(&slot.file) && other.end() == slot.from)
    }

    /// The piece with the byte at `position`, if it is read already.
    pub fn read_at(&self, file: &File, position: u64) -> Option<Arc<Piece>> {
        let of_file = self.slots().filter(|slot| std::ptr::eq(Arc::as_ptr(&slot.file), file));
        let pieces = of_file.filter_map(|slot| slot.piece.get());
        pieces.filter(|piece| (piece.from..piece.end()).contains(&position)).last().cloned()
    }

    /// A new slot for what follows, if there is none and it can be read ahead.
    pub fn slot_after(&mut self, slot: &Slot) -> Option<Arc<Slot>> {
        let from = slot.end();
        let is_here = self.slots().any(|other| other.has(&slot.file, from));
        let ahead = self.kept.iter().filter(|kept| !kept.is_asked).count();
        if is_here || ahead >= AHEAD_MAX || !is_on_disk(&slot.file, from..end_of(from)) {
            return None;
        }
        let next = Slot::new(&slot.file, from);
        self.put(&next, false);
        Some(next)
    }

    fn slots(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.kept.iter().map(|kept| &kept.slot)
    }

    /// As the last used.
    fn put(&mut self, slot: &Arc<Slot>, is_asked: bool) {
        if self.kept.len() >= SLOTS_MAX {
            self.kept.remove(0);
        }
        self.kept.push(Kept { slot: Arc::clone(slot), used: Instant::now(), is_asked });
    }
}

/// Ends with the slot.
async fn take_down_unused(slot: Weak<Slot>) {
    while slot.strong_count() > 0 {
        tokio::time::sleep(KEPT_FOR).await;
        let is_unused =
            |kept: &Kept| std::ptr::eq(Arc::as_ptr(&kept.slot), slot.as_ptr()) && kept.used.elapsed() >= KEPT_FOR;
        SHELF.lock().kept.retain(|kept| !is_unused(kept));
    }
}
