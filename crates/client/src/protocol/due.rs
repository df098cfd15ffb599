//! The requests of a connection that wait for responses. A response repeats the correlation id of its request.
//!
//! The state has two halves, because two tasks may use it: [`Requesting`] is for the task that writes, and [`Due`] for
//! the task that reads. This module also writes the protocol log. It has a line for each request and response, without
//! their contents.

use super::error::ProtocolError;
use bytes::Bytes;
use fullbore_wire::api::{self, ApiKey, Request};
use fullbore_wire::{Frame, Text};
use std::collections::VecDeque;
use std::time::Instant;

/// Maximum number of requests of a connection that wait for a response. Callers may have lower limits.
const DUE_MAX: usize = 1 << 16;
/// The log target of the protocol log. Each request and response is logged at level debug.
const PROTOCOL: &str = "fullbore::protocol";

/// Encodes requests and assigns their correlation ids.
#[derive(Debug)]
pub struct Requesting {
    client_id: Text,
    next_correlation_id: i32,
}

/// A request that has been encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentRequest {
    /// The correlation id, which the response repeats.
    pub correlation_id: i32,
    /// The API of the request.
    pub api: ApiKey,
    /// The version of the request.
    pub version: i16,
    /// When the request was encoded.
    pub sent_at: Instant,
}

impl Requesting {
    /// Creates an encoder for requests with this client.id.
    pub fn new(client_id: &str) -> Self {
        Requesting { client_id: client_id.into(), next_correlation_id: 0 }
    }

    /// Encodes a request. Returns its description and its bytes.
    ///
    /// # Errors
    /// Returns [`ProtocolError::Encode`] if the version cannot express the request.
    pub fn encode<R: Request>(
        &mut self,
        request: &R,
        version: i16,
        now: Instant,
    ) -> Result<(SentRequest, Frame), ProtocolError> {
        let correlation_id = self.next_correlation_id;
        self.next_correlation_id = correlation_id.wrapping_add(1) & i32::MAX;
        let frame = api::encode_request(request, version, correlation_id, Some(&self.client_id))
            .map_err(|source| ProtocolError::Encode { api: R::KEY.name(), source })?;
        Ok((SentRequest { correlation_id, api: R::KEY, version, sent_at: now }, frame))
    }
}

impl SentRequest {
    /// Logs the request, which has `bytes` bytes.
    pub fn log(&self, peer: &str, bytes: usize) {
        let SentRequest { correlation_id, api, version, .. } = self;
        let api = api.name();
        tracing::debug!(target: PROTOCOL, peer, api, version, correlation_id, bytes, "request");
    }

    /// Logs the response, which has `bytes` bytes without the length prefix.
    pub fn log_answer(&self, peer: &str, bytes: usize, now: Instant) {
        let SentRequest { correlation_id, api, version, sent_at } = self;
        let rtt_us = u64::try_from(now.saturating_duration_since(*sent_at).as_micros()).unwrap_or(u64::MAX);
        let (api, bytes) = (api.name(), bytes + super::frame::PREFIX);
        tracing::debug!(target: PROTOCOL, peer, api, version, correlation_id, bytes, rtt_us, "response");
    }
}

/// The requests whose responses are due, oldest first, each with a value of the caller.
#[derive(Debug)]
pub struct Due<T>(VecDeque<(SentRequest, T)>);

impl<T> Default for Due<T> {
    fn default() -> Self {
        Due(VecDeque::new())
    }
}

impl<T> Due<T> {
    /// Adds a request. Must be called before its first byte is sent.
    ///
    /// # Errors
    /// Returns `waits` to the caller if too many responses are due.
    pub fn push(&mut self, requested: SentRequest, waits: T) -> Result<(), T> {
        if self.0.len() >= DUE_MAX {
            return Err(waits);
        }
        self.0.push_back((requested, waits));
        Ok(())
    }

    /// Removes and returns the request that the response `frame` belongs to, with the caller's value. `frame` has no
    /// length prefix.
    ///
    /// # Errors
    /// Returns [`ProtocolError::NotDue`] if the response does not belong to the oldest request. No request is then
    /// removed.
    pub fn answered(&mut self, frame: &[u8]) -> Result<(SentRequest, T), ProtocolError> {
        let id = frame.first_chunk().map(|id| i32::from_be_bytes(*id));
        let is_it = self.0.front().is_some_and(|(requested, _)| Some(requested.correlation_id) == id);
        let oldest = if is_it { self.0.pop_front() } else { None };
        oldest.ok_or(ProtocolError::NotDue(id))
    }

    /// Returns when the oldest request was encoded, or `None` if no response is due.
    pub fn oldest(&self) -> Option<Instant> {
        self.0.front().map(|(requested, _)| requested.sent_at)
    }

    /// Returns true if no response is due.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes all requests and returns the caller's values, oldest first.
    pub fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.0).into_iter().map(|(_, waits)| waits)
    }
}

/// Decodes the body of a response to `R`.
///
/// # Errors
/// Returns [`ProtocolError::Decode`] if the bytes are not a response to `R`.
pub fn decode<R: Request>(frame: Bytes, version: i16) -> Result<R::Response, ProtocolError> {
    let decoded = api::decode_response::<R>(frame, version);
    decoded.map(|(_, response)| response).map_err(|source| ProtocolError::Decode { api: R::KEY.name(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_wire::apis::metadata::MetadataRequest;

    fn requested(requesting: &mut Requesting, now: Instant) -> SentRequest {
        requesting.encode(&MetadataRequest::default(), 9, now).expect("a small request").0
    }

    fn answer(id: i32) -> Vec<u8> {
        [&id.to_be_bytes()[..], &[7; 9]].concat()
    }

    #[test]
    fn correlation_ids_count_up_and_wrap_to_zero() {
        let mut requesting = Requesting { client_id: Text::default(), next_correlation_id: i32::MAX - 1 };
        let now = Instant::now();
        let ids: Vec<i32> = (0..4).map(|_| requested(&mut requesting, now).correlation_id).collect();
        assert_eq!(ids, [i32::MAX - 1, i32::MAX, 0, 1]);
    }

    #[test]
    fn a_response_goes_to_the_oldest_request_and_any_other_changes_nothing() {
        let (mut requesting, mut due) = (Requesting::new("me"), Due::default());
        let now = Instant::now();
        for name in ["first", "second"] {
            due.push(requested(&mut requesting, now), name).unwrap();
        }
        for (frame, id) in [(answer(1), Some(1)), (answer(-1), Some(-1)), (vec![0, 0, 0], None), (vec![], None)] {
            assert_eq!(due.answered(&frame), Err(ProtocolError::NotDue(id)));
        }
        assert_eq!(due.answered(&answer(0)).map(|(_, name)| name), Ok("first"));
        assert_eq!(due.answered(&answer(0)), Err(ProtocolError::NotDue(Some(0))), "it has its answer");
        assert_eq!(due.oldest(), Some(now));
        assert_eq!(due.take().collect::<Vec<_>>(), ["second"]);
        assert!(due.is_empty() && due.oldest().is_none());
        assert_eq!(due.answered(&answer(1)), Err(ProtocolError::NotDue(Some(1))));
    }

    #[test]
    fn a_request_beyond_the_limit_is_returned() {
        let mut due = Due::default();
        let request = requested(&mut Requesting::new(""), Instant::now());
        (0..DUE_MAX).for_each(|at| due.push(request, at).unwrap());
        assert_eq!(due.push(request, 0), Err(0));
    }

    #[test]
    fn a_request_that_cannot_be_encoded_is_named() {
        let error = Requesting::new("").encode(&MetadataRequest::default(), 999, Instant::now()).unwrap_err();
        assert!(error.to_string().starts_with("cannot encode the Metadata request: "), "{error}");
    }
}
