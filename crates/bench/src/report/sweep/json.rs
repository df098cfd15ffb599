//! A sweep as one JSON document (RFC 8259), written here because it is only written, never read.

use super::{About, number, ratio};
use crate::sweep::{Amount, METRICS, PointResult, Results, Run};
use std::time::UNIX_EPOCH;

/// The layout of the document; a change that breaks its readers gets another.
const FORMAT: &str = "fullbore-sweep/1";

/// Everything: what was asked for, every point and every measurement.
pub fn document(about: &About, results: &Results) -> String {
    let plan = &results.plan;
    let texts = |values: &[String]| array(values.iter().map(|value| string(value)));
    let axis = |axis: &crate::sweep::Axis| object([("name", string(&axis.name())), ("values", texts(&axis.values))]);
    let target = |target: &crate::sweep::Target| {
        object([("name", string(&target.name)), ("bootstrap_servers", string(&target.bootstrap_servers))])
    };
    // What is secret is nobody's business who reads a report.
    let open = plan.fixed.iter().filter(|(setting, _)| !setting.is_secret());
    let fixed: Vec<(String, &String)> = open.map(|(setting, value)| (setting.name(), value)).collect();
    let amount = match plan.amount {
        Amount::Time(time) => ("duration_ms", time.as_millis().to_string()),
        Amount::Records(records) => ("records", records.to_string()),
    };
    let points = results.points();
    let (to_best, to_first) = (results.ratios_to_best(&points), results.ratios_to_first(&points));
    let point = |(i, point): (usize, &PointResult)| of_point(results, point, to_best[i], to_first[i]);
    object([
        ("format", string(FORMAT)),
        ("title", string(&about.title)),
        ("lead", string(&about.lead)),
        ("facts", object(about.facts.iter().map(|(name, value)| (name.as_str(), string(value))))),
        ("axes", array(plan.axes.iter().map(axis))),
        ("fixed", object(fixed.iter().map(|(name, value)| (name.as_str(), string(value))))),
        ("targets", array(plan.targets.iter().map(target))),
        amount,
        ("warmup_ms", plan.warmup.as_millis().to_string()),
        ("repeats", plan.repeats.to_string()),
        ("interrupted", results.interrupted.to_string()),
        ("points", array(points.iter().enumerate().map(point))),
        ("runs", array(results.runs.iter().map(|run| of_run(results, run)))),
    ]) + "\n"
}

fn values(results: &Results, point: &[usize]) -> String {
    let axes: Vec<(String, String)> =
        results.plan.axes.iter().zip(point).map(|(axis, value)| (axis.name(), string(&axis.values[*value]))).collect();
    object(axes.iter().map(|(name, value)| (name.as_str(), value.clone())))
}

fn of_point(results: &Results, point: &PointResult, to_best: Option<f64>, to_first: Option<f64>) -> String {
    let metrics = METRICS.iter().zip(point.spreads).map(|(metric, spread)| {
        let spread = spread.map(|spread| {
            object([("median", number(spread.median)), ("min", number(spread.min)), ("max", number(spread.max))])
        });
        (metric.column, spread.unwrap_or_else(null))
    });
    object([
        ("values", values(results, &point.point)),
        ("target", string(&results.plan.targets[point.target].name)),
        ("runs", point.runs.to_string()),
        ("figures", object(metrics)),
        ("ratio_to_best", to_best.map_or_else(null, ratio)),
        ("ratio_to_first_target", to_first.map_or_else(null, ratio)),
        ("cut_short", point.cut_short.to_string()),
        ("error", point.error.as_deref().map_or_else(null, string)),
    ])
}

fn of_run(results: &Results, run: &Run) -> String {
    let started_ms = run.started.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let mut members = vec![
        ("repeat", (run.turn.repeat + 1).to_string()),
        ("started_ms", started_ms.to_string()),
        ("target", string(&results.plan.targets[run.turn.target].name)),
        ("values", values(results, &results.plan.points()[run.turn.point])),
    ];
    match &run.outcome {
        Ok(figures) => {
            members.extend([
                ("records", figures.records.to_string()),
                ("bytes", figures.bytes.to_string()),
                ("elapsed_ms", format!("{:.3}", figures.elapsed.as_secs_f64() * 1e3)),
            ]);
            members.extend(METRICS.iter().map(|metric| (metric.column, format!("{:.3}", (metric.of)(figures)))));
            members.push(("cut_short", figures.cut_short.to_string()));
        }
        Err(error) => members.push(("error", string(error))),
    }
    object(members)
}

fn null() -> String {
    "null".to_owned()
}

fn object<'a>(members: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let members: Vec<String> = members.into_iter().map(|(name, value)| format!("{}:{value}", string(name))).collect();
    format!("{{{}}}", members.join(","))
}

fn array(elements: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", elements.into_iter().collect::<Vec<_>>().join(",\n"))
}

fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", control as u32)),
            other => out.push(other),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::sample_results;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(string("a\"b\\c\nd<é"), "\"a\\\"b\\\\c\\u000ad<é\"");
    }

    /// Where the value that starts here ends; panics where the text is no JSON.
    fn end_of(text: &[u8], at: usize) -> usize {
        let space = |mut at: usize| {
            while text[at].is_ascii_whitespace() {
                at += 1;
            }
            at
        };
        let rest = |at: usize| String::from_utf8_lossy(&text[at..text.len().min(at + 40)]).into_owned();
        let at = space(at);
        let close = match text[at] {
            b'{' => b'}',
            b'[' => b']',
            b'"' => {
                let mut end = at + 1;
                while text[end] != b'"' {
                    assert!(text[end] >= b' ', "a bare control character before {}", rest(end));
                    end += if text[end] == b'\\' { 2 } else { 1 };
                }
                return end + 1;
            }
            _ => {
                let word = text[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
                let end = at + word.count();
                let word = String::from_utf8_lossy(&text[at..end]);
                let known = ["true", "false", "null"].contains(&word.as_ref());
                assert!(known || word.parse::<f64>().is_ok_and(f64::is_finite), "{}", rest(at));
                return end;
            }
        };
        let mut next = space(at + 1);
        while text[next] != close {
            if close == b'}' {
                assert_eq!(text[next], b'"', "{}", rest(next));
                next = space(end_of(text, next));
                assert_eq!(text[next], b':', "{}", rest(next));
                next += 1;
            }
            next = space(end_of(text, next));
            assert!(text[next] == close || text[next] == b',', "{}", rest(next));
            if text[next] == b',' {
                next = space(next + 1);
                assert_ne!(text[next], close, "a comma before the end");
            }
        }
        next + 1
    }

    #[test]
    fn the_document_is_json() {
        let about = About { title: "quote \" and \\ and \n".to_owned(), ..About::default() };
        for interrupted in [false, true] {
            let text = document(&about, &crate::sweep::Results { interrupted, ..sample_results() });
            assert_eq!(text[end_of(text.as_bytes(), 0)..].trim(), "");
        }
    }

    #[test]
    fn points_and_runs_are_all_there() {
        let about = About { title: "t".to_owned(), lead: String::new(), facts: vec![("Date".into(), "x".into())] };
        let text = document(&about, &sample_results());
        assert!(text.starts_with("{\"format\":\"fullbore-sweep/1\",\"title\":\"t\""), "{text}");
        assert_eq!(text.matches("\"ratio_to_best\":").count(), 8);
        assert_eq!(text.matches("\"started_ms\":0").count(), 16);
        assert!(text.contains("\"records_per_sec\":{\"median\":1005,\"min\":1000,\"max\":1010}"), "{text}");
        assert!(text.contains("\"error\":\"it was <refused>\""), "{text}");
        assert_eq!(text.matches(['{', '[']).count(), text.matches(['}', ']']).count());
    }
}
