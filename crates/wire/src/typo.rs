//! Suggests the setting that a user probably meant by an unknown name, for messages of the broker and the clients.
//!
//! Suggestions are not a part of the protocol. They are in this crate because the broker and the clients both use it.
//! Invariant: the cost is limited by the lengths of the known names, however long the unknown name is.

/// Maximum number of letters that may be different.
const DISTANCE_MAX: usize = 3;

/// Returns a text like `; did you mean linger.ms?` with the nearest of the known names, or no text if none is near. A
/// name is near if at most a quarter of its letters were changed, added, left out or swapped. At least one letter may
/// differ, and at most three.
pub fn did_you_mean<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = |name: &'a str| {
        let most = (name.len() / 4).clamp(1, DISTANCE_MAX);
        // The distance is at least the difference of the lengths, so most names are ruled out without computing it.
        let far = (typed.len().abs_diff(name.len()) <= most).then(|| distance(typed, name))?;
        (far <= most && far < name.len()).then_some((far, name))
    };
    let nearest = known.into_iter().filter_map(near).min();
    nearest.map(|(_, name)| format!("; did you mean {name}?")).unwrap_or_default()
}

/// Returns the minimum number of changes that turn one name into the other (optimal string alignment distance). A
/// change replaces, adds or removes a byte, or swaps two adjacent bytes.
fn distance(from: &str, to: &str) -> usize {
    let (from, to) = (from.as_bytes(), to.as_bytes());
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for i in 1..=from.len() {
        let mut row = vec![i];
        for j in 1..=to.len() {
            let changed = rows[i - 1][j - 1] + usize::from(from[i - 1] != to[j - 1]);
            let mut least = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_or_none() {
        let known = ["acks", "linger.ms", "batch.size", "max.in.flight.requests.per.connection", "rtt"];
        for (typed, meant) in [
            ("ack", "acks"),
            ("akcs", "acks"),
            ("lingr.ms", "linger.ms"),
            ("linger.sm", "linger.ms"),
            ("batchsize", "batch.size"),
            ("max.inflight.request.per.conection", "max.in.flight.requests.per.connection"),
            ("rt", "rtt"),
        ] {
            assert_eq!(did_you_mean(typed, known), format!("; did you mean {meant}?"), "{typed}");
        }
        for far in ["", "a", "skca", "foo", "linger", "max.in.flight", "größe", &"batch.size".repeat(9999)] {
            assert_eq!(did_you_mean(far, known), "", "{far}");
        }
        assert_eq!(did_you_mean("rtx", ["rty", "rtt", "rta"]), "; did you mean rta?", "the first of equals by name");
    }
}
