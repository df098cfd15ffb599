//! The facts of a sweep that a reader needs to judge its figures: machine, versions, command.
//!
//! Invariant: the facts contain no secret. Values of properties that may be secret are left out.

use crate::output::shell_word;
use fullbore_bench::report::DateFormat;
use fullbore_bench::sweep::setting::is_secret_key;
use std::time::SystemTime;

/// The format of times in reports, in UTC.
const TIME: &str = "yyyy-MM-dd HH:mm:ss 'UTC'";
/// The format of the name of a report's directory.
const DIRECTORY: &str = "'sweep-'yyyyMMdd-HHmmss";

/// Formats a time for people.
pub fn shown(time: SystemTime) -> String {
    DateFormat::parse(TIME).expect("the pattern is valid").format(time)
}

/// Returns the name of a report's directory.
pub fn directory_name(time: SystemTime) -> String {
    DateFormat::parse(DIRECTORY).expect("the pattern is valid").format(time)
}

/// Returns this program's version, with a warning if it is a debug build.
pub fn program() -> String {
    let build = if cfg!(debug_assertions) { " (a debug build: figures are low)" } else { "" };
    format!("fullbore {}{build}, {} {}", env!("CARGO_PKG_VERSION"), std::env::consts::OS, std::env::consts::ARCH)
}

/// Describes the processor, memory and kernel of the machine, as far as the system reports them.
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    described(&read("/proc/cpuinfo"), cores, &read("/proc/meminfo"), read("/proc/sys/kernel/osrelease").trim())
}

fn described(cpuinfo: &str, cores: usize, meminfo: &str, kernel: &str) -> String {
    let after = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    let model = after(cpuinfo, "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let kib = after(meminfo, "MemTotal").and_then(|value| value.split(' ').next()?.parse::<f64>().ok());
    let memory = kib.map(|kib| format!(", {:.1} GiB", kib / f64::from(1 << 20))).unwrap_or_default();
    let kernel = if kernel.is_empty() { String::new() } else { format!(", Linux {kernel}") };
    format!("{model}, {cores} cores for this process{memory}{kernel}")
}

/// Returns the command line, quoted so that a user can run it again. Values that may be secret are left out.
pub fn command(arguments: impl Iterator<Item = String>) -> String {
    arguments.map(|argument| shell_word(&public(&argument))).collect::<Vec<_>>().join(" ")
}

fn public(argument: &str) -> String {
    match argument.split_once('=') {
        // For `--set=name=value`, the secrecy of `name` is checked, as for the separate word `name=value`.
        Some((name, value)) if name.starts_with("--") => format!("{name}={}", public(value)),
        Some((name, _)) if is_secret_key(&name.replace('-', ".")) => format!("{name}=(left out)"),
        _ => argument.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn the_shown_command_can_be_typed_again_without_secrets() {
        let typed = ["fullbore", "--set", "ssl.key.password=x", "--set=sasl.jaas.config=y z", "--note", "it's me", ""];
        let shown = command(typed.into_iter().map(str::to_owned));
        let expected = "fullbore --set 'ssl.key.password=(left out)' '--set=sasl.jaas.config=(left out)' \
                        --note 'it'\\''s me' ''";
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_machine_is_described_by_the_known_figures() {
        let cpu = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: again\n";
        let found = described(cpu, 2, "MemTotal:       25165824 kB\nMemFree: 1 kB\n", "6.18.1");
        assert_eq!(found, "Some CPU @ 2 GHz, 2 cores for this process, 24.0 GiB, Linux 6.18.1");
        assert_eq!(described("", 1, "", ""), "unknown processor, 1 cores for this process");
    }

    #[test]
    fn times_are_formatted_in_utc() {
        assert_eq!(shown(UNIX_EPOCH), "1970-01-01 00:00:00 UTC");
        assert_eq!(directory_name(UNIX_EPOCH), "sweep-19700101-000000");
    }
}
