//! Every command of README.md and docs/from-kafka.md does what it is there for. `make test` is what runs this; a `serve` is run on a free port
//! and a data folder of its own, and the others are told so.

use fullbore_tests::{Broker, binary};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// The commands: indented lines, without their remarks.
fn commands() -> Vec<String> {
    let pages = [include_str!("../../README.md"), include_str!("../../docs/from-kafka.md")];
    let code = pages.into_iter().flat_map(str::lines).filter_map(|line| line.strip_prefix("    "));
    code.map(|line| line.split(" # ").next().unwrap_or(line).trim().to_owned()).collect()
}

fn succeeds(arguments: &[&str]) {
    // A sweep leaves its report where it is run.
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(binary()).args(arguments).current_dir(&folder).output().expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
}

/// A link says where it listens, and stays.
fn links(arguments: &[&str]) {
    let mut link = Command::new(binary()).args(arguments).stdout(Stdio::piped()).spawn().expect("the binary starts");
    let mut line = String::new();
    let read = BufReader::new(link.stdout.take().expect("piped")).read_line(&mut line);
    link.kill().expect("it runs still");
    link.wait().expect("killed");
    assert!(read.is_ok() && line.contains("127.0.0.1:"), "{arguments:?}: {line}");
}

/// The words of a command with the address of the test's broker for the README's.
fn told<'a>(words: &[&'a str], addr: &'a str) -> Vec<&'a str> {
    let words: Vec<&str> = words.iter().map(|word| if *word == "127.0.0.1:9092" { addr } else { *word }).collect();
    assert!(words.contains(&addr), "{words:?} does not say which broker");
    words
}

fn feeds(from: &[&str], to: &[&str]) {
    let output = Command::new(binary()).args(from).output().expect("the binary starts");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success() && !said.is_empty(), "{from:?}: {said}");
    pipes(&said, to);
}

fn pipes(text: &str, arguments: &[&str]) {
    let mut tool = Command::new(binary()).args(arguments).stdin(Stdio::piped()).spawn().expect("the binary starts");
    tool.stdin.take().expect("piped").write_all(text.as_bytes()).expect("it reads");
    assert!(tool.wait().expect("it ends").success(), "{arguments:?}");
}

#[test]
fn every_command_works() {
    let broker = Broker::start(&[]);
    let addr = broker.addr().to_string();
    // The topic of docs/from-kafka.md.
    pipes("one\ntwo\n", &["produce", "--topic", "orders", "--bootstrap-server", &addr]);
    let mut tools = 0;
    for command in commands() {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["make", "test"] => {}
            ["cargo", "run", "--release", "--", rest @ ..] => succeeds(rest),
            // Broker::start ran it with these very flags.
            ["fullbore", "serve", "--data-dir", _, "--listen", "127.0.0.1:9092"] => {}
            ["fullbore", rest @ ..] if matches!(rest, ["demo", ..] | ["perf", "sweep", ..]) => succeeds(rest),
            ["fullbore", "perf", "link", "--listen", "127.0.0.1:9093", rest @ ..] => {
                links(&[&["perf", "link", "--listen", "127.0.0.1:0"], rest].concat());
            }
            ["echo", said, "|", "fullbore", rest @ ..] => {
                pipes(&format!("{said}\n"), &told(rest, &addr));
                tools += 1;
            }
            ["fullbore", rest @ ..] if rest.contains(&"|") => {
                let sides = command.split(" | ").map(|side| side.split_whitespace().skip(1).collect::<Vec<_>>());
                let sides: Vec<_> = sides.map(|words| told(&words, &addr)).collect();
                feeds(&sides[0], &sides[1]);
                tools += 1;
            }
            ["fullbore", rest @ ..] => {
                succeeds(&told(rest, &addr));
                tools += 1;
            }
            _ => panic!("nobody knows how to run: {command}"),
        }
    }
    assert_eq!(tools, 10, "so many commands are shown that are told which broker");
}
