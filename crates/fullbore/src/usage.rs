//! Prints the errors of malformed command lines: clap's text, or one JSON object with `--json`. Help and version are no
//! errors and are printed elsewhere.

use crate::{action, output, tip};
use std::ffi::OsString;
use std::process::ExitCode;

/// Prints the error of the command line `typed` to standard error and returns the exit status.
pub fn print_error(mut error: clap::Error, typed: &[OsString], program: &clap::Command) -> ExitCode {
    tip::add(&mut error, &action::with_words(typed.iter().cloned()), program);
    if wants_json(typed) {
        output::failure(&sentence(&error));
    } else {
        // This fails only if standard error has no reader.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Returns true if errors must be printed as JSON, because the command line has `--json` or `-J`. Ignores words after
/// `--`, which are file names.
pub fn wants_json(typed: &[OsString]) -> bool {
    typed.iter().take_while(|word| *word != "--").any(|word| word == "--json" || word == "-J")
}

/// Returns clap's text without the usage, in one line.
fn sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let message = text.split("\n\nUsage:").next().unwrap_or_default();
    let message = message.split("\n\nFor more information").next().unwrap_or_default();
    let lines = message.trim_start_matches("error: ").lines().map(str::trim).filter(|line| !line.is_empty());
    lines.fold(String::new(), |sentence, line| match sentence.chars().last() {
        None => line.to_owned(),
        Some(':' | ',') => format!("{sentence} {line}"),
        Some(_) => format!("{sentence}; {line}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn reported(line: &str) -> String {
        let typed: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let mut error = crate::tests::parse(line).expect_err(line);
        tip::add(&mut error, &action::with_words(typed.into_iter()), &crate::Cli::command());
        sentence(&error)
    }

    #[test]
    fn a_mistake_in_json_is_one_sentence() {
        assert_eq!(reported("fullbore groups list --json --nope"), "unexpected argument '--nope' found");
        let missing = reported("fullbore topics create --json");
        let start = "the following required arguments were not provided: ";
        assert!(missing.starts_with(start) && missing.contains("--topic <TOPIC>"), "{missing}");
        let near = reported("fullbore topics create --topic t --partition 3 --json");
        let tip = "unexpected argument '--partition' found; tip: a similar argument exists: '--partitions'";
        assert_eq!(near, tip);
        let value = reported("fullbore topics create --topic t --partitions many --json");
        assert!(value.starts_with("invalid value 'many' for '--partitions") && !value.contains('\n'), "{value}");
    }

    #[test]
    fn the_tip_on_a_word_of_another_tool_names_the_equivalent() {
        for (line, tip) in [
            (
                "fullbore consumer-groups --list",
                "unrecognized subcommand 'consumer-groups'; tip: write `fullbore groups`",
            ),
            (
                "fullbore kafka-topics.sh --list",
                "unrecognized subcommand 'kafka-topics.sh'; tip: write `fullbore topics`",
            ),
            ("fullbore acl list", "unrecognized subcommand 'acl'; tip: ACLs are not offered yet"),
            (
                "fullbore brokers",
                "unrecognized subcommand 'brokers'; tip: `fullbore info` lists the brokers, `fullbore serve` starts one",
            ),
            (
                "fullbore topics --zookeeper z:2181 --list",
                "unexpected argument '--zookeeper' found; tip: there is no ZooKeeper; name a broker with \
                 --bootstrap-server HOST:PORT",
            ),
            (
                "fullbore topics alter --topic t --config retention.ms=1",
                "unexpected argument '--config' found; tip: to change a configuration, write `fullbore configs alter \
                 --topic TOPIC --add-config KEY=VALUE`",
            ),
        ] {
            assert_eq!(reported(line), tip);
        }
    }

    #[test]
    fn flag_for_the_id_of_a_broker_is_unknown_its_tip_is_no_address() {
        for (line, tip) in [
            ("fullbore log-dirs --broker 9", "write --broker-list 9; `fullbore info` lists the brokers"),
            ("fullbore log-dirs --brokers=1,2", "write --broker-list 1,2; `fullbore info` lists the brokers"),
            ("fullbore transactions find-hanging --broker 1", "write --broker-id 1; `fullbore info` lists the brokers"),
            (
                "fullbore api-versions --broker 9",
                "this command has no flag for ids of brokers; `fullbore info` lists the brokers",
            ),
            ("fullbore api-versions --broker h:9092", "name a broker with --bootstrap-server HOST:PORT"),
            ("fullbore topics list --broker-list", "name a broker with --bootstrap-server HOST:PORT"),
        ] {
            let reported = reported(line);
            assert!(reported.starts_with("unexpected argument '--broker"), "{line}: {reported}");
            assert!(reported.ends_with(&format!("' found; tip: {tip}")), "{line}: {reported}");
        }
    }

    #[test]
    fn the_tip_on_a_name_without_its_flag_has_the_flag() {
        for (line, tip) in [
            ("fullbore groups describe foo", Some("write --group foo")),
            ("fullbore perf consume --num-records 1 foo", Some("write --topic foo")),
            ("fullbore cluster up foo", None),
        ] {
            let found = reported(line);
            assert!(found.starts_with("unexpected argument 'foo' found"), "{line}: {found}");
            assert_eq!(found.split("tip: ").nth(1), tip, "{line}");
        }
    }

    #[test]
    fn the_tip_on_names_with_and_without_flag_is_quotes() {
        let found = reported("fullbore topics delete --topic foo.1 foo");
        let tip = "; tip: a pattern needs quotes, as in --topic 'test-.*', or the shell replaces it by names of files";
        assert!(found.contains("cannot be used with") && found.ends_with(tip), "{found}");
    }

    #[test]
    fn the_tip_on_a_malformed_number_names_its_form() {
        for (line, tip) in [
            ("fullbore topics create --topic t --partitions abc", "write a whole number, in digits"),
            ("fullbore topics create --topic t --partitions 99999999999999999999", "write a smaller number"),
            (
                "fullbore groups reset-offsets --group g --all-topics --shift-by -9999999999999999999",
                "the number is out of range; write one that is closer to 0",
            ),
        ] {
            assert!(reported(line).ends_with(&format!("; tip: {tip}")), "{line}: {}", reported(line));
        }
        assert!(reported("fullbore cluster up --port 99999").ends_with("99999 is not in 1..=65535"));
    }

    #[test]
    fn negative_value_of_a_flag_is_refused_with_the_allowed_ones() {
        let link = "fullbore perf link --listen a:1 --to b:2";
        for (line, refusal) in [
            ("fullbore produce -t t --partition -5", "'-5' for '--partition <NUMBER>': -5 is not in 0..=2147483647"),
            ("fullbore produce -t t -p -5", "'-5' for '--partition <NUMBER>': -5 is not in 0..=2147483647"),
            (
                "fullbore transactions abort --topic t --partition 0 --start-offset -1",
                "'-1' for '--start-offset <OFFSET>': -1 is not in 0..9223372036854775807",
            ),
            ("fullbore log-dirs --broker-list -1", "'-1' for '--broker-list <ID,...>': -1 is not in 0..=2147483647"),
            (&format!("{link} --rtt -5ms"), "'-5ms' for '--rtt <TIME>': must be a duration with its unit"),
            (&format!("{link} --rtt -5"), "'-5' for '--rtt <TIME>': must be a duration with its unit"),
            (&format!("{link} --rtt 5 --bandwidth -1mbit"), "'-1mbit' for '--bandwidth <RATE>': must be a rate"),
            (
                "fullbore consume t -c -5",
                "'-5' for '--max-messages <COUNT>': invalid digit found in string; tip: write a number that is not negative",
            ),
        ] {
            assert!(reported(line).starts_with(&format!("invalid value {refusal}")), "{line}: {}", reported(line));
        }
    }

    #[test]
    fn json_is_wanted_by_a_flag_and_not_by_a_file_of_its_name() {
        let wants = |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(wants("fullbore topics list --json --nope") && wants("fullbore consume -J --nope"));
        assert!(!wants("fullbore topics list --nope") && !wants("fullbore produce -t t --nope -- --json"));
    }
}
