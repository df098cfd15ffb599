//! Record batches of magic 2, which are read in place and built in place, with or without compression.

mod builder;
mod chunked;
mod compact;
mod compression;
mod control;
mod decompressing;
mod new_record;
mod recompress;
mod record;
mod varint;
mod view;

pub use builder::{BatchBuilder, Stamp, batches, restamp, set_max_timestamp};
pub use chunked::{ChunkedBuilder, SealedChunks, restamp_pieces};
pub use compact::{RawRecord, RawRecords, retain, retain_empty};
pub use compression::{Level, compress, decompress, decompress_sent};
pub use control::{ControlError, ControlType, EndTransactionMarker};
pub use decompressing::{CheckedRecords, Decompressor, check_records};
pub use new_record::{Header, record_size_max};
pub use recompress::recompress;
pub use record::{Headers, Record, RecordIter, Timestamps};
pub use view::{BatchError, BatchView, Compression, HEADER_LEN, TimestampType, crc32c};
