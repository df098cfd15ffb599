//! `fullbore configs` has the flags and the output of kafka-configs.sh, with one file for each action. The requests to
//! the cluster are in `fullbore_client::admin`.

mod alter;
mod describe;
mod entity;

use crate::failure::Failure;
use clap::{Args, Subcommand};

/// The flags of kafka-configs.sh that are actions.
pub const ACTION_FLAGS: [&str; 2] = ["--describe", "--alter"];

/// Describe and alter configurations of topics, brokers, groups and client metrics, with kafka-configs.sh's flags.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  fullbore configs alter --topic orders --add-config retention.ms=3600000
  fullbore configs --describe --topic orders      (kafka-configs.sh's own form works too)")]
pub struct ConfigsArgs {
    #[command(subcommand)]
    action: Option<ConfigsCommand>,
}

#[derive(Subcommand, Debug)]
enum ConfigsCommand {
    /// Print configurations with the source of each value, and the values that it overrides.
    ///
    /// Without a name, prints the configurations of every topic, broker, group or client metric; without --all, only
    /// those that were set while brokers run. --json prints {"entities": [{"type", "name", "configs": [{"name",
    /// "value", "source", "is_sensitive", "is_read_only", "synonyms": [{"name", "value", "source"}]}]}]}; the name of
    /// the defaults of all brokers is null.
    #[command(after_help = "Examples:
  fullbore configs describe --topic orders
  fullbore configs describe --topic orders --all --json
  fullbore configs describe --entity-type brokers
  fullbore configs describe --broker-defaults")]
    Describe(describe::DescribeConfigsArgs),
    /// Set configurations, or delete them so that the broker's setting or the default applies again. If one change is
    /// refused, none is made.
    ///
    /// --json prints {"altered": {"type", "name"}}.
    #[command(after_help = "Examples:
  fullbore configs alter --topic orders --add-config retention.ms=3600000,max.message.bytes=2000000
  fullbore configs alter --topic orders --delete-config retention.ms,max.message.bytes
  fullbore configs alter --broker-defaults --add-config message.max.bytes=2000000
  fullbore configs alter --broker-defaults --delete-config message.max.bytes --json")]
    Alter(alter::Alter),
}

/// Runs the command.
pub fn run(configs: ConfigsArgs) -> Result<(), Failure> {
    match configs.action {
        Some(ConfigsCommand::Describe(describe)) => describe::run(&describe),
        Some(ConfigsCommand::Alter(alter)) => alter::run(&alter),
        None => Err(Failure::new(
            "configs: the action is missing: describe or alter, as in `fullbore configs describe --topic orders`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::parse;

    #[test]
    fn kafkas_flags_of_configs_are_accepted() {
        for line in [
            "fullbore configs --bootstrap-server h:1 --describe --entity-type topics --entity-name t --all",
            "fullbore configs --describe --entity-type brokers --entity-default --command-config f",
            "fullbore configs --alter --entity-type groups --entity-name g --add-config a=b,c=[d,e] --delete-config x,y",
            "fullbore configs --alter --client-metrics m --add-config-file f",
            "fullbore configs --describe --broker-logger 1",
            "fullbore configs describe --group g --json",
        ] {
            parse(line).expect(line);
        }
        for line in ["fullbore configs describe --topic a --entity-name b", "fullbore configs change"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn a_missing_action_is_reported() {
        let reported = run(ConfigsArgs { action: None }).expect_err("none").to_string();
        assert!(reported.contains("the action is missing"), "{reported}");
    }
}
