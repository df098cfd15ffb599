//! What several fuzz targets do. Not here: the targets themselves, in `fuzz_targets`.
//!
//! Invariant: any input is fine; only a panic, or a message that does not survive its own encoding, is a finding.

use bytes::Bytes;
use fullbore_wire::api::{ApiKey, Request, Visit};
use fullbore_wire::consumer_protocol::{self, Embedded};
use fullbore_wire::{Codec, Frame, Part, REQUEST_ELEMENTS_MAX, Reader, Version, Writer};
use std::fmt::Debug;

/// Which of an API's two messages.
#[derive(Clone, Copy)]
pub enum Side {
    Request,
    Response,
}

/// Takes the first two bytes as API and version and the rest as the message: if it decodes, what it is encoded as
/// decodes to the same.
pub fn message(side: Side, data: &[u8]) {
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

/// Takes the data as a message inside JoinGroup or SyncGroup: if it decodes, it survives its own encoding.
pub fn embedded<T: Embedded + Debug + PartialEq>(data: &[u8]) {
    let Ok((version, once)) = consumer_protocol::decode::<T>(Bytes::copy_from_slice(data)) else { return };
    let version = version.min(*consumer_protocol::VERSIONS.end());
    let bytes = consumer_protocol::encode(&once, version).expect("what was decoded can be encoded");
    assert_eq!(consumer_protocol::decode::<T>(bytes).expect("our own bytes"), (version, once));
}

/// A frame's bytes without the length prefix.
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
