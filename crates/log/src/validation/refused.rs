//! The refusal of a batch.

use super::validate::InvalidBatch;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::produce::BatchIndexAndErrorMessage;
use fullbore_wire::batch::BatchError;
use std::borrow::Cow;

/// The refusal of a batch, as the producer gets it.
#[derive(Clone, Debug)]
pub struct RefusedBatch {
    pub code: ErrorCode,
    pub message: Cow<'static, str>,
    /// The records that caused the refusal. Empty if they are unknown, or if the refusal is not about single records.
    pub records: Vec<BatchIndexAndErrorMessage>,
    /// The partition's log start offset if the producer needs it, and -1 otherwise.
    pub log_start_offset: i64,
}

impl RefusedBatch {
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        RefusedBatch { code, message: message.into(), records: Vec::new(), log_start_offset: -1 }
    }

    /// Keeps only the first `most` records, and frees the memory of the others.
    pub fn keep_at_most(&mut self, most: usize) {
        if self.records.len() > most {
            self.records.truncate(most);
            self.records.shrink_to_fit();
        }
    }
}

impl From<InvalidBatch> for RefusedBatch {
    fn from(error: InvalidBatch) -> Self {
        RefusedBatch::new(error.code(), error.to_string())
    }
}

impl From<ErrorCode> for RefusedBatch {
    fn from(code: ErrorCode) -> Self {
        RefusedBatch::new(code, code.message())
    }
}

/// Returns the refusal for a batch that is not valid in itself.
pub fn of_batch(error: BatchError) -> RefusedBatch {
    let code = match error {
        BatchError::Magic(0 | 1) => ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT,
        BatchError::Compression(_) => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
        BatchError::Record(_) => ErrorCode::INVALID_RECORD,
        _ => ErrorCode::CORRUPT_MESSAGE,
    };
    RefusedBatch::new(code, error.to_string())
}

/// Returns the refusal for a batch whose records cannot be read. Its checksum is correct, so the error code must not be
/// CORRUPT_MESSAGE. With that code, clients would send the same bytes again.
pub fn of_decompression(error: BatchError) -> RefusedBatch {
    let code = match error {
        BatchError::TooLarge(_) => ErrorCode::MESSAGE_TOO_LARGE,
        _ => ErrorCode::INVALID_RECORD,
    };
    RefusedBatch::new(code, error.to_string())
}
