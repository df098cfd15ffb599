//! The task that forgets committed offsets that have served their time, and groups with neither members nor offsets.
//!
//! When that is, is `rules::group::expiry`'s to say. Invariant: an offset is forgotten only as it was looked at; one
//! committed meanwhile stays.

use super::Groups;
use super::clock::wall_ms;
use crate::control::{Command, Committed, DeleteOffset, DeleteOffsets, Image};
use fullbore_rules::group::{Group, expiry};
use fullbore_wire::Text;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval_at};

impl Groups {
    /// Looks again and again, until the broker stops.
    pub async fn run_expiry(self: Arc<Self>, retention_ms: u64, every_ms: u64, mut stop: watch::Receiver<bool>) {
        let retention_ms = i64::try_from(retention_ms).unwrap_or(i64::MAX);
        let every = Duration::from_millis(every_ms);
        let mut rounds = interval_at(tokio::time::Instant::now() + every, every);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                _ = rounds.tick() => {}
            }
            for id in self.ids() {
                self.expire(&id, retention_ms).await;
            }
        }
    }

    /// One group's turn.
    async fn expire(&self, id: &Text, retention_ms: i64) {
        let now = wall_ms();
        let image = self.control.image();
        let due = |group: &Group| self.due(&image, id, group, retention_ms, now);
        if self.look(id, |group| !due(group).is_empty()).unwrap_or(false) {
            let Ok(place) = self.control.enter().await else { return };
            // Again, under the lock under which it is asked: a member may have joined that reads the topic.
            let asked = self.touch(id, |group, _| {
                let offsets = due(group);
                tracing::info!(group = %id, offsets = offsets.len(), "committed offsets have expired");
                place.ask(Command::DeleteOffsets(DeleteOffsets { group: Arc::from(&**id), offsets }))
            });
            let Some(asked) = asked else { return };
            if let Err(error) = asked.done().await {
                tracing::error!(group = %id, %error, "expired offsets could not be deleted; they are looked at again");
                return;
            }
        }
        let is_over = self.look(id, |group| group.check_delete().is_ok()).unwrap_or(false) && !self.has_offsets(id);
        if is_over && self.delete(id, false).await.is_ok() {
            tracing::info!(group = %id, "a group without members and offsets is forgotten");
        }
    }

    fn due(&self, image: &Image, id: &str, group: &Group, retention_ms: i64, now: i64) -> Vec<DeleteOffset> {
        let since = expiry::since(group);
        let is_due = |committed: &Committed| {
            expiry::is_expired(since, committed.committed_ms, committed.expires_ms, retention_ms, now)
        };
        self.control.offsets().read(id, |held| {
            let mut due = Vec::new();
            for (topic, of_topic) in held.into_iter().flatten() {
                // What is being deleted takes its offsets along.
                let Some(name) = image.topic_by_id(*topic).map(|topic| &topic.name) else { continue };
                let mut partitions = of_topic.iter().filter(|(_, committed)| is_due(committed)).peekable();
                if partitions.peek().is_none() || group.reads(name) {
                    continue;
                }
                due.extend(partitions.map(|(partition, committed)| DeleteOffset {
                    topic: *topic,
                    partition: *partition,
                    committed_ms: Some(committed.committed_ms),
                }));
            }
            due
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Missing;
    use super::super::clock::Clock;
    use super::*;
    use crate::config::{BrokerConfig, Properties};
    use crate::control::{CommitOffset, CommitOffsets, Control, CreateTopic, CreateTopics, FolderLock};
    use fullbore_rules::group::Answer;
    use fullbore_rules::group::classic::Joining;
    use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
    use fullbore_wire::apis::leave_group::MemberIdentity;

    const HOUR_MS: i64 = 60 * 60 * 1000;

    /// A member joins and leaves.
    async fn come_and_go(groups: &Arc<Groups>, id: &Text) {
        let protocol = JoinGroupRequestProtocol { name: Text::from("range"), ..Default::default() };
        let request = JoinGroupRequest {
            group_id: id.clone(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 10_000,
            protocol_type: Text::from("consumer"),
            protocols: vec![protocol],
            ..Default::default()
        };
        let member_id = Text::from("m");
        let joining =
            Joining { request: &request, version: 3, client_id: "c", client_host: "/h", new_member_id: &member_id };
        let image = groups.control.image();
        let joined = groups.ask(id, Missing::Create, |group, ticket, now, effects| {
            group.join(joining, &*image, ticket, now, effects);
        });
        // Nobody else is waited for, but the timer does not run here.
        let entry = groups.find(id).expect("it is there");
        let deadline = entry.lock().group.next_deadline();
        if let Some(deadline) = deadline {
            let mut effects = fullbore_rules::group::Effects::new();
            let mut inner = entry.lock();
            inner.group.tick(deadline, &mut effects);
            groups.follow(&entry, inner, effects);
        }
        let Answer::Join(_) = joined.answer().await else { panic!("refused") };
        let member = MemberIdentity { member_id, ..Default::default() };
        let left = groups.ask(id, Missing::Create, |group, ticket, now, effects| {
            group.leave(&[member], ticket, now, effects);
        });
        left.answer().await;
    }

    #[tokio::test]
    async fn offsets_expire_by_the_systems_clock_although_it_was_set_since_the_start() {
        for set_by in [-24 * HOUR_MS, 0, 24 * HOUR_MS] {
            let folder = tempfile::tempdir().expect("tempdir");
            let lock = FolderLock::take(folder.path()).expect("free");
            let config = BrokerConfig::from_properties(&Properties::parse("").expect("none")).expect("valid").0;
            let config = Arc::new(config);
            let space = Arc::new(crate::space::Space::open(lock.folder(), 0));
            let control = Control::open(Arc::clone(&config), &lock, space).expect("opens");
            let clock = Clock::starting_at(wall_ms() - set_by);
            let groups = Groups::open_by(clock, &config.groups, control.clone(), Default::default());
            let id = Text::from("g");
            let before = wall_ms();
            come_and_go(&groups, &id).await;
            let since = groups.look(&id, |group| group.empty_since()).flatten();
            assert!(since.is_some_and(|since| (before..=wall_ms()).contains(&since)), "{since:?}, set by {set_by}");

            let wanted =
                CreateTopic { name: "t".into(), num_partitions: 1, replication_factor: -1, ..Default::default() };
            let topics = control.create_topics(CreateTopics { topics: vec![wanted], validate_only: false }).await;
            let topic = topics[0].as_ref().expect("created").id;
            let committed =
                Committed { offset: 1, leader_epoch: -1, metadata: "".into(), committed_ms: before, expires_ms: None };
            let offsets = vec![CommitOffset { topic, partition: 0, committed }];
            let commit = Command::CommitOffsets(CommitOffsets { group: Arc::from("g"), offsets });
            control.enter().await.expect("a place").ask(commit).committed().await.expect("committed");
            groups.expire(&id, 12 * HOUR_MS).await;
            assert!(groups.has_offsets(&id), "set by {set_by}");
            groups.expire(&id, 0).await;
            assert!(!groups.has_offsets(&id), "set by {set_by}");
        }
    }
}
