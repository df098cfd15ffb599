//! A command line that cannot be read: clap's text, or one JSON object where JSON was asked for.
//!
//! Invariant: help and version are no mistakes, and are printed as ever.

use crate::output;
use std::ffi::OsString;
use std::process::ExitCode;

/// Tells what is wrong with the words typed, or prints the help that they ask for.
pub fn tell(error: &clap::Error, typed: &[OsString]) -> ExitCode {
    if error.use_stderr() && wants_json(typed) {
        output::tell(output::failure(&sentence(error)));
    } else {
        // There is nobody left to tell.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Whether errors are to be JSON: `--json`, or `-J` where a command has that; not behind `--`, where words name files.
pub fn wants_json(typed: &[OsString]) -> bool {
    typed.iter().take_while(|word| *word != "--").any(|word| word == "--json" || word == "-J")
}

/// Clap's text without what follows its usage, in one line.
fn sentence(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let told = text.split("\n\nUsage:").next().unwrap_or_default();
    let told = told.split("\n\nFor more information").next().unwrap_or_default();
    let lines = told.trim_start_matches("error: ").lines().map(str::trim).filter(|line| !line.is_empty());
    lines.fold(String::new(), |sentence, line| match sentence.chars().last() {
        None => line.to_owned(),
        Some(':' | ',') => format!("{sentence} {line}"),
        Some(_) => format!("{sentence}; {line}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> String {
        sentence(&crate::tests::parse(line).expect_err(line))
    }

    #[test]
    fn a_mistake_is_one_sentence() {
        assert_eq!(told("fullbore topics list --json --nope"), "unexpected argument '--nope' found");
        assert_eq!(
            told("fullbore topics create --json"),
            "the following required arguments were not provided: --topic <TOPIC>"
        );
        let near = told("fullbore topics create --topic t --partition 3 --json");
        let tip = "unexpected argument '--partition' found; tip: a similar argument exists: '--partitions'";
        assert_eq!(near, tip);
        let value = told("fullbore topics create --topic t --partitions many --json");
        assert!(value.starts_with("invalid value 'many' for '--partitions") && !value.contains('\n'), "{value}");
    }

    #[test]
    fn json_is_wanted_by_a_flag_and_not_by_a_file_of_its_name() {
        let wants = |line: &str| wants_json(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert!(wants("fullbore topics list --json --nope") && wants("fullbore consume -J --nope"));
        assert!(!wants("fullbore topics list --nope") && !wants("fullbore produce -t t --nope -- --json"));
    }
}
