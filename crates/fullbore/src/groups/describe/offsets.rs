//! The table of a group's partitions, with committed offsets, ends and lag.

use crate::table::{fitted, or_dash, row};
use fullbore_bench::report::json::{object, plain, string, text};
use fullbore_client::ClientError;
use fullbore_client::admin::{CommittedOffset, GroupAdmin, GroupDescription, GroupMember};
use fullbore_client::blocking::LATEST;
use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet};

/// The row of one partition in the table.
#[derive(Clone, Debug)]
pub struct Row {
    group: Text,
    topic: Text,
    partition: i32,
    committed: Option<CommittedOffset>,
    end: Option<i64>,
    reader: Option<PartitionOwner>,
}

/// The member that reads a partition.
#[derive(Clone, Debug)]
struct PartitionOwner {
    id: Text,
    host: Text,
    client_id: Text,
}

impl Row {
    /// Returns how many records come after the committed offset, or `None` if the committed offset or the end of the
    /// partition is unknown.
    fn lag(&self) -> Option<i64> {
        Some(self.end? - self.committed.as_ref()?.offset)
    }

    /// Returns the row as JSON.
    pub fn document(&self) -> String {
        let of_reader = |field: fn(&PartitionOwner) -> &Text| text(self.reader.as_ref().map(|reader| &**field(reader)));
        object([
            ("topic", string(&self.topic)),
            ("partition", self.partition.to_string()),
            ("leader_epoch", plain(self.committed.as_ref().and_then(|committed| committed.leader_epoch))),
            ("current_offset", plain(self.committed.as_ref().map(|committed| committed.offset))),
            ("log_end_offset", plain(self.end)),
            ("lag", plain(self.lag())),
            ("member_id", of_reader(|reader| &reader.id)),
            ("host", of_reader(|reader| &reader.host)),
            ("client_id", of_reader(|reader| &reader.client_id)),
        ])
    }
}

/// Returns the rows of each group. The assigned partitions are first, those of the member with most partitions at the
/// top. Other partitions with committed offsets follow.
pub fn of(groups: &mut GroupAdmin<'_>, described: &[GroupDescription]) -> Result<Vec<Vec<Row>>, ClientError> {
    let ids: Vec<Text> = described.iter().map(|group| group.id.clone()).collect();
    let mut committed = groups.committed_each(&ids);
    let of_each = described.iter().map(|group| Ok(of_group(group, committed.take(&group.id)?)));
    let mut rows = of_each.collect::<Result<Vec<Vec<Row>>, ClientError>>()?;
    let wanted: BTreeSet<(Text, i32)> = rows.iter().flatten().map(|row| (row.topic.clone(), row.partition)).collect();
    let ends = groups.cluster().offsets_at(&wanted.into_iter().collect::<Vec<_>>(), LATEST)?;
    for row in rows.iter_mut().flatten() {
        row.end = ends.get(&(row.topic.clone(), row.partition)).copied().filter(|end| *end >= 0);
    }
    Ok(rows)
}

fn of_group(group: &GroupDescription, mut committed: BTreeMap<(Text, i32), CommittedOffset>) -> Vec<Row> {
    let mut members: Vec<&GroupMember> = group.members.iter().collect();
    members.sort_by_key(|member| std::cmp::Reverse(member.assignment.len()));
    let mut rows = Vec::new();
    let row = |(topic, partition): (Text, i32), committed, reader| Row {
        group: group.id.clone(),
        topic,
        partition,
        committed,
        end: None,
        reader,
    };
    for member in members {
        let reader =
            PartitionOwner { id: member.id.clone(), host: member.host.clone(), client_id: member.client_id.clone() };
        for of in &member.assignment {
            let committed = committed.remove(of);
            rows.push(row(of.clone(), committed, Some(reader.clone())));
        }
    }
    rows.extend(committed.into_iter().map(|(of, committed)| row(of, Some(committed), None)));
    rows
}

/// Returns the table of kafka-consumer-groups.sh. If there are no rows, returns no header either.
pub fn table(rows: &[Row], verbose: bool, limit: Option<usize>) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let dash =
        |reader: &Option<PartitionOwner>, field: fn(&PartitionOwner) -> &Text| or_dash(reader.as_ref().map(field));
    let mut lines = vec![row([
        "GROUP",
        "TOPIC",
        "PARTITION",
        "LEADER-EPOCH",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ])];
    lines.extend(rows.iter().map(|row| {
        vec![
            row.group.to_string(),
            row.topic.to_string(),
            row.partition.to_string(),
            or_dash(row.committed.as_ref().and_then(|committed| committed.leader_epoch)),
            or_dash(row.committed.as_ref().map(|committed| committed.offset)),
            or_dash(row.end),
            or_dash(row.lag()),
            dash(&row.reader, |reader| &reader.id),
            dash(&row.reader, |reader| &reader.host),
            dash(&row.reader, |reader| &reader.client_id),
        ]
    }));
    let mut widths = vec![15, 15, 10, 15, 15, 15, 15, 15, 15];
    if !verbose {
        widths.remove(3);
        lines.iter_mut().for_each(|row| drop(row.remove(3)));
    }
    fitted(&lines, &widths, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected rows were captured from Kafka 4.3.1.
    #[test]
    fn rows_of_offsets_are_kafkas() {
        let of = |partition, offset, end, reader| Row {
            group: "gclassic".into(),
            topic: "t1".into(),
            partition,
            committed: Some(CommittedOffset { offset, leader_epoch: Some(0), metadata: Text::default() }),
            end,
            reader,
        };
        let reader = PartitionOwner {
            id: "pyObicfWRLyTwndTZWW8AQ".into(),
            host: "/127.0.0.1".into(),
            client_id: "console-consumer".into(),
        };
        assert_eq!(
            table(&[of(0, 961, Some(961), None), of(1, 20, None, None)], false, None),
            [
                "GROUP           TOPIC           PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             \
                 CONSUMER-ID     HOST            CLIENT-ID",
                "gclassic        t1              0          961             961             0               \
                 -               -               -",
                "gclassic        t1              1          20              -               -               \
                 -               -               -",
            ]
        );
        assert_eq!(
            table(&[of(0, 960, Some(961), Some(reader))], true, None),
            [
                "GROUP           TOPIC           PARTITION  LEADER-EPOCH    CURRENT-OFFSET  LOG-END-OFFSET  LAG             \
                 CONSUMER-ID            HOST            CLIENT-ID",
                "gclassic        t1              0          0               960             961             1               \
                 pyObicfWRLyTwndTZWW8AQ /127.0.0.1      console-consumer",
            ]
        );
    }
}
