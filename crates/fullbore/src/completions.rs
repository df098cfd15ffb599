//! `fullbore completions` prints scripts with which shells complete this program's command lines. The scripts call this
//! program, and this module then prints the completions.
//!
//! Invariant: it prints nothing else, such as errors or notices. If no broker answers within [`PATIENCE`], the names of
//! topics and groups are missing.

use crate::client::{self, without_effect};
use crate::client_id;
use crate::failure::Failure;
use crate::output;
use clap::{Arg, Args};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use fullbore_client::admin::{GroupAdmin, list_topics};
use fullbore_client::blocking::Cluster;
use std::path::PathBuf;
use std::time::Duration;

/// The environment variable with which a script requests completions. Its value is the shell.
const VARIABLE: &str = "FULLBORE_COMPLETE";
/// How long to wait for a broker. The shell is blocked during this time, so it is short.
const PATIENCE: Duration = Duration::from_millis(700);
/// Maximum number of names that are offered.
const NAMES_MAX: usize = 1_000;

/// Print a script that lets a shell complete command lines, with the names of topics and groups.
///
/// The script calls this program, which queries the cluster of the command line, the environment or the profile.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore completions bash | sudo tee /usr/share/bash-completion/completions/fullbore
  fullbore completions zsh | sudo tee /usr/local/share/zsh/site-functions/_fullbore
  fullbore completions fish | tee ~/.config/fish/completions/fullbore.fish")]
pub struct Completions {
    /// The shell.
    shell: Shell,
}

/// Prints the script.
pub fn run(completions: &Completions) -> Result<(), Failure> {
    let (shells, name) = (Shells::builtins(), completions.shell.to_string());
    let shell = shells.completer(&name).ok_or_else(|| Failure::new(format!("cannot complete for the shell {name}")))?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "fullbore", "fullbore", "fullbore", &mut script)?;
    output::line(String::from_utf8_lossy(&script).trim());
    Ok(())
}

/// If a shell requests completions, prints them and ends the program. Otherwise has no effect.
pub fn answer_shell(command: fn() -> clap::Command) {
    CompleteEnv::with_factory(|| with_names(command())).var(VARIABLE).complete();
}

/// Adds completions to values that are topics or groups. The value's name in the help (TOPIC, GROUP) shows which they
/// are.
fn with_names(command: clap::Command) -> clap::Command {
    // The name of a topic to create is new, so it has no completion.
    let is_new = command.get_name() == "create";
    let named = |arg: Arg| {
        let value = arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
        match value.split(|letter: char| !letter.is_ascii_alphabetic()).next() {
            Some("TOPIC") if !is_new => arg.add(ArgValueCandidates::new(topics)),
            Some("GROUP") => arg.add(ArgValueCandidates::new(groups)),
            _ => arg,
        }
    };
    command.mut_args(named).mut_subcommands(with_names)
}

fn topics() -> Vec<CompletionCandidate> {
    let found = cluster().and_then(|mut cluster| list_topics(&mut cluster).ok()).unwrap_or_default();
    let names = found.into_iter().filter(|(_, is_internal)| !is_internal).map(|(name, _)| name.to_string());
    names.take(NAMES_MAX).map(CompletionCandidate::new).collect()
}

fn groups() -> Vec<CompletionCandidate> {
    let list = |mut cluster: Cluster| GroupAdmin::of(&mut cluster, PATIENCE).ok()?.list(&[], &[]).ok();
    let found = cluster().and_then(list).unwrap_or_default();
    found.into_iter().map(|group| group.id.to_string()).take(NAMES_MAX).map(CompletionCandidate::new).collect()
}

/// Returns the cluster that the unfinished command line names, or `None` if the address or the properties are invalid.
fn cluster() -> Option<Cluster> {
    let requested = std::env::args_os().skip_while(|word| word != "--");
    let words = whole_words(requested.map(|word| word.to_string_lossy().into_owned()));
    let file = value_of(&words, &["--command-config", "--producer.config", "--consumer.config"]).map(PathBuf::from);
    let servers = value_of(&words, &["--bootstrap-server", "-b"]);
    let properties = client::quiet_properties(file.as_deref(), &|key| without_effect(key, "completion", &[])).ok()?;
    client::quiet_cluster(servers.as_deref(), &properties, client_id::COMPLETIONS, PATIENCE).ok()
}

/// Returns the words of the command line. Bash splits words at `=` and `:`, so this joins the parts again.
fn whole_words(words: impl Iterator<Item = String>) -> Vec<String> {
    let mut whole: Vec<String> = Vec::new();
    let mut goes_on = false;
    for word in words {
        let is_part = word == ":" || word == "=";
        match whole.last_mut() {
            Some(last) if is_part || goes_on => last.push_str(&word),
            _ => whole.push(word),
        }
        goes_on = is_part;
    }
    whole
}

/// Returns the value of the last flag with one of these names, if the command line has such a flag.
fn value_of(words: &[String], names: &[&str]) -> Option<String> {
    let of = |at: usize| {
        let word = &words[at];
        names.iter().find_map(|name| match word.strip_prefix(name)? {
            "" => words.get(at + 1).cloned(),
            joined if name.starts_with("--") => joined.strip_prefix('=').map(str::to_owned),
            joined => Some(joined.to_owned()),
        })
    };
    (0..words.len()).rev().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_bash_has_split_is_joined() {
        let of = |line: &str| {
            let words = whole_words(line.split(' ').map(str::to_owned));
            value_of(&words, &["--bootstrap-server", "-b"])
        };
        assert_eq!(of("f topics -b a : 1 list").as_deref(), Some("a:1"));
        assert_eq!(of("f topics --bootstrap-server = a : 1,b : 2 list").as_deref(), Some("a:1,b:2"));
        assert_eq!(of("f topics --bootstrap-server=a:1 -bc:2").as_deref(), Some("c:2"));
        assert_eq!(of("f topics --bootstrap-servers a:1").as_deref(), None);
        assert_eq!(of("f topics -b").as_deref(), None);
    }

    #[test]
    fn every_shell_has_a_script() {
        for shell in <Shell as clap::ValueEnum>::value_variants() {
            assert!(Shells::builtins().completer(&shell.to_string()).is_some(), "{shell}");
        }
    }
}
