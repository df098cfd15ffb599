//! One request being admitted, with what it can be asked for.

use super::client::Client;
use super::reply::Fault;
use crate::broker::Shared;
use crate::control::{Control, shown};
use fullbore_wire::api::{Request, RequestHeader, decode_request};
use fullbore_wire::{Reader, Version};
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// One request being admitted.
pub struct Call<'a> {
    /// The broker.
    pub broker: &'a Arc<Shared>,
    /// Who sent it.
    pub client: &'a mut Client,
    /// The index of the listener it came through: tells which address the client can reach.
    pub listener: usize,
    /// The request's header.
    pub header: RequestHeader,
    /// At the body.
    pub reader: Reader,
}

impl Call<'_> {
    /// The control plane, asked by this client.
    pub(super) fn control(&self) -> Control {
        let by = match self.header.client_id.as_deref() {
            Some(id) if !id.is_empty() => format!("{} ({})", self.client.peer, shown(id)),
            _ => self.client.peer.to_string(),
        };
        self.broker.control.asked_by(&by)
    }

    /// The request's body.
    pub(super) fn body<R: Request>(&mut self, version: Version) -> Result<R, Fault> {
        decode_request(&mut self.reader, version).map_err(|error| Fault::Body { api: R::KEY, error })
    }
}

/// The first of elements with the same key, in order: a long list of one thing must not cost its length in answers.
pub(super) fn once<T, K: Hash + Eq>(elements: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut seen = HashSet::with_capacity(elements.len());
    elements.into_iter().filter(|element| seen.insert(key(element))).collect()
}
