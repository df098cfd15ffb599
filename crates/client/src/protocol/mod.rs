//! Protocol of one connection, without the connection: the versions of both sides, the request of an answer,
//! the frame of a response, and a line of the protocol log for each.
//!
//! No I/O and no clock: bytes and times come in. Both connections, the one on tokio and the blocking one, use
//! this.
//!
//! A connection asks for the versions ([`Handshake`]), gives each request its correlation id ([`Asking`]), keeps it
//! until it is answered ([`Due`]), and takes each answer off the bytes that come ([`frame`]). Invariant: a response
//! goes to the oldest request without one, and its correlation id says so; if not, nothing on this connection can be
//! trusted any more.

mod coordinator;
mod due;
mod error;
pub mod frame;
mod versions;

pub use coordinator::CoordinatorKind;
pub(crate) use coordinator::{SEVERAL_KEYS_FROM, coordinator_in, coordinator_request};
pub use due::{Asking, Due, SentRequest, decode};
pub use error::ProtocolError;
pub use versions::{Handshake, Versions};

/// The next step where a broker closes a connection without TLS at its first request.
pub(crate) const SSL_HINT: &str = ": if it is an SSL listener, set security.protocol=SSL";
