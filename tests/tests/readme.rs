//! Runs the commands of README.md and of the pages in docs/, and checks that they do what the page shows. Also checks
//! that every message quoted in docs/troubleshooting.md is in the source.
//!
//! The commands are the indented lines of a page. Commands between fences are not run, because they need Kafka's own
//! tools. `make test` is not run, because it runs this test. A `serve` gets a free port and its own data directory, and
//! its address replaces the one in the pages.

use fullbore_tests::{Broker, binary};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const TROUBLESHOOTING: &str = include_str!("../../docs/troubleshooting.md");

/// The pages in the order in which they are run. A page may use what earlier pages have created.
const PAGES: [&str; 6] = [
    include_str!("../../README.md"),
    include_str!("../../docs/tools.md"),
    include_str!("../../docs/from-kafka.md"),
    include_str!("../../docs/consumer.md"),
    TROUBLESHOOTING,
    include_str!("../../docs/operating.md"),
];

/// A command of a page, and a text that its output must contain because the page shows it.
struct ShownCommand {
    line: String,
    prints: Option<&'static str>,
}

/// Returns the commands of all pages in order. A command is an indented line, without its comment.
fn commands() -> impl Iterator<Item = ShownCommand> {
    let mut is_fenced = false;
    let lines = PAGES.into_iter().flat_map(str::lines).filter(move |line| {
        is_fenced ^= line.trim_start().starts_with("```");
        !is_fenced
    });
    lines.filter_map(|line| line.strip_prefix("    ")).map(|code| {
        let (line, remark) = code.split_once(" # ").unwrap_or((code, ""));
        ShownCommand { line: line.trim().to_owned(), prints: remark.strip_prefix("prints ") }
    })
}

fn succeeds(arguments: &[&str]) {
    // A sweep writes its report to the current directory, so the command runs in a temporary one.
    let directory = tempfile::tempdir().expect("a directory");
    let output = Command::new(binary()).args(arguments).current_dir(&directory).output().expect("the binary starts");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {printed}");
}

/// Starts a link, which must print its address. The link runs until it is killed.
fn links(arguments: &[&str]) {
    let mut link = Command::new(binary()).args(arguments).stdout(Stdio::piped()).spawn().expect("the binary starts");
    let mut line = String::new();
    let read = BufReader::new(link.stdout.take().expect("piped")).read_line(&mut line);
    link.kill().expect("it runs still");
    link.wait().expect("killed");
    assert!(read.is_ok() && line.contains("127.0.0.1:"), "{arguments:?}: {line}");
}

/// The brokers and files that the commands use.
struct Place {
    /// The broker that the pages call 127.0.0.1:9092.
    broker: Broker,
    /// The broker from which docs/from-kafka.md moves the data. The page calls it 127.0.0.1:19092.
    old: Broker,
    /// The directory in which commands run, so that a command can read the files of another one.
    directory: TempDir,
    /// The first port of the cluster that a page has started. `None` while there is no cluster.
    cluster: Option<u16>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.cluster.is_some() {
            self.take_down();
        }
    }
}

impl Place {
    fn new() -> Place {
        let broker = Broker::start(&["fullbore.admin.listener=127.0.0.1:0"]);
        let place = Place {
            broker,
            old: Broker::start(&[]),
            directory: tempfile::tempdir().expect("a directory"),
            cluster: None,
        };
        let old = place.old.addr();
        place.shell(&format!("fullbore topics create --topic orders --partitions 3 --bootstrap-server {old}"));
        place.shell(&format!("printf 'one\\ntwo\\n' | fullbore produce --topic orders --bootstrap-server {old}"));
        let billing = "fullbore consume --topic orders --group billing --from-beginning --exit --bootstrap-server";
        place.shell(&format!("{billing} {old}"));
        place
    }

    /// Runs a line in a shell and returns its output.
    fn shell(&self, line: &str) -> String {
        let script = format!("set -euo pipefail; fullbore() {{ \"$FULLBORE\" \"$@\"; }}; {line}");
        let mut bash = Command::new("bash");
        bash.args(["-c", &script]).env("FULLBORE", binary()).current_dir(&self.directory);
        bash.env("FULLBORE_BOOTSTRAP_SERVER", self.requested());
        let output = bash.output().expect("bash starts");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {printed}{stderr}");
        printed
    }

    /// Runs `fullbore cluster up`. After that, 127.0.0.1:9092 in the pages stands for this cluster.
    fn bring_up(&mut self, flags: &[&str]) {
        let port = fullbore_tests::stable_ports_in_a_row(3);
        self.cluster = Some(port);
        let of_tests = format!("--data-dir cluster --port {port} --set fullbore.admin.listener=");
        self.shell(&format!("fullbore cluster up {} {of_tests}", flags.join(" ")));
    }

    fn take_down(&mut self) {
        self.cluster = None;
        self.shell("fullbore cluster down --data-dir cluster");
    }

    /// Returns the real address of the broker that the pages call 127.0.0.1:9092.
    fn requested(&self) -> String {
        self.cluster.map_or_else(|| self.broker.addr().to_string(), |port| format!("127.0.0.1:{port}"))
    }

    /// Replaces the addresses of the pages by those of the test's brokers.
    fn reported(&self, command: &str) -> String {
        let old = self.old.addr().to_string();
        command.replace("127.0.0.1:19092", &old).replace("127.0.0.1:9092", &self.requested())
    }

    /// Does `cp -a fullbore-data backup` while the broker is stopped.
    fn back_up(&mut self) {
        self.broker.stop();
        let copied = Command::new("cp").arg("-a").arg(self.broker.data_dir()).arg(self.backup()).status();
        assert!(copied.expect("cp starts").success());
        self.broker.restart();
    }

    fn backup(&self) -> std::path::PathBuf {
        self.directory.path().join("backup")
    }

    /// Starts a broker on the backup and checks that it has the records of the original.
    fn serve_backup(&self) {
        let mut copy = Broker::start_in(&self.backup(), &[]);
        self.shell(&format!("fullbore topics describe --topic orders --bootstrap-server {}", copy.addr()));
        copy.stop();
    }

    /// Runs a command against a broker and checks that its output contains the text on the page.
    fn run(&self, command: &ShownCommand) {
        let ShownCommand { line, prints } = command;
        let printed = self.shell(&self.reported(line));
        // A consume command must print records, unless its output goes to a pipe or a file.
        let reads = line.starts_with("fullbore consume") && !line.contains(['|', '>']);
        assert!(!reads || !printed.is_empty(), "{line} reads nothing");
        assert!(prints.is_none_or(|text| printed.contains(text)), "{line} prints {printed}");
    }
}

#[test]
fn commands_of_the_pages_succeed_in_order_with_their_shown_output() {
    let mut place = Place::new();
    let (mut tools, mut printing) = (0, 0);
    for command in commands() {
        printing += usize::from(command.prints.is_some());
        let words: Vec<&str> = command.line.split_whitespace().collect();
        match words.as_slice() {
            ["make", "test"] => {}
            ["cargo", "run", "--release", "--", rest @ ..] => succeeds(rest),
            ["fullbore", "cluster", "up", flags @ ..] => place.bring_up(flags),
            ["fullbore", "cluster", "down"] => place.take_down(),
            ["cp", "-a", "fullbore-data", "backup"] => place.back_up(),
            ["fullbore", "serve", "--data-dir", "backup", ..] => place.serve_backup(),
            // The test does not run this command, because its broker is already running (`Broker::start`).
            ["fullbore", "serve"] | ["fullbore", "serve", "--data-dir", _, "--listen", "127.0.0.1:9092"] => {}
            ["fullbore", rest @ ..] if matches!(rest, ["demo", ..] | ["perf", "sweep", ..]) => succeeds(rest),
            ["fullbore", "perf", "link", "--listen", "127.0.0.1:9093", "--to", _, rest @ ..] => {
                let to = place.broker.addr().to_string();
                links(&[&["perf", "link", "--listen", "127.0.0.1:0", "--to", to.as_str()], rest].concat());
            }
            ["curl", "-s", url] => {
                let path = url.strip_prefix("http://127.0.0.1:9644").expect("the address of the metrics");
                let page = place.broker.admin_page(path);
                assert!(page.starts_with("HTTP/1.1 200"), "{url}: {page}");
            }
            ["fullbore", ..] | ["echo", _, "|", "fullbore", ..] => {
                place.run(&command);
                tools += 1;
            }
            _ => panic!("no arm of this test runs: {}", command.line),
        }
    }
    assert_eq!(
        (tools, printing),
        (36, 10),
        "number of commands that connect to a broker, and number of those whose output a page shows"
    );
}

/// Returns the sources of all crates as one text.
fn source() -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let entries = |directory: &Path| {
        std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("readable").path())
    };
    let mut directories: Vec<_> = entries(&crates).map(|directory| directory.join("src")).collect();
    let mut text = String::new();
    while let Some(directory) = directories.pop() {
        for path in entries(&directory) {
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text += &in_one_piece(&std::fs::read_to_string(&path).expect("UTF-8"));
            }
        }
    }
    text
}

/// Joins string literals that are split by a backslash at the end of a line.
fn in_one_piece(source: &str) -> String {
    let (mut text, mut goes_on) = (String::new(), false);
    for line in source.lines() {
        let line = if goes_on { line.trim_start() } else { line };
        goes_on = line.ends_with('\\');
        text += line.strip_suffix('\\').unwrap_or(line);
        if !goes_on {
            text.push('\n');
        }
    }
    text.replace("\\\"", "\"")
}

/// Returns the texts between backquotes in the first column of a table row.
fn quoted(row: &str) -> Vec<&str> {
    row.split(" | ").next().unwrap_or_default().split('`').skip(1).step_by(2).collect()
}

#[test]
fn tls_recipe_makes_certificates_that_work_and_keys_that_only_their_owner_reads() {
    let section = PAGES[5].split_once("## TLS for clients").expect("a section").1;
    let recipe = section.split("```").find_map(|part| part.strip_prefix("sh\n")).expect("a recipe");
    let directory = tempfile::tempdir().expect("a directory");
    let script = format!("umask 022; set -eu\n{recipe}");
    let made = Command::new("bash").args(["-c", &script]).current_dir(&directory).output().expect("bash starts");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for entry in std::fs::read_dir(&directory).expect("it lists").flatten() {
        let text = std::fs::read_to_string(entry.path()).expect("text");
        let mode = entry.metadata().expect("there").permissions().mode();
        assert!(!text.contains("PRIVATE KEY") || mode & 0o077 == 0, "{:?} has mode {mode:o}", entry.path());
    }
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (keystore, truststore) = (path("broker.pem"), path("clients.pem"));
    let broker = Broker::start(&[
        "listeners=SSL://127.0.0.1:0",
        "ssl.client.auth=required",
        &format!("ssl.keystore.location={keystore}"),
        &format!("ssl.truststore.location={truststore}"),
    ]);
    let address = broker.addr().to_string();
    let trusts = format!("ssl.truststore.location={truststore}");
    let is = format!("ssl.keystore.location={}", path("client.pem"));
    succeeds(&["topics", "list", "-b", &address, "-X", "security.protocol=SSL", "-X", &trusts, "-X", &is]);
}

#[test]
fn explained_messages_are_in_the_source() {
    let source = source();
    let messages: Vec<&str> = TROUBLESHOOTING.lines().filter(|line| line.starts_with("| `")).flat_map(quoted).collect();
    assert!(messages.len() > 80, "{}", messages.len());
    for message in messages {
        // Three dots in a message stand for any text, to which the punctuation beside them may belong. So this
        // punctuation is not compared.
        let parts = message.split("...").map(|part| part.trim_matches(|c: char| " :;,".contains(c)));
        let parts: Vec<&str> = parts.filter(|part| part.len() > 3).collect();
        assert!(!parts.is_empty(), "{message} cannot be found anywhere");
        for part in parts {
            assert!(source.contains(part), "no source says \"{part}\", as in: {message}");
        }
    }
}

#[test]
fn named_metrics_exist() {
    let metrics = include_str!("../../docs/metrics.md");
    let is_metric = |name: &&str| {
        name.starts_with("fullbore_") && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())
    };
    for name in PAGES.into_iter().flat_map(|page| page.split('`')).filter(is_metric) {
        assert!(metrics.contains(&format!("| `{name}` |")), "{name}");
    }
}

#[test]
fn figures_of_pages_are_those_of_one_file() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/figures");
    let output = Command::new("python3").arg(script).arg("--check").output().expect("python3 starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn links_of_the_pages_have_a_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = ["docs", "docs/internals", "docs/decisions", "docs/plans"].map(|directory| root.join(directory));
    let docs = docs.into_iter().flat_map(|directory| std::fs::read_dir(directory).expect("a directory"));
    let docs = docs.map(|entry| entry.expect("readable").path());
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
    let pages = docs.chain(others.map(|name| root.join(name)));
    for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(&page).expect("UTF-8");
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.parent().expect("in a directory").join(file) };
            assert!(file.exists(), "{}: {target}", page.display());
            let headings =
                if anchor.is_empty() { String::new() } else { std::fs::read_to_string(&file).expect("UTF-8") };
            let is_there = headings.lines().any(|line| line.starts_with('#') && anchor_of(line) == anchor);
            assert!(anchor.is_empty() || is_there, "{}: {target}", page.display());
        }
    }
}

/// Returns the anchor that GitHub generates for a heading.
fn anchor_of(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
