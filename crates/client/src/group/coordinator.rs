//! The way to a group's coordinator: found, connected to, and forgotten when it has moved.

use super::verdict::{self, Next};
use crate::admin::coordinator_of;
use crate::blocking::{Cluster, Connection, KeptConnection};
use crate::error::ClientError;
use fullbore_wire::api::Request;
use fullbore_wire::{ErrorCode, Text};

/// One connection to whoever coordinates the group.
pub(super) struct Coordinator {
    /// For what any broker knows.
    pub(super) cluster: Cluster,
    group: Text,
    connection: KeptConnection,
    /// Why the last request was not carried out, if it is to be tried again.
    trouble: Option<String>,
}

impl Coordinator {
    pub(super) fn new(cluster: Cluster, group: Text) -> Self {
        Coordinator { cluster, group, connection: KeptConnection::default(), trouble: None }
    }

    pub(super) fn connection(&mut self) -> Result<&mut Connection, ClientError> {
        self.connection.get(|| found(&mut self.cluster, &self.group))
    }

    /// The next request looks for the coordinator again.
    pub(super) fn forget(&mut self) {
        self.connection = KeptConnection::default();
    }

    pub(super) fn ask<R: Request>(&mut self, request: &R, max: i16) -> Result<R::Response, ClientError> {
        self.connection.ask(request, max, || found(&mut self.cluster, &self.group))
    }

    /// What stands in the way just now.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.clone()
    }

    /// The next step after an answer, or after none: a coordinator that cannot be reached is looked for again.
    pub(super) fn next(&mut self, what: &str, answer: Result<ErrorCode, ClientError>) -> Result<Next, ClientError> {
        let (step, trouble) = match answer {
            Ok(code) => {
                let of_group = format!("{what} group '{}'", self.group);
                match verdict::next(code) {
                    Next::Fatal => return Err(ClientError::kafka(of_group, code, None)),
                    step @ (Next::Again | Next::Find) => (step, Some(ClientError::refused(of_group, code))),
                    step => (step, None),
                }
            }
            Err(error) if error.is_retriable() => (Next::Find, Some(error)),
            Err(error) => return Err(error),
        };
        self.trouble = trouble.map(|error| error.to_string());
        if step == Next::Find {
            self.forget();
        }
        Ok(step)
    }
}

fn found(cluster: &mut Cluster, group: &Text) -> Result<Connection, ClientError> {
    let coordinator = coordinator_of(cluster, group)?;
    cluster.connect(&coordinator.address())
}
