//! The topics that a command will change. The user names them, or types a pattern and confirms the matching topics.
//!
//! Invariant: a pattern never selects an internal topic. Without --yes, no topic that matches a pattern is changed
//! before the user confirms.

use super::select::{must_exist, topic_filter};
use crate::failure::Failure;
use crate::output;
use clap::{ArgGroup, Args};
use fullbore_client::admin::list_topics;
use fullbore_client::blocking::Cluster;
use fullbore_wire::Text;
use std::io::{self, IsTerminal};

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).args(["topic", "names"]))]
pub struct TopicTarget {
    /// Topics by name, or topics whose whole name matches this regular expression, except for internal ones; several
    /// are separated by commas.
    #[arg(long)]
    topic: Option<String>,
    /// Topics, without the flag.
    #[arg(value_name = "TOPIC")]
    names: Vec<String>,
    /// Do not request a confirmation for the topics of a pattern; needed if standard input is no terminal.
    #[arg(long)]
    yes: bool,
    /// Succeed if no topic matches.
    #[arg(long)]
    pub if_exists: bool,
}

/// The topics that a command line selects, by the kind of selection.
#[derive(Debug, PartialEq, Eq)]
struct Hits {
    /// The topics whose exact names were typed.
    named: Vec<Text>,
    /// The topics that a pattern matches.
    matched: Vec<Text>,
    /// The internal topics that a pattern matches, which are not changed.
    spared: Vec<Text>,
}

impl TopicTarget {
    /// Returns the existing topics to change. Without --yes, the user must first confirm those that match a pattern.
    /// `verb` names the change in the question, such as delete.
    ///
    /// # Errors
    /// Fails if the cluster fails, if a name has no topic, if a pattern matches only internal topics, or if the user
    /// does not confirm. With `if_exists`, missing topics are no error.
    pub fn confirmed(&self, cluster: &mut Cluster, verb: &str) -> Result<Vec<Text>, Failure> {
        let typed = self.typed();
        let hits = Hits::of(&typed, list_topics(cluster)?)?;
        if !self.yes && !hits.matched.is_empty() {
            self.confirm(&hits.matched, verb)?;
        }
        let names = [hits.named, hits.matched].concat();
        if names.is_empty() && !hits.spared.is_empty() && !self.if_exists {
            return Err(self.internal(&hits.spared));
        }
        must_exist(&names, Some(&typed), self.if_exists)?;
        Ok(names)
    }

    /// Returns the typed names and patterns, separated by commas.
    fn typed(&self) -> String {
        self.topic.clone().unwrap_or_else(|| self.names.join(","))
    }

    /// Lists the topics and waits for the user's answer. Fails if standard input is no terminal.
    fn confirm(&self, matched: &[Text], verb: &str) -> Result<(), Failure> {
        let (matches, them) = (self.matches(matched.len()), if matched.len() == 1 { "it" } else { "them" });
        if !io::stdin().is_terminal() {
            let names = matched.join(", ");
            return Err(Failure::usage(format!("{matches}: {names}; add --yes to {verb} {them}")));
        }
        output::remark(format!("{matches}:"));
        matched.iter().for_each(|name| output::remark(format!("  {name}")));
        match output::agrees(&format!("{verb} {them}? [y/N] "), &mut io::stdin().lock()) {
            true => Ok(()),
            false => Err(Failure::new("not confirmed: no topic was changed")),
        }
    }

    /// Returns the failure for a pattern that matches only internal topics.
    fn internal(&self, spared: &[Text]) -> Failure {
        let names = spared.join(", ");
        Failure::new(format!("'{}' matches only internal topics: {names}; type the exact name of each", self.typed()))
    }

    fn matches(&self, count: usize) -> String {
        let topics = if count == 1 { "topic" } else { "topics" };
        format!("'{}' is a pattern that matches {count} {topics}", self.typed())
    }
}

impl Hits {
    /// Divides topics into those that the user has named and those that match a pattern. In `topics`, internal topics
    /// are marked with true. The exact name of a topic selects only that topic, although as a pattern its dots would
    /// match any letter.
    fn of(typed: &str, topics: Vec<(Text, bool)>) -> Result<Hits, Failure> {
        let typed = typed.trim_matches(['"', '\'']).replace(' ', "");
        let is_name = |word: &&str| topics.iter().any(|(name, _)| **name == **word);
        let (names, patterns): (Vec<&str>, Vec<&str>) = typed.split(',').partition(is_name);
        let matches = match patterns.is_empty() {
            true => None,
            false => Some(topic_filter("--topic", Some(&patterns.join(",")), false)?),
        };
        let mut hits = Hits { named: Vec::new(), matched: Vec::new(), spared: Vec::new() };
        for (name, is_internal) in &topics {
            if names.contains(&&**name) {
                hits.named.push(name.clone());
            } else if matches.as_ref().is_some_and(|matches| matches(name, *is_internal)) {
                let found = if *is_internal { &mut hits.spared } else { &mut hits.matched };
                found.push(name.clone());
            }
        }
        Ok(hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(typed: &str) -> [String; 3] {
        let topics = [("__consumer_offsets", true), ("a.b", false), ("axb", false), ("test-1", false)];
        let topics = topics.map(|(name, is_internal)| (Text::from(name), is_internal)).to_vec();
        let hits = Hits::of(typed, topics).expect(typed);
        [hits.named, hits.matched, hits.spared].map(|names| names.join(","))
    }

    #[test]
    fn an_exact_name_selects_this_topic_only() {
        assert_eq!(hits("a.b"), ["a.b", "", ""]);
        assert_eq!(hits("'test-1'"), ["test-1", "", ""]);
        assert_eq!(hits("__consumer_offsets, axb"), ["__consumer_offsets,axb", "", ""]);
        assert_eq!(hits("absent"), ["", "", ""]);
    }

    #[test]
    fn a_pattern_does_not_select_internal_topics() {
        assert_eq!(hits(".*"), ["", "a.b,axb,test-1", "__consumer_offsets"]);
        assert_eq!(hits("__consumer_offsets,a.*"), ["__consumer_offsets", "a.b,axb", ""]);
        assert_eq!(hits("(a,t).*"), ["", "a.b,axb,test-1", ""]);
        assert_eq!(hits("a.x,a..,test-."), ["", "a.b,axb,test-1", ""]);
    }
}
