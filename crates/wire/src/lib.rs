//! Kafka's wire protocol: converts bytes to structs and back. There is no I/O and no clock.
//!
//! * `codec`: the primitive types. Every count and length is limited by the remaining bytes.
//! * `message!`: the declaration of a message, from which its struct, codec and documentation are generated.
//! * [`api`]: the table of APIs and versions, and the headers of requests and responses.
//! * [`apis`]: the declarations, with one file per API.
//! * [`consumer_protocol`]: messages between consumers, inside JoinGroup and SyncGroup.
//! * [`coordinator`]: records of `__consumer_offsets` and `__transaction_state`, as Kafka's coordinators write them.
//! * [`batch`]: record batches (magic 2) with their records, compression and transaction markers.
//! * [`host_port`] and [`split_host_port`]: addresses in the form in which users write them.
//! * [`did_you_mean`]: suggests a setting for a misspelt name, in messages of the broker and the clients.
//!
//! Source of every format: Kafka's message JSON files (`clients/src/main/resources/common/message`) and the protocol
//! guide.

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
