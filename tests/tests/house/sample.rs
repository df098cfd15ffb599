//! Draws a sample of the project's prose for a reader, who marks the texts that must be read twice.
//!
//! The seed determines the sample, so that a sample of the same tree can be repeated. Nothing is checked here, because
//! the reader is the judge.

use super::prose::{self, Kind};
use fullbore_tests::Random;
use std::fs;

const COMMENTS_OF_GROUP: usize = 20;
const PARAGRAPHS: usize = 60;
const MESSAGES: usize = 60;

/// Minimum number of words of a paragraph, so that cells of tables do not fill the sample.
const PARAGRAPH_WORDS_MIN: usize = 8;

/// Minimum number of words of a message, so that the sample has no bare placeholders.
const MESSAGE_WORDS_MIN: usize = 3;

/// The parts of the project, each with prefixes of paths. A file belongs to the first part with a prefix of its path.
const GROUPS: [(&str, &[&str]); 7] = [
    ("replicas", &["crates/broker/src/replica", "crates/broker/src/replication", "crates/broker/src/partitions"]),
    ("diskless topics", &["crates/diskless/src"]),
    ("control plane", &["crates/control/", "crates/db/", "crates/broker/src/membership"]),
    ("rest of the broker", &["crates/broker/"]),
    ("log", &["crates/log/", "crates/host/", "crates/config/", "crates/tls/"]),
    ("wire, rules and clients", &["crates/"]),
    ("tests and benchmarks", &["tests/", "sim/", "bench/", "fuzz/", ".ci/"]),
];

/// The prose of the project by kind. Each text has the form `file:line: text`.
#[derive(Default)]
struct Prose {
    /// The comments of each part.
    comments: [Vec<String>; 7],
    paragraphs: Vec<String>,
    messages: Vec<String>,
}

#[test]
#[ignore = "prints a sample for a reader, by SAMPLE_SEED"]
fn sample_of_prose() {
    let Ok(seed) = std::env::var("SAMPLE_SEED") else { return };
    let mut random = Random::new(seed.parse().expect("SAMPLE_SEED is a number"));
    let prose = collect();
    let mut number = 0;
    let mut show = |heading: &str, pieces: Vec<String>, count: usize| {
        println!("\n{heading}\n");
        for piece in drawn(&mut random, pieces, count) {
            number += 1;
            println!("{number}. {piece}");
        }
    };
    for ((group, _), comments) in GROUPS.iter().zip(prose.comments) {
        show(&format!("Comments: {group}"), comments, COMMENTS_OF_GROUP);
    }
    show("Paragraphs of documents", prose.paragraphs, PARAGRAPHS);
    show("Messages of logs and errors", prose.messages, MESSAGES);
}

fn collect() -> Prose {
    let root = prose::root();
    let mut found = Prose::default();
    for file in prose::files(&root) {
        let text = fs::read_to_string(root.join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let tests_from = tests_begin(&file, &text);
        let group = GROUPS.iter().position(|(_, prefixes)| prefixes.iter().any(|prefix| file.starts_with(prefix)));
        for block in prose::blocks_with_code(&file, &text) {
            let words = block.text.split_whitespace().count();
            let piece = format!("{file}:{}: {}", block.line, block.text);
            match (block.kind, group) {
                (Kind::Item | Kind::Inside, Some(group)) => found.comments[group].push(piece),
                (Kind::Document, _) if words >= PARAGRAPH_WORDS_MIN => found.paragraphs.push(piece),
                (Kind::Message, _) if block.line < tests_from && has_words(&block.text) => found.messages.push(piece),
                _ => {}
            }
        }
    }
    found
}

/// Returns true if a message has enough words to be judged. A named placeholder counts as a word.
fn has_words(message: &str) -> bool {
    message.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count() >= MESSAGE_WORDS_MIN
}

/// Returns the number of the first line of the tests that end a file, or `usize::MAX` if there are none. A file of
/// tests is recognised by its path, and a test module by its attribute.
fn tests_begin(file: &str, text: &str) -> usize {
    if file.split('/').any(|part| part == "tests" || part == "tests.rs" || part.ends_with("_tests.rs")) {
        return 0;
    }
    let lines: Vec<&str> = text.lines().collect();
    let begins = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{');
    lines.windows(2).position(begins).map_or(usize::MAX, |at| at + 1)
}

/// Draws `count` different pieces, or all pieces if there are fewer.
fn drawn(random: &mut Random, mut pieces: Vec<String>, count: usize) -> Vec<String> {
    let count = count.min(pieces.len());
    (0..count).map(|_| pieces.swap_remove(random.below(pieces.len()))).collect()
}

#[test]
fn equal_seeds_draw_equal_samples_without_repetition() {
    let pieces: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let of = |seed| drawn(&mut Random::new(seed), pieces.clone(), 20);
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
    let mut sorted = of(1);
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), 20);
    assert_eq!(drawn(&mut Random::new(1), pieces[..5].to_vec(), 20).len(), 5);
}

#[test]
fn messages_of_tests_and_bare_placeholders_are_left_out() {
    let source = "fn a() {}\n#[cfg(test)]\nmod tests {\n}\n";
    assert_eq!(tests_begin("crates/log/src/flush.rs", source), 2);
    assert_eq!(tests_begin("crates/log/src/flush.rs", "#[cfg(test)]\nmod tests;\nfn a() {}\n"), usize::MAX);
    assert_eq!(tests_begin("crates/log/src/flush/tests.rs", source), 0);
    assert_eq!(tests_begin("crates/rules/src/group/migration_tests.rs", source), 0);
    assert_eq!(tests_begin("tests/src/client.rs", source), 0);
    assert!(has_words("cannot open {path}"));
    assert!(!has_words("{path}: {error}"));
}
