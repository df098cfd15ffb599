//! The protocol of one connection, without I/O and clock: API versions, correlation ids, frames, and the protocol log.
//! Both the tokio connection and the blocking one use it.
//!
//! A connection starts with a [`Handshake`] that negotiates the versions. [`Requesting`] gives each request its
//! correlation id, [`Due`] keeps the request until its response, and [`frame`] divides the received bytes into
//! responses. Invariant: a response belongs to the oldest request without one. If its correlation id is another one,
//! the connection is unusable.

mod coordinator;
mod due;
mod error;
pub mod frame;
mod versions;

pub use coordinator::CoordinatorKind;
pub(crate) use coordinator::{SEVERAL_KEYS_FROM, coordinator_in, coordinator_request};
pub use due::{Due, Requesting, SentRequest, decode};
pub use error::ProtocolError;
pub use versions::{Handshake, Versions};

/// A hint for the user, shown if a broker closes a connection without TLS at the first request.
pub(crate) const SSL_HINT: &str = ": if it is an SSL listener, set security.protocol=SSL";
