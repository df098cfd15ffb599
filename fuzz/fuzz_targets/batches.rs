//! Record batches as a broker checks them and a consumer reads them, decompression included.

#![no_main]

use bytes::Bytes;
use fullbore_wire::batch::{BatchView, Compression, RecordIter, batches, check_records, decompress};

const DECOMPRESSED_MAX: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    let mut total = 0;
    for batch in batches(&bytes).map_while(Result::ok) {
        total += batch.size();
        read(&batch);
    }
    assert!(total <= bytes.len());
});

fn read(batch: &BatchView<'_>) {
    let checked = batch.check_crc().and_then(|()| check_records(batch));
    match batch.compression() {
        Ok(Compression::None) => {
            let read = records(batch.payload(), batch);
            assert!(checked.is_err() || read <= batch.size(), "records take bytes");
        }
        Ok(codec) => {
            if let Ok(payload) = decompress(codec, batch.payload(), DECOMPRESSED_MAX) {
                assert!(payload.len() <= DECOMPRESSED_MAX);
                records(&payload, batch);
            }
        }
        Err(_) => {}
    }
}

/// Reads all of every record; says how many there were.
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
