//! The reasons why bytes cannot be decoded and messages cannot be encoded.

/// The reason why bytes cannot be decoded as the expected message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The frame ends inside a field.
    #[error("{missing} bytes missing")]
    Truncated {
        /// How many bytes are missing.
        missing: usize,
    },
    /// A length or count is below -1, is -1 where null is not allowed, or is above the maximum of its type.
    #[error("the length or count {0} is outside the range of its field")]
    Length(i64),
    /// There are more array elements than the frame can contain or the reader's budget allows.
    #[error("array of {0} elements is too large")]
    Count(usize),
    /// A variable-length integer is longer than its type.
    #[error("variable-length integer is too long")]
    Varint,
    /// A string is not valid UTF-8.
    #[error("string is not UTF-8")]
    Utf8,
    /// A field is null that must not be null in this version.
    #[error("field {0} may not be null in this version")]
    Null(&'static str),
    /// Tags are out of order or repeated, or a tagged field has the wrong size.
    #[error("tagged field {0} is malformed")]
    Tag(u32),
    /// There are bytes after the last field.
    #[error("{0} bytes after the end of the message")]
    Trailing(usize),
    /// The version is outside the API's range.
    #[error("version {0} is not supported")]
    Version(i16),
}

/// The reason why a struct cannot be written in the requested version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A field or frame is longer than its length prefix allows.
    #[error("{0} bytes do not fit the length prefix")]
    TooLong(usize),
    /// An unknown tagged field has the same tag as another field.
    #[error("tagged field {0} is there twice")]
    Tag(u32),
    /// A field is null that must not be null in this version.
    #[error("field {0} may not be null in this version")]
    Null(&'static str),
    /// The version is outside the API's range.
    #[error("version {0} is not supported")]
    Version(i16),
}
