//! `groups list` lists groups.

use crate::client::Where;
use crate::client_id;
use crate::failure::{Failure, completeness};
use crate::output::{Format, line, name};
use crate::table::aligned;
use clap::Args;
use fullbore_bench::report::json::{array, object, string};
use fullbore_client::admin::{GroupAdmin, GroupListing};

/// The states of a consumer group, in Kafka's spelling.
const STATES: [&str; 7] =
    ["Stable", "Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Dead"];
/// The types of a consumer group.
const TYPES: [&str; 2] = ["Classic", "Consumer"];

#[derive(Args, Debug)]
pub struct List {
    /// Print the states, too, and only groups in one of these states.
    #[arg(long, value_name = "STATE,...", num_args = 0..=1, default_missing_value = "", value_parser = states)]
    state: Option<Words>,
    /// Print the types, too, and only groups of one of these types: classic, consumer.
    #[arg(long, value_name = "TYPE,...", num_args = 0..=1, default_missing_value = "", value_parser = types)]
    r#type: Option<Words>,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// The states or types that the user has typed. An empty list stands for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words(Vec<String>);

fn states(text: &str) -> Result<Words, String> {
    words(text, &STATES)
}

fn types(text: &str) -> Result<Words, String> {
    words(text, &TYPES)
}

fn words(text: &str, known: &[&str]) -> Result<Words, String> {
    let bare = |word: &str| word.replace(['-', '_', ' '], "").to_ascii_lowercase();
    let word = |word: &str| {
        let found = known.iter().find(|known| bare(known) == bare(word));
        found.map(|found| (*found).to_owned()).ok_or_else(|| format!("must be some of {}", known.join(", ")))
    };
    text.split(',').filter(|word| !word.trim().is_empty()).map(word).collect::<Result<_, _>>().map(Words)
}

/// Lists the groups.
pub fn run(list: &List) -> Result<(), Failure> {
    list.format.choose();
    let mut cluster = list.at.cluster(client_id::GROUPS)?;
    let (states, types) = (list.state.clone().unwrap_or_default(), list.r#type.clone().unwrap_or_default());
    let listed = GroupAdmin::of(&mut cluster, list.at.patience())?.listed(&states.0, &types.0);
    let (found, failed) = listed.parts()?;
    if list.format.json {
        line(&object([("groups", array(found.iter().map(document)))]));
    } else if list.state.is_none() && list.r#type.is_none() {
        found.iter().for_each(|group| line(&name(&group.id)));
    } else {
        table(&found, list.r#type.is_some(), list.state.is_some()).iter().for_each(|text| line(text));
    }
    completeness(failed)
}

/// Returns the table of kafka-consumer-groups.sh.
fn table(groups: &[GroupListing], with_type: bool, with_state: bool) -> Vec<String> {
    let row = |id: &str, kind: &str, state: &str| {
        let mut row = vec![id.to_owned()];
        row.extend(with_type.then(|| kind.to_owned()));
        row.extend(with_state.then(|| state.to_owned()));
        row
    };
    let mut rows = vec![row("GROUP", "TYPE", "STATE")];
    let known = |text: &'static str, found: &str| if found.is_empty() { text.to_owned() } else { found.to_owned() };
    rows.extend(
        groups
            .iter()
            .map(|group| row(&group.id, &known("Unknown", &capital(&group.kind)), &known("Unknown", &group.state))),
    );
    let longest = groups.iter().map(|group| group.id.chars().count()).max().unwrap_or(0).max(15);
    aligned(&rows, &[longest + 10, 20, 20])
}

/// Returns the word with a capital letter. Brokers write types in lower case, but Kafka's tool prints them with a
/// capital.
fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

fn document(group: &GroupListing) -> String {
    object([
        ("group", string(&group.id)),
        ("type", string(&group.kind.to_ascii_lowercase())),
        ("state", string(&group.state)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_types_are_parsed_as_in_kafka() {
        assert_eq!(states("stable,preparing_rebalance"), Ok(Words(vec!["Stable".into(), "PreparingRebalance".into()])));
        assert_eq!(types(""), Ok(Words(vec![])));
        assert!(states("foo").expect_err("none").contains("must be some of Stable, Empty"));
    }

    /// The expected table was captured from Kafka 4.3.1, without the blanks at the end of lines.
    #[test]
    fn the_table_of_groups_is_kafkas() {
        let group =
            |id: &str, kind: &str, state: &str| GroupListing { id: id.into(), kind: kind.into(), state: state.into() };
        let groups = [group("gclassic", "Classic", "Empty"), group("gcons", "consumer", "Stable")];
        assert_eq!(
            table(&groups, true, true),
            [
                "GROUP                     TYPE                 STATE",
                "gclassic                  Classic              Empty",
                "gcons                     Consumer             Stable",
            ]
        );
    }
}
