//! Writes a sweep as comma-separated values (RFC 4180): one file with its measurements, and one with its points.

use super::{number, ratio};
use crate::report::DateFormat;
use crate::sweep::{METRICS, Results, Run};

/// The format of a measurement's time, in UTC.
const TIME: &str = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'";

/// Returns every measurement in the order of measuring, with all its digits.
pub fn runs(results: &Results) -> String {
    let dates = DateFormat::parse(TIME).expect("the pattern is valid");
    let points = results.plan.points();
    let mut header = vec!["repeat".to_owned(), "started".to_owned(), "target".to_owned()];
    header.extend(results.plan.axes.iter().map(|axis| axis.name()));
    header.extend(["records", "bytes", "elapsed_ms"].map(str::to_owned));
    header.extend(METRICS.iter().map(|metric| metric.column.to_owned()));
    header.extend(["cut_short", "error"].map(str::to_owned));
    let row = |run: &Run| {
        let target = results.plan.targets[run.turn.target].name.clone();
        let mut row = vec![(run.turn.repeat + 1).to_string(), dates.format(run.started), target];
        let values = results.plan.axes.iter().zip(&points[run.turn.point]);
        row.extend(values.map(|(axis, value)| axis.values[*value].clone()));
        match &run.outcome {
            Ok(figures) => {
                let elapsed_ms = figures.elapsed.as_secs_f64() * 1e3;
                row.extend([figures.records.to_string(), figures.bytes.to_string(), format!("{elapsed_ms:.3}")]);
                row.extend(METRICS.iter().map(|metric| digits((metric.of)(figures))));
                row.extend([figures.cut_short.to_string(), String::new()]);
            }
            Err(error) => {
                row.extend(std::iter::repeat_n(String::new(), 3 + METRICS.len() + 1));
                row.push(error.clone());
            }
        }
        row
    };
    lines(std::iter::once(header).chain(results.runs.iter().map(row)))
}

/// Returns every point with the median, minimum and maximum of its repeats. These are the numbers of the report.
pub fn points(results: &Results) -> String {
    let points = results.points();
    let (to_best, to_first) = (results.ratios_to_best(&points), results.ratios_to_first(&points));
    let mut header: Vec<String> = results.plan.axes.iter().map(|axis| axis.name()).collect();
    header.extend(["target", "runs"].map(str::to_owned));
    for metric in &METRICS {
        header
            .extend([String::new(), "_min".to_owned(), "_max".to_owned()].map(|part| metric.column.to_owned() + &part));
    }
    header.extend(["ratio_to_best", "ratio_to_first_target", "cut_short", "error"].map(str::to_owned));
    let row = |(i, point): (usize, &crate::sweep::PointResult)| {
        let values = results.plan.axes.iter().zip(&point.point);
        let mut row: Vec<String> = values.map(|(axis, value)| axis.values[*value].clone()).collect();
        row.extend([results.plan.targets[point.target].name.clone(), point.runs.to_string()]);
        for spread in point.spreads {
            row.extend(match spread {
                Some(spread) => [spread.median, spread.min, spread.max].map(number),
                None => [const { String::new() }; 3],
            });
        }
        row.extend([to_best[i], to_first[i]].map(|found| found.map(ratio).unwrap_or_default()));
        row.extend([point.cut_short.to_string(), point.error.clone().unwrap_or_default()]);
        row
    };
    lines(std::iter::once(header).chain(points.iter().enumerate().map(row)))
}

/// Formats a figure of a measurement with all its digits. If it is unknown, the result is empty.
fn digits(figure: Option<f64>) -> String {
    figure.map(|figure| format!("{figure:.3}")).unwrap_or_default()
}

fn lines(rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |row: Vec<String>| row.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\n";
    rows.map(line).collect()
}

fn quoted(cell: &str) -> String {
    match cell.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::sample_results;

    #[test]
    fn every_measurement_has_a_line() {
        let text = runs(&sample_results());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 16);
        assert!(lines[0].starts_with("repeat,started,target,max.in.flight,record-size,records,bytes,elapsed_ms,"));
        assert!(
            lines[1].starts_with("1,1970-01-01T00:00:00.000Z,kafka,1,64,1000,100000,1000.000,1000.000,"),
            "{}",
            lines[1]
        );
        let columns = lines[0].split(',').count();
        assert!(lines.iter().all(|line| line.split(',').count() == columns), "none of these has a comma in a cell");
        assert!(lines[7].ends_with(",it was <refused>"), "{}", lines[7]);
    }

    #[test]
    fn every_point_has_a_line_with_its_spread() {
        let text = points(&sample_results());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 8);
        assert!(lines[0].starts_with("max.in.flight,record-size,target,runs,records_per_sec,records_per_sec_min,"));
        assert!(lines[1].starts_with("1,64,kafka,2,1005,1000,1010,"), "{}", lines[1]);
        assert!(lines[7].contains("kafka,0,,,,") && lines[7].ends_with(",false,it was <refused>"), "{}", lines[7]);
    }

    #[test]
    fn cells_that_hold_separators_are_quoted() {
        let row = vec!["a,b".to_owned(), "say \"x\"".to_owned(), "plain".to_owned()];
        assert_eq!(lines([row].into_iter()), "\"a,b\",\"say \"\"x\"\"\",plain\n");
    }
}
