//! What is to be read, and how reading ended.

use super::args::Consume;
use crate::failure::Failure;
use crate::topics::topic_filter;
use fullbore_client::admin::list_topics;
use fullbore_client::blocking::Cluster;
use fullbore_client::consume::TopicFilter;
use fullbore_wire::Text;
use std::sync::Arc;
use std::time::Duration;

/// How long standard output may take what was read after SIGTERM.
pub(super) const INTERRUPTED_PATIENCE: Duration = Duration::from_secs(5);
/// The same after Ctrl-C.
pub(super) const CTRL_C_PATIENCE: Duration = Duration::from_millis(150);

/// Topics that a line names at most.
const TOLD_TOPICS_MAX: usize = 3;

/// How reading ended.
pub(super) struct End {
    /// True if what was asked for was reached.
    pub(super) finished: bool,
    /// Which partition could not be read, and why.
    pub(super) unread: Option<String>,
}

/// What is to be read.
pub(super) struct TopicSelection {
    /// Those that were named.
    pub(super) named: Vec<Text>,
    /// Which others belong to them.
    pub(super) matches: Option<TopicFilter>,
    /// Those that there were when the command began.
    pub(super) all: Vec<Text>,
}

impl TopicSelection {
    /// What a reader that gets nothing waits for; `from_now` if it began with the end.
    pub(super) fn waits_for(&self, from_now: bool) -> String {
        let names = self.all.iter().take(TOLD_TOPICS_MAX).map(|topic| &**topic).collect::<Vec<_>>().join(", ");
        let more = if self.all.len() > TOLD_TOPICS_MAX { ", ..." } else { "" };
        match from_now {
            true => format!(
                "no record of {names}{more} came since the start; --from-beginning reads those before, Ctrl-C ends"
            ),
            false => format!("no record of {names}{more} yet; Ctrl-C ends"),
        }
    }
}

impl Consume {
    /// The topics that the flags name or match.
    pub(super) fn topics(&self, cluster: &mut Cluster, exclude_internal: bool) -> Result<TopicSelection, Failure> {
        let named: Vec<Text> = self.named().map(|topic| topic.as_str().into()).collect();
        let mut all = named.clone();
        let mut matches: Option<TopicFilter> = None;
        if let Some(include) = &self.include {
            let filter: TopicFilter = Arc::new(topic_filter("--include", Some(include), exclude_internal)?);
            let matching = list_topics(cluster)?.into_iter().filter(|(name, is_internal)| filter(name, *is_internal));
            all.extend(matching.map(|(name, _)| name));
            if all.is_empty() {
                return Err(Failure::new(format!(
                    "no topic matches {include}; `fullbore topics list` shows those there are"
                )));
            }
            matches = Some(filter);
        }
        all.sort();
        all.dedup();
        Ok(TopicSelection { named, matches, all })
    }
}
