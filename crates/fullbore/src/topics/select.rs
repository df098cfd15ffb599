//! Selects topics by regular expressions of their names. A command fails if a typed name has no topic, or if no topic
//! matches.

use crate::client::Where;
use crate::failure::Failure;
use crate::output::Format;
use clap::Args;
use fullbore_client::admin::list_topics;
use fullbore_client::blocking::Cluster;
use fullbore_wire::Text;
use regex_lite::Regex;

#[derive(Args, Debug)]
pub struct Select {
    /// Topics whose whole name matches this regular expression; several expressions are separated by commas [default:
    /// all].
    #[arg(long)]
    topic: Option<String>,
    /// Topics, without the flag.
    #[arg(value_name = "TOPIC", conflicts_with = "topic")]
    names: Vec<String>,
    /// Leave internal topics out.
    #[arg(long, alias = "exclude-internal-topics")]
    pub exclude_internal: bool,
    /// Succeed if no topic matches.
    #[arg(long)]
    pub if_exists: bool,
    #[command(flatten)]
    pub at: Where,
    #[command(flatten)]
    pub format: Format,
}

impl Select {
    /// Returns the pattern of the flag, or the names joined to a pattern. Returns `None` if the user has typed neither.
    pub fn pattern(&self) -> Option<String> {
        self.topic.clone().or_else(|| (!self.names.is_empty()).then(|| self.names.join(",")))
    }
}

/// Fails if a typed name has no topic or a pattern matches none, unless `if_exists` is set.
pub fn must_exist(found: &[Text], typed: Option<&str>, if_exists: bool) -> Result<(), Failure> {
    let Some(typed) = typed.filter(|_| !if_exists) else { return Ok(()) };
    let hint = "`fullbore topics list` shows the existing topics";
    match (found, &absent(found, typed)[..]) {
        ([], _) => Err(Failure::new(format!("Topic '{typed}' does not exist as expected; {hint}"))),
        (_, []) => Ok(()),
        (_, [one]) => Err(Failure::new(format!("Topic '{one}' does not exist as expected; {hint}"))),
        (_, several) => {
            Err(Failure::new(format!("Topics '{}' do not exist as expected; {hint}", several.join("', '"))))
        }
    }
}

/// Returns those alternatives of the pattern `typed` that are plain names and match no topic in `found`. If the pattern
/// has groups, returns none, because a comma within a group does not separate alternatives.
fn absent(found: &[Text], typed: &str) -> Vec<String> {
    let typed = typed.trim_matches(['"', '\'']).replace(' ', "");
    let is_plain = |word: &str| word.chars().all(|char| char.is_ascii_alphanumeric() || "._-".contains(char));
    let is_absent = |word: &&str| match topic_filter("--topic", Some(word), false) {
        Ok(matches) => is_plain(word) && !found.iter().any(|name| matches(name, false)),
        Err(_) => false,
    };
    match typed.contains(['(', '[', '{']) {
        true => Vec::new(),
        false => typed.split(',').filter(is_absent).map(str::to_owned).collect(),
    }
}

/// Returns the name of each matching topic, with true if the topic is internal.
pub fn matching(
    cluster: &mut Cluster,
    pattern: Option<&str>,
    exclude_internal: bool,
) -> Result<Vec<(Text, bool)>, Failure> {
    let matches = topic_filter("--topic", pattern, exclude_internal)?;
    Ok(list_topics(cluster)?.into_iter().filter(|(name, is_internal)| matches(name, *is_internal)).collect())
}

/// Returns the names of the matching topics.
pub fn selected(cluster: &mut Cluster, pattern: Option<&str>, exclude_internal: bool) -> Result<Vec<Text>, Failure> {
    Ok(matching(cluster, pattern, exclude_internal)?.into_iter().map(|(name, _)| name).collect())
}

/// Returns a filter of topics by a pattern with the syntax of Kafka's tools. Commas separate alternatives. Blanks and
/// outer quotes are ignored. The filter's arguments are the name of a topic, and true if the topic is internal. Error
/// messages name `flag`.
pub fn topic_filter(
    flag: &str,
    pattern: Option<&str>,
    exclude_internal: bool,
) -> Result<impl Fn(&str, bool) -> bool + use<>, Failure> {
    let regex = match pattern {
        None => None,
        Some(pattern) => {
            let alternatives = pattern.trim_matches(['"', '\'']).replace(' ', "").replace(',', "|");
            let of_regex = |error| Failure::new(format!("{flag} {pattern} is not a regular expression: {error}"));
            Some(Regex::new(&format!("^(?:{alternatives})$")).map_err(of_regex)?)
        }
    };
    Ok(move |name: &str, is_internal: bool| {
        !(is_internal && exclude_internal) && regex.as_ref().is_none_or(|regex| regex.is_match(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_matches_whole_names() {
        let filter = |pattern| topic_filter("--topic", pattern, false);
        let matches = |pattern, name: &str| filter(Some(pattern)).expect("valid")(name, false);
        assert!(matches("cap.*", "cap1") && matches("a,b", "b") && matches("'a'", "a"));
        assert!(!matches("cap", "cap1") && !matches("ap1", "cap1"));
        assert!(filter(None).expect("valid")("anything", false));
        assert!(filter(Some("(")).is_err());
    }

    #[test]
    fn names_without_a_topic_are_returned() {
        let found = ["a".into(), "a.b".into(), "test-1".into()];
        let absent = |typed| absent(&found, typed).join(" ");
        assert_eq!(absent("a,b, c"), "b c");
        assert_eq!(absent("'a,test-2'"), "test-2");
        assert_eq!(absent("a.b,test-.*,nope.*"), "");
        assert_eq!(absent("(a,b).*"), "");
        assert!(must_exist(&found, Some("a,b"), true).is_ok() && must_exist(&found, None, false).is_ok());
        let reported = must_exist(&found, Some("a,b,c"), false).expect_err("two have none").to_string();
        assert!(reported.starts_with("Topics 'b', 'c' do not exist as expected; "), "{reported}");
    }

    #[test]
    fn internal_topics_are_left_out_on_request() {
        for (exclude_internal, is_internal) in [(false, false), (false, true), (true, false), (true, true)] {
            let matches = topic_filter("--topic", Some(".*"), exclude_internal).expect("valid");
            assert_eq!(matches("__any", is_internal), !(exclude_internal && is_internal));
        }
    }
}
