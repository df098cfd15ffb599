//! Flags that select groups, topics and partitions.

use crate::failure::Failure;
use clap::{ArgGroup, Args};
use fullbore_client::ClientError;
use fullbore_client::admin::GroupAdmin;
use fullbore_client::blocking::{TopicPlaces, refused_topic};
use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet};

/// Flags that select groups.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).args(["group", "all_groups"]))]
pub struct Which {
    /// A group; may be repeated.
    #[arg(long, value_name = "GROUP")]
    pub group: Vec<String>,
    /// Every group.
    #[arg(long)]
    pub all_groups: bool,
}

impl Which {
    /// Returns the names of the selected groups, each once, in order.
    ///
    /// # Errors
    /// Returns [`Failure`] if the groups cannot be listed.
    pub fn ids(&self, groups: &mut GroupAdmin<'_>) -> Result<Vec<Text>, Failure> {
        let ids: BTreeSet<Text> = match self.all_groups {
            true => groups.list(&[], &[])?.into_iter().map(|group| group.id).collect(),
            false => self.group.iter().map(|id| id.as_str().into()).collect(),
        };
        Ok(ids.into_iter().collect())
    }
}

/// A selected topic, or some of its partitions: `TOPIC` or `TOPIC:0,1,2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedTopic {
    /// The name of the topic.
    pub name: Text,
    /// The selected partitions, or `None` for all.
    pub partitions: Option<Vec<i32>>,
}

/// Parses `TOPIC` or `TOPIC:0,1,2`. A topic's name cannot contain a colon.
pub fn topic(text: &str) -> Result<SelectedTopic, String> {
    let allowed = || "must be TOPIC or TOPIC:0,1,2".to_owned();
    let (name, partitions) = match text.split_once(':') {
        None => (text, None),
        Some((name, numbers)) => {
            let number = |number: &str| number.trim().parse::<i32>().ok().filter(|number| *number >= 0);
            let numbers: Option<Vec<i32>> = numbers.split(',').map(number).collect();
            (name, Some(numbers.ok_or_else(allowed)?))
        }
    };
    if name.is_empty() { Err(allowed()) } else { Ok(SelectedTopic { name: name.into(), partitions }) }
}

/// Returns the selected partitions, each once, in order. `places` has the partitions of the topics. Every returned
/// partition exists and has a leader.
///
/// # Errors
/// Fails at the first partition that does not exist or has no leader.
pub fn partitions(places: &BTreeMap<Text, TopicPlaces>, topics: &[SelectedTopic]) -> Result<Vec<(Text, i32)>, Failure> {
    let mut meant = BTreeSet::new();
    for topic in topics {
        let found = places.get(&topic.name).ok_or_else(|| ClientError::NoTopic(topic.name.to_string()))?;
        let places = found.as_ref().map_err(|code| refused_topic(*code, &topic.name))?;
        let all = || places.iter().map(|place| place.partition).collect();
        for partition in topic.partitions.clone().unwrap_or_else(all) {
            let Ok(at) = places.binary_search_by_key(&partition, |place| place.partition) else {
                let (name, count) = (&topic.name, places.len());
                return Err(Failure::new(format!(
                    "partition {partition} of topic '{name}' does not exist; the topic has {count}, numbered from 0"
                )));
            };
            if places[at].leader.is_none() {
                return Err(ClientError::NoLeader { topic: topic.name.to_string(), partition }.into());
            }
            meant.insert((topic.name.clone(), partition));
        }
    }
    Ok(meant.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_parsed_with_and_without_partitions() {
        assert_eq!(topic("t"), Ok(SelectedTopic { name: "t".into(), partitions: None }));
        assert_eq!(topic("t:0,2"), Ok(SelectedTopic { name: "t".into(), partitions: Some(vec![0, 2]) }));
        for wrong in ["", ":0", "t:", "t:x", "t:-1", "t:0:1"] {
            topic(wrong).expect_err(wrong);
        }
    }
}
