//! `groups describe` prints the three tables of kafka-consumer-groups.sh, or one JSON document. The modules `offsets`
//! and `members` format two of the tables.

mod members;
mod offsets;

use super::select::Which;
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{self, Format, line, name};
use crate::table::{fitted, or_dash, row};
use clap::{ArgGroup, Args};
use fullbore_bench::report::json::{array, object, plain, string};
use fullbore_client::ClientError;
use fullbore_client::admin::{GroupAdmin, GroupDescription};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("what").args(["offsets", "members", "state"]))]
pub struct DescribeGroupsArgs {
    #[command(flatten)]
    which: Which,
    /// Print the offsets and the lag of every partition; the default.
    #[arg(long)]
    offsets: bool,
    /// Print the members.
    #[arg(long)]
    members: bool,
    /// Print the state and the coordinator.
    #[arg(long)]
    state: bool,
    /// Print more columns: epochs and assignments.
    #[arg(long)]
    verbose: bool,
    /// Print the table as wide as kafka-consumer-groups.sh does, even if the terminal is narrower; otherwise cells are
    /// cut and columns left out to fit it.
    #[arg(long)]
    wide: bool,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

/// Describes the groups. If a group does not exist, still describes the others.
pub fn run(describe: &DescribeGroupsArgs) -> Result<(), Failure> {
    describe.format.choose();
    let mut cluster = describe.at.cluster(client_id::GROUPS)?;
    let mut groups = GroupAdmin::of(&mut cluster, describe.at.patience())?;
    let ids = describe.which.ids(&mut groups)?;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for outcome in groups.describe(&ids)? {
        match outcome {
            Ok(group) => found.push(group),
            // With --all-groups, a group may have been deleted since it was listed.
            Err(ClientError::NoGroup(_)) if describe.which.all_groups => {}
            Err(error) => missing.push(error),
        }
    }
    if describe.format.json {
        line(&document(describe, &mut groups, &found)?);
    } else {
        show(describe, &mut groups, &found)?;
    }
    match missing.into_iter().next() {
        Some(first) => Err(first.into()),
        None => Ok(()),
    }
}

fn show(describe: &DescribeGroupsArgs, groups: &mut GroupAdmin<'_>, found: &[GroupDescription]) -> Result<(), Failure> {
    let mut offsets = match describe.members || describe.state {
        true => Vec::new(),
        false => offsets::of(groups, found)?,
    }
    .into_iter();
    let limit = if describe.wide { None } else { output::width() };
    for group in found {
        if let Some(remark) = remark(group) {
            output::remark(format!("\n{remark}"));
        }
        let table = if describe.members {
            members::table(group, describe.verbose, limit)
        } else if describe.state {
            state_table(group, describe.verbose, limit)
        } else {
            offsets::table(&offsets.next().unwrap_or_default(), describe.verbose, limit)
        };
        if !table.is_empty() {
            line("");
            table.iter().for_each(|text| line(text));
        }
    }
    Ok(())
}

fn document(
    describe: &DescribeGroupsArgs,
    groups: &mut GroupAdmin<'_>,
    found: &[GroupDescription],
) -> Result<String, Failure> {
    let mut objects = Vec::new();
    let offsets = match describe.members || describe.state {
        true => vec![None; found.len()],
        false => offsets::of(groups, found)?.into_iter().map(Some).collect(),
    };
    for (group, rows) in found.iter().zip(offsets) {
        let coordinator = object([
            ("id", group.coordinator.id.to_string()),
            ("host", string(&group.coordinator.host)),
            ("port", group.coordinator.port.to_string()),
        ]);
        let mut fields = vec![
            ("group", string(&group.id)),
            ("type", string(group.protocol.name())),
            ("state", string(&group.state)),
            ("coordinator", coordinator),
            ("assignor", string(&group.assignor)),
            ("epoch", plain(group.epoch)),
            ("target_epoch", plain(group.target_epoch)),
            ("member_count", group.members.len().to_string()),
        ];
        fields.extend(rows.map(|rows| ("offsets", array(rows.iter().map(offsets::Row::document)))));
        fields.extend(describe.members.then(|| ("members", array(group.members.iter().map(members::document)))));
        objects.push(object(fields));
    }
    Ok(object([("groups", array(objects))]))
}

/// Returns the remark that kafka-consumer-groups.sh prints before the figures of groups in some states, or `None`.
fn remark(group: &GroupDescription) -> Option<String> {
    let id = name(&group.id);
    match &*group.state {
        "Empty" => Some(format!("Consumer group '{id}' has no active members.")),
        "PreparingRebalance" | "CompletingRebalance" | "Assigning" | "Reconciling" => {
            Some(format!("Warning: Consumer group '{id}' is rebalancing."))
        }
        _ => None,
    }
}

fn state_table(group: &GroupDescription, verbose: bool, limit: Option<usize>) -> Vec<String> {
    let coordinator = format!("{}  ({})", group.coordinator.address(), group.coordinator.id);
    let assignor = or_dash((!group.assignor.is_empty()).then_some(&group.assignor));
    let members = group.members.len().to_string();
    if verbose {
        let heading = [
            "GROUP",
            "COORDINATOR (ID)",
            "ASSIGNMENT-STRATEGY",
            "STATE",
            "GROUP-EPOCH",
            "TARGET-ASSIGNMENT-EPOCH",
            "#MEMBERS",
        ];
        let (epoch, target) = (or_dash(group.epoch), or_dash(group.target_epoch));
        let values = [&group.id, &*coordinator, &assignor, &group.state, &epoch, &target, &members];
        fitted(&[row(heading), row(values)], &[15, 25, 20, 20, 15, 25], limit)
    } else {
        let heading = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"];
        let values = [&group.id, &*coordinator, &assignor, &group.state, &members];
        fitted(&[row(heading), row(values)], &[15, 25, 20, 20], limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_client::admin::GroupProtocol;
    use fullbore_client::blocking::BrokerAddress;

    /// The expected rows were captured from Kafka 4.3.1.
    #[test]
    fn rows_of_states_are_kafkas() {
        let group = GroupDescription {
            id: "gcons".into(),
            protocol: GroupProtocol::Consumer,
            state: "Empty".into(),
            coordinator: BrokerAddress { id: 1, host: "127.0.0.1".into(), port: 27192 },
            assignor: "uniform".into(),
            epoch: Some(2),
            target_epoch: Some(2),
            members: vec![],
        };
        assert_eq!(
            state_table(&group, false, None),
            [
                "GROUP           COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE                #MEMBERS",
                "gcons           127.0.0.1:27192  (1)      uniform              Empty                0",
            ]
        );
        assert_eq!(
            state_table(&group, true, None),
            [
                "GROUP           COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE                GROUP-EPOCH     \
                 TARGET-ASSIGNMENT-EPOCH   #MEMBERS",
                "gcons           127.0.0.1:27192  (1)      uniform              Empty                2               \
                 2                         0",
            ]
        );
        assert_eq!(remark(&group).as_deref(), Some("Consumer group 'gcons' has no active members."));
        assert_eq!(remark(&GroupDescription { state: "Stable".into(), ..group }), None);
    }
}
