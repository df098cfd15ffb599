//! Writes a sweep as one JSON document.

use super::{About, number, ratio};
use crate::report::json::{array, null, object, string};
use crate::sweep::{Amount, METRICS, PointResult, Results, Run};
use std::time::UNIX_EPOCH;

/// The name of the document's layout. A change that breaks programs that read the document must change this name.
const FORMAT: &str = "fullbore-sweep/1";

/// Returns the document, with the plan, every point and every measurement.
pub fn document(about: &About, results: &Results) -> String {
    let plan = &results.plan;
    let texts = |values: &[String]| array(values.iter().map(|value| string(value)));
    let axis = |axis: &crate::sweep::Axis| object([("name", string(&axis.name())), ("values", texts(&axis.values))]);
    let target = |target: &crate::sweep::Target| {
        object([("name", string(&target.name)), ("bootstrap_servers", string(&target.bootstrap_servers))])
    };
    // A report must not show secrets.
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
            let digits = |figure: Option<f64>| figure.map_or_else(null, |figure| format!("{figure:.3}"));
            members.extend(METRICS.iter().map(|metric| (metric.column, digits((metric.of)(figures)))));
            members.push(("cut_short", figures.cut_short.to_string()));
        }
        Err(error) => members.push(("error", string(error))),
    }
    object(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::json::assert_is_json;
    use crate::sweep::sample_results;

    #[test]
    fn the_document_is_json() {
        let about = About { title: "quote \" and \\ and \n".to_owned(), ..About::default() };
        for interrupted in [false, true] {
            assert_is_json(&document(&about, &crate::sweep::Results { interrupted, ..sample_results() }));
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
