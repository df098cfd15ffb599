//! The way to a group's coordinator: found, connected to, and forgotten when it has moved.

use super::verdict::{self, Next};
use crate::client::{ClientError, Cluster, Connection, coordinator_of};
use fullbore_wire::api::Request;
use fullbore_wire::{ErrorCode, Text};

/// One connection to whoever coordinates the group.
pub(super) struct Coordinator {
    /// For what any broker knows.
    pub(super) cluster: Cluster,
    group: Text,
    connection: Option<Connection>,
}

impl Coordinator {
    pub(super) fn new(cluster: Cluster, group: Text) -> Self {
        Coordinator { cluster, group, connection: None }
    }

    pub(super) fn connection(&mut self) -> Result<&mut Connection, ClientError> {
        if self.connection.is_none() {
            let coordinator = coordinator_of(&mut self.cluster, &self.group)?;
            self.connection = Some(self.cluster.connect(&coordinator.address())?);
        }
        Ok(self.connection.as_mut().expect("just connected"))
    }

    /// The next call looks for the coordinator again.
    pub(super) fn forget(&mut self) {
        self.connection = None;
    }

    pub(super) fn call<R: Request>(&mut self, request: &R, max: i16) -> Result<R::Response, ClientError> {
        let answer = self.connection()?.call_up_to(request, max);
        if answer.is_err() {
            // Its answer might still come, and would be taken for that to the next request.
            self.forget();
        }
        answer
    }

    /// Asks what may be asked twice, on a connection that is not used for long at times and that a broker then closes. Not
    /// what another thread may end: it would be asked again.
    pub(super) fn ask<R: Request>(&mut self, request: &R, max: i16) -> Result<R::Response, ClientError> {
        let is_new = self.connection.is_none();
        match self.call(request, max) {
            Err(error) if !is_new && error.is_closed() => self.call(request, max),
            answer => answer,
        }
    }

    /// The next step after an answer, or after none: a coordinator that cannot be reached is looked for again.
    pub(super) fn next(&mut self, what: &str, answer: Result<ErrorCode, ClientError>) -> Result<Next, ClientError> {
        let step = match answer {
            Ok(code) => match verdict::next(code) {
                Next::Fatal => return Err(ClientError::kafka(format!("{what} group '{}'", self.group), code, None)),
                step => step,
            },
            Err(error) if error.is_retriable() => Next::Find,
            Err(error) => return Err(error),
        };
        if step == Next::Find {
            self.forget();
        }
        Ok(step)
    }
}
