//! Fuzz target: request frames as a broker reads them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fullbore_fuzz::requests(data));
