//! TLS for clients and brokers: Kafka's `ssl.*` settings, keys and certificates in PEM, and a session that works with
//! every kind of socket.
//!
//! The implementation is rustls with aws-lc-rs. Listeners and the protocol after the handshake are in other crates.
//! Invariant: the provider of cryptography is always named explicitly, so the process-wide default does not matter.

mod blocking;
mod client;
mod end_point;
mod expiry;
mod explain;
mod pem;
mod provider;
mod server;
mod session;
mod settings;
mod stream;
mod suites;

pub use blocking::BlockingStream;
pub use client::{Connector, Tunnel};
pub use end_point::server_end_point;
pub use expiry::Expiry;
pub use pem::MaterialError;
pub use server::{Acceptor, ClientAuth};
pub use settings::{FileStamp, Secret, Settings, is_secret};
pub use stream::Stream;
