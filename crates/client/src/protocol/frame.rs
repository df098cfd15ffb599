//! Divides received bytes into responses. A response is its length in four bytes, and then the body.
//!
//! Invariant: a length is compared with the limit before memory is reserved for it. Memory is reserved only as bytes
//! arrive, so that a peer cannot make this client reserve much by announcing a large length.

use super::error::ProtocolError;
use bytes::{Buf, Bytes, BytesMut};

/// The size of the length field before a response, in bytes.
pub const PREFIX: usize = 4;
/// How many bytes are reserved when a response begins. Later, the buffer doubles each time that it is full.
const FIRST_BYTES: usize = 1 << 20;

/// Returns how many bytes follow the length `prefix`.
///
/// # Errors
/// Returns [`ProtocolError::TooLong`] if the length exceeds `max`.
pub fn length(prefix: [u8; PREFIX], max: usize) -> Result<usize, ProtocolError> {
    let len = u32::from_be_bytes(prefix);
    if len as usize > max { Err(ProtocolError::TooLong { len, max }) } else { Ok(len as usize) }
}

/// Removes and returns the next response from the received bytes. If the response is not complete yet, reserves memory
/// for at least a part of the rest, and returns `None`.
///
/// # Errors
/// Returns [`ProtocolError::TooLong`] if the length exceeds `max`.
pub fn next(buffer: &mut BytesMut, max: usize) -> Result<Option<Bytes>, ProtocolError> {
    let Some(prefix) = buffer.first_chunk::<PREFIX>() else { return Ok(None) };
    let len = length(*prefix, max)?;
    if buffer.len() < PREFIX + len {
        let rest = PREFIX + len - buffer.len();
        buffer.reserve(rest.min(buffer.len().max(FIRST_BYTES)));
        return Ok(None);
    }
    buffer.advance(PREFIX);
    Ok(Some(buffer.split_to(len).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_length_above_the_limit_is_refused_before_its_bytes_arrive() {
        assert_eq!(length([0, 0, 1, 0], 256), Ok(256));
        let refused = ProtocolError::TooLong { len: 257, max: 256 };
        assert_eq!(length([0, 0, 1, 1], 256), Err(refused.clone()));
        assert_eq!(next(&mut BytesMut::from(&[0, 0, 1, 1][..]), 256), Err(refused));
        assert!(length([255; 4], 256).is_err());
    }

    #[test]
    fn announced_length_reserves_memory_only_as_its_bytes_arrive() {
        let mut buffer = BytesMut::from(&0x7fff_ffff_u32.to_be_bytes()[..]);
        for arrived in [0, FIRST_BYTES, 4 * FIRST_BYTES] {
            buffer.resize(PREFIX + arrived, 0);
            assert_eq!(next(&mut buffer, i32::MAX as usize), Ok(None));
            let room = buffer.capacity() - buffer.len();
            assert!((1..=arrived.max(FIRST_BYTES) + buffer.len()).contains(&room), "{room} after {arrived}");
        }
    }

    proptest! {
        #[test]
        fn responses_are_the_same_however_their_bytes_come(
            responses in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
            piece in 1usize..50,
        ) {
            let sent: Vec<u8> = responses
                .iter()
                .flat_map(|response| [&(response.len() as u32).to_be_bytes()[..], response].concat())
                .collect();
            let (mut buffer, mut received) = (BytesMut::new(), Vec::new());
            for bytes in sent.chunks(piece) {
                buffer.extend_from_slice(bytes);
                while let Some(response) = next(&mut buffer, 40).unwrap() {
                    received.push(response.to_vec());
                }
            }
            prop_assert_eq!(received, responses);
            prop_assert!(buffer.is_empty());
        }
    }
}
