//! TLS for both ends: Kafka's `ssl.*` settings, keys and certificates in PEM, and one session for every kind of socket.
//!
//! Not here: listeners, and the protocol after the handshake. TLS is that of rustls with aws-lc-rs. Invariant: each use
//! names the provider explicitly, so that no process-wide default matters.

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
