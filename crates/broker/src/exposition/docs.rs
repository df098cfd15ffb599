//! Generates `docs/metrics.md` from the table of metrics. A test compares the committed page with the result.

use super::families::FAMILIES;
use prometheus_client::registry::Unit;

const HEAD: &str = "\
# Metrics

The broker serves its metrics at `http://127.0.0.1:9644/metrics` (`fullbore.admin.listener`), as text for Prometheus
(OpenMetrics 1.0). Counters start at zero with the process. A histogram `x` has the samples `x_bucket`, `x_sum` and
`x_count`.

`/readyz` (`/healthz` is the same) is for load balancers: 200 while the broker accepts records, else 503 with the
reason. A full disk also gives 503, although reads and deletions continue and a restart changes nothing. `/livez` is for
supervisors: 200 unless only a restart helps. While a cluster's database is unreachable, both return 200, since all
brokers continue without it. `/readyz` then reports the database on a second line. It does the same if the object store
of diskless topics is unreachable or if partitions are damaged. A stopping broker serves all these paths until it has
answered its clients.

[Operating](operating.md#metrics) has a scrape configuration and a [runbook for each alert](operating.md#alerts).

Generated from the table in `crates/broker/src/exposition/families.rs`; a test compares this page with it. To write the
page: `UPDATE_DOCS=1 cargo test -p fullbore-broker committed_page`.

## Contents

";

/// The headings of the page. Each is written before the family with the given name.
const SECTIONS: &[(&str, &str)] = &[
    ("Broker and connections", "fullbore_broker"),
    ("Produce and fetch", "fullbore_request_duration"),
    ("Replication", "fullbore_replication_in"),
    ("Metrics of clients", "fullbore_telemetry_pushes"),
    ("Groups and transactions", "fullbore_offset_commits"),
    ("Partitions and disk", "fullbore_topics"),
    ("Compaction", "fullbore_cleaner_runs"),
    ("Diskless topics", "fullbore_diskless_puts"),
    ("Metadata and database", "fullbore_metadata_epoch"),
    ("Process", "fullbore_process_cpu"),
];

const TABLE: &str = "\
| name | type | unit | labels | meaning |
|---|---|---|---|---|
";

/// Returns the text of `docs/metrics.md`.
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    for (title, _) in SECTIONS {
        text.push_str(&format!("- [{title}](#{})\n", title.to_lowercase().replace(' ', "-")));
    }
    for family in FAMILIES {
        if let Some((title, _)) = SECTIONS.iter().find(|(_, first)| *first == family.name) {
            text.push_str(&format!("\n## {title}\n\n{TABLE}"));
        }
        let (name, kind) = (family.full_name(), family.kind.as_str());
        let unit = family.unit.map_or("", Unit::as_str);
        let labels: Vec<_> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        text.push_str(&format!("| `{name}` | {kind} | {unit} | {} | {} |\n", labels.join(", "), family.help));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_page_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(path, markdown()).expect("docs is writable");
        }
        let committed = std::fs::read_to_string(path).expect("docs/metrics.md is there");
        assert!(
            committed == markdown(),
            "docs/metrics.md is old: UPDATE_DOCS=1 cargo test -p fullbore-broker committed_page"
        );
    }

    #[test]
    fn page_has_every_section_in_order_from_the_first_family_on() {
        let page = markdown();
        let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).skip(1).collect();
        let titles: Vec<&str> = SECTIONS.iter().map(|(title, _)| *title).collect();
        assert_eq!(headings, titles);
        assert_eq!(FAMILIES[0].name, SECTIONS[0].1);
    }

    #[test]
    fn names_are_prometheus_names_and_helps_are_sentences() {
        for family in FAMILIES {
            let name = family.full_name();
            assert!(name.starts_with("fullbore_"), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert!(family.help.ends_with('.') && !family.help.contains(['\n', '\\', '|']), "{name}: {}", family.help);
        }
    }
}
