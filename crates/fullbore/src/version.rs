//! The version of the binary, for `-V` and `--version`.

/// The version and the commit, for `-V`.
pub const SHORT: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("FULLBORE_COMMIT"), ")");

/// The version, the commit, the target and the compiled-in features, for `--version`.
pub const LONG: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit: ",
    env!("FULLBORE_COMMIT"),
    "\ntarget: ",
    env!("FULLBORE_TARGET"),
    "\ncodecs: gzip, snappy, lz4, zstd",
    "\ntls: rustls with aws-lc-rs",
    "\nmetadata: SQLite (one broker), PostgreSQL (cluster)",
    "\nobject stores: directory, S3",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_version_begins_with_the_release_and_names_the_commit() {
        let lines: Vec<&str> = LONG.lines().collect();
        assert_eq!(lines.first(), Some(&env!("CARGO_PKG_VERSION")));
        let commit = lines.iter().find_map(|line| line.strip_prefix("commit: ")).expect("a line names the commit");
        assert!(commit == "unknown" || commit.len() == 8, "{commit}");
        assert!(SHORT.contains(commit), "{SHORT}");
    }
}
