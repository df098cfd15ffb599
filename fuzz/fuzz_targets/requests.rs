//! Request frames as a broker reads them: a header, any version of any API, and what consumers put inside.

#![no_main]

use bytes::Bytes;
use fullbore_fuzz::Side;
use fullbore_wire::api::{self, RequestHeader};
use fullbore_wire::consumer_protocol::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fullbore_fuzz::message(Side::Request, data);
    fullbore_fuzz::embedded::<ConsumerProtocolSubscription>(data);
    fullbore_fuzz::embedded::<ConsumerProtocolAssignment>(data);
    if let Ok(header) = RequestHeader::decode(&mut api::request_reader(Bytes::copy_from_slice(data))) {
        assert!(header.api().is_some() || header.tagged.0.is_empty());
    }
});
