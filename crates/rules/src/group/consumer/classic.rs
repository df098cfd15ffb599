//! Members of a group on its way between the protocols, who speak the classic one.

use bytes::Bytes;
use fullbore_wire::Text;

/// How a member speaks the classic protocol.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassicMember {
    /// Its session timeout, which it chose itself, in milliseconds.
    pub session_timeout_ms: i32,
    /// The assignors it knows, with its subscription as it sent it.
    pub protocols: Vec<(Text, Bytes)>,
    /// When it is fenced unless it has joined again.
    pub join_by: Option<i64>,
    /// When it is fenced unless it has asked for its assignment.
    pub sync_by: Option<i64>,
}

impl ClassicMember {
    pub(super) fn deadline(&self) -> Option<i64> {
        self.join_by.into_iter().chain(self.sync_by).min()
    }

    /// What it let pass, if it did.
    pub(super) fn overdue(&self, now: i64) -> Option<&'static str> {
        let passed = |by: Option<i64>| by.is_some_and(|by| by <= now);
        match () {
            () if passed(self.join_by) => Some("a join"),
            () if passed(self.sync_by) => Some("a sync"),
            () => None,
        }
    }
}
