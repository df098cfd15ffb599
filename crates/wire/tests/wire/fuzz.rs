//! Runs the fuzz targets of `fuzz/` for a short time, on any compiler. The inputs are valid ones that were changed a
//! little.
//!
//! Unlike libFuzzer, this is not guided by coverage. `FULLBORE_FUZZ_RUNS` sets the number of inputs for each target. If
//! an input fails, it is printed with a `FULLBORE_FUZZ_SEED`, by which a run begins with this input.

use crate::mutate::mutate;
use crate::records::{key, transaction_key, transaction_value, value};
use crate::schema::{Dice, Schema, Side};
use bytes::BytesMut;
use fullbore_wire::Version;
use fullbore_wire::api::ApiKey;
use fullbore_wire::batch::{BatchBuilder, Compression, EndTransactionMarker, Header, Stamp, compress, crc32c};
use fullbore_wire::consumer_protocol::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[path = "../../../../fuzz/src/lib.rs"]
mod targets;

const CODECS: [Compression; 5] =
    [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Runs a target with inputs from `make`, with up to eight changes to each of them.
fn fuzz(runs: u64, target: fn(&[u8]), make: fn(&mut Dice) -> Vec<u8>) {
    let first = variable("FULLBORE_FUZZ_SEED");
    let first = first.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos() as u64);
    for seed in (0..variable("FULLBORE_FUZZ_RUNS").unwrap_or(runs)).map(|n| first.wrapping_add(n)) {
        let mut dice = Dice(seed);
        let mut input = make(&mut dice);
        (0..dice.below(9)).for_each(|_| mutate(&mut input, &mut dice));
        if let Err(why) = catch_unwind(AssertUnwindSafe(|| target(&input))) {
            eprintln!("this was FULLBORE_FUZZ_SEED={seed}: {input:02x?}");
            resume_unwind(why);
        }
    }
}

/// Returns two bytes that select an API and a version, and then a message.
fn message(side: Side, dice: &mut Dice) -> Vec<u8> {
    let index = dice.below(ApiKey::ALL.len());
    let key = ApiKey::ALL[index];
    let versions = key.versions();
    let past_first = dice.below((versions.end() - versions.start() + 1) as usize);
    let version = key.version(versions.start() + past_first as i16).expect("from the range");
    let mut bytes = vec![index as u8, past_first as u8];
    bytes.extend(Schema::new(key, side, version).message(dice));
    bytes
}

fn request(dice: &mut Dice) -> Vec<u8> {
    let number = dice.below(4) as i16;
    let version = Version { number, flexible: false };
    let inside = match dice.below(4) {
        0 => Schema::of::<ConsumerProtocolSubscription>(version).message(dice),
        1 => Schema::of::<ConsumerProtocolAssignment>(version).message(dice),
        _ => return message(Side::Request, dice),
    };
    [&number.to_be_bytes()[..], &inside].concat()
}

fn batches(dice: &mut Dice) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..=dice.below(2) {
        if dice.below(4) == 0 {
            bytes.extend_from_slice(&marker(dice));
            continue;
        }
        let mut builder = BatchBuilder::new(BytesMut::new(), CODECS[dice.below(CODECS.len())], None);
        for _ in 0..=dice.below(4) {
            let value = vec![dice.below(256) as u8; dice.below(300)];
            let header = Header { key: b"key", value: Some(&value[..value.len() / 2]) };
            builder.append(dice.below(1 << 40) as i64, Some(b"key"), Some(&value), &[header][..dice.below(2)]);
        }
        let mut batch = builder.seal(Stamp::NONE).expect("compresses").0;
        damage(&mut batch, dice);
        bytes.extend_from_slice(&batch);
    }
    bytes
}

/// Returns a random transaction marker.
fn marker(dice: &mut Dice) -> BytesMut {
    let marker = EndTransactionMarker {
        producer_id: dice.below(1 << 40) as i64,
        producer_epoch: dice.below(1 << 15) as i16,
        is_commit: dice.below(2) == 0,
        coordinator_epoch: dice.below(1 << 30) as i32,
    };
    let mut batch = marker.batch(dice.below(1 << 40) as i64);
    damage(&mut batch, dice);
    batch
}

/// Changes a bit in every other batch and then updates the checksum, so that the checksum does not reveal the change.
fn damage(batch: &mut BytesMut, dice: &mut Dice) {
    if dice.below(2) == 0 {
        let at = 21 + dice.below(batch.len() - 21);
        batch[at] ^= 1 << dice.below(8);
        let crc = crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
    }
}

/// Returns a committed offset or a transactional id. If the value is cut off, it is a tombstone.
fn record(dice: &mut Dice) -> Vec<u8> {
    let (key, value) = match dice.below(3) {
        0 => (transaction_key(dice), transaction_value(dice.below(2) as i16, dice)),
        _ => (key(dice), value(dice.below(5) as i16, dice)),
    };
    // The length has only one byte, so a longer key is cut off.
    let len = key.len().min(255);
    [&[len as u8][..], &key[..len], &value].concat()
}

fn compressed(dice: &mut Dice) -> Vec<u8> {
    let codec = dice.below(4);
    // Some inputs become larger than every limit when they are decompressed.
    let (len, repeats) = if dice.below(50) == 0 { (400_000, 100_000) } else { (dice.below(600), 1 + codec) };
    let input: Vec<u8> = (0..len).map(|at| (at / repeats) as u8).collect();
    let mut bytes = BytesMut::from(&[codec as u8][..]);
    compress(CODECS[1 + codec], None, &input, &mut bytes).expect("anything can be compressed");
    bytes.to_vec()
}

#[test]
fn requests() {
    fuzz(60_000, targets::requests, request);
}

#[test]
fn responses() {
    fuzz(60_000, targets::responses, |dice| message(Side::Response, dice));
}

#[test]
fn record_batches() {
    fuzz(20_000, targets::batches, batches);
}

#[test]
fn coordinator() {
    fuzz(20_000, targets::coordinator, record);
}

#[test]
fn compression() {
    fuzz(10_000, targets::compression, compressed);
}

#[test]
#[should_panic(expected = "found")]
fn a_finding_ends_the_run() {
    fuzz(1_000, |input| assert!(input.len() < 100, "found"), |dice| message(Side::Request, dice));
}
