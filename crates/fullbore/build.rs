//! Records in the binary the commit from which it is built, for `--version`.
//!
//! If the source is not a clone, as in a distribution's build, `FULLBORE_COMMIT` names the commit. Without clone and
//! variable, the commit is unknown, and the build succeeds.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-env-changed=FULLBORE_COMMIT");
    // The build depends on this file, to which git appends a line at each commit and checkout of the clone.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let named = std::env::var("FULLBORE_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = named.or_else(|| git(&["rev-parse", "--short=8", "HEAD"])).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=FULLBORE_COMMIT={commit}");
    println!("cargo::rustc-env=FULLBORE_TARGET={}", std::env::var("TARGET").unwrap_or_default());
}
