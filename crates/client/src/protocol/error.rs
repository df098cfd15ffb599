//! Faults of the protocol on any connection.

use fullbore_wire::{DecodeError, EncodeError, ErrorCode};

/// Error of a request that cannot be made, or of a response that cannot be used. The connection adds the broker's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// API that the broker serves in no common version.
    #[error("the broker does not serve a version of {0} that this program speaks")]
    Unsupported(&'static str),
    /// The broker refused to report its versions.
    #[error("the broker refused ApiVersions: {0}")]
    Refused(ErrorCode),
    /// Request that its version cannot express.
    #[error("cannot write {api}: {source}")]
    Encode {
        /// The request.
        api: &'static str,
        /// The fault.
        source: EncodeError,
    },
    /// Response that cannot be decoded.
    #[error("{api} was answered with bytes that are no response: {source}")]
    Decode {
        /// The request.
        api: &'static str,
        /// The fault.
        source: DecodeError,
    },
    /// Response that is longer than the limit.
    #[error("a response of {len} bytes is longer than {max} allowed")]
    TooLong {
        /// Announced bytes.
        len: u32,
        /// Accepted bytes.
        max: usize,
    },
    /// Response to no request, or out of order; its correlation id, if it has one.
    #[error("answer {} is not the one due", .0.map_or("without a correlation id".to_owned(), |id| id.to_string()))]
    NotDue(Option<i32>),
}
