//! `topics offsets` prints the lines of kafka-get-offsets.sh, or one JSON document.

use super::select::{Select, must_exist, selected};
use crate::client_id;
use crate::failure::Failure;
use crate::output::{self, line};
use clap::Args;
use fullbore_bench::report::json::{array, object, string};
use fullbore_client::ClientError;
use fullbore_client::blocking::{EARLIEST, FoundOffsets, LATEST};
use fullbore_wire::Text;

/// In ListOffsets this timestamp stands for the record with the largest timestamp.
const MAX_TIMESTAMP: i64 = -3;

#[derive(Args, Debug)]
pub struct Offsets {
    #[command(flatten)]
    select: Select,
    /// Only these partitions.
    #[arg(long, value_name = "NUMBER,...", value_delimiter = ',', value_parser = clap::value_parser!(i32).range(0..))]
    partitions: Vec<i32>,
    /// The offset: latest, the end; earliest, the start; max-timestamp, of the record with the largest timestamp; or
    /// milliseconds since 1970, of the first record that is not older.
    #[arg(long, value_name = "TIME", default_value = "latest", allow_hyphen_values = true, value_parser = time)]
    time: i64,
}

/// Parses `--time`, which is a name such as `latest`, the number that Kafka's tool uses for the name, or a time.
fn time(text: &str) -> Result<i64, String> {
    match text {
        "latest" => Ok(LATEST),
        "earliest" => Ok(EARLIEST),
        "max-timestamp" => Ok(MAX_TIMESTAMP),
        _ => text
            .parse()
            .ok()
            .filter(|time| *time >= MAX_TIMESTAMP)
            .ok_or_else(|| "must be latest, earliest, max-timestamp, or milliseconds since 1970".to_owned()),
    }
}

/// Prints the offsets. Leaves out partitions without a leader, or without a record for the requested time, as Kafka's
/// tool does. Prints errors of leaders to standard error, even with `--json`.
pub fn run(offsets: &Offsets) -> Result<(), Failure> {
    let select = &offsets.select;
    select.format.choose();
    let mut cluster = select.at.cluster(client_id::TOPICS)?;
    let pattern = select.pattern();
    let names = selected(&mut cluster, pattern.as_deref(), select.exclude_internal)?;
    must_exist(&names, pattern.as_deref(), select.if_exists)?;
    let places = cluster.partitions_of(&names)?;
    let is_wanted = |partition: i32| offsets.partitions.is_empty() || offsets.partitions.contains(&partition);
    let of: Vec<(Text, i32)> = places
        .into_values()
        .flatten()
        .filter(|place| is_wanted(place.partition))
        .map(|place| (place.topic, place.partition))
        .collect();
    let is_absent = |wanted: &&i32| of.iter().all(|(_, partition)| partition != *wanted);
    if let Some(absent) = offsets.partitions.iter().find(is_absent).filter(|_| !names.is_empty()) {
        return Err(Failure::new(match &names[..] {
            [one] => format!("topic '{one}' has no partition {absent}"),
            _ => format!("none of the topics has a partition {absent}"),
        }));
    }
    let FoundOffsets { offsets, refused, unreached } = cluster.offsets_found_at(&of, offsets.time);
    let found = offsets.iter().filter(|(_, offset)| **offset >= 0);
    if select.format.json {
        let document = |((topic, partition), offset): (&(Text, i32), &i64)| {
            object([("topic", string(topic)), ("partition", partition.to_string()), ("offset", offset.to_string())])
        };
        line(&object([("offsets", array(found.map(document))), ("failed", array(refused.iter().map(failure)))]));
    } else {
        found.for_each(|((topic, partition), offset)| line(&format!("{topic}:{partition}:{offset}")));
    }
    for ((topic, partition), error) in &refused {
        output::remark(format!("Skip getting offsets for topic-partition {topic}-{partition} due to error: {error}"));
    }
    match unreached.or_else(|| refused.into_values().next()) {
        Some(first) => Err(first.into()),
        None => Ok(()),
    }
}

fn failure(((topic, partition), error): (&(Text, i32), &ClientError)) -> String {
    let error = string(&error.to_string());
    object([("topic", string(topic)), ("partition", partition.to_string()), ("error", error)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_by_kafkas_names_and_numbers() {
        let read = ["latest", "-1", "earliest", "-2", "max-timestamp", "-3", "1767225600000"].map(time);
        assert_eq!(read, [-1, -1, -2, -2, -3, -3, 1_767_225_600_000].map(Ok));
        assert!(time("-4").is_err() && time("yesterday").is_err());
    }
}
