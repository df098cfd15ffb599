//! Finds the dirty part of a partition's log. An unopened log is opened only if the sizes and ages of its files show
//! that a cleaning may be due.

use std::sync::Arc;

use fullbore_rules::compaction::Dirty;

use crate::replica::Replica;
use crate::replica::state::LogState;
use fullbore_config::TopicConfig;
use fullbore_log::cleaner::dirty::may_be_due;

impl Replica {
    /// Returns the dirty part of the log, which may be empty. Opens an unopened log if a cleaning may be due. Returns
    /// `None` if the topic is not compacted, the log cannot be used, or an unopened log needs no cleaning. Rolls the
    /// active segment first if it has records older than max.compaction.lag.ms.
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
