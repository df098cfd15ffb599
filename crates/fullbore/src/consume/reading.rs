//! The topics to read, and the outcome of a read.

use super::args::Consume;
use crate::failure::Failure;
use crate::topics::topic_filter;
use fullbore_client::admin::list_topics;
use fullbore_client::blocking::Cluster;
use fullbore_client::consume::TopicFilter;
use fullbore_wire::Text;
use std::sync::Arc;
use std::time::Duration;

/// How long after SIGTERM the command still writes records that it has read.
pub(super) const INTERRUPTED_PATIENCE: Duration = Duration::from_secs(5);
/// How long after Ctrl-C the command still writes records that it has read.
pub(super) const CTRL_C_PATIENCE: Duration = Duration::from_millis(150);

/// Maximum number of topics that [`TopicSelection::waits_for`] names.
const NAMED_TOPICS_MAX: usize = 3;

/// The outcome of a read.
pub(super) struct End {
    /// True if the read reached its planned end.
    pub(super) finished: bool,
    /// A sentence about a partition that could not be read.
    pub(super) unread: Option<String>,
}

/// The topics to read.
pub(super) struct TopicSelection {
    /// The topics that the flags name.
    pub(super) named: Vec<Text>,
    /// The filter that selects further topics by their names, if there is one.
    pub(super) matches: Option<TopicFilter>,
    /// The topics that existed when the command started.
    pub(super) all: Vec<Text>,
}

impl TopicSelection {
    /// Returns the line that is printed if no record has arrived yet. `from_now` is true if the read started at the log
    /// ends.
    pub(super) fn waits_for(&self, from_now: bool) -> String {
        let names = self.all.iter().take(NAMED_TOPICS_MAX).map(|topic| &**topic).collect::<Vec<_>>().join(", ");
        let more = if self.all.len() > NAMED_TOPICS_MAX { ", ..." } else { "" };
        match from_now {
            true => format!(
                "no record of {names}{more} came since the start; --from-beginning reads older records, too; Ctrl-C \
                 ends"
            ),
            false => format!("no record of {names}{more} yet; Ctrl-C ends"),
        }
    }
}

impl Consume {
    /// Returns the topics that the flags name, or whose names match the flags.
    pub(super) fn topics(&self, cluster: &mut Cluster, exclude_internal: bool) -> Result<TopicSelection, Failure> {
        let named: Vec<Text> = self.named().map(|topic| topic.as_str().into()).collect();
        let mut all = named.clone();
        let mut matches: Option<TopicFilter> = None;
        if let Some(include) = &self.include {
            let filter: TopicFilter = Arc::new(topic_filter("--include", Some(include), exclude_internal)?);
            let matching = list_topics(cluster)?.into_iter().filter(|(name, is_internal)| filter(name, *is_internal));
            all.extend(matching.map(|(name, _)| name));
            if all.is_empty() {
                return Err(Failure::new(format!("no topic matches {include}; `fullbore topics list` shows all")));
            }
            matches = Some(filter);
        }
        all.sort();
        all.dedup();
        Ok(TopicSelection { named, matches, all })
    }
}
