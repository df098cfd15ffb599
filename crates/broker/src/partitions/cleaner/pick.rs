//! Finds the dirty part of a partition's log. A log that is not open is opened only if the sizes and ages of its files
//! show that a cleaning may be due.

use std::sync::Arc;

use fullbore_rules::compaction::Dirty;

use crate::replica::Replica;
use crate::replica::state::LogState;
use fullbore_config::TopicConfig;
use fullbore_log::cleaner::dirty::may_be_due;

impl Replica {
    /// Returns the dirty part of the log, which may be empty. Returns `None` if the topic is not compacted or the log
    /// cannot be used. Also returns `None` for a log that is not open, unless a cleaning may be due. If the active
    /// segment has records older than max.compaction.lag.ms, that segment is rolled first.
    pub(crate) fn dirty(self: &Arc<Self>, checkpoint: Option<i64>, now_ms: i64) -> Option<(Dirty, Arc<TopicConfig>)> {
        let mut state = self.lock();
        let config = self.config();
        if !config.cleanup.compact {
            return None;
        }
        match &state.log {
            LogState::Open(_) => {}
            LogState::Unopened if may_be_due(&self.dir(), checkpoint, now_ms, &config).unwrap_or(false) => {}
            _ => return None,
        }
        let looked = match self.log_to_read(&mut state) {
            Ok(Some((log, high_watermark))) if !log.is_broken() => {
                log.dirty(checkpoint, high_watermark, now_ms, &config)
            }
            _ => return None,
        };
        match looked {
            Ok((dirty, has_rolled)) => {
                if has_rolled {
                    self.request_flush(&mut state, false);
                }
                Some((dirty, config))
            }
            Err(error) => {
                tracing::error!(dir = %self.dir().display(), %error, "cannot find the dirty part of a log: this round does not compact it");
                None
            }
        }
    }
}
