//! The table of a group's members.

use crate::table::{fitted, or_dash};
use fullbore_bench::report::json::{list, object, plain, string, text};
use fullbore_client::admin::{GroupDescription, GroupMember};
use fullbore_wire::Text;
use std::collections::BTreeMap;

/// Returns the table of kafka-consumer-groups.sh. The column of static members' ids appears only if the group has a
/// static member. While the group changes its protocol, another column marks members that still use the older protocol.
pub fn table(group: &GroupDescription, verbose: bool, limit: Option<usize>) -> Vec<String> {
    let members = &group.members;
    let with_instance = members.iter().any(|member| member.instance_id.is_some());
    let with_upgraded = [true, false].iter().all(|is| members.iter().any(|member| member.is_upgraded == Some(*is)));
    // The name of the column, its minimum width, and a member's value.
    type Column<'a> = (&'static str, usize, Box<dyn Fn(&GroupMember) -> String + 'a>);
    let mut columns: Vec<Column<'_>> = vec![
        ("GROUP", 15, Box::new(|_| group.id.to_string())),
        ("CONSUMER-ID", 15, Box::new(|member| member.id.to_string())),
    ];
    if with_instance {
        let instance = |member: &GroupMember| member.instance_id.clone().unwrap_or_default().to_string();
        columns.push(("GROUP-INSTANCE-ID", 17, Box::new(instance)));
    }
    columns.push(("HOST", 15, Box::new(|member| member.host.to_string())));
    columns.push(("CLIENT-ID", 15, Box::new(|member| member.client_id.to_string())));
    columns.push(("#PARTITIONS", 15, Box::new(|member| member.assignment.len().to_string())));
    if verbose {
        columns.push(("CURRENT-EPOCH", 15, Box::new(|member| or_dash(member.epoch))));
        columns.push(("CURRENT-ASSIGNMENT", 20, Box::new(|member| assigned(&member.assignment))));
        columns.push(("TARGET-EPOCH", 15, Box::new(|_| or_dash(group.target_epoch))));
        let target = |member: &GroupMember| assigned(member.target.as_deref().unwrap_or_default());
        columns.push(("TARGET-ASSIGNMENT", 20, Box::new(target)));
        if with_upgraded {
            columns.push(("UPGRADED", 0, Box::new(|member| or_dash(member.is_upgraded))));
        }
    }
    let mut rows = vec![columns.iter().map(|(name, ..)| (*name).to_owned()).collect::<Vec<_>>()];
    rows.extend(members.iter().map(|member| columns.iter().map(|(.., value)| value(member)).collect()));
    let widths: Vec<usize> = columns.iter().map(|(_, width, _)| *width).collect();
    fitted(&rows, &widths, limit)
}

/// Formats partitions as in `t1:0,1;t2:0`.
fn assigned(partitions: &[(Text, i32)]) -> String {
    let mut by_topic: BTreeMap<&Text, Vec<String>> = BTreeMap::new();
    for (topic, partition) in partitions {
        by_topic.entry(topic).or_default().push(partition.to_string());
    }
    let topics: Vec<String> =
        by_topic.iter().map(|(topic, numbers)| format!("{topic}:{}", numbers.join(","))).collect();
    or_dash((!topics.is_empty()).then(|| topics.join(";")))
}

/// Returns the member as JSON.
pub fn document(member: &GroupMember) -> String {
    let partition =
        |(topic, partition): &(Text, i32)| object([("topic", string(topic)), ("partition", partition.to_string())]);
    let partitions = |all: &[(Text, i32)]| list(all.iter().map(partition));
    object([
        ("member_id", string(&member.id)),
        ("instance_id", text(member.instance_id.as_deref())),
        ("host", string(&member.host)),
        ("client_id", string(&member.client_id)),
        ("epoch", plain(member.epoch)),
        ("is_upgraded", plain(member.is_upgraded)),
        ("assignment", partitions(&member.assignment)),
        ("target_assignment", plain(member.target.as_deref().map(partitions))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_client::admin::GroupProtocol;
    use fullbore_client::blocking::BrokerAddress;

    fn group(members: Vec<GroupMember>) -> GroupDescription {
        GroupDescription {
            id: "gcons".into(),
            protocol: GroupProtocol::Consumer,
            state: "Stable".into(),
            coordinator: BrokerAddress { id: 1, host: "h".into(), port: 1 },
            assignor: "uniform".into(),
            epoch: Some(2),
            target_epoch: Some(2),
            members,
        }
    }

    fn member() -> GroupMember {
        let assignment = vec![("t1".into(), 0), ("t1".into(), 1), ("t1".into(), 2), ("t2".into(), 0)];
        GroupMember {
            id: "pyObicfWRLyTwndTZWW8AQ".into(),
            instance_id: None,
            client_id: "console-consumer".into(),
            host: "/127.0.0.1".into(),
            epoch: Some(2),
            assignment: assignment.clone(),
            target: Some(assignment),
            is_upgraded: Some(true),
        }
    }

    /// The expected rows were captured from Kafka 4.3.1, without the blanks at the end of lines.
    #[test]
    fn rows_of_members_are_kafkas() {
        assert_eq!(
            table(&group(vec![member()]), true, None),
            [
                "GROUP           CONSUMER-ID            HOST            CLIENT-ID        #PARTITIONS     CURRENT-EPOCH   \
                 CURRENT-ASSIGNMENT   TARGET-EPOCH    TARGET-ASSIGNMENT",
                "gcons           pyObicfWRLyTwndTZWW8AQ /127.0.0.1      console-consumer 4               2               \
                 t1:0,1,2;t2:0        2               t1:0,1,2;t2:0",
            ]
        );
        assert_eq!(
            table(&group(vec![]), false, None),
            ["GROUP           CONSUMER-ID     HOST            CLIENT-ID       #PARTITIONS"]
        );
    }

    #[test]
    fn columns_without_information_are_left_out() {
        let old = GroupMember { is_upgraded: Some(false), instance_id: Some("one".into()), ..member() };
        let heading = |members| table(&group(members), true, None)[0].clone();
        assert!(!heading(vec![old.clone()]).contains("UPGRADED") && heading(vec![old.clone()]).contains("INSTANCE"));
        assert!(heading(vec![old, member()]).ends_with(" UPGRADED"));
        assert!(!heading(vec![member()]).contains("INSTANCE"));
    }
}
