//! Errors of the protocol on a connection of either client.

use fullbore_wire::{DecodeError, EncodeError, ErrorCode};

/// Error of a request that cannot be encoded, or of a response that cannot be used. The connection adds the broker's
/// address to the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// API of which broker and client have no version in common.
    #[error("the broker does not serve a version of {0} that this program speaks")]
    Unsupported(&'static str),
    /// Refusal of a broker to report its versions.
    #[error("the broker refused ApiVersions: {0}")]
    Refused(ErrorCode),
    /// Request that its version cannot express.
    #[error("cannot encode the {api} request: {source}")]
    Encode {
        /// Name of the request's API.
        api: &'static str,
        /// Fault of the request.
        source: EncodeError,
    },
    /// Response that cannot be decoded.
    #[error("{api} was answered with bytes that are no response: {source}")]
    Decode {
        /// Name of the request's API.
        api: &'static str,
        /// Fault of the bytes.
        source: DecodeError,
    },
    /// Response that is longer than the limit.
    #[error("a response of {len} bytes is longer than {max} allowed")]
    TooLong {
        /// Number of bytes that the broker announced.
        len: u32,
        /// Largest accepted number of bytes.
        max: usize,
    },
    /// Response that does not belong to the oldest request, with its correlation id if it has one.
    #[error("answer {} is not the one due", .0.map_or("without a correlation id".to_owned(), |id| id.to_string()))]
    NotDue(Option<i32>),
}
