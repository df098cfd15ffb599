//! Reads the settings of fetches and of the group from properties and flags.

use super::args::Consume;
use crate::failure::Failure;
use fullbore_client::ConsumerConfig;
use fullbore_client::consume::StartOffset;
use fullbore_client::group::GroupConfig;
use fullbore_config::Properties;
use fullbore_wire::Text;

/// Returns the settings of the membership, or `None` without a group.
pub(super) fn member_of(
    args: &Consume,
    settings: &ConsumerConfig,
    topics: Vec<Text>,
) -> Result<Option<GroupConfig>, Failure> {
    let group = args.group.as_deref().map(Text::from);
    match group {
        Some(group) if group.is_empty() => Err(Failure::new("--group: must not be empty")),
        group => Ok(group.map(|group| GroupConfig { group, topics, ..settings.group.clone() })),
    }
}

impl Consume {
    /// Returns the settings of the consumer, from flags and properties.
    pub(super) fn settings(&self, properties: &Properties) -> Result<ConsumerConfig, Failure> {
        let mut settings = ConsumerConfig::default();
        let group_starts = if self.from_beginning { StartOffset::Earliest } else { StartOffset::Latest };
        settings.fetch.skip_bad_batches = self.skip_bad_batches;
        settings.fetch.reset = self.group.is_some().then_some(group_starts);
        let flags = [
            ("isolation.level", &self.isolation_level),
            ("group.instance.id", &self.group_instance_id),
            ("group.protocol", &self.group_protocol),
        ];
        let flags = flags.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
        for (key, value) in properties.iter().chain(flags) {
            // `set` returns false for settings of connections, which are read elsewhere, and for keys whose lack of
            // effect was already reported. Both are ignored.
            settings.set(key, value)?;
        }
        Ok(settings)
    }
}
