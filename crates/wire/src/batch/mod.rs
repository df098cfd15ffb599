//! Record batches of magic 2: seen in place, built in place, compressed and not.

mod builder;
mod compact;
mod compression;
mod recompress;
mod record;
mod varint;
mod view;

pub use builder::{BatchBuilder, Header, Stamp, batches, record_size_max, restamp, set_max_timestamp};
pub use compact::{RawRecord, RawRecords, retain, retain_empty};
pub use compression::{Level, compress, decompress};
pub use recompress::recompress;
pub use record::{Headers, Record, RecordIter, Timestamps, check_records};
pub use view::{BatchError, BatchView, Compression, HEADER_LEN, TimestampType, crc32c};
