//! Status and output of a command that has ended, for the tests of several tools.

use crate::broker::complaints;
use std::process::Output;

/// Exit status, standard output and standard error.
pub type Said = (Option<i32>, String, String);

/// Returns status and output of a process that has ended.
pub fn said(output: Output) -> Said {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Returns the output of a command line that succeeded without complaints.
pub fn ok(line: &str, (status, stdout, stderr): Said) -> String {
    assert_eq!((status, complaints(&stderr).as_str()), (Some(0), ""), "{line}: {stdout}");
    stdout
}

/// Returns the message of a command line that must have failed.
pub fn refused(line: &str, (status, _, stderr): Said) -> String {
    assert_eq!(status, Some(1), "{line}: {stderr}");
    complaints(&stderr)
}
