//! Parses command lines with clap.
//!
//! Invariant: a negative number after a flag is the value of this flag, so that an error message can name the allowed
//! range. For this reason, no short flag is a digit.

use clap::{Command, Parser};
use std::ffi::OsString;

/// Parses the words of a command line, the first of which is the program's name.
///
/// # Errors
/// Returns clap's error if the command line is malformed, and also if it requests help.
pub fn parsed<P: Parser>(words: impl IntoIterator<Item: Into<OsString> + Clone>) -> Result<P, clap::Error> {
    let mut command = with_negative_numbers(P::command());
    let matches = command.try_get_matches_from_mut(words)?;
    P::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn with_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let takes_value = !arg.is_positional() && arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_value)
    });
    command.mut_subcommands(with_negative_numbers)
}
