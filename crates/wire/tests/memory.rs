//! Decoding never holds more memory than a fixed multiple of the frame, whatever the frame claims.
//!
//! One test, alone in its process, because it counts every allocation of it.

#[path = "wire/schema.rs"]
mod schema;

use bytes::Bytes;
use fullbore_wire::api::{Request, Visit};
use fullbore_wire::{Codec, REQUEST_ELEMENTS_MAX, Reader, Version};
use schema::{Dice, Schema, Side, every_message};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The worst known: topic names of one byte each, which become 32 bytes, or topics of two bytes, which become 72.
const BYTES_PER_BYTE_MAX: usize = 64;
/// What a message costs even when its frame is tiny.
const BYTES_BASE: usize = 1024;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory held at once while `bytes` are decoded, over what was held before.
struct Cost {
    side: Side,
    v: Version,
    bytes: Bytes,
}

impl Visit for Cost {
    type Output = usize;
    fn visit<R: Request>(self) -> usize {
        match self.side {
            Side::Request => cost::<R>(self.bytes, self.v),
            Side::Response => cost::<R::Response>(self.bytes, self.v),
        }
    }
}

fn cost<T: Codec>(bytes: Bytes, v: Version) -> usize {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let message = T::decode(&mut Reader::new(bytes, REQUEST_ELEMENTS_MAX), v);
    let peak = PEAK.load(Relaxed);
    drop(message);
    peak - before
}

/// A valid message, cut anywhere, with a large claim there and room for it to be nearly true.
fn with_a_claim(mut bytes: Vec<u8>, dice: &mut Dice) -> Bytes {
    let filler = 1 << (4 + dice.below(10));
    let claim = filler / (1 + dice.below(8));
    bytes.truncate(dice.below(bytes.len() + 1));
    if dice.below(2) == 0 {
        bytes.extend((claim as i32).to_be_bytes());
    } else {
        bytes.extend([claim as u8 | 0x80, (claim >> 7) as u8 & 0x7f]);
    }
    let byte = [0, 0, 1, 2, 255][dice.below(5)];
    bytes.resize(bytes.len() + filler, byte);
    bytes.into()
}

#[test]
fn memory_is_bounded_by_the_frame() {
    let mut worst = 0.0f64;
    for seed in 0..400 {
        let mut dice = Dice(seed);
        for (key, side, version) in every_message() {
            let message = Schema::new(key, side, version).message(&mut dice);
            let bytes = if seed % 4 == 0 { message.into() } else { with_a_claim(message, &mut dice) };
            let len = bytes.len();
            let cost = key.visit(Cost { side, v: version, bytes });
            let bound = BYTES_BASE + BYTES_PER_BYTE_MAX * len;
            assert!(cost <= bound, "{key:?} {side:?} {version:?}: {len} bytes took {cost}, seed {seed}");
            worst = worst.max(cost as f64 / (len + 32) as f64);
        }
    }
    println!("at worst {worst:.1} bytes for each byte");
    assert!(worst > 20.0, "the claims must reach the decoder: {worst:.1}");
}
