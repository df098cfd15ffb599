//! Checks the project's English by the rules under "Words" in CONTRIBUTING.md.
//!
//! The check reads comments, documents, texts of logs and errors, and names of tests. It has no list of exceptions.
//! `WORDS=PREFIX` limits it to files whose path begins with `PREFIX`.

use super::prose::{self, Block, Kind};
use std::fs;

/// Maximum number of words in a sentence.
const SENTENCE_WORDS_MAX: usize = 30;

/// Maximum number of columns of a line in a comment or document.
const COLUMNS_MAX: usize = 120;

/// First words with which a comment on an item has no subject.
const HEADLESS: &[&str] = &[
    "what", "who", "whoever", "whose", "where", "wherever", "whether", "which", "whatever", "it", "they", "them",
    "that", "those", "these", "one", "such", "so", "has",
];

/// First words with which any other comment has no subject.
const HEADLESS_INSIDE: &[&str] = &["what", "who", "whoever", "whose", "whether", "those", "that", "them"];

/// Verbs of speech, and pronouns for persons. A mechanism is not a person and does not speak.
const SPEECH_AND_PERSONS: &[&str] = &[
    "tell",
    "tells",
    "told",
    "telling",
    "say",
    "says",
    "said",
    "saying",
    "ask",
    "asks",
    "asked",
    "asking",
    "hear",
    "hears",
    "heard",
    "hearing",
    "somebody",
    "nobody",
    "anybody",
    "everybody",
    "someone",
    "anyone",
    "everyone",
    "whoever",
    "whomever",
];

/// Words that must not follow "so". The comment should name the parameter instead.
const SO_MANY: &[&str] = &["many", "much", "long", "often"];

/// First words with which the name of a test lacks a state.
const HEADLESS_TESTS: &[&str] = &[
    "what", "who", "whoever", "whose", "where", "wherever", "whether", "which", "whatever", "it", "they", "that",
    "those", "so",
];

#[test]
fn committed_text_keeps_the_rules_of_words() {
    let root = prose::root();
    let prefix = std::env::var("WORDS").unwrap_or_default();
    let mut wrong = Vec::new();
    for file in prose::files(&root).into_iter().filter(|file| file.starts_with(&prefix)) {
        let text = fs::read_to_string(root.join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        wrong.extend(findings(&file, &text).into_iter().map(|finding| format!("{file}:{finding}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns one line for each broken rule, in the form `LINE: RULE: TEXT`.
fn findings(file: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for block in prose::blocks(file, text) {
        breaches(&block, &mut found);
    }
    for (line, columns) in prose::long_lines(file, text, COLUMNS_MAX) {
        found.push(format!("{line}: {columns} columns"));
    }
    found
}

fn breaches(block: &Block, found: &mut Vec<String>) {
    let words = words(&block.text);
    let mut add = |rule: &str| found.push(format!("{}: {rule}: {}", block.line, beginning(&block.text)));
    if block.kind == Kind::TestName {
        let headless = words.first().is_some_and(|word| HEADLESS_TESTS.contains(&word.as_str()));
        if headless || words.iter().any(|word| SPEECH_AND_PERSONS.contains(&word.as_str())) {
            add("name of a test");
        }
        return;
    }
    let headless = match block.kind {
        Kind::Item => HEADLESS,
        Kind::Inside => HEADLESS_INSIDE,
        Kind::Document | Kind::Message | Kind::TestName => &[],
    };
    if let Some(word) = words.first().filter(|word| headless.contains(&word.as_str())) {
        add(&format!("begins with \"{word}\""));
    }
    if let Some(word) = words.iter().find(|word| SPEECH_AND_PERSONS.contains(&word.as_str())) {
        add(&format!("\"{word}\""));
    }
    if let Some(pair) = words.windows(2).find(|pair| pair[0] == "so" && SO_MANY.contains(&pair[1].as_str())) {
        add(&format!("\"so {}\"", pair[1]));
    }
    for sentence in sentences(&block.text) {
        let count = sentence.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count();
        if count > SENTENCE_WORDS_MAX {
            found.push(format!("{}: {count} words: {}", block.line, beginning(sentence)));
        }
    }
}

/// Splits a text into words in lower case. A span of code is a single word that no rule mentions.
fn words(text: &str) -> Vec<String> {
    text.split(|letter: char| !(letter.is_alphanumeric() || letter == '\''))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

/// Splits a text into sentences. A sentence ends at a full stop, question mark or exclamation mark that a space
/// follows.
fn sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let mut from = 0;
    for (at, letter) in text.char_indices() {
        let after = &text[at + letter.len_utf8()..];
        if matches!(letter, '.' | '?' | '!') && after.trim_start_matches([')', '"', '*']).starts_with(' ') {
            sentences.push(&text[from..at]);
            from = at + letter.len_utf8();
        }
    }
    sentences.push(&text[from..]);
    sentences
}

fn beginning(text: &str) -> String {
    text.trim().chars().take(90).collect()
}

#[test]
fn each_rule_broken_once_gives_one_finding() {
    let source = "\
/// What was not answered.
fn a() {}
/// Returns a count that the leader told.
fn b() {}
/// Waits for so many bytes.
fn c() {
    // Whoever waits looks again.
    warn!(\"nobody leads it\");
}
#[test]
fn what_it_finds() {}
";
    let rules: Vec<String> =
        findings("a.rs", source).iter().map(|it| it.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        rules,
        [
            "1 begins with \"what\"",
            "3 \"told\"",
            "5 \"so many\"",
            "7 begins with \"whoever\"",
            "7 \"whoever\"",
            "8 \"nobody\"",
            "11 name of a test"
        ]
    );
    let long = format!("/// Returns {}.\nfn a() {{}}\n", "word ".repeat(30).trim());
    assert_eq!(
        findings("a.rs", &long),
        ["1: 31 words: ".to_owned() + &beginning(&long[4..]), "1: 162 columns".to_owned()]
    );
}

#[test]
fn code_and_a_document_that_keep_the_rules_give_none() {
    assert_eq!(
        findings("a.rs", "/// Returns `what` the leader has.\nfn what() { warn!(\"cannot read {path}: {error}\"); }\n"),
        Vec::<String>::new()
    );
    assert_eq!(
        findings(
            "a.md",
            "# What it is\n\nA broker.\n\n```\nnobody\n```\n\n    nobody\n    tells\n\n| a | b |\n|---|---|\n| Returned | Sent |\n"
        ),
        Vec::<String>::new()
    );
}

#[test]
fn comments_and_docstrings_of_a_script_are_checked() {
    let python = "\
#!/usr/bin/env python3
\"\"\"Asks for a figure.

    usage: nobody
\"\"\"
TEXT = r\"\"\"
nobody # nobody
\"\"\"
# Whoever waits
# looks again.
run()  # so many rounds
";
    let rules = |file: &str, text: &str| -> Vec<String> {
        findings(file, text).iter().map(|it| it.split(": ").take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!(
        rules("bench/a", python),
        ["2 \"asks\"", "9 begins with \"whoever\"", "9 \"whoever\"", "11 \"so many\""]
    );
    assert_eq!(rules("a.sh", "#!/bin/sh\n# Nobody waits.\necho \"a # nobody\"\n"), ["2 \"nobody\""]);
}
