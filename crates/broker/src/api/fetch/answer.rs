//! The response of a fetch: partitions grouped by topic again, in the order they were looked at.

use super::Fetched;
use crate::api::{Fault, Reply};
use fullbore_wire::apis::fetch::{FetchRequest, FetchResponse, FetchableTopicResponse};
use fullbore_wire::{ErrorCode, Frame};

/// The response to a fetch that was carried out.
pub fn of(session_id: i32, shown: Vec<Fetched>, reply: Reply) -> Result<Frame, Fault> {
    let mut responses: Vec<FetchableTopicResponse> = Vec::new();
    for Fetched { key, data } in shown {
        match responses.last_mut() {
            Some(last) if last.topic == key.topic && last.topic_id == key.topic_id => last.partitions.push(data),
            _ => responses.push(FetchableTopicResponse {
                topic: key.topic,
                topic_id: key.topic_id,
                partitions: vec![data],
                ..Default::default()
            }),
        }
    }
    reply.frame::<FetchRequest>(&FetchResponse { session_id, responses, ..Default::default() })
}

/// The response to a fetch that could not be.
pub fn error(error_code: ErrorCode, session_id: i32, reply: Reply) -> Result<Frame, Fault> {
    reply.frame::<FetchRequest>(&FetchResponse { error_code, session_id, ..Default::default() })
}
