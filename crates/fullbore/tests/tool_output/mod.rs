//! The exit status and output of a command, as the tests of several tools need them.

use fullbore_tests::complaints;
use std::process::Output;

/// The exit status, standard output and standard error.
pub type ToolOutput = (Option<i32>, String, String);

/// Returns the exit status and output of a process that has ended, without its reports of waits.
pub fn output_of(output: Output) -> ToolOutput {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), complaints(&text(&output.stderr)))
}

/// Returns the output of a command, which must have succeeded without complaints.
pub fn ok(line: &str, (status, stdout, stderr): ToolOutput) -> String {
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{line}: {stdout}");
    stdout
}

/// Returns the message of a command, which must have failed.
pub fn refused(line: &str, (status, _, stderr): ToolOutput) -> String {
    assert_eq!(status, Some(1), "{line}: {stderr}");
    stderr
}
