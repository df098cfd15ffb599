//! Each codec alone: strangers' bytes are decompressed within a bound, and our own come back.

#![no_main]

use bytes::BytesMut;
use fullbore_wire::batch::{Compression, compress, decompress};

const DECOMPRESSED_MAX: usize = 1 << 18;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
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
});
