//! The failure of a command, with a sentence for the user.

use std::fmt;

/// The exit status for a command line that cannot be carried out as typed. clap uses the same status.
const USAGE: u8 = 2;

/// The exit status of a command that a signal ended. Shells use the same status for SIGINT.
pub const INTERRUPTED: u8 = 130;

/// A sentence with the error and the next step, and the exit status.
#[derive(Debug)]
pub struct Failure {
    sentence: String,
    /// The exit status of the program.
    pub status: u8,
}

impl Failure {
    /// Creates a failure with this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Failure { sentence: sentence.into(), status: 1 }
    }

    /// Creates the failure of a command line that lacks a flag or a value.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Failure { sentence: sentence.into(), status: USAGE }
    }

    /// Creates the failure of a command that the user ended.
    pub fn interrupted(sentence: impl Into<String>) -> Self {
        Failure { sentence: sentence.into(), status: INTERRUPTED }
    }

    /// Puts a clause about the probable cause in front of the sentence.
    pub fn due_to(self, cause: &str) -> Self {
        Failure { sentence: format!("{cause}: {}", self.sentence), ..self }
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

/// Returns the outcome of a command that has printed a list. `failed` is the error of a broker whose entries the list
/// lacks.
///
/// # Errors
/// Fails if `failed` has an error.
pub fn completeness(failed: Option<impl fmt::Display>) -> Result<(), Failure> {
    failed.map_or(Ok(()), |error| Err(Failure::new(format!("the list is incomplete: {error}"))))
}

/// Returns a clause with the number of written records.
pub fn records_were_written(count: u64) -> String {
    match count {
        1 => "1 record was written".to_owned(),
        _ => format!("{count} records were written"),
    }
}
