//! The flag `--replica-assignment`: the brokers of each partition, in the form of kafka-topics.sh.

/// The brokers of each partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment(pub Vec<Vec<i32>>);

/// Parses `--replica-assignment`. Every partition must have the same number of replicas, each on a different broker.
pub fn replica_assignment(text: &str) -> Result<Assignment, String> {
    let brokers = |part: &str| part.split(':').map(|id| id.trim().parse().ok().filter(|id| *id >= 0)).collect();
    let parsed: Option<Vec<Vec<i32>>> = text.split(',').map(brokers).collect();
    let partitions = parsed.ok_or("must be broker ids: 1:2,2:3 is two partitions with two replicas each")?;
    let has_twice = |ids: &Vec<i32>| ids.iter().enumerate().any(|(at, id)| ids[..at].contains(id));
    if partitions.iter().any(has_twice) {
        return Err("a partition has each broker once".to_owned());
    }
    if partitions.iter().any(|ids| ids.len() != partitions[0].len()) {
        return Err("every partition must have as many replicas".to_owned());
    }
    Ok(Assignment(partitions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_assignments_are_parsed_in_kafkas_form() {
        assert_eq!(replica_assignment("1:2,2:3"), Ok(Assignment(vec![vec![1, 2], vec![2, 3]])));
        for wrong in ["", "1:x", "1:1", "1:2,3", "-1"] {
            replica_assignment(wrong).expect_err(wrong);
        }
    }
}
