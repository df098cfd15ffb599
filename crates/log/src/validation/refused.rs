//! Why a partition's batch was not taken.

use super::valid::InvalidBatch;
use fullbore_wire::ErrorCode;
use fullbore_wire::apis::produce::BatchIndexAndErrorMessage;
use fullbore_wire::batch::BatchError;
use std::borrow::Cow;

/// Why a partition's batch was not taken.
#[derive(Clone, Debug)]
pub struct RefusedBatch {
    pub code: ErrorCode,
    pub message: Cow<'static, str>,
    /// Records that are the reason, if they are known.
    pub records: Vec<BatchIndexAndErrorMessage>,
    /// The partition's log start offset, where the producer needs it; -1 otherwise.
    pub log_start_offset: i64,
}

impl RefusedBatch {
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        RefusedBatch { code, message: message.into(), records: Vec::new(), log_start_offset: -1 }
    }

    /// Keeps so many of the records that are told one by one, and no memory of the others.
    pub fn tell_at_most(&mut self, most: usize) {
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

/// Why a batch that is wrong by itself is refused.
pub fn of_batch(error: BatchError) -> RefusedBatch {
    let code = match error {
        BatchError::Magic(0 | 1) => ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT,
        BatchError::Compression(_) => ErrorCode::UNSUPPORTED_COMPRESSION_TYPE,
        BatchError::Record(_) => ErrorCode::INVALID_RECORD,
        _ => ErrorCode::CORRUPT_MESSAGE,
    };
    RefusedBatch::new(code, error.to_string())
}

/// Refuses a batch whose records cannot be read. The batch's checksum holds, so that the code is not CORRUPT_MESSAGE,
/// at which clients send the same bytes again.
pub fn of_decompression(error: BatchError) -> RefusedBatch {
    let code = match error {
        BatchError::TooLarge(_) => ErrorCode::MESSAGE_TOO_LARGE,
        _ => ErrorCode::INVALID_RECORD,
    };
    RefusedBatch::new(code, error.to_string())
}
