//! Decodes and encodes a message whose type is known only when the test runs.

use crate::schema::Side;
use bytes::Bytes;
use fullbore_wire::api::{ApiKey, Request, Visit};
use fullbore_wire::{Codec, DecodeError, Frame, Part, REQUEST_ELEMENTS_MAX, Reader, Version, Writer};

/// A message that was decoded and encoded again.
pub struct Recoded {
    /// The decoded struct, formatted with `{:?}`.
    pub debug: String,
    /// The bytes of the message after it was encoded.
    pub bytes: Bytes,
}

/// Decodes `bytes` as exactly one message and encodes it again.
pub fn recode(key: ApiKey, side: Side, v: Version, bytes: Bytes) -> Result<Recoded, DecodeError> {
    key.visit(Recode { side, v, bytes })
}

struct Recode {
    side: Side,
    v: Version,
    bytes: Bytes,
}

impl Visit for Recode {
    type Output = Result<Recoded, DecodeError>;
    fn visit<R: Request>(self) -> Self::Output {
        match self.side {
            Side::Request => message::<R>(self.bytes, self.v),
            Side::Response => message::<R::Response>(self.bytes, self.v),
        }
    }
}

fn message<T: Codec + std::fmt::Debug>(bytes: Bytes, v: Version) -> Result<Recoded, DecodeError> {
    let mut reader = Reader::new(bytes, REQUEST_ELEMENTS_MAX);
    let message = T::decode(&mut reader, v)?;
    reader.finish()?;
    let mut writer = Writer::with_capacity(64);
    message.encode(&mut writer, v).expect("what was decoded can be encoded");
    let frame = writer.finish().expect("the message is small");
    Ok(Recoded { debug: format!("{message:?}"), bytes: flat(&frame).slice(4..) })
}

/// Returns the bytes of a frame, including the length prefix.
pub fn flat(frame: &Frame) -> Bytes {
    let mut out = Vec::new();
    for part in &frame.parts {
        match part {
            Part::Bytes(bytes) => out.extend_from_slice(bytes),
            Part::File(_) => panic!("no test here puts files into frames"),
        }
    }
    out.into()
}
