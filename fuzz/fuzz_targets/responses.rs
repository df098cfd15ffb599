//! Responses as a client reads them: any version of any API.

#![no_main]

use fullbore_fuzz::Side;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fullbore_fuzz::message(Side::Response, data));
