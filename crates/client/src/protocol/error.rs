//! Faults of the protocol on any connection.

use fullbore_wire::{DecodeError, EncodeError, ErrorCode};

/// Why a request cannot be made, or an answer not be used. Without the broker's name, which the connection knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The broker serves no version of this API that we speak.
    #[error("the broker does not serve a version of {0} that this program speaks")]
    Unsupported(&'static str),
    /// The broker does not tell its versions.
    #[error("the broker refused ApiVersions: {0}")]
    Refused(ErrorCode),
    /// A request that cannot be said in its version.
    #[error("cannot write {api}: {source}")]
    Encode {
        /// The request.
        api: &'static str,
        /// The fault.
        source: EncodeError,
    },
    /// A response that cannot be read.
    #[error("{api} was answered with bytes that are no response: {source}")]
    Decode {
        /// The request.
        api: &'static str,
        /// The fault.
        source: DecodeError,
    },
    /// A response that is longer than is taken.
    #[error("a response of {len} bytes is longer than {max} allowed")]
    TooLong {
        /// Bytes.
        len: u32,
        /// Bytes.
        max: usize,
    },
    /// A response to no request, or out of order; its correlation id, if it has one.
    #[error("answer {} is not the one due", .0.map_or("without a correlation id".to_owned(), |id| id.to_string()))]
    NotDue(Option<i32>),
}
