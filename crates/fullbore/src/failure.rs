//! Why a command failed, as the sentence its user reads.

use std::fmt;

/// One sentence that says what is wrong and what to do next.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// A failure in these words.
    pub fn new(sentence: impl Into<String>) -> Self {
        Failure(sentence.into())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
