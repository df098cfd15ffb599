//! Reasons why bytes are not a message, and why a message cannot be written.

/// Reason why bytes are not the message they claim to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame ends inside a field.
    #[error("{missing} bytes missing")]
    Truncated {
        /// Number of missing bytes.
        missing: usize,
    },
    /// A length or count below zero where null is not allowed, or below -1.
    #[error("length {0} is not valid here")]
    Length(i64),
    /// More array elements than the frame could hold or the reader's budget allows.
    #[error("array of {0} elements is too large")]
    Count(usize),
    /// A variable-length integer longer than its type.
    #[error("variable-length integer is too long")]
    Varint,
    /// A string that is not UTF-8.
    #[error("string is not UTF-8")]
    Utf8,
    /// Null in a field that may not be null in this version.
    #[error("field {0} may not be null in this version")]
    Null(&'static str),
    /// Tags out of order or repeated, or a tagged field whose size is wrong.
    #[error("tagged field {0} is malformed")]
    Tag(u32),
    /// Bytes left over after the last field.
    #[error("{0} bytes after the end of the message")]
    Trailing(usize),
    /// A version outside the API's range.
    #[error("version {0} is not supported")]
    Version(i16),
}

/// Reason why a struct cannot be written in the requested version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A field or frame longer than its length prefix allows.
    #[error("{0} bytes do not fit the length prefix")]
    TooLong(usize),
    /// An unknown tagged field that has the tag of another field.
    #[error("tagged field {0} is there twice")]
    Tag(u32),
    /// Null in a field that may not be null in this version.
    #[error("field {0} may not be null in this version")]
    Null(&'static str),
    /// A version outside the API's range.
    #[error("version {0} is not supported")]
    Version(i16),
}
