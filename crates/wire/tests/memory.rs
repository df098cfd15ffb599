//! Decoding never holds more memory than a fixed multiple of the frame, whatever the frame claims.
//!
//! A process of its own, because its allocator counts what each thread allocates.

#[path = "wire/schema.rs"]
mod schema;

use bytes::Bytes;
use fullbore_wire::api::{self, ApiKey, Request, RequestHeader, Visit};
use fullbore_wire::apis::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use fullbore_wire::{Codec, Part, REQUEST_ELEMENTS_MAX, Reader, Records, Version};
use schema::{Dice, Schema, Side, every_message};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The worst known: topic names of one byte each, which become 32 bytes, or topics of two bytes, which become 72.
const BYTES_PER_BYTE_MAX: usize = 64;
/// What a message costs even when its frame is tiny.
const BYTES_BASE: usize = 1024;

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; the cells neither allocate nor drop.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        PEAK.set(PEAK.get().max(HELD.get()));
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
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
    let before = HELD.get();
    PEAK.set(before);
    let message = T::decode(&mut Reader::new(bytes, REQUEST_ELEMENTS_MAX), v);
    let peak = PEAK.get();
    drop(message);
    usize::try_from(peak - before).expect("the peak was set to what was held before")
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

#[test]
fn a_produce_request_allocates_its_arrays_and_nothing_else() {
    for version in ApiKey::Produce.versions() {
        let records = Some(Records::Memory(Bytes::from(vec![7; 300])));
        let partition = |index| PartitionProduceData { index, records: records.clone(), ..Default::default() };
        let topic = || TopicProduceData { partition_data: (0..10).map(partition).collect(), ..Default::default() };
        let request = ProduceRequest { topic_data: vec![topic(), topic()], ..Default::default() };
        let frame = api::encode_request(&request, version, 1, Some(&"client".into())).expect("a version of Produce");
        let [Part::Bytes(frame)] = &frame.parts[..] else { panic!("small records are copied in") };
        // A frame from a socket has been shared before: it was cut from the connection's buffer.
        let (frame, _shared) = (frame.slice(4..), frame.clone());

        let before = ALLOCATIONS.get();
        let mut reader = api::request_reader(frame);
        let header = RequestHeader::decode(&mut reader).expect("our own header");
        let (_, v) = header.api().expect("an API of ours");
        let back = api::decode_request::<ProduceRequest>(&mut reader, v).expect("our own request");
        let allocations = ALLOCATIONS.get() - before;
        assert_eq!(back, request);
        assert_eq!(allocations, 3, "topics, and the partitions of two of them; version {version}");
    }
}
