//! Stores in the binary the commit from which it is built, for `--version`.
//!
//! The environment variable `FULLBORE_COMMIT` names the commit if the source is not a git clone, for example in a build
//! by a Linux distribution. Without a clone and without the variable, the commit is unknown, and the build succeeds.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-env-changed=FULLBORE_COMMIT");
    // Git appends a line to this file at each commit and checkout, so cargo runs this script again when the file
    // changes.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let named = std::env::var("FULLBORE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = named.or_else(|| git(&["rev-parse", "--short=8", "HEAD"])).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=FULLBORE_COMMIT={commit}");
    println!("cargo::rustc-env=FULLBORE_TARGET={}", std::env::var("TARGET").unwrap_or_default());
}
