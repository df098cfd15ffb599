//! Kafka's wire protocol: bytes to structs and back. No I/O, no clock.
//!
//! * `codec`: the primitive types, read with every count and length bounded by the bytes left.
//! * `message!`: one declaration per API gives struct, codec and documentation.
//! * [`api`]: the table of APIs and versions; request and response headers.
//! * [`apis`]: the declarations, one file per API.
//! * [`consumer_protocol`]: messages between consumers inside JoinGroup and SyncGroup.
//! * [`coordinator`]: records of `__consumer_offsets` and `__transaction_state`, as Kafka's coordinators write them.
//! * [`batch`]: record batches (magic 2): view, builder, records, compression, markers of transactions.
//! * [`host_port`] and [`split_host_port`]: addresses as users write them.
//! * [`did_you_mean`]: the setting whose name was probably meant, for messages of both ends.
//!
//! Source of every format: Kafka's message JSON files (`clients/src/main/resources/common/message`)
//! and the protocol guide.

mod address;
mod codec;
mod error;
mod frame;
mod message;
mod spec;
mod text;
mod typo;
mod uuid;

pub mod api;
pub mod apis;
pub mod batch;
pub mod consumer_protocol;
pub mod coordinator;
mod error_code;

pub use address::{has_port_too_large, host_port, split_host_port};
pub use codec::{Codec, NullCodec, REQUEST_ELEMENTS_MAX, RESPONSE_ELEMENTS_MAX, Reader, TaggedFields, Version};
pub use error::{DecodeError, EncodeError};
pub use error_code::ErrorCode;
pub use frame::{FileSlice, Frame, Part, Records, Writer};
pub use spec::{FieldSpec, StructSpec};
pub use text::Text;
pub use typo::did_you_mean;
pub use uuid::Uuid;
