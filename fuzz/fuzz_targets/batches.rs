//! Fuzz target: record batches as a broker checks them and a consumer reads them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fullbore_fuzz::batches(data));
