//! A group of the classic protocol (JoinGroup, SyncGroup): the members choose a leader's assignment.

use super::{Committer, Effects, Snapshot, SnapshotError, State};
use bytes::Bytes;
use fullbore_wire::{ErrorCode, Text};

/// What of the broker's settings such a group is held to.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_min_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_max_ms: i32,
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay_ms: i32,
    /// `group.max.size`.
    pub members_max: usize,
}

/// One group.
#[derive(Debug)]
pub struct Classic {
    #[allow(dead_code, reason = "the machine comes next")]
    settings: Settings,
    state: State,
    since: i64,
    protocol_type: Option<Text>,
    generation: i32,
}

impl Classic {
    /// An empty group.
    pub fn new(settings: Settings, now: i64) -> Self {
        Classic { settings, state: State::Empty, since: now, protocol_type: None, generation: 0 }
    }

    pub(super) fn restore(state: Bytes, settings: Settings, now: i64) -> Result<Self, SnapshotError> {
        super::snapshot::Unpacker::new(state).finish()?;
        Ok(Classic::new(settings, now))
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        super::snapshot::Packer::new(super::snapshot::CLASSIC).finish()
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// What it is for; `None` when it never had a member.
    pub fn protocol_type(&self) -> Option<&str> {
        self.protocol_type.as_deref()
    }

    pub(super) fn next_deadline(&self) -> Option<i64> {
        None
    }

    pub(super) fn tick(&mut self, _now: i64, _effects: &mut Effects) {}

    pub(super) fn check_commit(&mut self, committer: &Committer<'_>, _now: i64) -> Result<(), ErrorCode> {
        match self.state {
            State::Dead => Err(ErrorCode::COORDINATOR_NOT_AVAILABLE),
            _ if committer.generation < 0 => Ok(()),
            _ => Err(ErrorCode::UNKNOWN_MEMBER_ID),
        }
    }

    pub(super) fn reads(&self, _topic: &str) -> bool {
        false
    }

    pub(super) fn empty_since(&self) -> Option<i64> {
        (self.state == State::Empty).then_some(self.since)
    }

    pub(super) fn is_blank(&self) -> bool {
        self.state == State::Empty && self.generation == 0
    }

    pub(super) fn kill(&mut self, _code: ErrorCode, _effects: &mut Effects) {
        self.state = State::Dead;
    }
}
