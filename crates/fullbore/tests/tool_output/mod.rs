//! The exit status and output of a command, for the tests of several tools.

use fullbore_tests::complaints;
use std::process::Output;

/// The exit status, standard output and standard error.
pub type ToolOutput = (Option<i32>, String, String);

/// Returns the exit status and output of a process that has ended. Removes its `waiting:` lines.
pub fn output_of(output: Output) -> ToolOutput {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), complaints(&text(&output.stderr)))
}

/// Returns the standard output of a command. Panics unless it has succeeded, with no lines on standard error except
/// reports of waits.
pub fn ok(line: &str, (status, stdout, stderr): ToolOutput) -> String {
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{line}: {stdout}");
    stdout
}

/// Returns the error message of a command. Panics unless it has failed.
pub fn refused(line: &str, (status, _, stderr): ToolOutput) -> String {
    assert_eq!(status, Some(1), "{line}: {stderr}");
    stderr
}
