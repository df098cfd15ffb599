//! Members of groups of the consumer protocol that behave as clients do. They read the partitions that are assigned to
//! them, revoke the others, and report this.

use fullbore_tests::{Broker, Client, wait_until};
use fullbore_wire::apis::consumer_group_describe::{ConsumerGroupDescribeRequest, DescribedGroup};
use fullbore_wire::apis::consumer_group_heartbeat::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions,
};
use fullbore_wire::apis::find_coordinator::FindCoordinatorRequest;
use fullbore_wire::apis::list_groups::{ListGroupsRequest, ListedGroup};
use fullbore_wire::{ErrorCode, Text, Uuid};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const VERSION: i16 = 1;
const SOON: Duration = Duration::from_secs(30);

/// Returns a name that no other test uses, because a peer keeps its groups between tests.
pub fn unique(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    format!("{name}-{}-{}", now.as_nanos(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the name of a new group that has a coordinator. A peer creates the topic of the groups at the first request
/// for a coordinator.
pub fn new_group(broker: &Broker, name: &str) -> String {
    let (group, mut client) = (unique(name), broker.client());
    wait_until("the group has a coordinator", SOON, || {
        let keys = vec![Text::from(group.as_str())];
        let find = FindCoordinatorRequest { coordinator_keys: keys, ..Default::default() };
        let found = client.call(&find, 4).coordinators[0].error_code == ErrorCode::NONE;
        found && describe(&mut client, &group).error_code == ErrorCode::GROUP_ID_NOT_FOUND
    });
    group
}

/// Returns the first heartbeat of a member.
pub fn join_request(group: &str, id: &str, topics: &[&str]) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest {
        group_id: Text::from(group),
        member_id: Text::from(id),
        rebalance_timeout_ms: 30_000,
        subscribed_topic_names: Some(topics.iter().map(|&topic| Text::from(topic)).collect()),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    }
}

/// Returns a heartbeat that changes nothing.
pub fn heartbeat(group: &str, id: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    let (group_id, member_id) = (Text::from(group), Text::from(id));
    ConsumerGroupHeartbeatRequest { group_id, member_id, member_epoch: epoch, ..Default::default() }
}

/// Sends a heartbeat and returns the error code of the response.
pub fn refused(client: &mut Client, request: &ConsumerGroupHeartbeatRequest) -> ErrorCode {
    client.call(request, VERSION).error_code
}

/// Describes the group.
pub fn describe(client: &mut Client, group: &str) -> DescribedGroup {
    let request = ConsumerGroupDescribeRequest { group_ids: vec![Text::from(group)], ..Default::default() };
    client.call(&request, 1).groups.remove(0)
}

/// Returns the group's entry in the list of groups. `None` if the list does not have it.
pub fn list(client: &mut Client, group: &str) -> Option<ListedGroup> {
    let listed = client.call(&ListGroupsRequest::default(), 5).groups;
    listed.into_iter().find(|listed| &*listed.group_id == group)
}

/// A member of a group, with its own connection.
pub struct Member {
    client: Client,
    group: String,
    id: String,
    instance: Option<String>,
    topics: Vec<String>,
    pub regex: Option<String>,
    pub assignor: Option<&'static str>,
    pub epoch: i32,
    /// The partitions that the member reads.
    pub reads: BTreeSet<(Uuid, i32)>,
    assigned: BTreeSet<(Uuid, i32)>,
    /// The partitions that the member last reported as its own.
    reported: BTreeSet<(Uuid, i32)>,
}

impl Member {
    pub fn new(broker: &Broker, group: &str, topics: &[&str]) -> Member {
        Member {
            client: broker.client(),
            group: group.to_owned(),
            id: unique("member"),
            instance: None,
            topics: topics.iter().map(|&topic| topic.to_owned()).collect(),
            regex: None,
            assignor: None,
            epoch: 0,
            reads: BTreeSet::new(),
            assigned: BTreeSet::new(),
            reported: BTreeSet::new(),
        }
    }

    pub fn named(broker: &Broker, group: &str, topics: &[&str], instance: &str) -> Member {
        Member { instance: Some(instance.to_owned()), ..Member::new(broker, group, topics) }
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn join_request(&self) -> ConsumerGroupHeartbeatRequest {
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        ConsumerGroupHeartbeatRequest {
            instance_id: self.instance.as_deref().map(Text::from),
            subscribed_topic_names: self.regex.is_none().then(|| topics.iter().map(|&t| Text::from(t)).collect()),
            subscribed_topic_regex: self.regex.as_deref().map(Text::from),
            server_assignor: self.assignor.map(Text::from),
            ..join_request(&self.group, &self.id, &topics)
        }
    }

    pub fn join(&mut self) -> ConsumerGroupHeartbeatResponse {
        let joined = self.client.call(&self.join_request(), VERSION);
        assert_eq!(joined.error_code, ErrorCode::NONE, "{:?}", joined.error_message);
        self.take(&joined);
        joined
    }

    /// Sends a heartbeat and acts on the response as a client does.
    pub fn heartbeat(&mut self) -> ConsumerGroupHeartbeatResponse {
        let answer = self.try_heartbeat();
        assert_eq!(answer.error_code, ErrorCode::NONE, "{:?}", answer.error_message);
        answer
    }

    pub fn try_heartbeat(&mut self) -> ConsumerGroupHeartbeatResponse {
        let request = ConsumerGroupHeartbeatRequest {
            instance_id: self.instance.as_deref().map(Text::from),
            topic_partitions: (self.reported != self.reads).then(|| owned(&self.reads)),
            ..heartbeat(&self.group, &self.id, self.epoch)
        };
        let answer = self.client.call(&request, VERSION);
        if answer.error_code == ErrorCode::NONE {
            self.reported = self.reads.clone();
            self.take(&answer);
        }
        answer
    }

    /// Sends heartbeats until the member reads `count` partitions and has reported all of them.
    pub fn heartbeat_until_it_owns(&mut self, count: usize) {
        wait_until("the member has what it should have", SOON, || {
            self.heartbeat();
            self.reads.len() == count && self.reported == self.reads
        });
    }

    pub fn leave(&mut self, epoch: i32) -> ConsumerGroupHeartbeatResponse {
        self.reads.clear();
        let request = ConsumerGroupHeartbeatRequest {
            instance_id: self.instance.as_deref().map(Text::from),
            ..heartbeat(&self.group, &self.id, epoch)
        };
        self.client.call(&request, VERSION)
    }

    fn take(&mut self, answer: &ConsumerGroupHeartbeatResponse) {
        self.epoch = answer.member_epoch;
        if let Some(assignment) = &answer.assignment {
            let of = |topic: &fullbore_wire::apis::consumer_group_heartbeat::TopicPartitions| {
                let id = topic.topic_id;
                topic.partitions.iter().map(move |&index| (id, index)).collect::<Vec<_>>()
            };
            self.assigned = assignment.topic_partitions.iter().flat_map(of).collect();
            self.reads = self.assigned.clone();
        }
    }

    /// Moves the member to a new connection.
    pub fn reconnect(&mut self, broker: &Broker) {
        self.client = broker.client();
    }
}

fn owned(reads: &BTreeSet<(Uuid, i32)>) -> Vec<TopicPartitions> {
    let mut topics: Vec<TopicPartitions> = Vec::new();
    for &(topic_id, index) in reads {
        match topics.last_mut() {
            Some(last) if last.topic_id == topic_id => last.partitions.push(index),
            _ => topics.push(TopicPartitions { topic_id, partitions: vec![index], ..Default::default() }),
        }
    }
    topics
}
