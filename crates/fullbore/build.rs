//! Gives the binary the commit that it is built from, for `--version`.
//!
//! `FULLBORE_COMMIT` names it where the source is not a clone, as in a distribution's build. Without either, the commit
//! is unknown, and the build succeeds.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-env-changed=FULLBORE_COMMIT");
    // Each commit and checkout of this clone appends a line to this file.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let named = std::env::var("FULLBORE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = named.or_else(|| git(&["rev-parse", "--short=8", "HEAD"])).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=FULLBORE_COMMIT={commit}");
    println!("cargo::rustc-env=FULLBORE_TARGET={}", std::env::var("TARGET").unwrap_or_default());
}
