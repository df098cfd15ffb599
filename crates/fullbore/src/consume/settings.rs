//! What properties and the flags that stand for some settle: how to fetch, and the group to be in.

use super::args::Consume;
use crate::failure::Failure;
use fullbore_broker::config::Properties;
use fullbore_client::consume::{FetchSettings, Start};
use fullbore_client::group::{Assignor, GroupConfig, Protocol};
use fullbore_wire::Text;
use std::time::Duration;

/// auto.commit.interval.ms.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// What properties settle.
pub(super) struct Settings {
    pub(super) fetch: FetchSettings,
    /// Whether patterns do not match internal topics.
    pub(super) exclude_internal: bool,
    /// auto.commit.interval.ms, unless enable.auto.commit=false.
    pub(super) commit_interval: Option<Duration>,
    /// The group's, for later checks and defaults: it needs a name and topics yet.
    pub(super) group: GroupConfig,
}

impl Settings {
    /// The member to be, if there is a group.
    pub(super) fn group(&self, args: &Consume, topics: Vec<Text>) -> Result<Option<GroupConfig>, Failure> {
        let group = args.group.as_deref().map(Text::from);
        match group {
            Some(group) if group.is_empty() => Err(Failure::new("--group: must not be empty")),
            group => Ok(group.map(|group| GroupConfig { group, topics, ..self.group.clone() })),
        }
    }
}

/// What is allowed of a value that is not.
type Allowed = Result<(), &'static str>;

impl Settings {
    /// Sets what a fetch needs; `None` for any other key.
    pub(super) fn set_fetch(&mut self, key: &str, value: &str) -> Option<Allowed> {
        let number = |into: &mut i32| {
            *into = value.parse::<i32>().ok().filter(|n| *n >= 0).ok_or("must be 0 or more")?;
            Ok(())
        };
        let chosen = |choice: Option<()>, allowed| choice.ok_or(allowed);
        Some(match key {
            "fetch.max.wait.ms" => number(&mut self.fetch.max_wait_ms),
            "fetch.min.bytes" => number(&mut self.fetch.min_bytes),
            "fetch.max.bytes" => number(&mut self.fetch.max_bytes),
            "max.partition.fetch.bytes" => number(&mut self.fetch.partition_max_bytes),
            "check.crcs" => chosen(value.parse().ok().map(|is| self.fetch.check_crcs = is), "must be true or false"),
            "isolation.level" => {
                let committed = match value.to_ascii_lowercase().as_str() {
                    "read_committed" => Some(true),
                    "read_uncommitted" => Some(false),
                    _ => None,
                };
                let choice = committed.map(|is| self.fetch.read_committed = is);
                chosen(choice, "must be read_committed or read_uncommitted")
            }
            "auto.offset.reset" => {
                let reset = match value {
                    "earliest" => Some(Some(Start::Earliest)),
                    "latest" => Some(Some(Start::Latest)),
                    "none" => Some(None),
                    _ => None,
                };
                chosen(reset.map(|reset| self.fetch.reset = reset), "must be earliest, latest or none")
            }
            _ => return None,
        })
    }

    /// Sets what a member needs; `None` for any other key.
    pub(super) fn set_group(&mut self, key: &str, value: &str) -> Option<Allowed> {
        let group = &mut self.group;
        let time = |into: &mut Duration| {
            *into = milliseconds(value)?;
            Ok(())
        };
        Some(match key {
            "group.instance.id" => {
                group.instance = Some(value.into());
                Ok(())
            }
            "group.remote.assignor" => {
                group.remote_assignor = Some(value.into());
                Ok(())
            }
            "group.protocol" => match value.to_ascii_lowercase().as_str() {
                "classic" => {
                    group.protocol = Protocol::Classic;
                    Ok(())
                }
                "consumer" => {
                    group.protocol = Protocol::Consumer;
                    Ok(())
                }
                _ => Err("must be classic or consumer"),
            },
            "session.timeout.ms" => time(&mut group.session_timeout),
            "heartbeat.interval.ms" => time(&mut group.heartbeat_interval),
            "max.poll.interval.ms" => time(&mut group.rebalance_timeout),
            "metadata.max.age.ms" => time(&mut group.metadata_max_age),
            "partition.assignment.strategy" => {
                let named: Option<Vec<Assignor>> = value.split(',').map(|name| Assignor::named(name.trim())).collect();
                let choice = named.map(|assignors| group.assignors = assignors);
                choice.ok_or("must be range, roundrobin or cooperative-sticky, or several with commas")
            }
            _ => return None,
        })
    }
}

fn milliseconds(value: &str) -> Result<Duration, &'static str> {
    let parsed = value.parse::<u32>().ok().filter(|ms| *ms > 0);
    parsed.map(|ms| Duration::from_millis(ms.into())).ok_or("must be a number of milliseconds above 0")
}

impl Consume {
    /// What flags and properties settle.
    pub(super) fn settings(&self, properties: &Properties) -> Result<Settings, Failure> {
        let group_starts = if self.from_beginning { Start::Earliest } else { Start::Latest };
        let reset = self.group.is_some().then_some(group_starts);
        let fetch = FetchSettings { reset, ..FetchSettings::default() };
        let group = GroupConfig::new(Text::default(), Vec::new());
        let mut settings = Settings { fetch, exclude_internal: true, commit_interval: Some(COMMIT_INTERVAL), group };
        let flags = [
            ("isolation.level", &self.isolation_level),
            ("group.instance.id", &self.group_instance_id),
            ("group.protocol", &self.group_protocol),
        ];
        let flags = flags.into_iter().filter_map(|(key, value)| Some((key, value.as_deref()?)));
        let (mut commits, mut interval) = (true, COMMIT_INTERVAL);
        for (key, value) in properties.iter().chain(flags) {
            let wrong = |allowed: &str| Failure::new(format!("{key}={value}: {allowed}"));
            match key {
                "enable.auto.commit" => commits = value.parse().map_err(|_| wrong("must be true or false"))?,
                "exclude.internal.topics" => {
                    settings.exclude_internal = value.parse().map_err(|_| wrong("must be true or false"))?;
                }
                "auto.commit.interval.ms" => interval = milliseconds(value).map_err(wrong)?,
                // Others are every client's, or told to have no effect.
                key => {
                    let known = settings.set_fetch(key, value).or_else(|| settings.set_group(key, value));
                    known.unwrap_or(Ok(())).map_err(wrong)?;
                }
            }
        }
        settings.commit_interval = commits.then_some(interval);
        Ok(settings)
    }
}
