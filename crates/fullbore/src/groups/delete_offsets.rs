//! `groups delete-offsets` deletes committed offsets.

use super::select::{SelectedTopic, topic};
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line, name};
use crate::table::{aligned, row};
use clap::Args;
use fullbore_bench::report::json::{array, object, string, text};
use fullbore_client::ClientError;
use fullbore_client::admin::GroupAdmin;
use fullbore_wire::{ErrorCode, Text};
use std::collections::BTreeMap;

#[derive(Args, Debug)]
pub struct DeleteOffsets {
    /// The group.
    #[arg(long)]
    group: String,
    /// A topic, or some of its partitions: orders:0,1; may be repeated.
    #[arg(long, value_name = "TOPIC[:PARTITION,...]", required = true, value_parser = topic)]
    topic: Vec<SelectedTopic>,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Deletes the offsets.
pub fn run(delete: &DeleteOffsets) -> Result<(), Failure> {
    delete.format.choose();
    let mut cluster = delete.at.cluster(client_id::GROUPS)?;
    let mut groups = GroupAdmin::of(&mut cluster, delete.at.patience())?;
    let id: Text = delete.group.as_str().into();
    let partitions = meant(&mut groups, &id, &delete.topic)?;
    let outcomes = groups.delete_offsets(&id, &partitions)?;
    if delete.format.json {
        let partition = |((topic, partition), code): (&(Text, i32), &ErrorCode)| {
            object([
                ("topic", string(topic)),
                ("partition", partition.to_string()),
                ("error", text(code.is_err().then(|| code.message()))),
            ])
        };
        line(&object([("group", string(&id)), ("partitions", array(outcomes.iter().map(partition)))]));
    } else {
        show(&id, &outcomes);
    }
    match outcomes.iter().find(|(_, code)| code.is_err()) {
        None => Ok(()),
        Some(((topic, partition), code)) => {
            let next = match *code {
                ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC => " Stop the group's consumers of this topic first.",
                ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => {
                    " `fullbore groups describe` lists the partitions for which \
                     the group has offsets."
                }
                _ => "",
            };
            let what = format!("cannot delete the offset of {topic}-{partition} of group '{id}'");
            Err(Failure::new(format!("{}{next}", ClientError::kafka(what, *code, None))))
        }
    }
}

/// Returns the selected partitions. A topic without partition numbers selects all of its partitions. If the topic is
/// deleted, it selects all partitions in which the group has an offset.
fn meant(groups: &mut GroupAdmin<'_>, id: &Text, topics: &[SelectedTopic]) -> Result<Vec<(Text, i32)>, Failure> {
    let whole: Vec<Text> =
        topics.iter().filter(|topic| topic.partitions.is_none()).map(|topic| topic.name.clone()).collect();
    let found = groups.cluster().partitions_of(&whole)?;
    let is_gone = whole.iter().any(|name| !found.contains_key(name));
    let committed = if is_gone { groups.committed(id)? } else { BTreeMap::new() };
    let mut partitions: Vec<(Text, i32)> = Vec::new();
    for topic in topics {
        let before = partitions.len();
        match (&topic.partitions, found.get(&topic.name)) {
            (Some(numbers), _) => partitions.extend(numbers.iter().map(|number| (topic.name.clone(), *number))),
            (None, Some(places)) => {
                partitions.extend(places.iter().map(|place| (topic.name.clone(), place.partition)));
            }
            (None, None) => partitions.extend(committed.keys().filter(|(name, _)| *name == topic.name).cloned()),
        }
        if partitions.len() == before {
            return Err(ClientError::NoTopic(topic.name.to_string()).into());
        }
    }
    partitions.sort();
    partitions.dedup();
    Ok(partitions)
}

fn show(id: &Text, outcomes: &BTreeMap<(Text, i32), ErrorCode>) {
    if !outcomes.values().any(|code| code.is_err()) {
        line(&format!("Request succeeded for deleting offsets from group {}.", name(id)));
    }
    let mut rows = vec![row(["TOPIC", "PARTITION", "STATUS"])];
    rows.extend(outcomes.iter().map(|((topic, partition), code)| {
        let status = if code.is_err() { format!("Error: {}", code.message()) } else { "Successful".to_owned() };
        vec![topic.to_string(), partition.to_string(), status]
    }));
    line("");
    aligned(&rows, &[15, 10, 15]).iter().for_each(|text| line(text));
}
