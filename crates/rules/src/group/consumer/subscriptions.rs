//! The number of subscriptions to each topic name and each regular expression, and the topics that expressions match.
//!
//! With these counts, the cost of a heartbeat depends on the member's own subscription and not on those of others.
//!
//! Invariant: each name is counted once for each member that lists it, and once for each expression that matches it.

use super::heartbeat::Resolved;
use super::member::ConsumerGroupMember;
use super::{ConsumerGroup, Matched, MemberId, TEXT_BYTES};
use crate::group::PartKind;
use fullbore_wire::Text;
use std::collections::{BTreeMap, BTreeSet};

/// The number of subscriptions to each name.
type Counts = BTreeMap<Text, usize>;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SubscriptionCounts {
    pub names: Counts,
    /// The number of members that use each expression.
    pub regexes: Counts,
    /// The names that got their first subscription or lost their last one since the topics were last looked up.
    pub touched: BTreeSet<Text>,
}

impl SubscriptionCounts {
    fn add<'a>(&mut self, names: impl IntoIterator<Item = &'a Text>) {
        for name in names {
            if increase(&mut self.names, name) {
                self.touched.insert(name.clone());
            }
        }
    }

    fn remove<'a>(&mut self, names: impl IntoIterator<Item = &'a Text>) {
        for name in names {
            if decrease(&mut self.names, name) {
                self.touched.insert(name.clone());
            }
        }
    }

    fn add_regex(&mut self, regex: Option<&Text>) {
        if let Some(regex) = regex {
            increase(&mut self.regexes, regex);
        }
    }

    fn remove_regex(&mut self, regex: Option<&Text>) {
        if let Some(regex) = regex {
            decrease(&mut self.regexes, regex);
        }
    }
}

/// Counts a subscription. Returns true if it is the first one.
fn increase(counts: &mut Counts, name: &Text) -> bool {
    if let Some(count) = counts.get_mut(name) {
        *count += 1;
        return false;
    }
    counts.insert(name.clone(), 1);
    true
}

/// Removes a subscription. Returns true if it was the last one.
fn decrease(counts: &mut Counts, name: &Text) -> bool {
    let Some(count) = counts.get_mut(name) else { return false };
    *count -= 1;
    let is_last = *count == 0;
    if is_last {
        counts.remove(name);
    }
    is_last
}

impl ConsumerGroup {
    /// Returns the names of the topics that a member subscribes to, by name or by expression. A name may occur twice.
    pub(super) fn subscribed<'a>(&'a self, member: &'a ConsumerGroupMember) -> impl Iterator<Item = &'a Text> {
        let matched = member.regex.as_ref().and_then(|regex| self.regexes.get(regex));
        member.topics.iter().chain(matched.into_iter().flat_map(|matched| &matched.topics))
    }

    /// Replaces the counted subscriptions of a member, `before`, by its present ones, `after`.
    pub(super) fn count_subscriptions(
        &mut self,
        before: Option<&ConsumerGroupMember>,
        after: Option<&ConsumerGroupMember>,
    ) {
        if let (Some(before), Some(after)) = (before, after)
            && before.topics == after.topics
            && before.regex == after.regex
        {
            return;
        }
        // The new subscription is added before the former one is removed. So the count of a name in both never becomes
        // 0.
        if let Some(member) = after {
            self.subscriptions.add(&member.topics);
            self.subscriptions.add_regex(member.regex.as_ref());
        }
        if let Some(member) = before {
            self.subscriptions.remove(&member.topics);
            self.subscriptions.remove_regex(member.regex.as_ref());
        }
    }

    /// Adds the member's expression without topics if the group lacks it, so that the next heartbeat resolves it. This
    /// is a race: the caller resolves only expressions that are new to the group. It did not resolve this one, which
    /// was in use then, but its last member has left since.
    pub(super) fn request_for_regex(&mut self, id: &MemberId) {
        let regex = self.members[id].regex.clone().filter(|regex| !self.regexes.contains_key(regex));
        if let Some(regex) = regex {
            self.set_regex(regex, BTreeSet::new(), None);
        }
    }

    /// Stores the topics that regular expressions match at a `version` of the topics. An expression that was already
    /// resolved for a later version is skipped, and expressions that are no longer in use are removed. Returns true if
    /// the topics of an expression in use have changed.
    pub(super) fn resolve(&mut self, resolved: Vec<Resolved>, version: u64, now: i64) -> bool {
        let mut changed = false;
        if !resolved.is_empty() {
            self.resolved_ms = Some(now);
        }
        for (regex, topics) in resolved {
            let is_overtaken = self.regexes.get(&regex).is_some_and(|before| before.version > Some(version));
            if !is_overtaken && self.subscriptions.regexes.contains_key(&regex) {
                changed |= self.set_regex(regex, topics, Some(version));
            }
        }
        self.strike_regexes();
        changed
    }

    /// Removes the expressions that no member uses.
    pub(super) fn strike_regexes(&mut self) {
        let is_unused = |regex: &&Text| !self.subscriptions.regexes.contains_key(*regex);
        let unused: Vec<Text> = self.regexes.keys().filter(is_unused).cloned().collect();
        for regex in unused {
            if let Some(matched) = self.regexes.remove(&regex) {
                self.subscriptions.remove(&matched.topics);
                self.regexes_bytes -= regex_bytes(&regex, &matched.topics);
                self.unsaved.mark(PartKind::Regex, matched.number, &regex);
            }
        }
    }

    /// Stores the topics that an expression matches. Returns true if they have changed.
    pub(super) fn set_regex(&mut self, regex: Text, topics: BTreeSet<Text>, version: Option<u64>) -> bool {
        if let Some(matched) = self.regexes.get_mut(&regex)
            && matched.topics == topics
        {
            matched.version = version;
            return false;
        }
        let number = self.regexes.get(&regex).map_or_else(|| self.unsaved.number(), |before| before.number);
        self.put_regex(regex, Matched { topics, version, number });
        true
    }

    /// Adds or replaces an expression.
    pub(super) fn put_regex(&mut self, regex: Text, matched: Matched) {
        self.subscriptions.add(&matched.topics);
        self.regexes_bytes += regex_bytes(&regex, &matched.topics);
        self.unsaved.mark(PartKind::Regex, matched.number, &regex);
        if let Some(before) = self.regexes.insert(regex.clone(), matched) {
            self.subscriptions.remove(&before.topics);
            self.regexes_bytes -= regex_bytes(&regex, &before.topics);
        }
    }
}

/// Returns the approximate memory of an expression and its topics, in bytes.
fn regex_bytes(regex: &Text, topics: &BTreeSet<Text>) -> usize {
    std::iter::once(regex).chain(topics).map(|text| text.len() + TEXT_BYTES).sum()
}
