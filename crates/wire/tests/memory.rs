//! Decoding must never take more memory than a fixed multiple of the frame, whatever the frame claims.
//!
//! The test is a process of its own, because its allocator counts the allocations of each thread.

#[path = "wire/records.rs"]
mod records;
#[path = "wire/schema.rs"]
mod schema;

use bytes::Bytes;
use fullbore_wire::api::{self, ApiKey, Request, RequestHeader, Visit};
use fullbore_wire::apis::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use fullbore_wire::consumer_protocol::{self, ConsumerProtocolAssignment, ConsumerProtocolSubscription, Embedded};
use fullbore_wire::coordinator::{CoordinatorRecord, OffsetCommitValue, TransactionLogRecord, TransactionLogValue};
use fullbore_wire::{Codec, Part, REQUEST_ELEMENTS_MAX, Reader, Records, Version};
use records::{behind, key, transaction_key, transaction_schema, transaction_value, value};
use schema::{Dice, Schema, Side, every_message};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Maximum number of bytes in memory for each byte of a message. The worst known message is a request of OffsetFetch 8.
/// A group of three bytes in the frame becomes a struct of 104 bytes. In the first group, a topic of three bytes
/// becomes a struct of 80 bytes. In the first topic, a tagged field of two bytes becomes one of 40 bytes. All three
/// arrays can claim the same bytes of the frame, because memory for an array is reserved before its elements are read.
const BYTES_PER_BYTE_MAX: usize = 84;
/// The memory that a message may take in addition, however small its frame is, in bytes.
const BYTES_BASE: usize = 1024;

/// Number of bytes after a message that ends inside nested arrays. Each of these arrays claims that its elements fill
/// the bytes.
const CLAIMED: usize = 4096;

struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed unchanged to the system's allocator, and the cells neither allocate nor drop.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as isize);
        PEAK.set(PEAK.get().max(HELD.get()));
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller fulfils the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as isize);
        // SAFETY: the caller fulfils the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measures the peak of the additional memory while `bytes` are decoded.
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
    peak_of(|| T::decode(&mut Reader::new(bytes, REQUEST_ELEMENTS_MAX), v))
}

fn peak_of<T>(decode: impl FnOnce() -> T) -> usize {
    let before = HELD.get();
    PEAK.set(before);
    let message = decode();
    let peak = PEAK.get();
    drop(message);
    usize::try_from(peak - before).expect("the peak was set to what was held before")
}

/// Returns a valid message that is cut at a random position, followed by a large length and by at least as many bytes.
/// So the length is plausible as the number of elements of an array.
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
fn memory_is_bounded_when_every_array_claims_all_that_is_left() {
    let mut worst = (0, String::new());
    let mut check = |cost: usize, len: usize, what: String| {
        assert!(cost <= BYTES_BASE + BYTES_PER_BYTE_MAX * len, "{what}: {len} bytes took {cost}");
        worst = worst.clone().max((cost / len, what));
    };
    for seed in 0..20 {
        let mut dice = Dice(seed);
        for (key, side, version) in every_message() {
            let bytes: Bytes = Schema::new(key, side, version).claims(CLAIMED, &mut dice).into();
            let len = bytes.len();
            let cost = key.visit(Cost { side, v: version, bytes });
            check(cost, len, format!("{key:?} {side:?} {version:?}"));
        }
        for number in consumer_protocol::VERSIONS {
            let (len, cost) = embedded::<ConsumerProtocolSubscription>(number, &mut dice);
            check(cost, len, format!("ConsumerProtocolSubscription {number}"));
            let (len, cost) = embedded::<ConsumerProtocolAssignment>(number, &mut dice);
            check(cost, len, format!("ConsumerProtocolAssignment {number}"));
        }
        record(&mut dice, &mut check);
        transaction(&mut dice, &mut check);
    }
    println!("at worst {} bytes for each byte: {}", worst.0, worst.1);
    assert!(worst.0 > BYTES_PER_BYTE_MAX - 10, "the bound says no more than is needed: {worst:?}");
}

/// Decodes a message as in JoinGroup or SyncGroup, with false claims. Returns the message's size and the peak of the
/// memory, in bytes.
fn embedded<T: Embedded>(number: i16, dice: &mut Dice) -> (usize, usize) {
    let message = Schema::of::<T>(Version { number, flexible: false }).claims(CLAIMED, dice);
    let bytes = Bytes::from([&number.to_be_bytes()[..], &message].concat());
    (bytes.len(), peak_of(|| consumer_protocol::decode::<T>(bytes)))
}

/// Reads random records, and records whose values have false claims.
fn record(dice: &mut Dice, check: &mut impl FnMut(usize, usize, String)) {
    for version in OffsetCommitValue::VERSIONS {
        let claims = behind(version, &records::schema(version).claims(CLAIMED, dice));
        for value in [value(version, dice), claims] {
            let key = key(dice);
            let len = value.len() + key.len();
            check(peak_of(|| CoordinatorRecord::decode(key, Some(value))), len, format!("OffsetCommitValue {version}"));
        }
    }
}

/// Reads random states of transactional ids, and states with false claims.
fn transaction(dice: &mut Dice, check: &mut impl FnMut(usize, usize, String)) {
    for version in TransactionLogValue::VERSIONS {
        let claims = behind(version, &transaction_schema(version).claims(CLAIMED, dice));
        for value in [transaction_value(version, dice), claims] {
            let key = transaction_key(dice);
            let len = value.len() + key.len();
            let cost = peak_of(|| TransactionLogRecord::decode(key, Some(value)));
            check(cost, len, format!("TransactionLogValue {version}"));
        }
    }
}

/// Measures a request. Also returns the peak of the memory while it is measured, and while it is decoded.
struct Measured {
    v: Version,
    bytes: Bytes,
}

impl Visit for Measured {
    type Output = Option<(api::RequestSize, usize, usize)>;
    fn visit<R: Request>(self) -> Self::Output {
        let reader = Reader::new(self.bytes.clone(), REQUEST_ELEMENTS_MAX);
        let mut measured = None;
        let measuring = peak_of(|| measured = Some(api::measure_request(R::KEY, &reader, self.v, None)));
        let decoded = R::decode(&mut Reader::new(self.bytes.clone(), REQUEST_ELEMENTS_MAX), self.v);
        let measured = measured.expect("it was measured");
        assert_eq!(measured.as_ref().err(), decoded.as_ref().err(), "both refuse the same");
        drop(decoded);
        Some((measured.ok()?, measuring, cost::<R>(self.bytes, self.v)))
    }
}

#[test]
fn requests_are_measured_their_arrays_are_counted_and_not_kept() {
    let (mut well, mut most) = (0, 0);
    for seed in 0..200 {
        let mut dice = Dice(seed);
        for (key, side, version) in every_message().filter(|(_, side, _)| matches!(side, Side::Request)) {
            let message = Schema::new(key, side, version).message(&mut dice);
            let bytes = if seed % 4 > 0 { message.into() } else { with_a_claim(message, &mut dice) };
            let Some((size, measuring, decoding)) = key.visit(Measured { v: version, bytes }) else { continue };
            // Apart from arrays, decoding allocates memory only for the first slice of a frame: for the object that all
            // slices share.
            assert!(
                size.bytes <= decoding && decoding <= size.bytes + 256,
                "{key:?} {version:?}: {size:?}, {decoding}"
            );
            assert!(measuring <= 256, "{key:?} {version:?}: measuring took {measuring}, seed {seed}");
            (well, most) = (well + 1, most.max(size.bytes));
        }
    }
    assert!(well > 10_000 && most > 1_000, "{well} requests of at most {most} bytes");
}

#[test]
fn request_of_more_elements_than_the_limit_is_not_measured_to_its_end() {
    let v = ApiKey::OffsetFetch.version(5).expect("a version of OffsetFetch");
    let body = [&[0, 1, b'g', 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 9][..], &[0; 36]].concat();
    let reader = Reader::new(body.into(), REQUEST_ELEMENTS_MAX);
    let measured = |max| api::measure_request(ApiKey::OffsetFetch, &reader, v, max).map(|size| size.elements);
    assert_eq!([measured(None), measured(Some(10))], [Ok(10), Ok(10)]);
    assert_eq!(measured(Some(9)), Err(fullbore_wire::DecodeError::Count(9)));
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
        // A frame from a socket is already shared, because it was cut from the connection's buffer.
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
