//! `topics delete-records` deletes records. It prints the lines of kafka-delete-records.sh, or one JSON document.

use super::partitions::listed;
use crate::client::Where;
use crate::client_id;
use crate::failure::Failure;
use crate::output::{Format, line};
use clap::{ArgGroup, Args};
use fullbore_bench::report::json::{array, object, string};
use fullbore_client::admin::{HIGH_WATERMARK, RecordsBefore, RecordsDeleted, delete_records};
use fullbore_client::blocking::Cluster;
use fullbore_wire::Text;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).args(["topic", "name", "offset_json_file"]))]
pub struct DeleteRecords {
    /// The topic.
    #[arg(long, requires = "offset")]
    topic: Option<String>,
    /// The topic, without the flag.
    #[arg(value_name = "TOPIC", requires = "offset")]
    name: Option<String>,
    /// Numbers of partitions [default: all].
    #[arg(long, value_name = "NUMBER,...", value_delimiter = ',', value_parser = clap::value_parser!(i32).range(0..), conflicts_with = "offset_json_file")]
    partition: Vec<i32>,
    /// The first offset that is kept; `end` keeps no present record.
    #[arg(long, value_name = "OFFSET", value_parser = first_kept, conflicts_with = "offset_json_file")]
    offset: Option<i64>,
    /// A file with partitions and offsets: {"partitions": [{"topic": "t", "partition": 0, "offset": 5}]}.
    #[arg(long, value_name = "FILE")]
    offset_json_file: Option<PathBuf>,
    #[command(flatten)]
    at: Where,
    #[command(flatten)]
    format: Format,
}

fn first_kept(text: &str) -> Result<i64, String> {
    match text {
        "end" => Ok(HIGH_WATERMARK),
        _ => text.parse().ok().filter(|offset| *offset >= 0).ok_or_else(|| "must be an offset, or end".to_owned()),
    }
}

/// Deletes the records. If one partition fails, still deletes the records of the others.
pub fn run(delete: &DeleteRecords) -> Result<(), Failure> {
    delete.format.choose();
    let mut cluster = delete.at.cluster(client_id::TOPICS)?;
    let before = delete.before(&mut cluster)?;
    let is_json = delete.format.json;
    if !is_json {
        line("Executing records delete operation");
    }
    let outcomes = delete_records(&mut cluster, &before)?;
    if is_json {
        line(&document(&outcomes));
    } else {
        line("Records delete operation completed:");
        outcomes.iter().for_each(|outcome| line(&outcome_line(outcome)));
    }
    match outcomes.into_iter().find_map(|(_, outcome)| outcome.err()) {
        Some(first) => Err(first.into()),
        None => Ok(()),
    }
}

impl DeleteRecords {
    fn before(&self, cluster: &mut Cluster) -> Result<Vec<RecordsBefore>, Failure> {
        if let Some(path) = &self.offset_json_file {
            let with_offset = |listed: super::partitions::ListedPartition| match listed.offset {
                Some(offset) if offset >= HIGH_WATERMARK => Ok((listed.of, offset)),
                _ => {
                    let (topic, partition) = listed.of;
                    let why = "needs an offset from 0 on, or -1 for the end";
                    Err(Failure::new(format!("{}: partition {partition} of '{topic}' {why}", path.display())))
                }
            };
            return listed(path)?.into_iter().map(with_offset).collect();
        }
        let name: Text =
            self.topic.as_ref().or(self.name.as_ref()).map_or_else(Text::default, |name| name.as_str().into());
        let offset = self.offset.unwrap_or(0);
        let all = cluster.partitions(&name)?.into_iter().map(|place| place.partition);
        let partitions: Vec<i32> = if self.partition.is_empty() { all.collect() } else { self.partition.clone() };
        Ok(partitions.into_iter().map(|partition| ((name.clone(), partition), offset)).collect())
    }
}

fn outcome_line(((topic, partition), outcome): &RecordsDeleted) -> String {
    match outcome {
        Ok(start) => format!("partition: {topic}-{partition}\tlow_watermark: {start}"),
        Err(error) => format!("partition: {topic}-{partition}\terror: {error}"),
    }
}

fn document(outcomes: &[RecordsDeleted]) -> String {
    let deleted = outcomes.iter().filter_map(|((topic, partition), outcome)| {
        let start = outcome.as_ref().ok()?;
        Some(object([
            ("topic", string(topic)),
            ("partition", partition.to_string()),
            ("low_watermark", start.to_string()),
        ]))
    });
    let failed = outcomes.iter().filter_map(|((topic, partition), outcome)| {
        let error = outcome.as_ref().err()?;
        Some(object([
            ("topic", string(topic)),
            ("partition", partition.to_string()),
            ("error", string(&error.to_string())),
        ]))
    });
    object([("deleted", array(deleted)), ("failed", array(failed))])
}
