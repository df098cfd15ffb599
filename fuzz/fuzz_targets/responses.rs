//! Fuzz target: responses as a client reads them.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fullbore_fuzz::responses(data));
