//! Accepts the action flags of Kafka's tools (`--create`), and replaces them by this program's subcommands (`create`).
//!
//! Invariant: a command line with a subcommand is unchanged.

use crate::{configs, groups, topics};
use std::ffi::{OsStr, OsString};

/// Turns `topics --create ...` into `topics create ...`. If flags follow the command but none of them is an action,
/// removes everything after the command, so that clap reports the missing action instead of an unknown flag.
pub fn with_words(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    let Some(command) = command(&args) else { return args };
    let flags: &[&str] = match args[command].to_str() {
        Some("topics") => &topics::ACTION_FLAGS,
        Some("configs") => &configs::ACTION_FLAGS,
        Some("groups") => &groups::ACTION_FLAGS,
        _ => return args,
    };
    let is_word = |arg: &&OsString| !arg.to_string_lossy().starts_with('-');
    let own = ["--help", "-h", "--version", "-V"];
    if args.get(command + 1).is_none_or(|next| is_word(&next) || own.iter().any(|flag| next == flag)) {
        return args;
    }
    match args.iter().position(|arg| flags.iter().any(|flag| arg == flag)) {
        Some(at) => {
            let flag = args.remove(at).into_string().expect("one of the flags");
            args.insert(command + 1, flag.trim_start_matches('-').into());
        }
        None => args.truncate(command + 1),
    }
    args
}

/// Returns the index of the command's name, which follows the program's name and the global flags. Returns `None` if
/// there is no name.
fn command(args: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while let Some(arg) = args.get(at).map(OsString::as_os_str) {
        match arg {
            arg if arg == OsStr::new("--debug") => at += 2,
            arg if arg.to_string_lossy().starts_with("--debug=") => at += 1,
            _ => return Some(at),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> String {
        let args = with_words(line.split(' ').map(OsString::from));
        args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn action_flags_become_words_and_words_stay() {
        for (typed, read) in [
            ("f topics --bootstrap-server h:1 --list", "f topics list --bootstrap-server h:1"),
            ("f --debug protocol topics --list", "f --debug protocol topics list"),
            ("f groups --reset-offsets --group g", "f groups reset-offsets --group g"),
            ("f configs --describe --topic t", "f configs describe --topic t"),
            ("f topics delete --list", "f topics delete --list"),
            ("f topics --bootstrap-server h:1", "f topics"),
            ("f groups --help", "f groups --help"),
            ("f perf produce --list", "f perf produce --list"),
            ("f", "f"),
            ("f --debug", "f --debug"),
        ] {
            assert_eq!(words(typed), read);
        }
    }
}
