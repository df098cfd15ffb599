//! Names of deleted topics. A new topic with such a name must take the deleted topics into account.
//!
//! The name of an existing topic is always remembered. Among the names without a topic, only the [`NAMES_MAX`] whose
//! topics were deleted last are remembered. Copies share all unchanged data.
//!
//! Invariant: `idle` contains exactly those names of `by_name` that no existing topic has.

use fullbore_rules::sequence::PastTopics;
use imbl::ordmap::DiffItem;
use imbl::{OrdMap, OrdSet};

/// Maximum number of remembered names that no topic has. A name has up to 249 bytes and up to four deleted topics, so
/// these names need at most 20 MB in the store.
const NAMES_MAX: usize = 10_000;

/// The deleted topics by name.
#[derive(Debug, Clone, Default)]
pub struct PastNames {
    by_name: OrdMap<String, PastTopics>,
    /// The names without a topic, in the order in which the last topic of each name was deleted.
    idle: OrdSet<(u64, String)>,
}

impl PastNames {
    /// Returns the deleted topics of this name, or an empty value if the name is not remembered.
    pub fn get(&self, name: &str) -> PastTopics {
        self.by_name.get(name).cloned().unwrap_or_default()
    }

    /// Replaces the deleted topics of a name by `past`. If `past` is empty, removes the name. `has_topic` is true if an
    /// existing topic has the name.
    pub fn remember(&mut self, name: &str, past: &PastTopics, has_topic: bool) {
        self.hold(name);
        match past.is_empty() {
            true => drop(self.by_name.remove(name)),
            false => drop(self.by_name.insert(name.to_owned(), past.clone())),
        }
        if !has_topic {
            self.release(name);
        }
    }

    /// Protects a name from being forgotten, because a topic now has it.
    pub fn hold(&mut self, name: &str) {
        if let Some(idle) = self.as_idle(name) {
            self.idle.remove(&idle);
        }
    }

    /// Allows a name to be forgotten, because its topic is deleted.
    pub fn release(&mut self, name: &str) {
        if let Some(idle) = self.as_idle(name) {
            self.idle.insert(idle);
        }
    }

    /// Returns the name whose last topic was deleted longest ago. Returns `None` if at most [`NAMES_MAX`] names have no
    /// topic.
    pub fn forgettable(&self) -> Option<&str> {
        let eldest = self.idle.get_min().filter(|_| self.idle.len() > NAMES_MAX);
        eldest.map(|(_, name)| name.as_str())
    }

    /// Returns the names whose deleted topics differ from those in `before`, except for names that were forgotten. The
    /// cost depends on the number of changes.
    pub fn changed_since<'a>(&'a self, before: &'a PastNames) -> impl Iterator<Item = (&'a str, &'a PastTopics)> {
        before.by_name.diff(&self.by_name).filter_map(|item| match item {
            DiffItem::Add(name, past) | DiffItem::Update { new: (name, past), .. } => Some((name.as_str(), past)),
            DiffItem::Remove(..) => None,
        })
    }

    fn as_idle(&self, name: &str) -> Option<(u64, String)> {
        let last = self.by_name.get(name)?.last()?;
        Some((last.deleted_at, name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_rules::sequence::PastTopic;
    use fullbore_wire::Uuid;

    fn past(deleted_at: u64) -> PastTopics {
        let topic = PastTopic { id: Uuid::ZERO, partitions: 1, is_diskless: false, deleted_at, producer_ids_below: 0 };
        [topic].into_iter().collect()
    }

    #[test]
    fn names_past_their_bound_lose_the_one_deleted_longest_ago_without_a_topic() {
        let mut names = PastNames::default();
        let name = |n: usize| format!("t{n}");
        for n in 0..=NAMES_MAX {
            assert_eq!(names.forgettable(), None);
            names.remember(&name(n), &past(n as u64), false);
        }
        assert_eq!(names.forgettable(), Some("t0"));
        names.hold("t0");
        assert_eq!(names.forgettable(), None, "a topic has it");
        names.release("t0");
        names.remember("t0", &past(20_000), false);
        assert_eq!(names.forgettable(), Some("t1"), "it was deleted again");
        names.remember("t1", &PastTopics::default(), false);
        assert!(names.forgettable().is_none() && names.get("t1").is_empty());
        assert_eq!((names.idle.len(), names.by_name.len()), (NAMES_MAX, NAMES_MAX));
        names.remember("t2", &past(3), true);
        assert_eq!((names.idle.len(), names.by_name.len()), (NAMES_MAX - 1, NAMES_MAX));
    }

    #[test]
    fn names_changed_since_a_copy_are_listed() {
        let mut names = PastNames::default();
        (0..100).for_each(|n| names.remember(&format!("t{n}"), &past(n), false));
        let mut next = names.clone();
        next.hold("t5");
        next.remember("t7", &past(200), false);
        next.remember("new", &past(201), false);
        next.remember("t9", &PastTopics::default(), false);
        let changed: Vec<_> = next.changed_since(&names).map(|(name, _)| name).collect();
        assert_eq!(changed, ["new", "t7"]);
    }
}
