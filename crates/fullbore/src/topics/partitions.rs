//! Reads the partitions for a command from a JSON file of Kafka's tools.

use crate::failure::Failure;
use crate::pipe::json::{self, Value};
use fullbore_host::files::{LIST_FILE_MAX, read_text};
use fullbore_wire::Text;
use std::collections::HashSet;
use std::path::Path;

/// A partition, with an offset if the file has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPartition {
    /// The name of the topic, and the number of the partition.
    pub of: (Text, i32),
    /// The offset in the partition.
    pub offset: Option<i64>,
}

/// Reads the partitions of a file: {"partitions": [{"topic": NAME, "partition": NUMBER, "offset": NUMBER}]}.
///
/// # Errors
/// Fails if the file cannot be read, has another form, or names a partition twice.
pub fn listed(path: &Path) -> Result<Vec<ListedPartition>, Failure> {
    let shown = path.display();
    let text = read_text(path, LIST_FILE_MAX).map_err(|error| Failure::new(format!("cannot read {shown}: {error}")))?;
    let value = json::parse(&text).map_err(|wrong| Failure::new(format!("{shown}: {wrong}")))?;
    let listed = partitions(&value).ok_or_else(|| {
        Failure::new(format!(
            "{shown} must be like {{\"partitions\": [{{\"topic\": \"t\", \"partition\": 0, \"offset\": 5}}]}}"
        ))
    })?;
    match repeated(&listed) {
        Some((topic, partition)) => {
            Err(Failure::new(format!("{shown}: partition {partition} of '{topic}' is there twice; remove one of them")))
        }
        None => Ok(listed),
    }
}

/// Returns the first partition that the list has twice.
fn repeated(listed: &[ListedPartition]) -> Option<&(Text, i32)> {
    let mut seen = HashSet::new();
    listed.iter().map(|listed| &listed.of).find(|of| !seen.insert(*of))
}

fn partitions(value: &Value<'_>) -> Option<Vec<ListedPartition>> {
    let Value::Array(listed, _) = member(value, "partitions")? else { return None };
    listed.iter().map(partition).collect()
}

fn partition(value: &Value<'_>) -> Option<ListedPartition> {
    let Value::String(topic) = member(value, "topic")? else { return None };
    let number = |name: &str| match member(value, name) {
        Some(Value::Number(text)) => text.parse::<i64>().ok(),
        _ => None,
    };
    let partition = i32::try_from(number("partition")?).ok().filter(|partition| *partition >= 0)?;
    // The offset is optional, but must be a number.
    let offset = match member(value, "offset") {
        None => None,
        Some(_) => Some(number("offset")?),
    };
    Some(ListedPartition { of: ((&**topic).into(), partition), offset })
}

fn member<'a>(value: &'a Value<'_>, name: &str) -> Option<&'a Value<'a>> {
    let Value::Object(members, _) = value else { return None };
    members.iter().find(|(found, _)| found == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_kafkas_tools_is_parsed() {
        let read = |text: &str| partitions(&json::parse(text).expect("JSON"));
        let kafkas = r#"{"partitions": [{"topic": "t", "partition": 1, "offset": -1}, {"topic": "u", "partition": 0}],
                         "version": 1}"#;
        let of = |topic: &str, partition, offset| ListedPartition { of: (topic.into(), partition), offset };
        assert_eq!(read(kafkas), Some(vec![of("t", 1, Some(-1)), of("u", 0, None)]));
        for wrong in [
            "[]",
            r#"{"partitions": {}}"#,
            r#"{"partitions": [{"topic": "t"}]}"#,
            r#"{"partitions": [{"topic": "t", "partition": -1}]}"#,
            r#"{"partitions": [{"topic": "t", "partition": 0, "offset": "5"}]}"#,
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
