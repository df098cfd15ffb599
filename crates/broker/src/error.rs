//! Reasons why a broker cannot start.

use crate::diskless::OpenDisklessError;
use crate::partitions;
use fullbore_control as control;
use fullbore_wire::host_port;
use std::io;

/// Reason why a broker cannot start. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Failure of the data directory or its database.
    #[error("{0}")]
    Control(#[from] control::OpenError),
    /// Failure of the partitions.
    #[error("{0}")]
    Partitions(#[from] partitions::OpenError),
    /// Failure of the object store or the index of diskless topics.
    #[error("{0}")]
    Diskless(#[from] OpenDisklessError),
    /// Failure of the key or certificates of an SSL listener.
    #[error("{0}")]
    Certificates(#[from] fullbore_tls::MaterialError),
    /// Unknown name of a step at which a test wants a fault.
    #[error("{0}")]
    FaultPoint(String),
    /// Failure of a listener.
    #[error("cannot listen on {}: {}; {}", host_port(host, port), of_bind(error), remedy_of_bind(error))]
    Bind {
        /// Host in the configuration.
        host: String,
        /// Port in the configuration.
        port: u16,
        /// Error of the system.
        error: io::Error,
    },
    /// Failure of the admin page's port.
    #[error("fullbore.admin.listener={}: {}; set another or leave it empty", host_port(host, port), of_bind(error))]
    BindAdmin {
        /// Host in the configuration.
        host: String,
        /// Port in the configuration.
        port: u16,
        /// Error of the system.
        error: io::Error,
    },
}

fn remedy_of_bind(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "stop the program that has it, or set another port in listeners (--listen HOST:PORT)"
        }
        io::ErrorKind::PermissionDenied => "set one from 1024 on in listeners (--listen HOST:PORT)",
        _ => "set another address in listeners (--listen HOST:PORT)",
    }
}

fn of_bind(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is taken".to_owned(),
        io::ErrorKind::PermissionDenied => "no permission for this port".to_owned(),
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_owned(),
        _ => error.to_string(),
    }
}
