//! The file of `--export` and `--from-file`. It has the CSV format of kafka-consumer-groups.sh:
//! `topic,partition,offset`, or with several groups `group,topic,partition,offset`.
//!
//! Invariant: if an exported file is imported, it sets the exported offsets.

use super::offsets::ResetOffsets;
use crate::failure::Failure;
use crate::output;
use fullbore_host::files::{LIST_FILE_MAX, read_text};
use fullbore_wire::Text;
use std::collections::BTreeMap;
use std::path::Path;

/// Returns the lines of one group's offsets.
pub fn rows(group: &str, offsets: &ResetOffsets, with_group: bool) -> Vec<String> {
    let row = |((topic, partition), offset): (&(Text, i32), &i64)| {
        let of_group = if with_group { format!("{},", quoted(group)) } else { String::new() };
        format!("{of_group}{},{partition},{offset}", quoted(topic))
    };
    offsets.iter().map(row).collect()
}

/// Prints a row without escaped control characters, because `--from-file` may read the output.
pub fn print(row: String) {
    output::bytes(format!("{row}\n").as_bytes());
}

/// Reads the offsets of each group from a file. If lines name no group, they belong to the only group in `groups`.
///
/// # Errors
/// Fails if the file cannot be read, or at the first malformed line.
pub fn read(path: &Path, groups: &[String]) -> Result<BTreeMap<Text, ResetOffsets>, Failure> {
    let shown = path.display();
    let text = read_text(path, LIST_FILE_MAX)
        .map_err(|error| Failure::new(format!("cannot read the file of --from-file, {shown}: {error}")))?;
    parse(&text, groups).map_err(|(line, wrong)| Failure::new(format!("{shown}, line {line}: {wrong}")))
}

fn parse(text: &str, groups: &[String]) -> Result<BTreeMap<Text, ResetOffsets>, (usize, String)> {
    let mut plan: BTreeMap<Text, ResetOffsets> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let mut cells = cells(line);
        if cells.len() == 3 {
            match groups {
                [one] => cells.insert(0, one.clone()),
                _ => {
                    return Err((
                        number,
                        "must be GROUP,TOPIC,PARTITION,OFFSET, since several groups are selected".into(),
                    ));
                }
            }
        }
        let wrong = || (number, "must be TOPIC,PARTITION,OFFSET, or GROUP,TOPIC,PARTITION,OFFSET".to_owned());
        let [group, topic, partition, offset] = &cells[..] else { return Err(wrong()) };
        let partition = partition.trim().parse::<i32>().ok().filter(|partition| *partition >= 0);
        let offset = offset.trim().parse::<i64>().ok();
        let (Some(partition), Some(offset)) = (partition, offset) else { return Err(wrong()) };
        plan.entry(group.as_str().into()).or_default().insert((topic.as_str().into(), partition), offset);
    }
    Ok(plan)
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

/// Splits a line into cells. Commas within quotes belong to the cell. Two quotes within quotes stand for one quote.
fn cells(line: &str) -> Vec<String> {
    let mut cells = vec![String::new()];
    let mut within = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        let last = cells.last_mut().expect("there is always one");
        match letter {
            '"' if within && letters.peek() == Some(&'"') => {
                letters.next();
                last.push('"');
            }
            '"' => within = !within,
            ',' if !within => cells.push(String::new()),
            other => last.push(other),
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_offsets_read_back() {
        let offsets: ResetOffsets = [(("t".into(), 0), 5), (("t".into(), 2), 7)].into();
        for (group, with_group) in [("g", false), ("g", true), ("a, \"b\"", true)] {
            let text = rows(group, &offsets, with_group).join("\n");
            let found = parse(&text, &[group.to_owned()]).expect("its own");
            assert_eq!(found, BTreeMap::from([(group.into(), offsets.clone())]), "{text}");
        }
        assert_eq!(rows("g", &offsets, true), ["g,t,0,5", "g,t,2,7"]);
    }

    #[test]
    fn a_malformed_line_is_reported_with_its_number() {
        let one = ["g".to_owned()];
        for (text, line) in [("t,0,5\nt,x,5", 2), ("t,0", 1), ("t,-1,5", 1), ("g,t,0,5,6", 1)] {
            assert_eq!(parse(text, &one).expect_err(text).0, line, "{text}");
        }
        assert!(parse("t,0,5", &[]).expect_err("whose?").1.contains("several groups"));
    }
}
