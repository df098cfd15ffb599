//! The reasons why a broker cannot start.

use crate::partitions;
use fullbore_control as control;
use fullbore_diskless::OpenDisklessError;
use fullbore_wire::host_port;
use std::io;

/// The reason why a broker cannot start. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory or its database cannot be used.
    #[error("{0}")]
    Control(#[from] control::OpenError),
    /// The partitions cannot be opened.
    #[error("{0}")]
    Partitions(#[from] partitions::OpenError),
    /// The object store or the index of diskless topics cannot be used.
    #[error("{0}")]
    Diskless(#[from] OpenDisklessError),
    /// The directory of a partition that the metadata lack cannot be renamed.
    #[error(
        "cannot set aside the directory of a partition that the metadata lacks: {0}; check space and permissions of log.dirs"
    )]
    SetAside(io::Error),
    /// The key or the certificates of an SSL listener cannot be used.
    #[error("{0}")]
    Certificates(#[from] fullbore_tls::MaterialError),
    /// A test has named a fault point that does not exist.
    #[error("{0}")]
    FaultPoint(String),
    /// A listener cannot be opened.
    #[error("cannot listen on {}: {}; {}", host_port(host, port), of_bind(error), remedy_of_bind(error))]
    Bind {
        /// Host from the configuration.
        host: String,
        /// Port from the configuration.
        port: u16,
        /// Error of the operating system.
        error: io::Error,
    },
    /// The port of the admin page cannot be opened.
    #[error(
        "fullbore.admin.listener={}: {}; set another address, or leave the key empty",
        host_port(host, port),
        of_bind(error)
    )]
    BindAdmin {
        /// Host from the configuration.
        host: String,
        /// Port from the configuration.
        port: u16,
        /// Error of the operating system.
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
