//! ConsumerGroupHeartbeat 0-1 (KIP-848): checks the fields and resolves the regular expressions. The group then
//! decides.

use super::call::{Call, Fault, Reply, words};
use super::join_group;
use crate::groups::{Missing, TopicRegex, fresh_parts_id};
use crate::node::CoordinatorServices;
use fullbore_control::Image;
use fullbore_rules::group::consumer::{self, GroupRefusal, JOINING, Resolved};
use fullbore_rules::group::{GroupAnswer, GroupSettings};
use fullbore_wire::apis::consumer_group_heartbeat::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
use fullbore_wire::{ErrorCode, Frame, Text, Uuid};
use std::sync::Arc;
use std::time::Duration;

/// Number of round trips that must fit into one heartbeat interval. A client that reconnects needs TCP, TLS,
/// ApiVersions, SASL and the heartbeat itself.
const ROUND_TRIPS: u32 = 8;

pub async fn handle(call: &mut Call<'_>, services: &CoordinatorServices, reply: Reply) -> Result<Frame, Fault> {
    let request: ConsumerGroupHeartbeatRequest = call.body(reply.version)?;
    let response = heartbeat(call, services, &request, reply.version.number).await.unwrap_or_else(refused);
    reply.frame::<ConsumerGroupHeartbeatRequest>(&response)
}

/// Returns the heartbeat interval for a group that has just changed. The interval is raised to [`ROUND_TRIPS`] round
/// trips if the client is far away. An interval of 0 stays 0, which means that the group's usual interval applies.
///
/// librdkafka also uses the interval as the timeout of its heartbeats. After a timeout, it must reconnect, request the
/// API versions and send a heartbeat, all within the next interval.
fn reachable(unsettled_interval_ms: i32, round_trip: Option<Duration>) -> i32 {
    match (unsettled_interval_ms, round_trip) {
        (0, _) | (_, None) => unsettled_interval_ms,
        (_, Some(round_trip)) => {
            let least_ms = round_trip.saturating_mul(ROUND_TRIPS).as_millis();
            unsettled_interval_ms.max(i32::try_from(least_ms).unwrap_or(i32::MAX))
        }
    }
}

fn refused(refusal: GroupRefusal) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse {
        error_code: refusal.code,
        error_message: Some(words(refusal.message)),
        ..Default::default()
    }
}

async fn heartbeat(
    call: &Call<'_>,
    services: &CoordinatorServices,
    request: &ConsumerGroupHeartbeatRequest,
    version: i16,
) -> Result<ConsumerGroupHeartbeatResponse, GroupRefusal> {
    let groups = &services.groups;
    let image = services.metadata.control.image();
    let mut settings = groups.settings_of(&image, &request.group_id);
    let unsettled_interval_ms = &mut settings.consumer.unsettled_interval_ms;
    *unsettled_interval_ms = reachable(*unsettled_interval_ms, call.client.round_trip);
    if !settings.consumer.is_enabled {
        let message = "The consumer protocol is switched off (group.coordinator.rebalance.protocols).";
        return Err(GroupRefusal { code: ErrorCode::UNSUPPORTED_VERSION, message: message.to_owned() });
    }
    consumer::check_request(request, version, &settings.consumer)?;
    let is_member = request.member_epoch > JOINING;
    if request.member_epoch >= JOINING && !groups.has_room(incoming_bytes(request), is_member) {
        let message = "The memory for groups is used up (fullbore.groups.bytes.max).".to_owned();
        return Err(GroupRefusal { code: ErrorCode::GROUP_MAX_SIZE_REACHED, message });
    }
    let resolved = resolve(services, request, &image, &settings).await?;
    let client_host = join_group::client_host(call.client.peer);
    let joins = request.member_epoch == JOINING;
    let consumer_call = consumer::Call {
        request,
        fresh_id: if request.member_id.is_empty() { fresh_id() } else { Text::default() },
        fresh_parts_id: if joins { fresh_parts_id() } else { Uuid::ZERO },
        client_id: call.header.client_id.as_deref().unwrap_or_default(),
        client_host: &client_host,
        resolved,
        resolved_version: image.epoch(),
    };
    let missing = if joins { Missing::Create } else { Missing::Refuse(ErrorCode::GROUP_ID_NOT_FOUND) };
    let answer = groups.request(&request.group_id, missing, |group, ticket, now, effects| {
        // The image is read only now, under the group's lock. If it were read before the wait for the lock, another
        // heartbeat could meanwhile pass a newer image to the group. This one would then lack topics that the group
        // knows.
        let image = services.metadata.control.image();
        group.consumer_heartbeat(consumer_call, &*image, settings, ticket, now, effects);
    });
    match answer.await {
        GroupAnswer::ConsumerHeartbeat(mut response) => {
            response.error_message = response.error_message.map(|message| words(message.to_string()));
            Ok(*response)
        }
        GroupAnswer::Refused(code @ ErrorCode::GROUP_ID_NOT_FOUND) => {
            Err(GroupRefusal { code, message: format!("Group {} not found.", &*request.group_id) })
        }
        GroupAnswer::Refused(code) => Err(GroupRefusal { code, message: code.to_string() }),
        _ => unreachable!("a heartbeat of the consumer protocol is answered with one"),
    }
}

/// Returns how many bytes of the request the group would store, mostly names of topics.
fn incoming_bytes(request: &ConsumerGroupHeartbeatRequest) -> usize {
    let names = request.subscribed_topic_names.iter().flatten().map(|name| name.len() + consumer::TEXT_BYTES);
    let texts = [&request.subscribed_topic_regex, &request.instance_id, &request.rack_id];
    let texts = texts.into_iter().flatten().map(|text| text.len());
    names.chain(texts).sum::<usize>() + request.member_id.len() + request.group_id.len()
}

/// Returns a new member id. In version 0 of the API, the broker chooses the ids of members.
fn fresh_id() -> Text {
    Text::from(uuid::Uuid::new_v4().to_string())
}

/// Matches regular expressions with the topics. These are the expression in the request, if the group does not have it
/// yet, and all expressions of the group, if topics have changed.
async fn resolve(
    services: &CoordinatorServices,
    request: &ConsumerGroupHeartbeatRequest,
    image: &Arc<Image>,
    settings: &GroupSettings,
) -> Result<Vec<Resolved>, GroupRefusal> {
    let now = services.groups.now_ms();
    let of_group = |group: &fullbore_rules::group::Group| {
        let group = group.consumer()?;
        let is_due = group.regexes_are_due(image.epoch(), &settings.consumer, now);
        let due: Vec<Text> = if is_due { group.regexes().cloned().collect() } else { Vec::new() };
        let new = request.subscribed_topic_regex.as_ref().filter(|regex| !group.has_regex(regex));
        Some((due, new.cloned()))
    };
    let known = services.groups.peek(&request.group_id, of_group).flatten();
    let (due, new) = known.unwrap_or_else(|| (Vec::new(), request.subscribed_topic_regex.clone()));
    let mut resolved = Vec::with_capacity(due.len() + 1);
    if let Some(pattern) = new.filter(|pattern| !pattern.is_empty()) {
        let regex = TopicRegex::compile(&pattern).map_err(|why| GroupRefusal {
            code: ErrorCode::INVALID_REGULAR_EXPRESSION,
            message: format!("SubscribedTopicRegex `{pattern}` is not a valid regular expression: {why}."),
        })?;
        resolved.push((Text::from(&*pattern), regex.topics(image)));
    }
    if !due.is_empty() {
        // Matching many expressions with many topics takes long and would block the connection's thread, so it runs on
        // another.
        let image = Arc::clone(image);
        let matched = tokio::task::spawn_blocking(move || matching(due, &image)).await;
        resolved.extend(matched.unwrap_or_default());
    }
    Ok(resolved)
}

/// Returns the topics that match each pattern. Patterns that do not compile are left out. No such pattern is expected,
/// since each was compiled when a member subscribed with it.
fn matching(patterns: Vec<Text>, image: &Image) -> Vec<Resolved> {
    let topics = |pattern: Text| {
        let topics = TopicRegex::compile(&pattern).ok()?.topics(image);
        Some((pattern, topics))
    };
    patterns.into_iter().filter_map(topics).collect()
}

#[cfg(test)]
mod tests {
    use super::super::leadership_tests::{Opened, TOPIC};
    use super::*;
    use fullbore_control::{CreatePartitions, CreateTopic, GrowTopic};
    use std::sync::mpsc;
    use std::time::Instant;

    #[test]
    fn distant_client_gets_an_interval_long_enough_for_its_heartbeat() {
        let at = |ms| Some(Duration::from_millis(ms));
        assert_eq!(reachable(1_000, None), 1_000);
        assert_eq!(reachable(1_000, at(100)), 1_000);
        assert_eq!(reachable(1_000, at(300)), 2_400);
        assert_eq!(reachable(1_000, Some(Duration::MAX)), i32::MAX);
        assert_eq!(reachable(0, at(300)), 0, "off is off");
    }

    fn partitions(answer: &ConsumerGroupHeartbeatResponse) -> Vec<i32> {
        let assigned = answer.assignment.iter().flat_map(|assignment| &assignment.topic_partitions);
        assigned.flat_map(|topic| topic.partitions.clone()).collect()
    }

    /// A heartbeat waits for the shard, for regular expressions and for the group's lock before it reaches the group.
    /// Meanwhile a heartbeat of another member may have shown newer topics to the group. The waiting heartbeat must
    /// then use these newer topics as well.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn heartbeat_uses_the_topics_as_of_the_call_to_its_group() {
        let topic = CreateTopic { name: TOPIC.into(), num_partitions: 1, replication_factor: -1, ..Default::default() };
        let mut opened = Opened::with("", topic).await;
        let heartbeat = |member_epoch| ConsumerGroupHeartbeatRequest {
            group_id: Text::from("g"),
            member_id: Text::from("m"),
            member_epoch,
            rebalance_timeout_ms: if member_epoch == JOINING { 10_000 } else { -1 },
            subscribed_topic_names: (member_epoch == JOINING).then(|| vec![Text::from(TOPIC)]),
            topic_partitions: (member_epoch == JOINING).then(Vec::new),
            ..Default::default()
        };
        let joined = opened.call(&heartbeat(JOINING), 1);
        assert_eq!((joined.member_epoch, partitions(&joined)), (1, vec![0]));
        let node = Arc::clone(opened.broker.node());
        let ((held, is_held), (release, is_released)) = (mpsc::channel(), mpsc::channel::<()>());
        let groups = Arc::clone(&node.coordinators.groups);
        let holds = std::thread::spawn(move || {
            let waits = |_: &mut _, _: &Arc<_>, _| held.send(()).is_ok() && is_released.recv().is_ok();
            groups.touch("g", waits)
        });
        is_held.recv().expect("it has the group's lock");
        let (known_by, deadline) = (node.coordinators.groups.references("g"), Instant::now() + Duration::from_secs(60));
        let requests = std::thread::spawn(move || opened.call(&heartbeat(1), 1));
        // Waits until the heartbeat has found the group. By then the heartbeat has read the metadata of the topics, and
        // waits for the group's lock.
        while node.coordinators.groups.references("g") <= known_by {
            assert!(Instant::now() < deadline, "nobody asks for the group");
            // The sleep blocks the thread on purpose: the thread that waits for the group may be the one that drives
            // the timers.
            std::thread::sleep(Duration::from_millis(1));
        }
        let topics = vec![GrowTopic { name: TOPIC.into(), count: 2, assignments: None }];
        let grown = node.metadata.control.create_partitions(CreatePartitions { topics, validate_only: false }).await;
        assert!(grown[0].is_ok());
        release.send(()).expect("it waits");
        assert_eq!(holds.join().expect("done"), Ok(Some(true)));
        let answer = requests.join().expect("answered");
        assert_eq!((answer.member_epoch, partitions(&answer)), (2, vec![0, 1]));
    }
}
