//! What a window costs: bytes held for each producer of a partition.
//!
//! A process of its own, because its allocator counts. `cargo test --release -p fullbore-rules --test memory --
//! --ignored --nocapture` prints the table of docs/benchmarks.md.

use fullbore_rules::sequence::{PRODUCERS_MAX, Producers, Stamp, WINDOW_MAX};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; the cell neither allocates nor drops.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes held for a partition after each of its producers has written so many batches under this window.
fn held(producers: i64, window: usize, batches: i32) -> usize {
    let before = HELD.get();
    let mut state = Producers::default();
    for sequence in 0..batches {
        for producer_id in 0..producers {
            let stamp = Stamp { producer_id, producer_epoch: 0, base_sequence: sequence, record_count: 1 };
            let offset = i64::from(sequence) * producers + producer_id;
            state.append(&stamp, offset, 0, 0, window);
        }
    }
    assert_eq!(state.len() as i64, producers);
    usize::try_from(HELD.get() - before).expect("what was there before is there still")
}

#[test]
fn a_producer_that_never_has_more_than_five_batches_costs_the_same_at_any_window() {
    let producers = PRODUCERS_MAX as i64;
    for batches in 1..=5 {
        let at_five = held(producers, 5, batches);
        for window in [20, 1024, WINDOW_MAX] {
            assert_eq!(held(producers, window, batches), at_five, "{batches} batches at a window of {window}");
        }
    }
}

#[test]
fn a_full_window_costs_24_bytes_a_batch_and_a_fixed_amount() {
    let empty = held(1000, 5, 5) - 1000 * 5 * 24;
    for window in [20, 64, 1024] {
        // One percent for the nodes of the order of idleness, which are not always equally full.
        let most = (empty + 1000 * window * 24) * 101 / 100;
        for batches in [window, 2 * window] {
            let held = held(1000, window, batches as i32);
            assert!(held <= most, "{held} bytes at a window of {window} after {batches} batches, not {most}");
        }
    }
}

#[test]
#[ignore = "prints the table of docs/benchmarks.md"]
fn what_a_window_costs() {
    let producers = PRODUCERS_MAX as i64;
    println!("| window | batches of each producer | bytes a producer and partition | {producers} producers |");
    for (window, batches) in [(5, 1), (5, 5), (20, 5), (20, 20), (1024, 5), (1024, 64), (1024, 1024)] {
        let held = held(producers, window, batches);
        let (each, mib) = (held as f64 / producers as f64, held as f64 / f64::from(1 << 20));
        println!("| {window} | {batches} | {each:.0} | {mib:.1} MiB |");
    }
}
