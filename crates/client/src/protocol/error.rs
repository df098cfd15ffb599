//! The errors of the protocol, on a connection of either client.

use fullbore_wire::{DecodeError, EncodeError, ErrorCode};

/// A request could not be encoded, or a response could not be used. The connection adds the broker's address to the
/// text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Broker and client have no version of the API in common.
    #[error("the broker does not serve a version of {0} that this program speaks")]
    Unsupported(&'static str),
    /// The broker refused to report its versions.
    #[error("the broker refused ApiVersions: {0}")]
    Refused(ErrorCode),
    /// The version cannot express the request.
    #[error("cannot encode the {api} request: {source}")]
    Encode {
        /// The name of the request's API.
        api: &'static str,
        /// The fault of the request.
        source: EncodeError,
    },
    /// The response cannot be decoded.
    #[error("{api} was answered with bytes that are no response: {source}")]
    Decode {
        /// The name of the request's API.
        api: &'static str,
        /// The fault of the bytes.
        source: DecodeError,
    },
    /// The response is longer than the limit.
    #[error("a response of {len} bytes exceeds the limit of {max}")]
    TooLong {
        /// How many bytes the broker announced.
        len: u32,
        /// How many bytes are accepted.
        max: usize,
    },
    /// The response does not belong to the oldest request. The value is the correlation id of the response, or `None`
    /// if the response is too short to have one.
    #[error("the response {} does not belong to the oldest request", .0.map_or("without a correlation id".to_owned(), |id| id.to_string()))]
    NotDue(Option<i32>),
}
