//! Standard output. Not for errors, which go to standard error.

use std::io::Write;

/// Prints a line at once. A reader that went away (`| head`) ends the program as it ends any other Unix tool.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    if written.is_err() {
        std::process::exit(0);
    }
}
