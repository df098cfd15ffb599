//! Standard output. Not for errors, which go to standard error.
//!
//! Invariant: a reader that went away (`| head -1`) loses the rest of the lines and nothing else: commands end by
//! themselves and clean up.

use std::io::{self, Write};
use std::sync::OnceLock;

static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line at once; does nothing after one that could not be printed.
pub fn line(text: &str) {
    if FAILED.get().is_some() {
        return;
    }
    let mut out = io::stdout().lock();
    if let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        FAILED.get_or_init(|| error);
    }
}

/// Whether lines are lost: a command that works only for what it prints may stop.
pub fn is_lost() -> bool {
    FAILED.get().is_some()
}

/// Why lines were lost, unless the reader just went away, as it may.
pub fn error() -> Option<&'static io::Error> {
    FAILED.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
}
