//! Handles a batch that was refused for its size: fetches the topic's limit, and adds a notice with the name of the
//! setting.
//!
//! If the cluster does not return the limit, `limit` finds it by bisection. Invariant: the limit of a topic is
//! requested once, after the first refusal.

use crate::core::Core;
use crate::error::{self, ProduceError};
use crate::partition::{Outgoing, Partition};
use fullbore_wire::apis::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use fullbore_wire::{ErrorCode, Text};
use std::sync::Arc;
use std::time::Instant;

/// The `ConfigResource.Type` of a topic in Kafka.
const TOPIC: i8 = 2;
const MAX_MESSAGE_BYTES: &str = "max.message.bytes";

impl Core {
    /// Handles a batch that a broker refused as too large. The batch is split, or fails if it is a single record. The
    /// caller knows that no attempt of the batch was written.
    pub(super) fn refused(self: &Arc<Self>, outgoing: Outgoing, code: ErrorCode, message: &str, now: Instant) {
        let Outgoing { partition, ticket, batch, .. } = outgoing;
        let (size, why) = (batch.size(), format!("the broker answered {}", error::answer(code, message)));
        let refused = partition.refused(ticket, batch, &why, now);
        if partition.is_first_refusal() {
            let largest = refused.as_ref().ok().copied();
            self.first_refused(&partition, code, size, largest);
        }
        if let Err(batch) = refused {
            let possibly_written = batch.ambiguous;
            let error = ProduceError::Broker { code, message: message.to_owned(), possibly_written };
            partition.failed(ticket, *batch, possibly_written, error, now);
        }
    }

    /// Fetches the topic's limit and adds a notice. If the refused batch had several records, `largest` is the size of
    /// its largest record. There is no notice if this record alone is too large, because the record's error already
    /// explains the limit.
    fn first_refused(
        self: &Arc<Self>,
        partition: &Arc<Partition>,
        code: ErrorCode,
        size: usize,
        largest: Option<usize>,
    ) {
        if code == ErrorCode::RECORD_LIST_TOO_LARGE {
            return if largest.is_some() {
                self.notice_too_large(&partition.topic, "segment.bytes", size)
            };
        }
        let (core, partition) = (self.clone(), partition.clone());
        self.runtime.spawn(async move {
            let limit = tokio::select! {
                limit = core.max_message_bytes(&partition.topic) => limit,
                () = core.stopped() => None,
            };
            if let Some(limit) = limit {
                partition.set_limit(limit);
            }
            if largest.is_some_and(|largest| limit.is_none_or(|limit| largest <= limit)) {
                core.notice_too_large(&partition.topic, MAX_MESSAGE_BYTES, size);
            }
        });
    }

    /// Returns the topic's `max.message.bytes`. Returns `None` if no broker responds or this client is not allowed to
    /// read it.
    async fn max_message_bytes(&self, topic: &Text) -> Option<usize> {
        let resource = DescribeConfigsResource {
            resource_type: TOPIC,
            resource_name: topic.clone(),
            configuration_keys: Some(vec![MAX_MESSAGE_BYTES.into()]),
            ..Default::default()
        };
        let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
        let response = self.cluster.call(request).await.inspect_err(|error| {
            tracing::debug!(%topic, %error, "cannot read the topic's max.message.bytes: the producer tries smaller batches until the broker accepts them");
        });
        let result = response.ok()?.results.into_iter().find(|result| !result.error_code.is_err())?;
        let config = result.configs.into_iter().find(|config| config.name == *MAX_MESSAGE_BYTES)?;
        config.value?.parse().ok().filter(|bytes| *bytes > 0)
    }

    /// Adds a notice that explains why batches are refused for their size, and how to avoid it.
    fn notice_too_large(&self, topic: &Text, setting: &str, size: usize) {
        self.notices.add(format!(
            "batches of {size} bytes exceed {setting} of topic {topic}: the producer splits them, and keeps later \
             batches smaller; lower max.request.size (and batch.size with it), or raise {setting} of the topic"
        ));
    }
}
