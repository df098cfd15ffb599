//! `topics elect-leaders` elects leaders. It prints the lines of kafka-leader-election.sh, or one JSON document.

use super::partitions::listed;
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line};
use clap::{ArgGroup, Args, ValueEnum};
use fullbore_bench::report::json::{array, object, string};
use fullbore_client::ClientError;
use fullbore_client::admin::{Elected, Election, PartitionElection, elect_leaders};
use fullbore_client::blocking::Cluster;
use fullbore_wire::Text;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(
    override_usage = "fullbore topics elect-leaders [OPTIONS] <TOPIC|--all-topic-partitions|--path-to-json-file FILE>"
)]
#[command(group = ArgGroup::new("which").required(true)
    .args(["topic", "name", "all_topic_partitions", "path_to_json_file"]))]
pub struct ElectLeaders {
    /// The election: preferred elects the first replica, if it is in sync; unclean elects any live replica, if no
    /// in-sync one is left.
    #[arg(long, value_name = "TYPE", default_value = "preferred", ignore_case = true)]
    election_type: ElectionType,
    /// The topic.
    #[arg(long)]
    topic: Option<String>,
    /// The topic, without the flag.
    #[arg(value_name = "TOPIC")]
    name: Option<String>,
    /// Only this partition of the topic.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["all_topic_partitions", "path_to_json_file"], value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// Every partition of every topic.
    #[arg(long)]
    all_topic_partitions: bool,
    /// A file with partitions: {"partitions": [{"topic": "t", "partition": 0}]}.
    #[arg(long, value_name = "FILE")]
    path_to_json_file: Option<PathBuf>,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Values of `--election-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ElectionType {
    Preferred,
    Unclean,
}

impl ElectionType {
    /// Returns the kind of election, with its name in Kafka's lines.
    fn election(self) -> (Election, &'static str) {
        match self {
            ElectionType::Preferred => (Election::Preferred, "PREFERRED"),
            ElectionType::Unclean => (Election::Unclean, "UNCLEAN"),
        }
    }
}

/// Elects the leaders. If the election fails for one partition, still elects leaders of the others.
pub fn run(elect: &ElectLeaders) -> Result<(), Failure> {
    elect.format.choose();
    let mut cluster = elect.at.cluster(client_id::TOPICS)?;
    let (election, name) = elect.election_type.election();
    let of = elect.partitions(&mut cluster)?;
    let outcomes = elect_leaders(&mut cluster, election, of.as_deref())?;
    match elect.format.json {
        true => line(&document(&outcomes)),
        false => lines(&outcomes, name).iter().for_each(|text| line(text)),
    }
    let refused = outcomes.into_iter().find_map(|(_, outcome)| match outcome {
        Elected::Refused(error) => Some(error),
        _ => None,
    });
    match refused {
        Some(first) => Err(first.into()),
        None => Ok(()),
    }
}

impl ElectLeaders {
    /// Returns the partitions that the flags select, or `None` for all.
    fn partitions(&self, cluster: &mut Cluster) -> Result<Option<Vec<(Text, i32)>>, Failure> {
        if self.all_topic_partitions {
            return Ok(None);
        }
        if let Some(path) = &self.path_to_json_file {
            return Ok(Some(listed(path)?.into_iter().map(|listed| listed.of).collect()));
        }
        let name: Text =
            self.topic.as_ref().or(self.name.as_ref()).map_or_else(Text::default, |name| name.as_str().into());
        let found = cluster.partitions_of(std::slice::from_ref(&name))?;
        let places = found.get(&name).ok_or_else(|| ClientError::NoTopic(name.to_string()))?;
        let is_wanted = |partition: i32| self.partition.is_none_or(|wanted| wanted == partition);
        let partitions: Vec<(Text, i32)> = places
            .iter()
            .filter(|place| is_wanted(place.partition))
            .map(|place| (name.clone(), place.partition))
            .collect();
        match (partitions.is_empty(), self.partition) {
            (true, Some(absent)) => Err(Failure::new(format!("topic '{name}' has no partition {absent}"))),
            _ => Ok(Some(partitions)),
        }
    }
}

fn lines(outcomes: &[PartitionElection], election: &str) -> Vec<String> {
    let of = |is: fn(&Elected) -> bool| {
        let names = outcomes.iter().filter(|(_, outcome)| is(outcome));
        names.map(|((topic, partition), _)| format!("{topic}-{partition}")).collect::<Vec<_>>().join(", ")
    };
    let changed = of(|outcome| matches!(outcome, Elected::Changed));
    let not_needed = of(|outcome| matches!(outcome, Elected::NotNeeded));
    let mut lines = Vec::new();
    if !changed.is_empty() {
        lines.push(format!("Successfully completed leader election ({election}) for partitions {changed}"));
    }
    if !not_needed.is_empty() {
        lines.push(format!("Valid replica already elected for partitions {not_needed}"));
    }
    lines.extend(outcomes.iter().filter_map(|((topic, partition), outcome)| match outcome {
        Elected::Refused(error) => {
            Some(format!("Error completing leader election ({election}) for partition: {topic}-{partition}: {error}"))
        }
        _ => None,
    }));
    if lines.is_empty() {
        lines.push("Valid replica already elected for all partitions".to_owned());
    }
    lines
}

fn document(outcomes: &[PartitionElection]) -> String {
    let one = |((topic, partition), outcome): &PartitionElection| {
        let (outcome, error) = match outcome {
            Elected::Changed => ("elected", None),
            Elected::NotNeeded => ("not_needed", None),
            Elected::Refused(error) => ("refused", Some(error.to_string())),
        };
        let error = error.map(|error| ("error", string(&error)));
        let members = [("topic", string(topic)), ("partition", partition.to_string()), ("outcome", string(outcome))];
        object(members.into_iter().chain(error))
    };
    object([("partitions", array(outcomes.iter().map(one)))])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_elections_are_kafkas() {
        let refused = || Elected::Refused(ClientError::NoGroup("g".into()));
        let outcomes =
            [(("t".into(), 0), Elected::Changed), (("t".into(), 1), Elected::Changed), (("u".into(), 0), refused())];
        let reported = lines(&outcomes, "PREFERRED");
        assert_eq!(reported[0], "Successfully completed leader election (PREFERRED) for partitions t-0, t-1");
        assert!(
            reported[1].starts_with("Error completing leader election (PREFERRED) for partition: u-0: "),
            "{reported:?}"
        );
        let none = [(("t".into(), 0), Elected::NotNeeded)];
        assert_eq!(lines(&none, "UNCLEAN"), ["Valid replica already elected for partitions t-0"]);
        assert_eq!(document(&none), "{\"partitions\":[{\"topic\":\"t\",\"partition\":0,\"outcome\":\"not_needed\"}]}");
    }
}
