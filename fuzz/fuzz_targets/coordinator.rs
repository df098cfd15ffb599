//! Fuzz target: records of `__consumer_offsets` as a coordinator replays them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fullbore_fuzz::coordinator(data));
