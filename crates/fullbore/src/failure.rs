//! Why a command failed, as the sentence its user reads.

use std::fmt;

/// The exit status of a command line that cannot be carried out as it was typed; clap's, too.
const USAGE: u8 = 2;

/// The exit status of a command that a signal ended, as shells have it for SIGINT.
pub const INTERRUPTED: u8 = 130;

/// One sentence that says what is wrong and what to do next.
#[derive(Debug)]
pub struct Failure {
    sentence: String,
    /// The exit status.
    pub status: u8,
}

impl Failure {
    /// A failure in these words.
    pub fn new(sentence: impl Into<String>) -> Self {
        Failure { sentence: sentence.into(), status: 1 }
    }

    /// The command line lacks something.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Failure { sentence: sentence.into(), status: USAGE }
    }

    /// The user ended the command.
    pub fn interrupted(sentence: impl Into<String>) -> Self {
        Failure { sentence: sentence.into(), status: INTERRUPTED }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::new(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// How far it came, as part of a sentence.
pub fn records_were_written(count: u64) -> String {
    match count {
        1 => "1 record was written".to_owned(),
        _ => format!("{count} records were written"),
    }
}
