//! Why a broker does not start.

use crate::diskless::OpenDisklessError;
use crate::partitions;
use fullbore_control as control;
use fullbore_wire::host_port;
use std::io;

/// Why a broker does not start, one line each.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data folder or its database.
    #[error("{0}")]
    Control(#[from] control::OpenError),
    /// The partitions.
    #[error("{0}")]
    Partitions(#[from] partitions::OpenError),
    /// The object store and the index of diskless topics.
    #[error("{0}")]
    Diskless(#[from] OpenDisklessError),
    /// The key or certificates of an SSL listener.
    #[error("{0}")]
    Certificates(#[from] fullbore_tls::MaterialError),
    /// The step at which a test wants a fault.
    #[error("{0}")]
    FaultPoint(String),
    /// A listener.
    #[error("cannot listen on {}: {}; {}", host_port(host, port), of_bind(error), remedy_of_bind(error))]
    Bind {
        /// As configured.
        host: String,
        /// As configured.
        port: u16,
        /// The system's error.
        error: io::Error,
    },
    /// The admin page's port.
    #[error("fullbore.admin.listener={}: {}; set another or leave it empty", host_port(host, port), of_bind(error))]
    BindAdmin {
        /// As configured.
        host: String,
        /// As configured.
        port: u16,
        /// The system's error.
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
