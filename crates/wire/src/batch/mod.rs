//! Record batches of magic 2.

mod view;

pub use view::{BatchError, BatchView, Compression, HEADER_LEN, TimestampType, crc32c};
