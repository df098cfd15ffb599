//! Fuzz target: each codec alone.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fullbore_fuzz::compression(data));
