//! Bodies of the fuzz targets. libFuzzer drives the targets in `fuzz_targets`, and `crates/wire/tests/wire/fuzz.rs`
//! runs the same bodies briefly as tests. The tests have no other dependencies, so this file may use only the standard
//! library, `bytes` and `fullbore_wire`.
//!
//! Invariant: any input is valid. Only a panic, or a message that does not survive its own encoding, is a finding.

use bytes::{Bytes, BytesMut};
use fullbore_wire::api::{self, ApiKey, Request, RequestHeader, Visit};
use fullbore_wire::batch::{self, BatchView, Compression, ControlType, Decompressor, EndTransactionMarker, RecordIter};
use fullbore_wire::batch::{check_records, compress, decompress};
use fullbore_wire::consumer_protocol::{self, ConsumerProtocolAssignment, ConsumerProtocolSubscription, Embedded};
use fullbore_wire::coordinator::{CoordinatorRecord, TransactionLogRecord, TransactionLogValue};
use fullbore_wire::{Codec, Frame, Part, REQUEST_ELEMENTS_MAX, Reader, Version, Writer};
use std::fmt::Debug;

/// Maximum decompressed size of a batch. A batch in the input has a few KiB.
const BATCH_DECOMPRESSED_MAX: usize = 1 << 20;
const DECOMPRESSED_MAX: usize = 1 << 18;

/// Checks request frames as a broker reads them: a header, any version of any API, and the data that consumers embed.
pub fn requests(data: &[u8]) {
    message(Side::Request, data);
    embedded::<ConsumerProtocolSubscription>(data);
    embedded::<ConsumerProtocolAssignment>(data);
    if let Ok(header) = RequestHeader::decode(&mut api::request_reader(Bytes::copy_from_slice(data))) {
        assert!(header.api().is_some() || header.tagged.fields().is_empty());
    }
}

/// Checks responses as a client reads them: any version of any API.
pub fn responses(data: &[u8]) {
    message(Side::Response, data);
}

/// Checks record batches as a broker checks them and a consumer reads them, including decompression.
pub fn batches(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let mut total = 0;
    for batch in batch::batches(&bytes).map_while(Result::ok) {
        total += batch.size();
        read(&batch);
        control(&batch);
    }
    assert!(total <= bytes.len());
}

/// Checks records of `__consumer_offsets` and `__transaction_state` as a coordinator replays them. The first byte is
/// the length of the key.
pub fn coordinator(data: &[u8]) {
    let [key_len, rest @ ..] = data else { return };
    let (key, value) = rest.split_at(rest.len().min(usize::from(*key_len)));
    for value in [None, Some(Bytes::copy_from_slice(value))] {
        transaction(Bytes::copy_from_slice(key), value.clone());
        let Ok(once) = CoordinatorRecord::decode(Bytes::copy_from_slice(key), value) else { continue };
        let written = once.encode().expect("what was decoded can be encoded");
        let twice = CoordinatorRecord::decode(written.0.clone(), written.1.clone()).expect("our own bytes");
        assert_eq!(twice.encode(), Ok(written));
    }
}

/// Checks a record of `__transaction_state`: if the record decodes, it must survive encoding in the newest version.
fn transaction(key: Bytes, value: Option<Bytes>) {
    let Ok(once) = TransactionLogRecord::decode(key, value) else { return };
    let newest = *TransactionLogValue::VERSIONS.end();
    let (key, value) = once.encode(newest).expect("what was decoded can be encoded");
    assert_eq!(TransactionLogRecord::decode(key, value), Ok(once));
}

/// Checks a codec: arbitrary bytes never decompress beyond the limit, and compressed input decompresses to itself.
pub fn compression(data: &[u8]) {
    let [codec, input @ ..] = data else { return };
    let codecs = [Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    let codec = codecs[usize::from(*codec) % codecs.len()];
    if let Ok(output) = decompress(codec, input, DECOMPRESSED_MAX) {
        assert!(output.len() <= DECOMPRESSED_MAX);
    }
    let mut compressed = BytesMut::new();
    compress(codec, None, input, &mut compressed).expect("anything can be compressed");
    let back = decompress(codec, &compressed, input.len()).expect("our own bytes");
    assert_eq!(back, input);
}

/// Checks a control batch: if its marker decodes, the marker must survive encoding.
fn control(batch: &BatchView<'_>) {
    let control_type = ControlType::of(batch);
    assert!(batch.is_control() || control_type.is_err(), "data is no control record");
    let Ok(Some(marker)) = EndTransactionMarker::read(batch) else { return };
    assert!(matches!(control_type, Ok(Some(ControlType::Abort | ControlType::Commit))));
    let built = marker.batch(batch.max_timestamp());
    let built = BatchView::first(&built).expect("our own batch");
    assert_eq!(EndTransactionMarker::read(&built), Ok(Some(marker)));
}

fn read(batch: &BatchView<'_>) {
    let checked = batch.check_crc().and_then(|()| check_records(batch, batch.payload()));
    match batch.compression() {
        Ok(Compression::None) => {
            let read = records(batch.payload(), batch);
            assert!(checked.is_err() || read <= batch.size(), "records take bytes");
        }
        Ok(codec) => {
            let checked = Decompressor::default().check(batch, BATCH_DECOMPRESSED_MAX);
            if let Ok(checked) = checked {
                let payload = decompress(codec, batch.payload(), BATCH_DECOMPRESSED_MAX).expect("a check accepted it");
                assert_eq!(check_records(batch, &payload), Ok(checked));
            }
            if let Ok(payload) = decompress(codec, batch.payload(), BATCH_DECOMPRESSED_MAX) {
                assert!(payload.len() <= BATCH_DECOMPRESSED_MAX);
                let _ = check_records(batch, &payload);
                records(&payload, batch);
            }
        }
        Err(_) => {}
    }
}

/// Reads every record completely. Returns the number of records.
fn records(payload: &[u8], batch: &BatchView<'_>) -> usize {
    let mut count = 0;
    for record in RecordIter::new(payload, batch.record_count()).map_while(Result::ok) {
        count += 1;
        let _ = (record.offset(batch), record.timestamp(batch));
        let headers = record.headers.len();
        assert_eq!(record.headers.count(), headers, "a record that was read has all of its headers");
    }
    count
}

/// Direction of a message.
#[derive(Clone, Copy)]
enum Side {
    Request,
    Response,
}

/// Checks a message whose API and version are the first two bytes: if it decodes, it survives its own encoding.
fn message(side: Side, data: &[u8]) {
    let [key, version, body @ ..] = data else { return };
    let key = ApiKey::ALL[usize::from(*key) % ApiKey::ALL.len()];
    let versions = key.versions();
    let count = versions.end() - versions.start() + 1;
    let number = versions.start() + i16::from(*version) % count;
    let version = key.version(number).expect("the number is from the range");
    key.visit(FixedPoint { side, version, body: Bytes::copy_from_slice(body) });
}

struct FixedPoint {
    side: Side,
    version: Version,
    body: Bytes,
}

impl Visit for FixedPoint {
    type Output = ();
    fn visit<R: Request>(self) {
        match self.side {
            Side::Request => fixed_point::<R>(self.body, self.version),
            Side::Response => fixed_point::<R::Response>(self.body, self.version),
        }
    }
}

fn fixed_point<T: Codec + Debug>(body: Bytes, version: Version) {
    let Ok(once) = T::decode(&mut Reader::new(body, REQUEST_ELEMENTS_MAX), version) else { return };
    let mut writer = Writer::with_capacity(64);
    once.encode(&mut writer, version).expect("what was decoded can be encoded");
    let mut reader = Reader::new(flat(&writer.finish().expect("it came in one frame")), REQUEST_ELEMENTS_MAX);
    let twice = T::decode(&mut reader, version).expect("our own bytes");
    assert_eq!(reader.remaining(), 0);
    assert_eq!(format!("{once:?}"), format!("{twice:?}"));
}

/// Checks a message inside JoinGroup or SyncGroup: if it decodes, it survives its own encoding.
fn embedded<T: Embedded + Debug + PartialEq>(data: &[u8]) {
    let Ok((version, once)) = consumer_protocol::decode::<T>(Bytes::copy_from_slice(data)) else { return };
    let version = version.min(*consumer_protocol::VERSIONS.end());
    let bytes = consumer_protocol::encode(&once, version).expect("what was decoded can be encoded");
    assert_eq!(consumer_protocol::decode::<T>(bytes).expect("our own bytes"), (version, once));
}

/// Returns the bytes of a frame without the length prefix.
fn flat(frame: &Frame) -> Bytes {
    let mut out = Vec::new();
    for part in &frame.parts {
        match part {
            Part::Bytes(bytes) => out.extend_from_slice(bytes),
            Part::File(_) => unreachable!("decoding makes no files"),
        }
    }
    Bytes::from(out).slice(4..)
}
