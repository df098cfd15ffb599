//! Tests of the help, its examples, colours, completion scripts and manual pages of all commands.

use crate::tool_output::output_of;
use crate::{Place, fullbore};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn only_a_terminal_has_colours_unless_no_color_is_set() {
    let place = Place::new();
    place.ok("topics create --topic a");
    place.ok("groups reset-offsets --group g --topic a --to-earliest --execute");
    let program = env!("CARGO_BIN_EXE_fullbore");
    let table = format!("{program} groups list --state --bootstrap-server {}", place.broker.address());
    let refused = format!("{program} groups describe --group h --bootstrap-server {}", place.broker.address());
    assert!(!place.ok("groups list --state").contains('\x1b'));
    for (line, marked) in [(table, "\x1b[1mGROUP "), (refused, "\x1b[1;31mfullbore:\x1b[0m consumer group 'h'")] {
        // The program `script` gives the command a terminal.
        let on_terminal = |unwanted: &str| {
            let mut script = Command::new("script");
            script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
            script.env("TERM", "xterm").env("NO_COLOR", unwanted).output().map(output_of)
        };
        let (Ok((_, coloured, _)), Ok((_, bare, _))) = (on_terminal(""), on_terminal("1")) else {
            println!("skipped: there is no `script`");
            return;
        };
        assert!(coloured.contains(marked), "{coloured:?}");
        assert!(bare.contains('g') && !bare.contains('\x1b'), "{bare:?}");
    }
}

/// Returns the examples in a command's help as the user would type them.
fn examples(command: &str) -> Vec<String> {
    let (status, help, _) = fullbore(&format!("{command} --help"));
    assert_eq!(status, Some(0), "{command}");
    let typed = |line: &str| {
        let line = line.trim();
        line.starts_with("fullbore ").then(|| line.split("  ").next().unwrap_or_default().to_owned())
    };
    let found: Vec<String> = help.lines().filter_map(typed).collect();
    assert!(!found.is_empty(), "{command} has no example");
    found
}

#[test]
fn the_examples_of_the_help_run() {
    let place = Place::new();
    let directory = tempfile::tempdir().expect("a directory");
    let program = Path::new(env!("CARGO_BIN_EXE_fullbore")).parent().expect("in a directory").display().to_string();
    let path = format!("{program}:{}", std::env::var("PATH").unwrap_or_default());
    let commands = [
        "topics create",
        "topics",
        "topics list",
        "topics describe",
        "topics alter",
        "configs alter",
        "configs",
        "configs describe",
        "groups reset-offsets",
        "groups",
        "groups list",
        "groups describe",
        "groups delete-offsets",
        "groups delete",
        "topics offsets",
        "topics elect-leaders",
        "info",
        "log-dirs",
        "api-versions",
        "topics delete",
        "completions",
        "man",
    ];
    for example in commands.iter().flat_map(|command| examples(command)) {
        // The example must not write files outside of the test's directory.
        let (typed, piped) = example.split_once(" | ").unwrap_or((&example, "cat"));
        let piped = if piped.starts_with("tee plan.csv") { piped } else { "cat" };
        let requests = ["topics", "configs", "groups", "info", "log-dirs", "api-versions"]
            .iter()
            .any(|command| typed.starts_with(&format!("fullbore {command}")));
        let at = if requests { format!("--bootstrap-server {}", place.broker.address()) } else { String::new() };
        let line = format!("{typed} {at} >out || exit; {piped} <out");
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).env("PATH", &path).current_dir(directory.path()).stdin(Stdio::null());
        let (status, stdout, stderr) = output_of(shell.output().expect("sh runs"));
        assert_eq!(status, Some(0), "{example}: {stdout}{stderr}");
        assert!(!stdout.contains('\x1b') && !stderr.contains('\x1b'), "colours without a terminal: {example}");
    }
}

#[test]
fn every_shell_has_a_script_and_every_command_a_page() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (status, script, _) = fullbore(&format!("completions {shell}"));
        assert!(status == Some(0) && script.contains("FULLBORE_COMPLETE"), "{shell}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let pages = directory.path().join("man");
    let (status, _, stderr) = fullbore(&format!("man --dir {}", pages.display()));
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    for page in ["fullbore.1", "fullbore-topics-alter.1", "fullbore-groups-reset-offsets.1", "fullbore-perf-produce.1"]
    {
        let text = std::fs::read_to_string(pages.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.contains(".TH "), "{page}");
    }
    let names: Vec<String> = std::fs::read_dir(&pages)
        .expect("a directory")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().all(|name| !name.contains("-help")), "{names:?}");
    let taken = directory.path().join("file");
    std::fs::write(&taken, "").expect("written");
    let (status, _, stderr) = fullbore(&format!("man --dir {}", taken.display()));
    assert!(status == Some(1) && stderr.contains("cannot write manual pages to"), "{stderr}");
}

#[test]
fn a_mistake_in_the_flags_is_json_with_json() {
    for (line, reported) in [
        ("groups list --json --nope", "{\"error\":\"unexpected argument '--nope' found\"}\n"),
        (
            "consume -J --nope",
            "{\"error\":\"unexpected argument '--nope' found; tip: to pass '--nope' as a value, use '-- --nope'\"}\n",
        ),
    ] {
        assert_eq!(fullbore(line), (Some(2), String::new(), reported.to_owned()), "{line}");
    }
    let (status, _, stderr) = fullbore("topics --json");
    assert!(
        status == Some(1) && stderr.starts_with("{\"error\":\"topics: the action is missing: create, list, "),
        "{stderr}"
    );
    let (status, stdout, stderr) = fullbore("topics list --nope");
    assert_eq!((status, stdout.as_str()), (Some(2), ""));
    assert!(
        stderr.starts_with("error: unexpected argument '--nope' found\n") && stderr.contains("Usage: "),
        "{stderr}"
    );
    let (status, stdout, stderr) = fullbore("topics list --json --help");
    assert_eq!((status, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("Usage: fullbore topics list"), "{stdout}");
}
